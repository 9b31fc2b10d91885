import { expect } from "vitest";
import { queue } from "../scripts/lib/queue.js";
import { DAY, modeFile, NOW, onEachEngine } from "./support.js";

onEachEngine("prune_events", (test, engine) => {
  test("31 days goes, 29 stays, exactly 30 days stays", async ({ db }) => {
    await db.given(`INSERT INTO events (at_ms, kind) VALUES (${NOW - 31 * DAY}, 'd31'), (${NOW - 30 * DAY - 1}, 'd30+'), (${NOW - 30 * DAY}, 'd30'), (${NOW - 29 * DAY}, 'd29');`);

    const run = await db.sweep("sweep-prune");

    expect(run).toMatchObject({ sweep: "prune_events", mode: "enabled", outcome: "ok", drained: true, events_pruned: 2 });
    expect(await db.rows("SELECT kind, run_id, payload FROM events ORDER BY id")).toEqual([
      { kind: "d30", run_id: null, payload: "{}" },
      { kind: "d29", run_id: null, payload: "{}" },
      { kind: "events_pruned", run_id: run.run_id, payload: JSON.stringify({ events_pruned: 2, cutoff_ms: NOW - 30 * DAY, drained: 1 }) },
    ]);
  });

  test("observing counts what would go and writes nothing but the ledger", async ({ db }) => {
    await db.given(`INSERT INTO events (at_ms, kind) VALUES (${NOW - 31 * DAY}, 'old'), (${NOW}, 'new');`);
    expect(await db.sweep("sweep-prune", ["--observe"])).toMatchObject({ mode: "observe", events_pruned: 1, drained: true });
    expect(await db.rows("SELECT kind FROM events ORDER BY id")).toEqual([{ kind: "old" }, { kind: "new" }]);
  });

  test("one events_pruned a run, after its last batch, with the total; zero is said too", async ({ db }) => {
    await db.given(`UPDATE sweep_settings SET value = 2 WHERE name = 'prune_batch_rows';
      INSERT INTO events (at_ms, kind) SELECT ${NOW - 40 * DAY}, 'old' FROM json_each('[1,2,3,4,5]');`);
    expect(await db.sweep("sweep-prune")).toMatchObject({ events_pruned: 5, batches: 3 });
    expect(await db.sweep("sweep-prune")).toMatchObject({ events_pruned: 0, batches: 1 });
    expect(await db.rows("SELECT kind, payload ->> '$.events_pruned' AS pruned FROM events ORDER BY id")).toEqual([
      { kind: "events_pruned", pruned: 5 },
      { kind: "events_pruned", pruned: 0 },
    ]);
  });

  test("an event that arrives late with an old time is pruned on the day", async ({ db }) => {
    await db.given(`INSERT INTO events (at_ms, kind) VALUES (${NOW}, 'new'); INSERT INTO events (at_ms, kind) VALUES (${NOW - 31 * DAY}, 'late');`);
    expect(await db.sweep("sweep-prune")).toMatchObject({ events_pruned: 1 });
    expect(await db.rows("SELECT kind FROM events WHERE kind <> 'events_pruned'")).toEqual([{ kind: "new" }]);
  });

  test("a task met by an event that is pruned since is still released, six weeks later", async ({ db }) => {
    await db.given(`
      INSERT INTO tasks (id, queue, state, parked_at_ms, ready_condition) VALUES
        (1, 'q', 'parked', ${NOW - 2}, '{"kind":"event_seen","event":"snapshot_refresh","subject":"repo-a"}'),
        (2, 'q', 'parked', ${NOW + 1}, '{"kind":"event_seen","event":"snapshot_refresh","subject":"repo-a"}');
      INSERT INTO events (at_ms, kind, subject) VALUES (${NOW}, 'snapshot_refresh', 'repo-a');`);
    expect(await db.sweep("sweep-revalidate")).toMatchObject({ would_release: 1 });

    await db.setNow(NOW + 42 * DAY);
    expect(await db.sweep("sweep-prune")).toMatchObject({ events_pruned: 1 });
    expect(await db.rows("SELECT task_id, kind, subject, at_ms FROM sweep_evidence")).toEqual([{ task_id: 1, kind: "snapshot_refresh", subject: "repo-a", at_ms: NOW }]);

    expect(await db.sweep("sweep-revalidate", [], await modeFile("enabled"))).toMatchObject({ released: 1 });
    expect(await db.rows("SELECT id, state FROM tasks ORDER BY id")).toEqual([{ id: 1, state: "queued" }, { id: 2, state: "parked" }]);
    expect(await db.rows("SELECT * FROM sweep_evidence")).toEqual([]);
  });

  test("touching a parked task does not lose what it was met by, pruned as it is", async ({ db }) => {
    await db.given(`
      INSERT INTO tasks (id, queue, state, parked_at_ms, ready_condition)
      SELECT value, 'q', 'parked', ${NOW}, '{"kind":"event_seen","event":"e","subject":"' || value || '"}' FROM json_each('[1,2,3]');
      INSERT INTO events (at_ms, kind, subject) SELECT ${NOW}, 'e', value FROM json_each('["1","2","3"]');`);
    await db.setNow(NOW + 32 * DAY);
    expect(await db.sweep("sweep-prune")).toMatchObject({ events_pruned: 3 });
    await db.given(`
      UPDATE tasks SET ready_condition = ready_condition WHERE id = 1;
      UPDATE tasks SET not_before_ms = ${NOW} WHERE id = 2;
      UPDATE tasks SET ready_condition = '{"any":[{"kind":"manual"},' || ready_condition || ']}' WHERE id = 3;`);
    expect(await db.rows("SELECT task_id FROM would_release_tasks ORDER BY task_id")).toEqual([1, 2, 3].map((task_id) => ({ task_id })));
  });

  test("old runs and findings are forgotten, but never what holds the gate open", async ({ db }) => {
    await db.given("INSERT INTO tasks (id, queue, state) VALUES (1, 'q', 'parked')");
    const { run_id: observation } = await db.sweep("sweep-revalidate");
    const { run_id: pruning } = await db.sweep("sweep-prune");
    await db.setNow(NOW + 31 * DAY);

    const { run_id: later } = await db.sweep("sweep-prune");

    expect(await db.rows("SELECT id FROM sweep_runs WHERE id <> 'expire_leases.idle' ORDER BY started_at_ms")).toEqual([{ id: observation }, { id: later }]);
    expect(await db.rows("SELECT run_id FROM sweep_findings")).toEqual([{ run_id: observation }]);
    expect(pruning).not.toBe(later);
    expect(await db.sweep("sweep-revalidate", [], await modeFile("enabled"))).toMatchObject({ gated: false });
  });

  test("200,000 old events go in batches while claims go on beside it; no claim fails", async ({ db }) => {
    await db.given(`
      INSERT INTO tasks (queue, state) SELECT 'q', 'queued' FROM json_each('[${"0,".repeat(4999)}0]');
      INSERT INTO events (at_ms, kind, subject) SELECT ${NOW - 40 * DAY} + 13 * a.value, 'old', 'repo-' || abs(random() % 5000) FROM json_each('[${Array.from({ length: 2000 }, (_, i) => i)}]') AS a, json_each('[${"0,".repeat(99)}0]');`);
    let pruning = true;
    const sweep = db.sweep("sweep-prune").finally(() => (pruning = false));
    let claims = 0;
    let longestMs = 0;
    while (pruning) {
      const begun = performance.now();
      expect(await queue.claim(db.queue, { queue: "q", worker: "w", token: `t${claims}`, lease_ms: 60_000 })).toHaveLength(1);
      longestMs = Math.max(longestMs, performance.now() - begun);
      claims++;
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    const run = await sweep;

    console.log(`${engine}: pruned 200,000 events in ${run.batches} batches and ${run.duration_ms} ms beside ${claims} claims, the longest ${Math.round(longestMs)} ms`);
    expect(run).toMatchObject({ events_pruned: 200_000, outcome: "ok", drained: true });
    expect(await db.rows("SELECT count(*) AS leased FROM tasks WHERE state = 'leased'")).toEqual([{ leased: claims }]);
    expect(await db.rows("SELECT count(*) AS left_over FROM events WHERE kind = 'old'")).toEqual([{ left_over: 0 }]);
  }, 180_000);
});
