import { expect } from "vitest";
import { EVERY_KIND, FINDINGS, OBSERVED, PARKED_AT, RELEASED } from "./fixtures.js";
import { modeFile, NOW, onEachEngine, type TestDatabase } from "./support.js";

const everything = async (db: TestDatabase) => ({ tasks: await db.rows("SELECT * FROM tasks ORDER BY id"), events: await db.rows("SELECT * FROM events"), terms: await db.rows("SELECT * FROM ready_terms"), awaited: await db.rows("SELECT * FROM awaited_events") });
const findings = (db: TestDatabase, runId: unknown) => db.rows(`SELECT task_id, verdict, reason FROM sweep_findings WHERE run_id = '${runId}' ORDER BY task_id`);

onEachEngine("revalidate_parked_tasks", (test) => {
  test("every kind of parked task gets its verdict; observing moves nothing", async ({ db }) => {
    await db.given(EVERY_KIND);
    const before = await everything(db);

    const run = await db.sweep("sweep-revalidate");

    expect(run).toMatchObject({ mode: "observe", requested_mode: "observe", gated: false, outcome: "ok", drained: true, ...OBSERVED });
    expect(await findings(db, run.run_id)).toEqual(FINDINGS);
    expect(await everything(db)).toEqual(before);
    expect((await db.rows("SELECT task_id FROM would_release_tasks ORDER BY task_id")).map((row) => row.task_id)).toEqual([1, 4, 9]);
  });

  test("enabled is gated until this very SQL has observed everything, then releases", async ({ db }) => {
    await db.given(EVERY_KIND);
    const enabled = await modeFile(" enabled\r\n");
    const before = await everything(db);

    const gated = await db.sweep("sweep-revalidate", [], enabled);
    expect(gated).toMatchObject({ mode: "observe", requested_mode: "enabled", gated: true, gate_reason: expect.stringMatching(/no finished observe run/), ...OBSERVED });
    expect(await everything(db)).toEqual(before);

    const released = await db.sweep("sweep-revalidate", [], enabled);
    expect(released).toMatchObject({ mode: "enabled", requested_mode: "enabled", gated: false, outcome: "ok", ...RELEASED });
    expect(await findings(db, released.run_id)).toEqual(FINDINGS);
    expect(await db.rows("SELECT id, state, ready_condition, parked_at_ms FROM tasks WHERE id IN (1, 4, 9)")).toEqual(
      [1, 4, 9].map((id) => ({ id, state: "queued", ready_condition: null, parked_at_ms: null })),
    );
    expect(await db.rows("SELECT count(*) AS parked FROM tasks WHERE state = 'parked'")).toEqual([{ parked: 15 }]);
    expect(await db.rows(`SELECT task_id, at_ms, subject, payload ->> '$.reason' AS reason FROM events WHERE kind = 'park_released' AND run_id = '${released.run_id}' ORDER BY task_id`)).toEqual(
      [1, 4, 9].map((task_id) => ({ task_id, at_ms: NOW, subject: "q", reason: "condition_met" })),
    );

    const nothingLeft = await db.sweep("sweep-revalidate", [], enabled);
    expect(nothingLeft).toMatchObject({ mode: "enabled", checked: 15, released: 0, confirmed: 9, stale: 6 });
  });

  test("an observation by other SQL, of a part, unfinished, or by a proof, does not open the gate", async ({ db }) => {
    const enabled = await modeFile("enabled");
    const { run_id } = await db.sweep("sweep-revalidate");
    for (const change of ["sql_version = 'other/1'", "drained = 0", "outcome = 'failed'", "scope_queue = 'proof-1'", "mode = 'enabled'"]) {
      await db.given(`CREATE TABLE kept AS SELECT * FROM sweep_runs WHERE id = '${run_id}'; UPDATE sweep_runs SET ${change} WHERE id = '${run_id}';`);
      expect(await db.sweep("sweep-revalidate", ["--run-id", `after ${change}`], enabled), change).toMatchObject({ gated: true });
      await db.given(`DELETE FROM sweep_runs; INSERT INTO sweep_runs SELECT * FROM kept; DROP TABLE kept;`);
    }
    expect(await db.sweep("sweep-revalidate", [], enabled)).toMatchObject({ gated: false, mode: "enabled" });
  });

  test("a run releases no more than max_releases_per_run, in id order, and the next goes on", async ({ db }) => {
    const enabled = await modeFile("enabled");
    await db.given(`UPDATE sweep_settings SET value = 2 WHERE name = 'max_releases_per_run';
      INSERT INTO tasks (id, queue, state) VALUES (100, 'q', 'done');
      INSERT INTO tasks (id, queue, state, ready_condition) SELECT value, 'q', 'parked', '{"kind":"task_done","task":100}' FROM json_each('[1,3,5,7,9]');
      INSERT INTO tasks (id, queue, state, ready_condition) SELECT value, 'q', 'parked', '{"kind":"manual"}' FROM json_each('[2,4,6,8]');`);
    expect(await db.sweep("sweep-revalidate")).toMatchObject({ would_release: 5, checked: 9 });

    const capped = await db.sweep("sweep-revalidate", [], enabled);
    expect(capped).toMatchObject({ checked: 3, released: 2, confirmed: 1, stale: 0, drained: false, outcome: "ok" });
    expect(await findings(db, capped.run_id)).toEqual([1, 3].map((task_id) => ({ task_id, verdict: "release", reason: "condition_met" })));
    expect(await db.sweep("sweep-revalidate", [], enabled)).toMatchObject({ released: 2, drained: false });
    expect(await db.sweep("sweep-revalidate", [], enabled)).toMatchObject({ released: 1, drained: true });
    expect(await db.rows("SELECT task_id FROM events WHERE kind = 'park_released' ORDER BY id")).toEqual([1, 3, 5, 7, 9].map((task_id) => ({ task_id })));
  });

  test("small batches judge the same tasks as one", async ({ db }) => {
    await db.given(EVERY_KIND + "UPDATE sweep_settings SET value = 5 WHERE name = 'revalidate_batch_rows';");
    const run = await db.sweep("sweep-revalidate");
    expect(run).toMatchObject({ batches: 4, drained: true, ...OBSERVED });
    expect(await findings(db, run.run_id)).toEqual(FINDINGS);
    expect(await db.sweep("sweep-revalidate", [], await modeFile("enabled"))).toMatchObject({ batches: 4, drained: true, ...RELEASED });
  });

  test("a condition written past the guards is stale, whatever it says now or said before, and stops no other", async ({ db }) => {
    db.allowedFaults = ["terms_differ_from_condition", "time_park_out_of_step"];
    const [{ sql: guard } = {}] = await db.rows("SELECT sql FROM sqlite_schema WHERE name = 'tasks_take_condition_apart'");
    await db.given(EVERY_KIND + `
      INSERT INTO tasks (id, queue, state, parked_at_ms, ready_condition) VALUES
        (50, 'q', 'parked', ${PARKED_AT}, '{"kind":"task_done","task":100}'),
        (51, 'q', 'parked', ${PARKED_AT}, '{"kind":"not_before","at_ms":${NOW - 1}}');
      DROP TRIGGER tasks_take_condition_apart;
      UPDATE tasks SET ready_condition = '{"kind":"older_than_this_tool"}' WHERE id IN (50, 51);
      INSERT INTO tasks (id, queue, state, parked_at_ms, ready_condition) VALUES (52, 'q', 'parked', ${PARKED_AT}, '{"all":[]}');
      ${guard};`);
    const run = await db.sweep("sweep-revalidate");
    expect(run).toMatchObject({ checked: 21, would_release: 3, stale: 9 });
    for (const task_id of [50, 51, 52]) expect(await findings(db, run.run_id)).toContainEqual({ task_id, verdict: "stale", reason: "unreadable_condition" });
    expect(await db.rows("SELECT task_id FROM claimable_tasks WHERE task_id > 49 AND task_id < 60")).toEqual([]);
  });

  test("off does nothing and says so", async ({ db }) => {
    await db.given(EVERY_KIND);
    expect(await db.sweep("sweep-revalidate", [], await modeFile("off"))).toMatchObject({ outcome: "skipped", mode: "off", run_id: null });
    expect(await db.rows("SELECT * FROM sweep_runs WHERE sweep = 'revalidate_parked_tasks'")).toEqual([]);
  });

  test("in sweep-daily the failure of one sweep does not keep the next from running", async ({ db }) => {
    const { code, stdout, stderr } = await db.run("sweep-daily", ["--json"], await modeFile("maybe"));
    expect(code).toBe(78);
    expect(stderr).toMatch(/^mode file .* says "maybe": nothing was released; allowed are observe, enabled and off\n$/);
    expect(stdout.trim().split("\n").map((line) => JSON.parse(line))).toMatchObject([{ sweep: "revalidate_parked_tasks", outcome: "failed" }, { sweep: "prune_events", outcome: "ok" }]);
  });

  test("a released task still minds not_before_ms", async ({ db }) => {
    await db.given(`INSERT INTO tasks (id, queue, state) VALUES (100, 'q', 'done');
      INSERT INTO tasks (id, queue, state, ready_condition, not_before_ms) VALUES (1, 'q', 'parked', '{"kind":"task_done","task":100}', ${NOW + 10});`);
    await db.sweep("sweep-revalidate");
    expect(await db.sweep("sweep-revalidate", [], await modeFile("enabled"))).toMatchObject({ released: 1 });
    expect(await db.rows("SELECT state, not_before_ms FROM tasks WHERE id = 1")).toEqual([{ state: "queued", not_before_ms: NOW + 10 }]);
    expect(await db.rows("SELECT task_id FROM claimable_tasks")).toEqual([]);
  });
});
