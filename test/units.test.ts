// What others run the sweeps by - units, crontab, CronJob, workflow - says what the headers say.
import { execFileSync, spawnSync } from "node:child_process";
import { copyFileSync, cpSync, existsSync, mkdirSync, readdirSync, readFileSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { onCalendar } from "../scripts/lib/calendar.js";
import { readLanes } from "../scripts/lib/lanes.js";
import { dueAtMs } from "../scripts/lib/schedule.js";
import { makeUnits } from "../scripts/lib/units.js";
import { fresh, program, ROOT } from "./support.js";

const hasSystemd = spawnSync("systemd-analyze", ["--version"]).status === 0;
const folder = (user: boolean) => join(ROOT, "systemd", user ? "user" : "");
const unitFiles = (dir: string) => readdirSync(dir).filter((name) => /\.(service|timer)$/.test(name)).sort();

describe.each([["system", false], ["user", true]] as const)("the committed %s units", (_, user) => {
  test('are those of the headers: after changing a schedule, "make units"', () => {
    const units = makeUnits(user);
    expect(unitFiles(folder(user))).toEqual(Object.keys(units).sort());
    for (const [name, text] of Object.entries(units)) expect(readFileSync(join(folder(user), name), "utf8"), name).toBe(text);
  });

  test("keep the daily time, catch it up, and are on the second for expiry", () => {
    const read = (name: string) => readFileSync(join(folder(user), name), "utf8");
    expect(read("fleet-queue-sweep-daily.timer")).toMatch(/^OnCalendar=\*-\*-\* 05:17:00\nPersistent=true\nRandomizedDelaySec=/m);
    expect(read("fleet-queue-sweep-expire.timer")).toMatch(/^OnCalendar=\*-\*-\* \*:\*:00\nAccuracySec=1s$/m);
    expect(read("fleet-queue-sweep@.service")).toMatch(/^OnFailure=.*[^]*^TimeoutStartSec=/m);
  });

  test.skipIf(!hasSystemd)("are clean to systemd-analyze verify", () => {
    const paths = unitFiles(folder(user)).map((name) => join(folder(user), name));
    const own = { XDG_RUNTIME_DIR: fresh("run"), HOME: fresh("home") };
    for (const dir of Object.values(own)) mkdirSync(dir);
    const { status, stdout, stderr } = spawnSync("systemd-analyze", [...(user ? ["--user"] : []), "verify", ...paths], { encoding: "utf8", env: { ...process.env, ...own } });
    // Of this machine's other units it may speak as it likes.
    const said = (stdout + stderr).split("\n").filter((line) => line.includes("fleet-queue"));
    expect({ status, said }).toEqual({ status: 0, said: [] });
  });
});

test.skipIf(!hasSystemd)("the system's services are exposed no more than they are today", () => {
  for (const [name, exposure] of [["fleet-queue-sweep@.service", 12], ["fleet-queue-sweep-daemon.service", 14]] as const) {
    const { status, stdout } = spawnSync("systemd-analyze", ["security", "--offline=true", "--no-pager", `--threshold=${exposure}`, join(folder(false), name)], { encoding: "utf8" });
    expect({ name, status, overall: /Overall exposure level.*/.exec(stdout)?.[0] }).toMatchObject({ name, status: 0, overall: expect.stringMatching(/: \d\.\d /) });
  }
});

test.skipIf(!hasSystemd)("systemd reads a calendar as cron reads its pattern", () => {
  const base = Date.UTC(2026, 11, 1);
  for (const pattern of ["* * * * *", "17 5 * * *", "*/15 * * * *", "0,30 6-8 * * *", "5 4 1,15 * *", "5 4 * 2 *", "17 5 * * 1-5", "17 5 * * 0", "17 5 * * 7", "0 */6 */2 */3 *", "3-59/10 1 * * *"]) {
    const out = execFileSync("systemd-analyze", ["calendar", "--base-time=2026-12-01 00:00:00 UTC", "--iterations=4", onCalendar(pattern)], { encoding: "utf8", env: { ...process.env, TZ: "UTC", LC_ALL: "C" } });
    const elapses = [...out.matchAll(/(?:Next elapse|Iteration #\d|Iter\. #\d): \w+ (\S+) (\S+) UTC/g)].map(([, day, time]) => `${day}T${time}.000Z`);
    const due: string[] = [];
    for (let at = base; due.length < elapses.length; due.push(new Date(at).toISOString())) at = dueAtMs(pattern, at, "UTC");
    expect({ pattern, elapses }).toEqual({ pattern, elapses: due });
    expect(elapses.length).toBeGreaterThan(1);
  }
  expect(() => onCalendar("17 5 1 * 1")).toThrow(/one of the two/);
  expect(() => onCalendar("17 5 L * *")).toThrow(/no calendar/);
});

describe("make schedule", () => {
  test("prints the headers' schedules in each format, and every command it prints is one", async () => {
    const lanes = readLanes();
    expect(lanes.map(({ job, pattern }) => [job, pattern])).toEqual([["expire", "* * * * *"], ["daily", "17 5 * * *"]]);
    const verbs = (await program(["help"])).stdout;
    for (const format of ["crontab", "k8s", "gha", "systemd"]) {
      const { code, stdout, stderr } = await program(["schedule", "--format", format]);
      expect({ format, code, stderr }).toEqual({ format, code: 0, stderr: "" });
      for (const { job } of lanes) expect(stdout, format).toContain(`sweep-${job}`);
      for (const [, verb] of stdout.matchAll(/\b(sweep-(?!queue)[a-z]+)["'\s].*--origin/g)) expect(verbs).toMatch(new RegExp(`^  ${verb} `, "m"));
    }
    const printed = async (format: string) => (await program(["schedule", "--format", format])).stdout;
    expect(await printed("crontab")).toMatch(/^\* \* \* \* \* .*sweep-expire --origin timer$\n^17 5 \* \* \* .*sweep-daily --origin timer$/m);
    expect(await printed("k8s")).toMatch(/schedule: "\* \* \* \* \*"[^]*---[^]*schedule: "17 5 \* \* \*"/);
    expect(await printed("gha")).toMatch(/cron: "\*\/5 \* \* \* \*"[^]*cron: "17 5 \* \* \*"/);
    for (const [name, text] of Object.entries(makeUnits(false))) expect(await printed("systemd")).toContain(`# systemd/${name}\n${text.trimEnd()}`);
    expect(await program(["schedule", "--format", "at"])).toMatchObject({ code: 64, stderr: expect.stringContaining('got "at"') });
  });
});

describe("make install-units", () => {
  const make = (target: string, env: Record<string, string>, ...words: string[]) => execFileSync("make", ["-C", ROOT, "--no-print-directory", target, ...words], { encoding: "utf8", env: { ...process.env, ...env } });

  test.each([["the system", []], ["one user", ["USER=1"]]] as const)("for %s: again changes nothing, an older one is updated, and all of them go again", (_, words) => {
    const dir = fresh("units");
    const first = make("install-units", {}, `UNIT_DIR=${dir}`, `DESTDIR=/`, ...words);
    expect(first).toMatch(/^installed .*daily\.timer$[^]*Nothing was started[^]*enable --now/m);
    expect(first.includes("systemctl --user")).toBe(words.length > 0);
    expect(unitFiles(dir)).toEqual(unitFiles(folder(words.length > 0)));
    for (const name of unitFiles(dir)) expect(readFileSync(join(dir, name), "utf8")).toBe(readFileSync(join(folder(words.length > 0), name), "utf8"));

    expect(make("install-units", {}, `UNIT_DIR=${dir}`, `DESTDIR=/`, ...words)).not.toMatch(/^(installed|updated)/m);
    writeFileSync(join(dir, "fleet-queue-sweep-daily.timer"), "[Timer]\n");
    writeFileSync(join(dir, "other.timer"), "[Timer]\n");
    expect(make("install-units", {}, `UNIT_DIR=${dir}`, `DESTDIR=/`, ...words).match(/^(installed|updated) .*/gm)).toEqual([expect.stringMatching(/^updated .*daily\.timer$/)]);
    expect(statSync(join(dir, "fleet-queue-sweep-daily.timer")).mode & 0o777).toBe(0o644);

    make("uninstall-units", {}, `UNIT_DIR=${dir}`, `DESTDIR=/`, ...words);
    expect(readdirSync(dir)).toEqual(["other.timer"]);
    expect(make("uninstall-units", {}, `UNIT_DIR=${dir}`, `DESTDIR=/`, ...words)).toContain("no units in");
  });

  test("in place, the units call this very program; those of the system refuse what they could not read", async () => {
    const dir = fresh("units");
    const run = await program(["install-units", "--user"], { UNIT_DIR: dir });
    expect(run).toMatchObject({ code: 0, stderr: "" });
    const [, node, main] = /^ExecStart=(\S+) (\S+) sweep-daemon$/m.exec(readFileSync(join(dir, "fleet-queue-sweep-daemon.service"), "utf8"))!;
    expect([node, existsSync(main!)]).toEqual([process.execPath, true]);

    const copy = join(fresh("copy"), "package");
    for (const part of ["dist", "db"]) cpSync(join(ROOT, part), join(copy, part), { recursive: true });
    symlinkSync(join(ROOT, "node_modules"), join(copy, "node_modules"));
    copyFileSync(join(ROOT, "package.json"), join(copy, "package.json"));
    const hidden = /^\/(tmp|var\/tmp|home|root)\//.test(copy);
    const { status, stderr } = spawnSync(process.execPath, [join(copy, "dist/main.js"), "install-units"], { encoding: "utf8", env: { PATH: process.env.PATH, UNIT_DIR: dir } });
    expect({ status, stderr }).toEqual(hidden ? { status: 78, stderr: expect.stringContaining("lies where the system's units may not look") } : { status: 0, stderr: "" });
    expect(await program(["install-units", "--observe"], { UNIT_DIR: dir })).toMatchObject({ code: 64 });
  });
});
