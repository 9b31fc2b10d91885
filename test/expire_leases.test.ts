import { expect } from "vitest";
import { NOW, onEachEngine } from "./support.js";

const leased = (id: number, endsAt: number, more = "") => `
  INSERT INTO tasks (id, queue, state, claimed_by, lease_token) VALUES (${id}, 'q', 'leased', 'w${id}', 't${id}');
  INSERT INTO leases (task_id, worker, token, acquired_at_ms, expires_at_ms) VALUES (${id}, 'w${id}', 't${id}', ${NOW - 1000}, ${endsAt});
  ${more}`;
const TASKS = "SELECT id, state, claimed_by, lease_token FROM tasks ORDER BY id";
const EVENTS = "SELECT at_ms, kind, subject, task_id, run_id FROM events ORDER BY id";

onEachEngine("expire_leases", (test) => {
  test("a lease that ends now is over, one that ends a millisecond later is not", async ({ db }) => {
    await db.given(leased(1, NOW) + leased(2, NOW + 1) + leased(3, NOW - 60_000));

    const run = await db.sweep("sweep-expire");

    expect(run).toMatchObject({ sweep: "expire_leases", mode: "enabled", outcome: "ok", drained: true, expired_leases: 2 });
    expect(await db.rows(TASKS)).toEqual([
      { id: 1, state: "queued", claimed_by: null, lease_token: null },
      { id: 2, state: "leased", claimed_by: "w2", lease_token: "t2" },
      { id: 3, state: "queued", claimed_by: null, lease_token: null },
    ]);
    expect(await db.rows("SELECT task_id FROM leases")).toEqual([{ task_id: 2 }]);
    expect(await db.rows(EVENTS)).toEqual([
      { at_ms: NOW, kind: "lease_expired", subject: "q", task_id: 3, run_id: run.run_id },
      { at_ms: NOW, kind: "lease_expired", subject: "q", task_id: 1, run_id: run.run_id },
    ]);
  });

  test("a second run changes nothing", async ({ db }) => {
    await db.given(leased(1, NOW));
    await db.sweep("sweep-expire");
    const before = [await db.rows("SELECT * FROM tasks"), await db.rows("SELECT * FROM events")];

    expect(await db.sweep("sweep-expire")).toMatchObject({ outcome: "ok", expired_leases: 0 });

    expect([await db.rows("SELECT * FROM tasks"), await db.rows("SELECT * FROM events")]).toEqual(before);
  });

  test("the same run id does its work once", async ({ db }) => {
    await db.given(leased(1, NOW));
    const first = await db.sweep("sweep-expire", ["--run-id", "deploy-7"]);
    await db.given(leased(2, NOW));

    const again = await db.sweep("sweep-expire", ["--run-id", "deploy-7"]);

    expect(again).toEqual({ ...first, duration_ms: expect.any(Number) });
    expect(await db.rows("SELECT id, state FROM tasks ORDER BY id")).toEqual([{ id: 1, state: "queued" }, { id: 2, state: "leased" }]);
  });

  test("a run id that belongs to another sweep or mode is refused, and nothing is done", async ({ db }) => {
    await db.sweep("sweep-prune", ["--run-id", "job-1"]);
    await db.given(leased(1, NOW));
    for (const [verb, args] of [["sweep-expire", []], ["sweep-revalidate", []], ["sweep-prune", ["--observe"]]] as const) {
      expect(await db.run(verb, ["--run-id", "job-1", ...args]), verb).toMatchObject({ code: 64, stderr: expect.stringMatching(/run id taken/) });
    }
    expect(await db.rows("SELECT state FROM tasks")).toEqual([{ state: "leased" }]);
  });

  test("a task that has used up its attempts fails, and says so", async ({ db }) => {
    await db.given(
      leased(1, NOW, "UPDATE tasks SET attempts = 3, max_attempts = 3 WHERE id = 1;") +
        leased(2, NOW, "UPDATE tasks SET attempts = 2, max_attempts = 3 WHERE id = 2;"),
    );

    expect(await db.sweep("sweep-expire")).toMatchObject({ expired_leases: 2 });

    expect(await db.rows("SELECT id, state FROM tasks ORDER BY id")).toEqual([{ id: 1, state: "failed" }, { id: 2, state: "queued" }]);
    expect(await db.rows("SELECT kind, task_id FROM events ORDER BY kind, task_id")).toEqual([
      { kind: "attempts_exhausted", task_id: 1 },
      { kind: "lease_expired", task_id: 1 },
      { kind: "lease_expired", task_id: 2 },
    ]);
  });

  test("observing touches nothing but the ledger", async ({ db }) => {
    await db.given(leased(1, NOW));
    const before = await db.rows("SELECT * FROM tasks, leases");

    expect(await db.sweep("sweep-expire", ["--observe"])).toMatchObject({ mode: "observe", requested_mode: "observe", expired_leases: 1, drained: true });

    expect(await db.rows("SELECT * FROM tasks, leases")).toEqual(before);
    expect(await db.rows(EVENTS)).toEqual([]);
  });

  test("more than a batch is drained in several, the longest expired first", async ({ db }) => {
    await db.given("UPDATE sweep_settings SET value = 2 WHERE name = 'expire_batch_rows';" + [1, 2, 3, 4, 5].map((id) => leased(id, NOW - id)).join(""));

    expect(await db.sweep("sweep-expire")).toMatchObject({ expired_leases: 5, batches: 3, drained: true });

    expect(await db.rows("SELECT task_id FROM events ORDER BY id")).toEqual([5, 4, 3, 2, 1].map((task_id) => ({ task_id })));
  });

  test("a run that has used up its time stops, and says that something is left", async ({ db }) => {
    await db.given(`UPDATE sweep_settings SET value = 1 WHERE name = 'expire_batch_rows';
      INSERT INTO sweep_runs (id, sweep, sql_version, started_at_ms, heartbeat_at_ms, counts, batches)
      VALUES ('long', 'expire_leases', 'v', ${NOW - 50_000}, ${NOW - 1}, '{"expired_leases":7}', 0);` + leased(1, NOW) + leased(2, NOW));

    expect(await db.sweep("sweep-expire", ["--run-id", "long"])).toMatchObject({ outcome: "ok", drained: false, expired_leases: 8 });

    expect(await db.rows("SELECT count(*) AS left_over FROM leases")).toEqual([{ left_over: 1 }]);
  });

  test("an idle minute leaves no row of its own", async ({ db }) => {
    for (let minute = 0; minute < 3; minute++) expect(await db.sweep("sweep-expire")).toMatchObject({ outcome: "ok", expired_leases: 0 });

    expect(await db.rows("SELECT id, batches, outcome FROM sweep_runs")).toEqual([{ id: "expire_leases.idle", batches: 3, outcome: "ok" }]);
  });

  test("a lease that binds nothing goes when it ends; the task stays as it is", async ({ db }) => {
    await db.given(`INSERT INTO tasks (id, queue, state) VALUES (1, 'q', 'done');
      INSERT INTO leases (task_id, worker, token, expires_at_ms) VALUES (1, 'w', 't', ${NOW});`);

    expect(await db.sweep("sweep-expire")).toMatchObject({ expired_leases: 1 });

    expect(await db.rows("SELECT state FROM tasks")).toEqual([{ state: "done" }]);
    expect(await db.rows("SELECT * FROM leases")).toEqual([]);
  });

  test("a second runner is skipped while a run is under way, and told who holds it", async ({ db }) => {
    await db.given(leased(1, NOW) + `INSERT INTO sweep_runs (id, sweep, runner, started_at_ms) VALUES ('other', 'expire_leases', 'host-b:17', ${NOW - 1000});`);

    expect(await db.sweep("sweep-expire")).toMatchObject({ outcome: "skipped", reason: "held by run other of host-b:17, silent for 1000 ms" });

    expect(await db.rows("SELECT state FROM tasks")).toEqual([{ state: "leased" }]);
    expect(await db.rows("SELECT outcome FROM sweep_runs WHERE id = 'other'")).toEqual([{ outcome: "running" }]);
  });

  test("a run whose runner died is abandoned and taken over after two minutes", async ({ db }) => {
    await db.given(leased(1, NOW) + `INSERT INTO sweep_runs (id, sweep, runner, started_at_ms) VALUES ('dead', 'expire_leases', 'host-b:17', ${NOW - 120_000});`);

    expect(await db.sweep("sweep-expire")).toMatchObject({ outcome: "ok", expired_leases: 1 });

    expect(await db.rows("SELECT id, outcome FROM sweep_runs WHERE id = 'dead'")).toEqual([{ id: "dead", outcome: "abandoned" }]);
  });

  test("a dead run is abandoned by an idle run too", async ({ db }) => {
    await db.given(`INSERT INTO sweep_runs (id, sweep, started_at_ms) VALUES ('dead', 'expire_leases', ${NOW - 120_000});`);
    await db.sweep("sweep-expire");
    expect(await db.rows("SELECT outcome FROM sweep_runs WHERE id = 'dead'")).toEqual([{ outcome: "abandoned" }]);
  });
});
