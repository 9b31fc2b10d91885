import { expect } from "vitest";
import { queue } from "../scripts/lib/queue.js";
import { everything, NOW, onEachEngine, type TestDatabase } from "./support.js";

const MINUTE = 60_000;
const claim = (db: TestDatabase, token: string, more: { queue?: string; worker?: string } = {}) =>
  queue.claim(db.queue, { queue: "q", worker: "w", token, lease_ms: MINUTE, ...more });
const parked = (id: number, condition: object | null, more = "") => `
  INSERT INTO tasks (id, queue, state, ready_condition, created_at_ms) VALUES (${id}, 'q', 'parked', ${condition ? `'${JSON.stringify(condition)}'` : "NULL"}, ${NOW + id});
  ${more}`;
const until = (at_ms: number) => ({ kind: "not_before", at_ms });

/** Claims until there is nothing left; returns the ids in the order in which they came. */
async function claimAll(db: TestDatabase): Promise<unknown[]> {
  const ids = [];
  for (let i = 0; i < 20; i++) {
    const [task] = await claim(db, `token-${i}`);
    if (!task) return ids;
    ids.push(task.task_id);
  }
  throw new Error("claim never ran out of tasks");
}

onEachEngine("enqueue", (test) => {
  test("a task is queued now, with the defaults of the schema, or with what it was given", async ({ db }) => {
    expect(await queue.enqueue(db.queue, {})).toEqual([{ task_id: 1 }]);
    await queue.enqueue(db.queue, { queue: "q", key: "nightly", priority: 5, payload: '{"repo":"a"}', not_before_ms: NOW + 1, max_attempts: 3 });

    const plain = { state: "queued", ready_condition: null, park_reason: null, parked_at_ms: null, time_park_due_ms: null, parsed_condition: null, claimed_by: null, lease_token: null, attempts: 0, created_at_ms: NOW, updated_at_ms: NOW };
    expect(await db.rows("SELECT * FROM tasks")).toEqual([
      { id: 1, key: null, queue: "default", priority: 0, payload: "{}", not_before_ms: null, max_attempts: null, ...plain },
      { id: 2, key: "nightly", queue: "q", priority: 5, payload: '{"repo":"a"}', not_before_ms: NOW + 1, max_attempts: 3, ...plain },
    ]);
  });

  test("the same key again returns the first task's id and changes nothing, whatever became of it", async ({ db }) => {
    await queue.enqueue(db.queue, { queue: "q", key: "nightly" });
    await claim(db, "t");
    const before = await everything(db);
    await db.setNow(NOW + 1);

    expect(await queue.enqueue(db.queue, { queue: "other", key: "nightly", priority: 9, payload: "[1]" })).toEqual([{ task_id: 1 }]);

    await db.setNow(NOW);
    expect(await everything(db)).toEqual(before);
  });

  test("without a key each is a task of its own", async ({ db }) => {
    expect(await queue.enqueue(db.queue, {})).toEqual([{ task_id: 1 }]);
    expect(await queue.enqueue(db.queue, {})).toEqual([{ task_id: 2 }]);
  });

  test("what cannot be is refused by name", async ({ db }) => {
    await expect(queue.enqueue(db.queue, { payload: "{" })).rejects.toThrow("tasks_payload_is_json");
    await expect(queue.enqueue(db.queue, { max_attempts: 0 })).rejects.toThrow("tasks_max_attempts_is_1_or_more_or_null");
    await expect(queue.enqueue(db.queue, { not_before_ms: Math.floor(NOW / 1000) })).rejects.toThrow("tasks_not_before_ms_is_milliseconds");
    expect(await db.rows("SELECT * FROM tasks")).toEqual([]);
  });
});

