// The promises, asked of every engine that the SQL is said to run on, by the same assertions. What an engine does instead of
// keeping one stands in EXCEPTIONS and is asserted, not skipped. README shows the table that comes of it.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, describe, expect, test } from "vitest";
import type { Database, Row } from "../scripts/lib/database.js";
import { queue } from "../scripts/lib/queue.js";
import { verify } from "../scripts/verify.js";
import type { Engine, Queue, Values } from "./engines/adapter.js";
import { file, replica, server } from "./engines/libsql.js";
import { shell } from "./engines/shell.js";
import { turso } from "./engines/turso.js";
import { EVERY_KIND, FINDINGS, HALVES, MALFORMED, OBSERVED, RELEASED } from "./fixtures.js";
import { DAY, NOW, ROOT } from "./support.js";

const ENGINES = [file, server, replica, turso, shell];
const MINUTE = 60_000;
const UNBOUND: Values = { run_id: null, mode: null, origin: null, runner: null, sql_version: "v1", needs_schema_version: null, scope_queue: null, batch_rows: null };
const TABLES = ["tasks", "leases", "events", "ready_terms", "awaited_events"];

/** One engine's queue with its clock at NOW. */
class Asked {
  constructor(readonly db: Queue) {}

  /** Puts rows there by plain SQL: all of it in one transaction. */
  async given(...statements: string[]): Promise<void> {
    await this.db.batch(statements.map((sql) => ({ sql, args: {} })));
  }
  /** Reads back, inside a transaction that writes: a replica's answer to anything else may be old. */
  async rows(...selects: string[]): Promise<Row[]> {
    return (await this.db.batch(selects.map((sql) => ({ sql, args: {} })))).flat().map((row) => ({ ...row }));
  }
  async setNow(ms: number): Promise<void> {
    await this.given(`UPDATE sweep_settings SET value = ${ms} WHERE name = 'fake_now_ms'`);
  }
  async sweep(name: string, values: Values = {}): Promise<Row> {
    const { counts, ...report } = await this.db.sweep(name, { ...UNBOUND, ...values });
    return { ...report, ...JSON.parse(String(counts)) };
  }
  /** By a plain read, outside of any transaction. */
  async newestTask(): Promise<unknown> {
    return (await this.db.read([{ sql: "SELECT max(id) AS id FROM tasks", args: {} }]))[0]![0]!.id;
  }
  /** The queue's verbs, by their files. */
  get verbs(): Database {
    return { batch: this.db.batch, read: this.db.batch } as Database;
  }
  claim(token: string): Promise<Row[]> {
    return queue.claim(this.verbs, { queue: "q", worker: "w", token, lease_ms: MINUTE });
  }
  /** Everything that is no ledger, sweep_settings included. */
  everything(): Promise<Row[]> {
    return this.rows(...[...TABLES, "sweep_settings"].map((table) => `SELECT '${table}' AS "table", * FROM ${table}`));
  }
  /** Each statement by itself is refused with this message, and all of them together change nothing. */
  async refuses(message: string, ...statements: string[]): Promise<void> {
    const before = await this.everything();
    for (const statement of statements) await expect(this.given(statement), statement).rejects.toThrow(message);
    expect(await this.everything()).toEqual(before);
  }
}

const leased = (id: number, endsAt: number, attempts = 0, maxAttempts: number | null = null) => [
  `INSERT INTO tasks (id, queue, state, claimed_by, lease_token, attempts, max_attempts) VALUES (${id}, 'q', 'leased', 'w${id}', 't${id}', ${attempts}, ${maxAttempts})`,
  `INSERT INTO leases (task_id, worker, token, acquired_at_ms, expires_at_ms) VALUES (${id}, 'w${id}', 't${id}', ${NOW - MINUTE}, ${endsAt})`,
];
const statements = (script: string) => script.split(/;\s*(?=\n|$)/).filter((statement) => statement.trim());
const quoted = (text: string) => `'${text.replaceAll("'", "''")}'`;
const findings = (asked: Asked, runId: unknown) => asked.rows(`SELECT task_id, verdict, reason FROM sweep_findings WHERE run_id = '${runId}' ORDER BY task_id`);

