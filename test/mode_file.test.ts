import { chmodSync, mkdirSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { execFileSync } from "node:child_process";
import { expect } from "vitest";
import { everything, fresh, modeFile, NOW, onEachEngine, scratch, type TestDatabase } from "./support.js";
import { join } from "node:path";

const READY = `INSERT INTO tasks (id, queue, state) VALUES (1, 'q', 'done'); INSERT INTO tasks (id, queue, state, ready_condition) VALUES (2, 'q', 'parked', '{"kind":"task_done","task":1}');`;

/** The program says which file and what is wrong with it, in one line, exits 78, and has done nothing. */
async function refused(db: TestDatabase, file: string, reason: string): Promise<void> {
  const before = await everything(db);
  for (const verb of ["sweep-revalidate", "sweep-would-release"]) {
    const { code, stdout, stderr } = await db.run(verb, [], { SWEEP_MODE_FILE: file });
    expect({ code, stdout }, stderr).toEqual({ code: 78, stdout: "" });
    expect(stderr).toMatch(/^[^\n]+\n$/);
    expect(stderr).toContain(`mode file ${file} ${reason}`);
  }
  expect(await everything(db)).toEqual(before);
}

onEachEngine("the mode file", (test, engine) => {
  // What a file says does not depend on the engine; the one promise that does is tested on both.
  test("content that is no mode is an error that names the file, the content and the words allowed; nothing is released", async ({ db }) => {
    await db.given(READY);
    await db.sweep("sweep-revalidate", ["--observe"]);
    for (const content of engine === "file" ? ["Enabled", "ENABLED", "enable", "enabled!", "true", "1", "on", "enabled observe", "enabled\nobserve", "mode=enabled", "# enabled", "\0", "ена" ] : ["enable"]) {
      const { SWEEP_MODE_FILE } = await modeFile(`${content}\n`);
      await refused(db, SWEEP_MODE_FILE, `says ${JSON.stringify(content)}: nothing was released; allowed are observe, enabled and off`);
    }
  });
  if (engine === "server") return;

  test("missing, empty or blank it says observe", async ({ db }) => {
    await db.given(READY);
    const dangling = fresh("dangling");
    symlinkSync(fresh("nowhere"), dangling);
    const files = [{ SWEEP_MODE_FILE: fresh("missing") }, { SWEEP_MODE_FILE: join(fresh("no"), "such", "folder") }, { SWEEP_MODE_FILE: dangling }, await modeFile(""), await modeFile(" \r\n\t\n"), await modeFile("observe"), await modeFile("observe\n")];
    for (const env of files) {
      expect(await db.sweep("sweep-revalidate", [], env)).toMatchObject({ mode: "observe", requested_mode: "observe", gated: false, would_release: 1, released: 0 });
    }
    expect(await db.rows("SELECT state FROM tasks WHERE id = 2")).toEqual([{ state: "parked" }]);
  });

  test("enabled is understood whatever white space, line ending or byte order mark is around it", async ({ db }) => {
    await db.sweep("sweep-revalidate", ["--observe"]);
    for (const content of ["enabled", "enabled\n", "  enabled\t\n\n", "enabled\r\n", "\r\nenabled\r\n", "\ufeffenabled", "\ufeffenabled\r\n"]) {
      expect(await db.sweep("sweep-revalidate", [], await modeFile(content)), JSON.stringify(content)).toMatchObject({ mode: "enabled", requested_mode: "enabled", gated: false });
    }
  });

  test("off skips revalidation, and nothing else", async ({ db }) => {
    await db.given(READY);
    const before = await everything(db);
    const off = await modeFile("off\n");
    expect(await db.sweep("sweep-revalidate", [], off)).toMatchObject({ mode: "off", outcome: "skipped", run_id: null });
    expect(await everything(db)).toEqual(before);

    const { code, stdout } = await db.run("sweep-daily", ["--json"], off);
    expect(code).toBe(0);
    expect(stdout.trim().split("\n").map((line) => JSON.parse(line))).toMatchObject([{ sweep: "revalidate_parked_tasks", outcome: "skipped" }, { sweep: "prune_events", outcome: "ok", mode: "enabled" }]);
  });

  test("--observe beats enabled, off, and a file that cannot be understood", async ({ db }) => {
    await db.given(READY);
    for (const content of ["enabled", "off", "nonsense"]) {
      expect(await db.sweep("sweep-revalidate", ["--observe"], await modeFile(content))).toMatchObject({ mode: "observe", requested_mode: "observe", would_release: 1 });
    }
    expect(await db.rows("SELECT state FROM tasks WHERE id = 2")).toEqual([{ state: "parked" }]);
  });

  test("the file is read at each run, in its default place too", async ({ db }) => {
    await db.given(READY);
    const folder = join(scratch, ".config/queue-broker");
    mkdirSync(folder, { recursive: true });
    const say = (word: string) => writeFileSync(join(folder, "revalidator-mode"), word);

    say("observe\n");
    expect(await db.sweep("sweep-revalidate")).toMatchObject({ mode: "observe", would_release: 1 });
    say("off\n");
    expect(await db.sweep("sweep-revalidate")).toMatchObject({ outcome: "skipped" });
    say("enabled\n");
    expect(await db.sweep("sweep-revalidate")).toMatchObject({ mode: "enabled", released: 1 });
    rmSync(join(scratch, ".config"), { recursive: true });
    expect(await db.sweep("sweep-revalidate")).toMatchObject({ mode: "observe" });
  });

  test("what is no regular file is refused, without waiting on it", async ({ db }) => {
    await db.given(READY);
    const folder = fresh("folder");
    mkdirSync(folder);
    const pipe = fresh("pipe");
    execFileSync("mkfifo", [pipe]);
    for (const file of [folder, pipe, "/dev/null"]) await refused(db, file, "is no regular file");
  });

  test("a link that leads back to itself, or a file in the place of a folder, cannot be read", async ({ db }) => {
    await db.given(READY);
    const [one, two] = [fresh("one"), fresh("two")];
    symlinkSync(one, two);
    symlinkSync(two, one);
    await refused(db, one, "cannot be read (ELOOP)");
    const { SWEEP_MODE_FILE } = await modeFile("enabled");
    await refused(db, join(SWEEP_MODE_FILE, "below"), "cannot be read (ENOTDIR)");
  });

  test.skipIf(process.getuid?.() === 0)("a file that may not be read is refused (not run as root, who may read everything)", async ({ db }) => {
    await db.given(READY);
    const { SWEEP_MODE_FILE } = await modeFile("enabled");
    chmodSync(SWEEP_MODE_FILE, 0);
    await refused(db, SWEEP_MODE_FILE, "cannot be read (EACCES)");
  });

  test("a mode file that cannot be understood does not keep pruning from running; the exit code tells", async ({ db }) => {
    await db.given(READY + `INSERT INTO events (at_ms, kind) VALUES (${NOW - 40 * 86_400_000}, 'e');`);
    const { code, stdout, stderr } = await db.run("sweep-daily", ["--json"], await modeFile("enable"));
    expect(code).toBe(78);
    expect(stdout.trim().split("\n").map((line) => JSON.parse(line))).toMatchObject([{ sweep: "revalidate_parked_tasks", outcome: "failed" }, { sweep: "prune_events", outcome: "ok", events_pruned: 1 }]);
    expect(stderr).toMatch(/^mode file [^\n]+\n$/);
    expect(await db.rows("SELECT state FROM tasks WHERE id = 2")).toEqual([{ state: "parked" }]);
  });
});