onEachEngine("claim", (test) => {
  test("a token used before gets nothing from an empty queue", async ({ db }) => {
    await db.given("INSERT INTO tasks (id, queue) VALUES (1, 'q')");
    expect(await queue.claim(db.queue, { queue: "q", worker: "w", token: "t", lease_ms: 1000 })).toHaveLength(1);
    expect(await queue.claim(db.queue, { queue: "empty", worker: "w", token: "t", lease_ms: 1000 })).toEqual([]);
    expect(await db.rows("SELECT attempts FROM tasks")).toEqual([{ attempts: 1 }]);
  });

  test("the highest priority comes first, then the oldest, then the lowest id", async ({ db }) => {
    await db.given(`INSERT INTO tasks (id, queue, priority, created_at_ms) VALUES
      (1, 'q', 0, ${NOW - 10}), (2, 'q', 0, ${NOW - 30}), (3, 'q', 7, ${NOW}), (4, 'q', 0, ${NOW - 30}), (5, 'q', -1, ${NOW - 99}), (6, 'q', 7, ${NOW - 1});`);
    expect(await claimAll(db)).toEqual([6, 3, 2, 4, 1, 5]);
  });

  test("a claim binds the task, counts the attempt and returns what the worker needs; the log says nothing", async ({ db }) => {
    await db.given(`INSERT INTO tasks (id, key, queue, priority, payload, attempts, max_attempts, not_before_ms) VALUES (1, 'k', 'q', 2, '[1]', 4, 9, ${NOW});`);

    expect(await claim(db, "t")).toEqual([{ task_id: 1, key: "k", queue: "q", priority: 2, payload: "[1]", attempts: 5, max_attempts: 9, expires_at_ms: NOW + MINUTE }]);

    expect(await db.rows("SELECT state, claimed_by, lease_token, attempts, not_before_ms, updated_at_ms FROM tasks")).toEqual([
      { state: "leased", claimed_by: "w", lease_token: "t", attempts: 5, not_before_ms: null, updated_at_ms: NOW },
    ]);
    expect(await db.rows("SELECT * FROM leases")).toEqual([{ task_id: 1, worker: "w", token: "t", acquired_at_ms: NOW, expires_at_ms: NOW + MINUTE }]);
    expect(await db.rows("SELECT * FROM events")).toEqual([]);
  });

  test("only its own queue, only what is queued, and nothing before its time", async ({ db }) => {
    await db.given(`INSERT INTO tasks (id, queue, state) VALUES (1, 'other', 'queued'), (2, 'q', 'done'), (3, 'q', 'failed'), (4, 'q', 'cancelled'), (5, 'q', 'parked');
      INSERT INTO tasks (id, queue, not_before_ms) VALUES (6, 'q', ${NOW + 1});`);
    expect(await claimAll(db)).toEqual([]);

    await db.setNow(NOW + 1);
    expect(await claimAll(db)).toEqual([6]);
  });

  test("nothing there: no row, and nothing is written", async ({ db }) => {
    const before = await everything(db);
    expect(await claim(db, "t")).toEqual([]);
    expect(await everything(db)).toEqual(before);
  });

  test("a time park comes back when its time is reached, and not a millisecond sooner", async ({ db }) => {
    const later = NOW + 1;
    await db.given(
      parked(1, null, `UPDATE tasks SET not_before_ms = ${NOW} WHERE id = 1;`) +
        parked(2, null, `UPDATE tasks SET not_before_ms = ${later} WHERE id = 2;`) +
        parked(3, until(NOW)) +
        parked(4, until(later)) +
        parked(5, { all: [until(NOW - 5), until(NOW)] }) +
        parked(6, { all: [until(NOW - 5), until(later)] }) +
        parked(7, { any: [until(later), until(NOW)] }) +
        parked(8, { any: [{ all: [until(later), until(NOW)] }, until(NOW + 99)] }) +
        parked(9, until(NOW), `UPDATE tasks SET not_before_ms = ${later} WHERE id = 9;`),
    );
    expect(await claimAll(db)).toEqual([1, 3, 5, 7]);

    await db.given("UPDATE tasks SET state = 'done', claimed_by = NULL, lease_token = NULL WHERE state = 'leased'; DELETE FROM leases;");
    await db.setNow(later);
    expect(await claimAll(db)).toEqual([2, 4, 6, 8, 9]);
  });

  test("what waits for more than time is not claimed, due or not", async ({ db }) => {
    await db.given(
      parked(1, { all: [until(NOW), { kind: "manual" }] }) +
        parked(2, { any: [until(NOW), { kind: "task_done", task: 1 }] }) +
        parked(3, { kind: "event_seen", event: "e" }, `UPDATE tasks SET not_before_ms = ${NOW} WHERE id = 3;`) +
        parked(4, null),
    );
    expect(await claimAll(db)).toEqual([]);
  });

  test("a claimed time park keeps nothing of its park, and is in its place by priority and age", async ({ db }) => {
    await db.given(parked(1, until(NOW), "UPDATE tasks SET park_reason = 'r', priority = 1 WHERE id = 1;") + "INSERT INTO tasks (id, queue) VALUES (2, 'q');");

    expect(await claim(db, "t")).toMatchObject([{ task_id: 1, attempts: 1 }]);

    expect(await db.rows("SELECT state, ready_condition, park_reason, parked_at_ms, time_park_due_ms FROM tasks WHERE id = 1")).toEqual([
      { state: "leased", ready_condition: null, park_reason: null, parked_at_ms: null, time_park_due_ms: null },
    ]);
    expect(await db.rows("SELECT * FROM ready_terms")).toEqual([]);
    expect(await db.rows("SELECT * FROM events")).toEqual([]);
  });

  test("what has run out is expired first, in every queue, and may be claimed at once", async ({ db }) => {
    await db.given(`INSERT INTO tasks (id, queue, state, claimed_by, lease_token, attempts, max_attempts) VALUES
        (1, 'q', 'leased', 'a', 'ta', 1, 3), (2, 'other', 'leased', 'b', 'tb', 1, NULL), (3, 'q', 'leased', 'c', 'tc', 3, 3), (4, 'q', 'leased', 'd', 'td', 1, NULL);
      INSERT INTO leases (task_id, worker, token, acquired_at_ms, expires_at_ms) VALUES
        (1, 'a', 'ta', ${NOW - 9}, ${NOW}), (2, 'b', 'tb', ${NOW - 9}, ${NOW - 1}), (3, 'c', 'tc', ${NOW - 9}, ${NOW - 2}), (4, 'd', 'td', ${NOW - 9}, ${NOW + 1});`);

    expect(await claim(db, "t")).toMatchObject([{ task_id: 1, attempts: 2 }]);

    expect(await db.rows("SELECT id, state, lease_token FROM tasks ORDER BY id")).toEqual([
      { id: 1, state: "leased", lease_token: "t" },
      { id: 2, state: "queued", lease_token: null },
      { id: 3, state: "failed", lease_token: null },
      { id: 4, state: "leased", lease_token: "td" },
    ]);
    expect(await db.rows("SELECT at_ms, kind, task_id, run_id FROM events ORDER BY kind, task_id")).toEqual([
      { at_ms: NOW, kind: "attempts_exhausted", task_id: 3, run_id: null },
      { at_ms: NOW, kind: "lease_expired", task_id: 1, run_id: null },
      { at_ms: NOW, kind: "lease_expired", task_id: 2, run_id: null },
      { at_ms: NOW, kind: "lease_expired", task_id: 3, run_id: null },
    ]);
    expect(await db.rows("SELECT * FROM sweep_batch")).toEqual([]);
    expect(await db.rows("SELECT * FROM sweep_runs WHERE id <> 'expire_leases.idle'")).toEqual([]);
  });

  test("a claim that only expires leaves no batch open either", async ({ db }) => {
    await db.given(`INSERT INTO tasks (id, queue, state, claimed_by, lease_token) VALUES (1, 'other', 'leased', 'a', 'ta');
      INSERT INTO leases (task_id, worker, token, expires_at_ms) VALUES (1, 'a', 'ta', ${NOW});`);
    expect(await claim(db, "t")).toEqual([]);
    expect(await db.rows("SELECT state FROM tasks")).toEqual([{ state: "queued" }]);
    expect(await db.rows("SELECT * FROM sweep_batch")).toEqual([]);
  });

  test("a lease left behind on a queued task does not keep the queue from being claimed", async ({ db }) => {
    await db.given(`INSERT INTO tasks (id, queue) VALUES (1, 'q'), (2, 'q');
      INSERT INTO leases (task_id, worker, token, expires_at_ms) VALUES (1, 'gone', 'left behind', ${NOW + 9 * MINUTE});`);

    expect(await claimAll(db)).toEqual([1, 2]);

    expect(await db.rows("SELECT task_id, worker, expires_at_ms FROM leases ORDER BY task_id")).toEqual([1, 2].map((task_id) => ({ task_id, worker: "w", expires_at_ms: NOW + MINUTE })));
    await expect(queue.complete(db.queue, { task_id: 1, token: "left behind" })).rejects.toThrow("lease lost");
  });
});