const PROMISES: Record<string, (asked: Asked) => Promise<void>> = {
  "expiry: a lease is over at the very millisecond it names": async (asked) => {
    await asked.given(...leased(1, NOW), ...leased(2, NOW + 1), ...leased(3, NOW - MINUTE));

    expect(await asked.sweep("expire_leases", { run_id: "r" })).toMatchObject({ run_id: "r", outcome: "ok", drained: 1, expired_leases: 2 });

    expect(await asked.rows("SELECT id, state, claimed_by, lease_token FROM tasks ORDER BY id")).toEqual([
      { id: 1, state: "queued", claimed_by: null, lease_token: null },
      { id: 2, state: "leased", claimed_by: "w2", lease_token: "t2" },
      { id: 3, state: "queued", claimed_by: null, lease_token: null },
    ]);
    expect(await asked.rows("SELECT task_id FROM leases")).toEqual([{ task_id: 2 }]);
    expect(await asked.rows("SELECT at_ms, kind, subject, task_id, run_id FROM events ORDER BY id")).toEqual(
      [3, 1].map((task_id) => ({ at_ms: NOW, kind: "lease_expired", subject: "q", task_id, run_id: "r" })),
    );
    const before = await asked.everything();
    expect(await asked.sweep("expire_leases")).toMatchObject({ run_id: "expire_leases.idle", expired_leases: 0 });
    expect(await asked.everything()).toEqual(before);
  },

  "expiry: attempts used up end in failed, with both events": async (asked) => {
    await asked.given(...leased(1, NOW, 3, 3), ...leased(2, NOW, 2, 3), ...leased(3, NOW, 9));
    expect(await asked.sweep("expire_leases")).toMatchObject({ expired_leases: 3 });
    expect(await asked.rows("SELECT id, state, attempts FROM tasks ORDER BY id")).toEqual([
      { id: 1, state: "failed", attempts: 3 },
      { id: 2, state: "queued", attempts: 2 },
      { id: 3, state: "queued", attempts: 9 },
    ]);
    expect(await asked.rows("SELECT kind, task_id FROM events ORDER BY kind, task_id")).toEqual([
      { kind: "attempts_exhausted", task_id: 1 },
      ...[1, 2, 3].map((task_id) => ({ kind: "lease_expired", task_id })),
    ]);
  },

  "observing: nothing is written but sweep_* rows": async (asked) => {
    await asked.given(...leased(50, NOW), ...statements(EVERY_KIND), `INSERT INTO events (at_ms, kind) VALUES (${NOW - 31 * DAY}, 'old')`);
    const before = await asked.everything();
    expect(await asked.sweep("expire_leases", { mode: "observe" })).toMatchObject({ mode: "observe", outcome: "ok", drained: 1, expired_leases: 1 });
    expect(await asked.sweep("revalidate_parked_tasks")).toMatchObject({ mode: "observe", outcome: "ok", drained: 1, ...OBSERVED });
    expect(await asked.sweep("prune_events", { mode: "observe" })).toMatchObject({ mode: "observe", outcome: "ok", drained: 1, events_pruned: 1 });
    expect(await asked.everything()).toEqual(before);
  },

  "parked tasks: every kind gets its verdict and reason": async (asked) => {
    await asked.given(...statements(EVERY_KIND));
    const { run_id } = await asked.sweep("revalidate_parked_tasks");
    expect(await findings(asked, run_id)).toEqual(FINDINGS);
    const confirmed = [2, 3, 8, 10, 15, 16, 17].map((task_id) => ({ task_id, reason: "waiting" }));
    const timeParks = [11, 12].map((task_id) => ({ task_id, reason: "time_park" }));
    expect(await asked.rows("SELECT task_id, reason FROM parked_verdicts WHERE verdict = 'confirmed' ORDER BY reason DESC, task_id")).toEqual([...confirmed, ...timeParks]);
    expect((await asked.rows("SELECT task_id FROM would_release_tasks ORDER BY task_id")).map((row) => row.task_id)).toEqual([1, 4, 9]);
    const [{ evidence } = {}] = await asked.rows("SELECT evidence FROM sweep_findings WHERE task_id = 1");
    expect(JSON.parse(String(evidence))).toEqual([
      { branch: 0, term: 0, kind: "event_seen", state: "met", event: "snapshot_refresh", event_id: 2, task: null, at_ms: null },
    ]);
  },

  "parked tasks: observed, gated, released": async (asked) => {
    await asked.given(...statements(EVERY_KIND));
    const before = await asked.everything();
    const enabled = (sql_version: string) => asked.sweep("revalidate_parked_tasks", { mode: "enabled", sql_version });
    expect(await enabled("v1")).toMatchObject({ mode: "observe", requested_mode: "enabled", gated: 1, gate_reason: expect.stringMatching(/no finished observe run/), ...OBSERVED });
    expect(await enabled("v2")).toMatchObject({ mode: "observe", gated: 1 });
    expect(await asked.everything()).toEqual(before);

    const released = await enabled("v2");

    expect(released).toMatchObject({ mode: "enabled", gated: 0, gate_reason: null, outcome: "ok", drained: 1, ...RELEASED });
    expect(await findings(asked, released.run_id)).toEqual(FINDINGS);
    expect(await asked.rows("SELECT id, state, ready_condition, parsed_condition, parked_at_ms FROM tasks WHERE id IN (1, 4, 9) ORDER BY id")).toEqual(
      [1, 4, 9].map((id) => ({ id, state: "queued", ready_condition: null, parsed_condition: null, parked_at_ms: null })),
    );
    expect(await asked.rows("SELECT at_ms, subject, task_id, run_id, payload ->> '$.reason' AS reason FROM events WHERE kind = 'park_released' ORDER BY task_id")).toEqual(
      [1, 4, 9].map((task_id) => ({ at_ms: NOW, subject: "q", task_id, run_id: released.run_id, reason: "condition_met" })),
    );
    expect(await asked.rows("SELECT count(*) AS left_over FROM ready_terms WHERE task_id IN (1, 4, 9)")).toEqual([{ left_over: 0 }]);
  },

  "parked tasks: no more than max_releases_per_run": async (asked) => {
    await asked.given(
      "UPDATE sweep_settings SET value = 2 WHERE name = 'max_releases_per_run'",
      "INSERT INTO tasks (id, queue, state) VALUES (100, 'q', 'done')",
      `INSERT INTO tasks (id, queue, state, ready_condition) SELECT value, 'q', 'parked', CASE WHEN value % 2 THEN '{"kind":"task_done","task":100}' ELSE '{"kind":"manual"}' END FROM json_each('[1,2,3,4,5,6,7]')`,
    );
    expect(await asked.sweep("revalidate_parked_tasks")).toMatchObject({ would_release: 4, checked: 7 });
    const enabled = () => asked.sweep("revalidate_parked_tasks", { mode: "enabled" });
    expect(await enabled()).toMatchObject({ checked: 3, released: 2, confirmed: 1, stale: 0, drained: 0, outcome: "ok" });
    expect(await enabled()).toMatchObject({ checked: 5, released: 2, confirmed: 3, drained: 1, outcome: "ok" });
    expect(await asked.rows("SELECT task_id FROM events WHERE kind = 'park_released' ORDER BY id")).toEqual([1, 3, 5, 7].map((task_id) => ({ task_id })));
  },

  "pruning: exactly as old as the retention stays, and the log says what went": async (asked) => {
    await asked.given(
      `INSERT INTO events (at_ms, kind) VALUES (${NOW - 31 * DAY}, 'd31'), (${NOW - 30 * DAY - 1}, 'd30+'), (${NOW - 30 * DAY}, 'd30'), (${NOW - 29 * DAY}, 'd29')`,
      `INSERT INTO events (at_ms, kind) VALUES (${NOW - 40 * DAY}, 'late')`,
    );
    expect(await asked.sweep("prune_events", { run_id: "r" })).toMatchObject({ outcome: "ok", drained: 1, events_pruned: 3 });
    expect(await asked.rows("SELECT kind, run_id, payload FROM events ORDER BY id")).toEqual([
      { kind: "d30", run_id: null, payload: "{}" },
      { kind: "d29", run_id: null, payload: "{}" },
      { kind: "events_pruned", run_id: "r", payload: JSON.stringify({ events_pruned: 3, cutoff_ms: NOW - 30 * DAY, drained: 1 }) },
    ]);
  },

  "pruning: what a parked task waits for is kept": async (asked) => {
    const waits = quoted('{"kind":"event_seen","event":"snapshot_refresh","subject":"repo-a"}');
    await asked.given(
      `INSERT INTO tasks (id, queue, state, parked_at_ms, ready_condition) VALUES (1, 'q', 'parked', ${NOW}, ${waits}), (2, 'q', 'parked', ${NOW + 1}, ${waits})`,
      `INSERT INTO events (at_ms, kind, subject) VALUES (${NOW}, 'snapshot_refresh', 'repo-a')`,
    );
    await asked.sweep("revalidate_parked_tasks");
    await asked.setNow(NOW + 42 * DAY);
    expect(await asked.sweep("prune_events")).toMatchObject({ events_pruned: 1 });
    expect(await asked.rows("SELECT task_id, kind, subject, at_ms FROM sweep_evidence")).toEqual([{ task_id: 1, kind: "snapshot_refresh", subject: "repo-a", at_ms: NOW }]);
    expect(await asked.sweep("revalidate_parked_tasks", { mode: "enabled" })).toMatchObject({ released: 1 });
    expect(await asked.rows("SELECT id, state FROM tasks ORDER BY id")).toEqual([{ id: 1, state: "queued" }, { id: 2, state: "parked" }]);
  },

  "the log: append-only, by any statement": async (asked) => {
    await asked.given(`INSERT INTO events (id, at_ms, kind) VALUES (1, ${NOW}, 'e'), (2, ${NOW - 30 * DAY}, 'e'), (3, ${NOW - 30 * DAY - 1}, 'e'), (4, ${NOW}, 'proof.e')`);
    await asked.refuses(
      "events are append-only",
      "UPDATE events SET kind = 'x' WHERE id = 1",
      "UPDATE events SET payload = payload",
      "INSERT OR REPLACE INTO events (id, kind) VALUES (1, 'x')",
      `REPLACE INTO events (id, at_ms, kind) VALUES (2, ${NOW - 90 * DAY}, 'x')`,
      "INSERT INTO events (id, kind) VALUES (1, 'x') ON CONFLICT (id) DO UPDATE SET kind = 'x'",
      "UPDATE OR REPLACE events SET id = 1 WHERE id = 2",
    );
    await asked.refuses("events younger than events_retention_days cannot be deleted", "DELETE FROM events WHERE id = 1", "DELETE FROM events WHERE id = 2", "DELETE FROM events");
    await asked.given("DELETE FROM events WHERE id >= 3", "INSERT INTO events (kind) VALUES ('later')");
    expect(await asked.rows("SELECT id FROM events ORDER BY id")).toEqual([1, 2, 5].map((id) => ({ id })));
  },

  "guards refuse: a malformed condition, with what is wrong": async (asked) => {
    await asked.given("INSERT INTO tasks (id, queue) VALUES (1, 'q')");
    const before = await asked.everything();
    for (const [condition, reason] of MALFORMED) {
      await expect(asked.given(`UPDATE tasks SET state = 'parked', ready_condition = ${quoted(condition)} WHERE id = 1`), condition).rejects.toThrow(`ready_condition refused: ${reason}`);
    }
    expect(await asked.everything()).toEqual(before);
    await asked.refuses("ready_condition refused: unknown kind", `INSERT INTO tasks (queue, state, ready_condition) VALUES ('q', 'parked', '{"kind":"nope"}')`);
  },

  "guards refuse: what is not JSON": async (asked) => {
    for (const json of ["", "nope", "{", "{} {}", '{"kind":"manual"},']) {
      await asked.refuses("tasks_payload_is_json", `INSERT INTO tasks (payload) VALUES ('${json}')`);
      await asked.refuses("tasks_ready_condition_is_json", `INSERT INTO tasks (state, ready_condition) VALUES ('parked', '${json}')`);
      await asked.refuses("events_payload_is_json", `INSERT INTO events (kind, payload) VALUES ('e', '${json}')`);
    }
  },

  "guards refuse: JSON5": async (asked) => {
    await asked.refuses("tasks_payload_is_json", "INSERT INTO tasks (payload) VALUES ('{a:1}')");
    await asked.refuses("tasks_ready_condition_is_json", "INSERT INTO tasks (state, ready_condition) VALUES ('parked', '{kind:\"manual\"}')");
  },

  "guards refuse: half a character": async (asked) => {
    for (const [condition, reason] of HALVES) await asked.refuses(`ready_condition refused: ${reason}`, `INSERT INTO tasks (state, ready_condition) VALUES ('parked', ${quoted(condition)})`);
  },

  "guards refuse: a senseless setting, time or binding, by name": async (asked) => {
    await asked.given("INSERT INTO tasks (id, queue) VALUES (1, 'q')");
    for (const value of ["0", "-3", "'thirty'", "'30 days'", "1.5", "NULL", "1e9", "''", "x'3330'"]) {
      await asked.refuses(
        "events_retention_days_is_a_whole_number_from_1_to_3650",
        `UPDATE sweep_settings SET value = ${value} WHERE name = 'events_retention_days'`,
        `INSERT OR REPLACE INTO sweep_settings (name, value) VALUES ('events_retention_days', ${value})`,
      );
    }
    await asked.refuses("max_releases_per_run_is_a_whole_number_from_1_to_1000000", "UPDATE sweep_settings SET value = 0 WHERE name = 'max_releases_per_run'");
    await asked.refuses("sweep_settings: no setting of that name", "INSERT INTO sweep_settings (name, value) VALUES ('event_retention_days', 5)");
    await asked.refuses("sweep_settings: a setting cannot be deleted", "DELETE FROM sweep_settings");
    await asked.refuses("tasks_not_before_ms_is_milliseconds", `UPDATE tasks SET not_before_ms = ${Math.floor(NOW / 1000)} WHERE id = 1`);
    await asked.refuses("tasks_binding_only_while_leased", "UPDATE tasks SET state = 'leased' WHERE id = 1", "UPDATE tasks SET claimed_by = 'w' WHERE id = 1");
    await asked.refuses("tasks_state_is_known", "UPDATE tasks SET state = 'sleeping' WHERE id = 1");
  },

  "guards refuse: a lease of no task": async (asked) => {
    await asked.refuses("FOREIGN KEY constraint failed", `INSERT INTO leases (task_id, worker, token, expires_at_ms) VALUES (99, 'w', 't', ${NOW})`);
  },

  "the fence: who lost the lease is refused and changes nothing": async (asked) => {
    await asked.given("INSERT INTO tasks (id, queue) VALUES (1, 'q'), (2, 'q')");
    expect(await asked.claim("mine")).toMatchObject([{ task_id: 1, attempts: 1, expires_at_ms: NOW + MINUTE }]);
    const lost = async (token: string) => {
      const before = await asked.everything();
      await expect(queue.complete(asked.verbs, { task_id: 1, token })).rejects.toThrow("lease lost");
      await expect(queue.fail(asked.verbs, { task_id: 1, token })).rejects.toThrow("lease lost");
      await expect(queue.park(asked.verbs, { task_id: 1, token, not_before_ms: NOW })).rejects.toThrow("lease lost");
      await expect(queue.renew(asked.verbs, { task_id: 1, token, lease_ms: MINUTE })).rejects.toThrow("lease lost");
      expect(await asked.everything()).toEqual(before);
    };
    await lost("somebody else's");
    expect(await queue.renew(asked.verbs, { task_id: 1, token: "mine", lease_ms: 2 * MINUTE })).toEqual([{ task_id: 1, expires_at_ms: NOW + 2 * MINUTE }]);

    await asked.setNow(NOW + 2 * MINUTE);
    await expect(queue.renew(asked.verbs, { task_id: 1, token: "mine", lease_ms: MINUTE })).rejects.toThrow("lease lost: it has run out");
    expect(await asked.sweep("expire_leases")).toMatchObject({ expired_leases: 1 });
    await lost("mine");

    await asked.claim("again");
    expect(await queue.park(asked.verbs, { task_id: 1, token: "again", ready_condition: '{"kind":"manual"}', park_reason: "it's \"odd\"" })).toEqual([{ task_id: 1, parked_at_ms: NOW + 2 * MINUTE }]);
    expect(await queue.release(asked.verbs, { task_id: 1 })).toEqual([{ task_id: 1, at_ms: NOW + 2 * MINUTE }]);
    await asked.claim("last");
    expect(await queue.complete(asked.verbs, { task_id: 1, token: "last" })).toEqual([{ task_id: 1, state: "done" }]);
    expect(await asked.rows("SELECT kind FROM events ORDER BY id")).toEqual(["lease_expired", "parked", "park_released"].map((kind) => ({ kind })));
  },

  "claim: in order, after expiring, time parks when due": async (asked) => {
    const until = (at_ms: number) => quoted(JSON.stringify({ kind: "not_before", at_ms }));
    await asked.given(
      ...leased(7, NOW),
      `UPDATE tasks SET priority = 9 WHERE id = 7`,
      `INSERT INTO tasks (id, queue, priority, created_at_ms) VALUES (1, 'q', 0, ${NOW - 10}), (2, 'q', 0, ${NOW - 30}), (3, 'q', 7, ${NOW}), (4, 'q', 0, ${NOW - 30}), (5, 'other', 9, ${NOW})`,
      `INSERT INTO tasks (id, queue, created_at_ms, not_before_ms) VALUES (6, 'q', ${NOW - 99}, ${NOW + 1})`,
      `INSERT INTO tasks (id, queue, state, created_at_ms, ready_condition) VALUES (8, 'q', 'parked', ${NOW - 20}, ${until(NOW)}), (9, 'q', 'parked', ${NOW - 98}, ${until(NOW + 1)}), (10, 'q', 'parked', ${NOW - 99}, '{"kind":"manual"}')`,
    );
    const claimAll = async () => {
      const ids = [];
      for (;;) {
        const [task] = await asked.claim(`token-${Math.random()}`);
        if (!task) return ids;
        ids.push(task.task_id);
      }
    };
    expect(await claimAll()).toEqual([7, 3, 2, 4, 8, 1]);
    await asked.setNow(NOW + 1);
    expect(await claimAll()).toEqual([6, 9]);
    expect(await asked.rows("SELECT ready_condition, time_park_due_ms, attempts FROM tasks WHERE id = 9")).toEqual([{ ready_condition: null, time_park_due_ms: null, attempts: 1 }]);
  },

  "enqueue: the same key again is the same task": async (asked) => {
    expect(await queue.enqueue(asked.verbs, { queue: "q", key: "nightly", payload: '{"repo":"a"}' })).toEqual([{ task_id: 1 }]);
    const before = await asked.everything();
    expect(await queue.enqueue(asked.verbs, { queue: "other", key: "nightly", priority: 9 })).toEqual([{ task_id: 1 }]);
    expect(await asked.everything()).toEqual(before);
  },

  "runs: never two at once, never twice, a dead one is abandoned": async (asked) => {
    await asked.given(...leased(1, NOW), `INSERT INTO sweep_runs (id, sweep, runner, started_at_ms) VALUES ('other', 'expire_leases', 'host-b:17', ${NOW - 119_999})`);
    await expect(asked.sweep("expire_leases")).rejects.toThrow("sweep held");
    expect(await asked.rows("SELECT state FROM tasks")).toEqual([{ state: "leased" }]);
    expect(await asked.rows("SELECT outcome FROM sweep_runs WHERE id = 'other'")).toEqual([{ outcome: "running" }]);

    await asked.setNow(NOW + 1);
    expect(await asked.sweep("expire_leases", { run_id: "mine" })).toMatchObject({ outcome: "ok", expired_leases: 1 });
    expect(await asked.rows("SELECT outcome, error FROM sweep_runs WHERE id = 'other'")).toEqual([{ outcome: "abandoned", error: expect.stringContaining("silent for longer") }]);

    await asked.given("INSERT INTO tasks (id, queue, state, claimed_by, lease_token) VALUES (2, 'q', 'leased', 'w', 't')", `INSERT INTO leases (task_id, worker, token, expires_at_ms) VALUES (2, 'w', 't', ${NOW})`);
    await asked.sweep("expire_leases", { run_id: "mine" });
    expect(await asked.rows("SELECT id, state FROM tasks ORDER BY id")).toEqual([{ id: 1, state: "queued" }, { id: 2, state: "leased" }]);
    expect(await asked.rows("SELECT batches, counts FROM sweep_runs WHERE id = 'mine'")).toEqual([{ batches: 1, counts: '{"expired_leases":1}' }]);
  },

  "runs: bounded batches": async (asked) => {
    await asked.given(...[1, 2, 3].flatMap((id) => leased(id, NOW - id)));
    const batch = () => asked.sweep("expire_leases", { run_id: "r", runner: "host-a:1", batch_rows: 2n });
    expect(await batch()).toMatchObject({ outcome: "running", drained: 0, batches: 1, expired_leases: 2, row_limit: 2 });
    expect(await batch()).toMatchObject({ outcome: "ok", drained: 1, batches: 2, expired_leases: 3 });
    expect(await asked.rows("SELECT task_id FROM events ORDER BY id")).toEqual([3, 2, 1].map((task_id) => ({ task_id })));
    // By hand it is one batch: nobody comes back for the rest.
    await asked.given(...[4, 5].flatMap((id) => leased(id, NOW)));
    expect(await asked.sweep("expire_leases", { run_id: "by hand", batch_rows: 1n })).toMatchObject({ outcome: "ok", drained: 0, expired_leases: 1 });
  },

  "reading: a plain read sees the write before it": async (asked) => {
    for (let id = 1; id <= 20; id++) {
      await asked.given(`INSERT INTO tasks (id, queue) VALUES (${id}, 'q')`);
      expect(await asked.newestTask()).toBe(id);
    }
  },

  "runs: all or nothing": async (asked) => {
    const before = await asked.everything();
    await expect(asked.given("INSERT INTO tasks (id, queue) VALUES (1, 'q')", ...leased(2, NOW), "INSERT INTO tasks (id, state) VALUES (3, 'sleeping')")).rejects.toThrow("tasks_state_is_known");
    expect(await asked.everything()).toEqual(before);
  },
};

