// What a runner does when it is told to stop: systemd, a deploy and Ctrl-C all send a signal and mean it.
import { spawn } from "node:child_process";
import { join } from "node:path";
import { expect } from "vitest";
import { DAY, NOW, onEachEngine, ROOT, type Row, type Run, type TestDatabase } from "./support.js";

const WORK = 3_000;
const digits = (n: number) => `[${Array.from({ length: n }, (_, i) => i)}]`;
const PARKED = '{"kind":"not_before","at_ms":946684800000}';

/** Work for each sweep, in batches of so few rows that a run is under way for a while. */
const given = (db: TestDatabase) => db.given(`
  UPDATE sweep_settings SET value = 50 WHERE name IN ('expire_batch_rows', 'revalidate_batch_rows', 'prune_batch_rows');
  INSERT INTO tasks (id, queue, state, claimed_by, lease_token, attempts) SELECT value, 'q', 'leased', 'w', 't', 1 FROM json_each('${digits(WORK)}');
  INSERT INTO leases (task_id, worker, token, expires_at_ms) SELECT id, 'w', 't', ${NOW - 1} FROM tasks;
  INSERT INTO tasks (queue, state, parked_at_ms, ready_condition) SELECT 'q', 'parked', ${NOW - 20 * DAY}, '{"all":[${PARKED},{"kind":"manual"}]}' FROM json_each('${digits(WORK)}');
  INSERT INTO events (at_ms, kind) SELECT ${NOW - 31 * DAY}, 'old' FROM json_each('${digits(WORK)}');`);

/** Starts the program, sends it SIGTERM when its run has done a batch or two, and returns how it ended. */
async function stopped(db: TestDatabase, verb: string): Promise<Run> {
  const child = spawn(process.execPath, [join(ROOT, "dist/main.js"), verb, "--json"], { env: { PATH: process.env.PATH, DATABASE_URL: db.url }, stdio: ["ignore", "pipe", "pipe"] });
  const run = { code: -1, stdout: "", stderr: "" };
  child.stdout.on("data", (text) => (run.stdout += text));
  child.stderr.on("data", (text) => (run.stderr += text));
  const ended = new Promise<number | null>((resolve) => child.once("close", resolve));
  while (child.exitCode === null && (await db.rows("SELECT 1 FROM sweep_runs WHERE outcome = 'running' AND batches > 1")).length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
  child.kill("SIGTERM");
  run.code = (await ended) ?? -1;
  return run;
}

onEachEngine("told to stop", (test) => {
  test.for([
    ["sweep-expire", "expired_leases"],
    ["sweep-revalidate", "checked"],
    ["sweep-prune", "events_pruned"],
  ] as const)("%s finishes the batch in hand, ends its run, and leaves the rest to the next", async ([verb, count], { db }) => {
    await given(db);

    const { code, stdout, stderr } = await stopped(db, verb);

    const run = JSON.parse(stdout) as Row;
    expect({ code, stderr, ...run }).toMatchObject({ code: 0, stderr: "", outcome: "ok", drained: false });
    expect(Number(run[count]) % 50).toBe(0);
    expect(Number(run[count])).toBeGreaterThan(0);
    expect(Number(run[count])).toBeLessThan(WORK);
    expect(await db.rows(`SELECT outcome, drained, counts ->> '$.${count}' AS done FROM sweep_runs WHERE id = '${run.run_id}'`)).toEqual([{ outcome: "ok", drained: 0, done: run[count] }]);

    // An observation that was cut short begins anew; what was done is done.
    const rest = verb === "sweep-revalidate" ? WORK : WORK - Number(run[count]);
    expect(await db.sweep(verb)).toMatchObject({ outcome: "ok", drained: true, [count]: rest });
  });

  test("the sweeps behind it are not begun, and the exit code says so", async ({ db }) => {
    await given(db);
    const { code, stdout, stderr } = await stopped(db, "sweep-all");
    const runs = stdout.trim().split("\n").map((text) => JSON.parse(text) as Row);
    expect(code).toBe(1);
    expect(runs.map(({ sweep, outcome }) => [sweep, outcome])).toEqual([["expire_leases", "ok"], ["revalidate_parked_tasks", "failed"], ["prune_events", "failed"]]);
    expect(stderr.trim().split("\n")).toEqual(["revalidate_parked_tasks", "prune_events"].map((name) => `${name}: not run, because the program was told to stop; run it again`));
    expect(await db.rows("SELECT DISTINCT sweep FROM sweep_runs WHERE batches > 0")).toEqual([{ sweep: "expire_leases" }]);
  });
});