const lease = { task_id: 1, token: "t" };
const ending = {
  complete: (db: TestDatabase, held = lease) => queue.complete(db.queue, held),
  renew: (db: TestDatabase, held = lease) => queue.renew(db.queue, { ...held, lease_ms: MINUTE }),
  fail: (db: TestDatabase, held = lease) => queue.fail(db.queue, held),
  park: (db: TestDatabase, held = lease) => queue.park(db.queue, { ...held, not_before_ms: NOW + MINUTE }),
};

onEachEngine("complete, fail, park and renew", (test) => {
  test("complete and fail end the task, the lease and the binding, and log nothing", async ({ db }) => {
    await db.given("INSERT INTO tasks (id, queue) VALUES (1, 'q'), (2, 'q');");
    await claim(db, "t1");
    await claim(db, "t2");
    await db.setNow(NOW + 5);

    expect(await queue.complete(db.queue, { task_id: 1, token: "t1" })).toEqual([{ task_id: 1, state: "done" }]);
    expect(await queue.fail(db.queue, { task_id: 2, token: "t2" })).toEqual([{ task_id: 2, state: "failed" }]);

    expect(await db.rows("SELECT id, state, claimed_by, lease_token, updated_at_ms FROM tasks ORDER BY id")).toEqual([
      { id: 1, state: "done", claimed_by: null, lease_token: null, updated_at_ms: NOW + 5 },
      { id: 2, state: "failed", claimed_by: null, lease_token: null, updated_at_ms: NOW + 5 },
    ]);
    expect(await db.rows("SELECT * FROM leases")).toEqual([]);
    expect(await db.rows("SELECT * FROM events")).toEqual([]);
  });

  test("park replaces condition, time and reason, ends the lease, and is logged", async ({ db }) => {
    await db.given("INSERT INTO tasks (id, queue, park_reason) VALUES (1, 'q', 'an old one');");
    await claim(db, "t");
    const condition = { kind: "task_done", task: 42 };

    expect(await queue.park(db.queue, { ...lease, ready_condition: JSON.stringify(condition), park_reason: "needs 42" })).toEqual([{ task_id: 1, parked_at_ms: NOW }]);

    expect(await db.rows("SELECT state, ready_condition, not_before_ms, park_reason, parked_at_ms, claimed_by, lease_token FROM tasks")).toEqual([
      { state: "parked", ready_condition: JSON.stringify(condition), not_before_ms: null, park_reason: "needs 42", parked_at_ms: NOW, claimed_by: null, lease_token: null },
    ]);
    expect(await db.rows("SELECT * FROM leases")).toEqual([]);
    const [event, ...others] = await db.rows("SELECT at_ms, kind, subject, task_id, run_id, payload FROM events");
    expect(others).toEqual([]);
    expect(event).toMatchObject({ at_ms: NOW, kind: "parked", subject: "q", task_id: 1, run_id: null });
    expect(JSON.parse(String(event!.payload))).toEqual({ park_reason: "needs 42", not_before_ms: null, ready_condition: condition });
  });

  test("park without condition or time is taken as it is", async ({ db }) => {
    await db.given("INSERT INTO tasks (id, queue) VALUES (1, 'q');");
    await claim(db, "t");
    await queue.park(db.queue, lease);
    expect(await db.rows("SELECT reason FROM parked_verdicts")).toEqual([{ reason: "no_condition" }]);
  });

  test("a renewed lease ends lease_ms from now, also where that is sooner", async ({ db }) => {
    await db.given("INSERT INTO tasks (id, queue) VALUES (1, 'q');");
    await claim(db, "t");
    await db.setNow(NOW + 10);

    expect(await queue.renew(db.queue, { ...lease, lease_ms: 2 * MINUTE })).toEqual([{ task_id: 1, expires_at_ms: NOW + 10 + 2 * MINUTE }]);
    expect(await queue.renew(db.queue, { ...lease, lease_ms: 1 })).toEqual([{ task_id: 1, expires_at_ms: NOW + 11 }]);

    expect(await db.rows("SELECT acquired_at_ms, expires_at_ms FROM leases")).toEqual([{ acquired_at_ms: NOW, expires_at_ms: NOW + 11 }]);
  });

  test("a lease can be renewed one millisecond before its end, and not at its end, swept or not", async ({ db }) => {
    await db.given("INSERT INTO tasks (id, queue) VALUES (1, 'q');");
    await claim(db, "t");
    await db.setNow(NOW + MINUTE - 1);
    expect(await ending.renew(db)).toEqual([{ task_id: 1, expires_at_ms: NOW + 2 * MINUTE - 1 }]);

    await db.setNow(NOW + 2 * MINUTE - 1);
    const before = await everything(db);
    await expect(ending.renew(db)).rejects.toThrow("lease lost: it has run out and cannot be renewed");
    expect(await everything(db)).toEqual(before);
  });

  for (const verb of ["complete", "fail", "park"] as const) {
    test(`${verb} is accepted after the lease's end, as long as nothing has expired it`, async ({ db }) => {
      await db.given("INSERT INTO tasks (id, queue) VALUES (1, 'q');");
      await claim(db, "t");
      await db.setNow(NOW + 2 * MINUTE);
      expect(await ending[verb](db)).toMatchObject([{ task_id: 1 }]);
      expect(await db.rows("SELECT * FROM leases")).toEqual([]);
    });
  }

  test("a worker whose lease was lost gets lease lost from complete, renew, fail and park, and changes nothing", async ({ db }) => {
    const refused = async (held: typeof lease) => {
      const before = await everything(db);
      for (const [verb, run] of Object.entries(ending)) {
        await expect(run(db, held), verb).rejects.toThrow("lease lost: this token does not hold this task");
      }
      expect(await everything(db)).toEqual(before);
    };
    await db.given("INSERT INTO tasks (id, queue) VALUES (1, 'q'), (2, 'q');");
    await claim(db, "t");

    await refused({ task_id: 1, token: "wrong" });
    await refused({ task_id: 1, token: "T" });
    await refused({ task_id: 2, token: "t" });
    await refused({ task_id: 99, token: "t" });

    // Lost by expiry.
    await db.setNow(NOW + MINUTE);
    await db.sweep("sweep-expire");
    await refused(lease);

    // Lost to a second worker.
    expect(await claim(db, "second", { worker: "w2" })).toMatchObject([{ task_id: 1 }]);
    await refused(lease);

    // Over by its own hand.
    await queue.complete(db.queue, { task_id: 1, token: "second" });
    await refused({ task_id: 1, token: "second" });
  });

  test("a lease row whose task was taken from it by hand holds nothing", async ({ db }) => {
    db.allowedFaults = ["lease_without_binding"];
    await db.given("INSERT INTO tasks (id, queue) VALUES (1, 'q');");
    await claim(db, "t");
    await db.given("UPDATE tasks SET state = 'cancelled', claimed_by = NULL, lease_token = NULL;");
    for (const run of Object.values(ending)) await expect(run(db)).rejects.toThrow("lease lost");
    expect(await db.rows("SELECT state FROM tasks")).toEqual([{ state: "cancelled" }]);
  });
});