/** Foreign keys are off unless asked for, on every connection anew: nothing but the lease itself suffers. */
const leaseOfNothing = async (asked: Asked) => {
  await asked.given(`INSERT INTO leases (task_id, worker, token, expires_at_ms) VALUES (99, 'w', 't', ${NOW})`);
  expect((await verify(asked.verbs)).filter(({ rows }) => rows.length > 0)).toMatchObject([{ name: "lease_without_binding" }]);
  expect(await asked.sweep("expire_leases")).toMatchObject({ outcome: "ok", expired_leases: 1 });
};
const NO_FOREIGN_KEYS = "Foreign keys are off: a lease of a task that is not there is accepted; `make verify` finds it, expiry deletes it";

/** What an engine does instead of keeping a promise. */
const EXCEPTIONS: { engine: Engine; promise: string; shown: string; holds: (asked: Asked) => Promise<void> }[] = [
  {
    engine: replica,
    promise: "reading: a plain read sees the write before it",
    shown: "A plain read of a replica may be behind for a moment; a transaction that writes is not",
    holds: async (asked) => {
      for (let id = 1; id <= 20; id++) {
        await asked.given(`INSERT INTO tasks (id, queue) VALUES (${id}, 'q')`);
        // How far it is behind is up to the machine; that it comes is the promise.
        await expect.poll(() => asked.newestTask(), { timeout: 10_000, interval: 20 }).toBe(id);
      }
    },
  },
  {
    engine: turso,
    promise: "guards refuse: JSON5",
    shown: "JSON5 is taken for JSON, and read as what it means",
    holds: async (asked) => {
      await asked.given("INSERT INTO tasks (payload) VALUES ('{a:1}')", `INSERT INTO tasks (id, queue, state, ready_condition) VALUES (9, 'q', 'parked', '{kind:"not_before",at_ms:${NOW}}')`);
      expect(await asked.claim("t")).toMatchObject([{ task_id: 9 }]);
      await asked.refuses("ready_condition refused: unknown kind", "INSERT INTO tasks (state, ready_condition) VALUES ('parked', '{kind:\"nope\"}')");
    },
  },
  {
    engine: turso,
    promise: "guards refuse: half a character",
    shown: "Half a character, as an escape in JSON, is left out when it is read",
    holds: async (asked) => {
      await asked.given(`INSERT INTO tasks (id, queue, state, ready_condition) VALUES (9, 'q', 'parked', '{"kind":"event_seen","event":"half \\ud83d"}')`, `INSERT INTO events (kind, at_ms) VALUES ('half ', ${NOW})`);
      expect(await asked.rows("SELECT task_id FROM would_release_tasks")).toEqual([{ task_id: 9 }]);
    },
  },
  { engine: turso, promise: "guards refuse: a lease of no task", shown: NO_FOREIGN_KEYS, holds: leaseOfNothing },
  { engine: shell, promise: "guards refuse: a lease of no task", shown: NO_FOREIGN_KEYS, holds: leaseOfNothing },
];

