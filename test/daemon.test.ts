// The daemon as it runs for a year: what is due follows from the ledger and the database's clock, which these tests turn.
import { spawn, type ChildProcess } from "node:child_process";
import { renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { createClient } from "@libsql/client";
import { expect, test as plain } from "vitest";
import { DAY, fresh, modeFile, NOW, onEachEngine, program, ROOT, scratch, SQLD, startServer, type Row } from "./support.js";

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const at = (iso: string) => new Date(iso).getTime();
type Daemon = { process: ChildProcess; runs(sweep?: string): Row[]; stderr(): string; stop(signal?: NodeJS.Signals): Promise<{ code: number | null; tookMs: number }> };

/** Waits until what is expected has come, at most half a minute; a loaded machine is slow, a broken daemon never gets there. */
async function until<T>(read: () => Promise<T> | T, holds: (value: T) => boolean): Promise<T> {
  for (let tries = 0; ; tries++) {
    const value = await read();
    if (holds(value) || tries === 600) {
      expect(value, "came to be within half a minute").toSatisfy(holds);
      return value;
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
const rest = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

const daemons: Daemon[] = [];
function start(url: string, env: Record<string, string> = {}, args = ["--json"]): Daemon {
  const child = spawn(process.execPath, [join(ROOT, "dist/main.js"), "sweep-daemon", ...args], {
    env: { PATH: process.env.PATH, HOME: scratch, TZ: "UTC", SWEEP_POLL_MS: "50", DATABASE_URL: url, ...env },
    cwd: scratch,
    stdio: ["ignore", "pipe", "pipe"],
  });
  let stdout = "";
  let stderr = "";
  child.stdout!.on("data", (text) => (stdout += text));
  child.stderr!.on("data", (text) => (stderr += text));
  const ended = new Promise<number | null>((resolve) => child.once("close", resolve));
  const daemon: Daemon = {
    process: child,
    runs: (sweep) => stdout.split("\n").slice(0, -1).map((text) => JSON.parse(text) as Row).filter((run) => !sweep || run.sweep === sweep),
    stderr: () => stderr,
    stop: async (signal = "SIGTERM") => {
      const asked = performance.now();
      child.kill(signal);
      const code = await ended;
      return { code, tookMs: performance.now() - asked };
    },
  };
  daemons.push(daemon);
  return daemon;
}

onEachEngine("the daemon", (base) => {
  const test = base.extend<{ cleanUp: void }>({
    cleanUp: [async ({ db }, use) => {
      await use(void db);
      await Promise.all(daemons.splice(0).map((daemon) => daemon.stop("SIGKILL")));
    }, { auto: true }],
  });
  const count = async (db: { rows(sql: string): Promise<Row[]> }, where: string) => Number((await db.rows(`SELECT count(*) AS n FROM sweep_runs WHERE ${where}`))[0]!.n);

  test("catches up once what was missed while it was down, and then keeps to the schedule", async ({ db }) => {
    await db.setNow(at("2026-11-20T05:20:00Z"));
    await db.run("sweep-all", ["--origin", "timer"]);
    await db.setNow(at("2026-11-25T09:00:00Z")); // five daily runs later
    const daemon = start(db.url);
    await until(() => count(db, "origin = 'daemon'"), (n) => n === 2);
    await until(() => daemon.runs("expire_leases"), (runs) => runs.length === 1);
    await rest(500);
    expect(daemon.runs().map(({ sweep, outcome }) => [sweep, outcome]).sort()).toEqual([["expire_leases", "ok"], ["prune_events", "ok"], ["revalidate_parked_tasks", "ok"]]);

    await db.setNow(at("2026-11-26T05:16:59.999Z"));
    await until(() => daemon.runs("expire_leases"), (runs) => runs.length === 2);
    await rest(300);
    expect(await count(db, "origin = 'daemon'")).toBe(2);
    await db.setNow(at("2026-11-26T05:17:00Z"));
    await until(() => count(db, "origin = 'daemon'"), (n) => n === 4);
    await rest(300);
    expect(await db.rows("SELECT sweep FROM sweep_runs WHERE origin = 'daemon' ORDER BY rowid")).toEqual(["revalidate_parked_tasks", "prune_events", "revalidate_parked_tasks", "prune_events"].map((sweep) => ({ sweep })));
    expect(await daemon.stop()).toMatchObject({ code: 0 });
    expect(daemon.stderr()).toBe("");
  });

  test("a daily sweep runs once on the days on which the clocks change", async ({ db }) => {
    // Hour by hour over both changes, in a zone that has them.
    for (const [first, hours, days] of [["2027-03-27T12:00:00Z", 48, 2], ["2027-10-30T12:00:00Z", 48, 2]] as const) {
      await db.setNow(at(first));
      await db.run("sweep-daily", ["--origin", "timer"]);
      const before = await count(db, "sweep = 'prune_events'");
      const daemon = start(db.url, { TZ: "Europe/Berlin" });
      for (let hour = 0; hour <= hours; hour += hour === 9 || hour > 14 ? 3 : 1) {
        await db.setNow(at(first) + hour * HOUR + 30 * MINUTE);
        // An hour has been seen when its expiry has run.
        await until(() => db.rows("SELECT finished_at_ms AS at FROM sweep_runs WHERE id = 'expire_leases.idle'"), ([row]) => row!.at === at(first) + hour * HOUR + 30 * MINUTE);
        await rest(120);
      }
      await until(() => count(db, "sweep = 'prune_events' AND outcome = 'ok'"), (n) => n === before + days);
      await rest(200);
      expect(await count(db, "sweep = 'prune_events'")).toBe(before + days);
      expect(await count(db, `sweep = 'revalidate_parked_tasks' AND started_at_ms >= ${at(first)} AND origin = 'daemon'`)).toBe(days);
      expect(await daemon.stop()).toMatchObject({ code: 0 });
    }
  });

  test("two daemons on one database share the work, and no run is done twice", async ({ db }) => {
    const both = [start(db.url), start(db.url)];
    const days = 6;
    for (let day = 0; day < days; day++) {
      await db.setNow(NOW + day * DAY);
      await until(() => count(db, "outcome = 'ok' AND origin = 'daemon'"), (n) => n >= 2 * (day + 1));
    }
    await rest(500);
    expect(await db.rows("SELECT sweep, count(*) AS runs, count(DISTINCT started_at_ms) AS days FROM sweep_runs WHERE origin = 'daemon' GROUP BY sweep ORDER BY sweep")).toEqual([
      { sweep: "prune_events", runs: days, days },
      { sweep: "revalidate_parked_tasks", runs: days, days },
    ]);
    expect(await db.rows("SELECT count(*) AS n FROM events WHERE kind = 'events_pruned'")).toEqual([{ n: days }]);
    for (const daemon of both) expect(await daemon.stop()).toMatchObject({ code: 0 });
    for (const daemon of both) expect(daemon.stderr()).toBe("");
  });

  test("SIGTERM in the middle of a long prune: the batch in hand is finished, exit 0 within a second or two, and a restart goes on", async ({ db }) => {
    const events = 20_000;
    await db.given(`
      UPDATE sweep_settings SET value = 100 WHERE name = 'prune_batch_rows';
      INSERT INTO events (at_ms, kind) SELECT ${NOW - 31 * DAY}, 'old' FROM json_each('[${"0,".repeat(999)}0]'), json_each('[${"0,".repeat(events / 1000 - 1)}0]');`);
    const daemon = start(db.url);
    await until(() => count(db, "sweep = 'prune_events' AND batches > 2"), (n) => n === 1);
    const { code, tookMs } = await daemon.stop();
    expect(code).toBe(0);
    expect(tookMs).toBeLessThan(5_000);
    const [stopped] = daemon.runs("prune_events");
    expect(stopped).toMatchObject({ outcome: "ok", drained: false });
    expect(Number(stopped!.events_pruned) % 100).toBe(0);
    expect(Number(stopped!.events_pruned)).toBeLessThan(events);
    expect(await count(db, "outcome = 'running'")).toBe(0);

    await db.given("UPDATE sweep_settings SET value = 20000 WHERE name = 'prune_batch_rows'");
    await db.setNow(NOW + 1);
    const next = start(db.url);
    await until(() => next.runs("prune_events"), (runs) => runs.length === 1);
    expect(next.runs("prune_events")).toMatchObject([{ outcome: "ok", drained: true, events_pruned: events - Number(stopped!.events_pruned) }]);
    expect(next.runs("revalidate_parked_tasks")).toEqual([]);
    expect(await next.stop()).toMatchObject({ code: 0 });
  });

  test("leases go on being expired while a daily sweep is at work, and asleep it stops at once", async ({ db }) => {
    await db.given(`
      UPDATE sweep_settings SET value = 50 WHERE name = 'prune_batch_rows';
      INSERT INTO events (at_ms, kind) SELECT ${NOW - 31 * DAY}, 'old' FROM json_each('[${"0,".repeat(999)}0]'), json_each('[0,0,0,0,0,0,0,0,0,0]');`);
    const daemon = start(db.url);
    await until(() => count(db, "sweep = 'prune_events' AND batches > 1"), (n) => n === 1);
    await db.given(`
      INSERT INTO tasks (id, queue, state, claimed_by, lease_token) VALUES (1, 'q', 'leased', 'w', 't');
      INSERT INTO leases (task_id, worker, token, expires_at_ms) VALUES (1, 'w', 't', ${NOW});`);
    await db.setNow(NOW + MINUTE);
    await until(() => db.rows("SELECT state FROM tasks WHERE id = 1"), ([task]) => task!.state === "queued");
    await until(() => daemon.runs("prune_events"), (runs) => runs.length === 1);
    await daemon.stop();
    await db.setNow(NOW + 2 * MINUTE);
    const asleep = start(db.url, { SWEEP_POLL_MS: "60000" });
    await until(() => asleep.runs("expire_leases"), (runs) => runs.length === 1);
    await rest(200);
    expect(await asleep.stop("SIGINT")).toMatchObject({ code: 0, tookMs: expect.toSatisfy((ms: number) => ms < 3_000) });
  });

  test("a failed sweep does not keep the next from running, and is tried again after a growing pause", async ({ db }) => {
    await db.given("CREATE TRIGGER break_it BEFORE INSERT ON sweep_runs WHEN NEW.sweep = 'revalidate_parked_tasks' AND NEW.outcome = 'running' BEGIN SELECT RAISE(ABORT, 'the disk is on fire'); END");
    const daemon = start(db.url);
    const failures = () => count(db, "sweep = 'revalidate_parked_tasks' AND outcome = 'failed'");
    await until(failures, (n) => n === 1);
    await until(() => daemon.runs("prune_events"), (runs) => runs.length === 1);
    let now = NOW;
    for (const [n, minutes] of [[2, 1], [3, 2], [4, 4], [5, 8]] as const) {
      await db.setNow((now += minutes * MINUTE - 1));
      await rest(300);
      expect(await failures()).toBe(n - 1);
      await db.setNow((now += 1));
      await until(failures, (count) => count === n);
    }
    await db.given("DROP TRIGGER break_it");
    await db.setNow(now + HOUR);
    await until(() => daemon.runs("revalidate_parked_tasks").at(-1), (run) => run?.outcome === "ok");
    expect(await count(db, "sweep = 'prune_events'")).toBe(1);
    expect(await daemon.stop()).toMatchObject({ code: 0 });
    expect(daemon.stderr().trim().split("\n")).toEqual(Array(5).fill(expect.stringContaining("the disk is on fire")));
  });

  test("mode off counts as done for the day; a mode file that says nonsense is told and tried again", async ({ db }) => {
    const env = await modeFile("off");
    const daemon = start(db.url, env);
    await until(() => daemon.runs("prune_events"), (runs) => runs.length === 1);
    await db.setNow(NOW + 10 * MINUTE);
    await until(() => daemon.runs("expire_leases"), (runs) => runs.length === 2);
    await rest(300);
    expect(daemon.runs("revalidate_parked_tasks")).toMatchObject([{ outcome: "skipped", mode: "off" }]);
    writeFileSync(env.SWEEP_MODE_FILE, "enbaled");
    await db.setNow(NOW + DAY);
    await until(() => daemon.stderr(), (text) => text.includes('says "enbaled"'));
    writeFileSync(env.SWEEP_MODE_FILE, "observe");
    await db.setNow(NOW + DAY + MINUTE);
    await until(() => daemon.runs("revalidate_parked_tasks").at(-1), (run) => run?.outcome === "ok");
    expect(daemon.stderr().trim().split("\n")).toHaveLength(1);
    expect(await daemon.stop()).toMatchObject({ code: 0 });
  });

  test("after the clock was set back, the schedule goes on by the new time", async ({ db }) => {
    const daemon = start(db.url);
    await until(() => count(db, "origin = 'daemon'"), (n) => n === 2);
    await db.setNow(NOW + 20 * DAY);
    await until(() => count(db, "origin = 'daemon'"), (n) => n === 4);
    for (const [ms, runs] of [[NOW + DAY, 6], [NOW + 2 * DAY, 8]] as const) {
      await db.setNow(ms);
      await until(() => count(db, `origin = 'daemon' AND outcome = 'ok'`), (n) => n === runs);
      await until(() => db.rows("SELECT finished_at_ms AS at FROM sweep_runs WHERE id = 'expire_leases.idle'"), ([row]) => row!.at === ms);
    }
    expect(await daemon.stop()).toMatchObject({ code: 0 });
  });
});

plain("a server that goes away and comes back: one line each, and the work is taken up", async () => {
  const dir = fresh("server");
  const first = await startServer(dir);
  await program(["migrate"], { DATABASE_URL: first.url });
  const daemon = start(first.url);
  await until(() => daemon.runs("prune_events"), (runs) => runs.length === 1);
  await first.stop();
  await until(() => daemon.stderr(), (text) => text.includes("cannot be reached"));
  await rest(3_000);
  expect(daemon.stderr().trim().split("\n")).toHaveLength(1);
  expect(daemon.process.exitCode).toBe(null);

  const again = spawn(SQLD, ["-d", dir, "--http-listen-addr", new URL(first.url).host], { stdio: "ignore" });
  await until(async () => (await fetch(`${first.url}/health`).catch(() => undefined))?.ok, (ok) => ok === true);
  const client = createClient({ url: first.url });
  await client.executeMultiple(`UPDATE sweep_settings SET value = ${Date.now() + 2 * DAY} WHERE name = 'fake_now_ms'`);
  await until(() => daemon.runs("prune_events"), (runs) => runs.length === 2);
  await until(() => daemon.stderr().trim().split("\n"), (lines) => lines.length === 2 && lines[1]!.endsWith("answers again"));
  again.kill("SIGKILL");
  await until(() => daemon.stderr().trim().split("\n"), (lines) => lines.length === 3);
  expect(await daemon.stop()).toMatchObject({ code: 0, tookMs: expect.toSatisfy((ms: number) => ms < 5_000) });
  client.close();
});

plain("a file that is taken away and brought back is swept where it is, not where it was", async () => {
  const path = fresh("queue.db");
  const url = `sqlite:${path}`;
  await program(["migrate"], { DATABASE_URL: url });
  const daemon = start(url);
  await until(() => daemon.runs("prune_events"), (runs) => runs.length === 1);
  renameSync(path, `${path}.away`);
  await until(() => daemon.stderr(), (text) => text.includes(`no database at ${path}`));

  await program(["migrate"], { DATABASE_URL: url });
  await until(() => daemon.runs("prune_events"), (runs) => runs.length === 2);
  expect(daemon.stderr().trim().split("\n")).toHaveLength(2);
  const client = createClient({ url: `file:${path}` });
  expect((await client.execute("SELECT count(*) AS n FROM sweep_runs WHERE origin = 'daemon'")).rows[0]!.n).toBe(2);
  client.close();
  expect(await daemon.stop()).toMatchObject({ code: 0 });
});

plain("what can never work ends it at once, with the contract's code; a database that may come is waited for", async () => {
  const path = fresh("unmigrated.db");
  writeFileSync(path, "");
  expect(await program(["sweep-daemon"], { DATABASE_URL: `sqlite:${path}` })).toMatchObject({ code: 78, stderr: expect.stringContaining("pending migrations") });
  for (const poll of ["0", "fast", "-5", "1e3"]) expect(await program(["sweep-daemon"], { DATABASE_URL: `sqlite:${path}`, SWEEP_POLL_MS: poll })).toMatchObject({ code: 78, stderr: expect.stringContaining("SWEEP_POLL_MS") });
  expect(await program(["sweep-daemon", "--observe"], { DATABASE_URL: `sqlite:${path}` })).toMatchObject({ code: 64 });

  const later = fresh("later.db");
  const daemon = start(`sqlite:${later}`, {}, []);
  await until(() => daemon.stderr(), (text) => text.includes("no database at"));
  await program(["migrate"], { DATABASE_URL: `sqlite:${later}` });
  await until(() => daemon.stderr(), (text) => text.includes("answers again"));
  expect(await daemon.stop()).toMatchObject({ code: 0 });
});