onEachEngine("release", (test) => {
  test("a parked task goes back to its queue with nothing of its park left, and the log says who and why", async ({ db }) => {
    await db.given(parked(1, { kind: "manual" }, `UPDATE tasks SET not_before_ms = ${NOW + MINUTE}, park_reason = 'r', parked_at_ms = ${NOW - 7} WHERE id = 1;`) + parked(2, { kind: "manual" }));

    expect(await queue.release(db.queue, { task_id: 1 })).toEqual([{ task_id: 1, at_ms: NOW }]);
    expect(await queue.release(db.queue, { task_id: 2, reason: "asked_for" })).toEqual([{ task_id: 2, at_ms: NOW }]);

    expect(await db.rows("SELECT id, state, not_before_ms, ready_condition, park_reason, parked_at_ms FROM tasks ORDER BY id")).toEqual(
      [1, 2].map((id) => ({ id, state: "queued", not_before_ms: null, ready_condition: null, park_reason: null, parked_at_ms: null })),
    );
    expect(await db.rows("SELECT kind, subject, task_id, run_id, payload FROM events ORDER BY id")).toEqual([
      { kind: "park_released", subject: "q", task_id: 1, run_id: null, payload: JSON.stringify({ reason: "released_by_hand", parked_at_ms: NOW - 7 }) },
      { kind: "park_released", subject: "q", task_id: 2, run_id: null, payload: JSON.stringify({ reason: "asked_for", parked_at_ms: NOW }) },
    ]);
    expect(await db.rows("SELECT * FROM ready_terms")).toEqual([]);
  });

  test("a task that is not parked, or is not there, is left alone", async ({ db }) => {
    await db.given("INSERT INTO tasks (id, queue, state) VALUES (1, 'q', 'queued'), (2, 'q', 'done');");
    const before = await everything(db);
    for (const task_id of [1, 2, 99]) expect(await queue.release(db.queue, { task_id })).toEqual([]);
    expect(await everything(db)).toEqual(before);
  });
});