/** What each engine answered, promise by promise. */
const answers: Record<string, Record<string, string>> = {};

/** The Markdown table of README: a row for each group of promises, the word before the colon; what an engine does instead, in notes. */
function table(): string {
  const groups: Record<string, string[]> = {};
  for (const promise of Object.keys(PROMISES)) (groups[promise.split(": ")[0]!] ??= []).push(promise);
  const notes = [...new Set(EXCEPTIONS.map(({ shown }) => shown))];
  const cell = (promises: string[], { name }: Engine) => {
    const said = new Set(promises.map((promise) => answers[promise]?.[name] ?? "BROKEN"));
    const but = notes.flatMap((note, i) => (said.delete(note) ? [`(${i + 1})`] : []));
    return [...said, ...but].join(" ");
  };
  return [
    `| | ${ENGINES.map(({ name }) => name).join(" | ")} |`,
    `|---|${ENGINES.map(() => "---|").join("")}`,
    ...Object.entries(groups).map(([group, promises]) => `| ${group}: ${promises.map((promise) => promise.slice(group.length + 2)).join("; ")} | ${ENGINES.map((engine) => cell(promises, engine)).join(" | ")} |`),
    "",
    ...notes.map((note, i) => `(${i + 1}) ${note}.  `),
  ].join("\n");
}

describe.each(ENGINES)("$name", (engine) => {
  test.for(Object.keys(PROMISES))("%s", async (promise, context) => {
    if (engine.missing) {
      (answers[promise] ??= {})[engine.name] = "not asked";
      context.skip(engine.missing);
    }
    const exception = EXCEPTIONS.find((known) => known.engine === engine && known.promise === promise);
    const db = await engine.open();
    try {
      const asked = new Asked(db);
      await asked.setNow(NOW);
      await (exception?.holds ?? PROMISES[promise]!)(asked);
      const faults = (await verify(asked.verbs)).filter(({ rows }) => rows.length > 0);
      expect(faults, "rows that must not exist").toEqual([]);
    } finally {
      await db.close();
    }
    (answers[promise] ??= {})[engine.name] = exception?.shown ?? "ok";
  });
});

test("README shows what they answered", (context) => {
  const asked = Object.keys(PROMISES).every((promise) => ENGINES.every(({ name, missing }) => answers[promise]?.[name] && !missing));
  if (!asked) context.skip("not every engine was asked for everything");
  const [, shown] = /^## Engines\n(.*?)^## /ms.exec(readFileSync(join(ROOT, "README.md"), "utf8"))!;
  expect(shown).toContain(table());
});

afterAll(() => console.log(`${table()}\n\n${ENGINES.map(({ name, version }) => `${name}: ${version}`).join(", ")}`));
