import { expect } from "vitest";
import { queue } from "../scripts/lib/queue.js";
import { HALVES, MALFORMED } from "./fixtures.js";
import { everything, NOW, onEachEngine } from "./support.js";

const T = '{"kind":"manual"}';
const none = { event: null, subject: null, since_ms: null, depends_on: null, at_ms: null };
const manual = { ...none, kind: "manual" };
const seen = (event: string, subject: string | null = null, since_ms = NOW) => ({ ...none, kind: "event_seen", event, subject, since_ms });
const done = (depends_on: number) => ({ ...none, kind: "task_done", depends_on });
const from = (at_ms: number) => ({ ...none, kind: "not_before", at_ms });

/** Each shape that is right, with its branches, and each branch's terms. */
const VALID: [condition: string, branches: object[][]][] = [
  [T, [[manual]]],
  [' { "kind" : "manual" } ', [[manual]]],
  ['{"kind":"event_seen","event":"e"}', [[seen("e")]]],
  ['{"kind":"event_seen","event":"e","subject":"a"}', [[seen("e", "a")]]],
  ['{"kind":"event_seen","event":"e","subject":""}', [[seen("e", "")]]],
  ['{"kind":"event_seen","event":"e","subject":null,"since_ms":null}', [[seen("e")]]],
  [`{"kind":"event_seen","event":"e","since_ms":${NOW - 9}}`, [[seen("e", null, NOW - 9)]]],
  ['{"kind":"event_seen","event":"e","since_ms":946684800000}', [[seen("e", null, 946684800000)]]],
  ['{"kind":"task_done","task":42}', [[done(42)]]],
  [`{"kind":"not_before","at_ms":${NOW}}`, [[from(NOW)]]],
  ['{"kind":"not_before","at_ms":4133980799999}', [[from(4133980799999)]]],
  [`{"all":[${T}]}`, [[manual]]],
  [`{"all":[${T},{"kind":"task_done","task":1},{"kind":"event_seen","event":"e"}]}`, [[manual, done(1), seen("e")]]],
  [`{"any":[${T}]}`, [[manual]]],
  [`{"any":[${T},{"kind":"task_done","task":1}]}`, [[manual], [done(1)]]],
  [
    `{"any":[{"all":[{"kind":"task_done","task":1},{"kind":"not_before","at_ms":${NOW}}]},${T},{"all":[{"kind":"event_seen","event":"e","subject":"a"}]}]}`,
    [[done(1), from(NOW)], [manual], [seen("e", "a")]],
  ],
  ['{"kind":"event_seen","event":"\\ud83d\\ude00 and 😀","subject":"\\u00e9"}', [[seen("😀 and 😀", "é")]]],
  ['{"kind":"event_seen","event":"ünïcode \\"quoted\\"","subject":"it\'s"}', [[seen('ünïcode "quoted"', "it's")]]],
];

const quoted = (text: string) => `'${text.replaceAll("'", "''")}'`;
const TERMS = "SELECT kind, event, subject, since_ms, depends_on, at_ms, branch, term, fault FROM ready_terms WHERE task_id = 1 ORDER BY branch, term";
const AWAITED = "SELECT kind, subject, event_id, at_ms FROM awaited_events ORDER BY kind, subject";

onEachEngine("ready conditions", (test) => {
  test("a malformed condition is refused however the task is parked, with a message that says what is wrong; nothing changes", async ({ db }) => {
    await db.given("INSERT INTO tasks (id, queue) VALUES (1, 'q'), (2, 'q'), (3, 'q'); INSERT INTO tasks (id, queue, state, ready_condition) VALUES (4, 'q', 'parked', '{\"kind\":\"event_seen\",\"event\":\"e\"}');");
    await queue.claim(db.queue, { queue: "q", worker: "w", token: "t", lease_ms: 60_000 });
    const before = await everything(db);
    for (const [condition, reason] of [...MALFORMED, ...HALVES]) {
      const message = `ready_condition refused: ${reason}`;
      await expect(db.client.execute(`INSERT INTO tasks (queue, state, ready_condition) VALUES ('q', 'parked', ${quoted(condition)})`), `inserted: ${condition}`).rejects.toThrow(message);
      await expect(db.client.execute(`UPDATE tasks SET state = 'parked', ready_condition = ${quoted(condition)} WHERE id = 2`), `updated: ${condition}`).rejects.toThrow(message);
      await expect(db.client.execute(`UPDATE tasks SET ready_condition = ${quoted(condition)} WHERE id = 4`), `changed: ${condition}`).rejects.toThrow(message);
      await expect(queue.park(db.queue, { task_id: 1, token: "t", ready_condition: condition }), `parked: ${condition}`).rejects.toThrow(message);
    }
    expect(await everything(db)).toEqual(before);
  });

  test("a condition that is not JSON is refused in every state", async ({ db }) => {
    await db.given("INSERT INTO tasks (id, queue) VALUES (1, 'q'), (2, 'q');");
    await queue.claim(db.queue, { queue: "q", worker: "w", token: "t", lease_ms: 60_000 });
    const before = await everything(db);
    for (const condition of ["", "manual", "{", "{kind:'manual'}", "{'kind':'manual'}", `${T},`, `${T}${T}`, "[".repeat(2000) + "]".repeat(2000)]) {
      const message = "tasks_ready_condition_is_json";
      await expect(db.client.execute(`INSERT INTO tasks (queue, state, ready_condition) VALUES ('q', 'parked', ${quoted(condition)})`), condition).rejects.toThrow(message);
      await expect(db.client.execute(`UPDATE tasks SET ready_condition = ${quoted(condition)} WHERE id = 2`), condition).rejects.toThrow(message);
      await expect(queue.park(db.queue, { task_id: 1, token: "t", ready_condition: condition }), condition).rejects.toThrow(message);
    }
    expect(await everything(db)).toEqual(before);
  });

  test("a condition that waits outside of parked is judged when its task parks, and refused then", async ({ db }) => {
    await db.given("INSERT INTO tasks (id, queue, ready_condition) VALUES (1, 'q', '{\"kind\":\"nope\"}');");
    await expect(db.client.execute("UPDATE tasks SET state = 'parked'")).rejects.toThrow("ready_condition refused: unknown kind");
    expect(await db.rows("SELECT state FROM tasks")).toEqual([{ state: "queued" }]);
  });

  test("every valid shape is taken apart into its branches and terms, however the task is parked", async ({ db }) => {
    for (const [condition, branches] of VALID) {
      const terms = branches.flatMap((branch, b) => branch.map((term, t) => ({ ...term, branch: b, term: t, fault: null })));
      await db.given(`INSERT INTO tasks (id, queue, state, ready_condition) VALUES (1, 'q', 'parked', ${quoted(condition)});`);
      expect(await db.rows(TERMS), `inserted: ${condition}`).toEqual(terms);
      await db.given(`DELETE FROM tasks; INSERT INTO tasks (id, queue) VALUES (1, 'q'); UPDATE tasks SET state = 'parked', ready_condition = ${quoted(condition)};`);
      expect(await db.rows(TERMS), `updated: ${condition}`).toEqual(terms);
      await db.given("DELETE FROM tasks; INSERT INTO tasks (id, queue) VALUES (1, 'q');");
      await queue.claim(db.queue, { queue: "q", worker: "w", token: "t", lease_ms: 60_000 });
      await queue.park(db.queue, { task_id: 1, token: "t", ready_condition: condition });
      expect(await db.rows(TERMS), `parked: ${condition}`).toEqual(terms);
      await db.given("DELETE FROM tasks;");
      expect(await db.rows("SELECT * FROM ready_terms UNION ALL SELECT id, id, id, kind, kind, kind, id, id, id, kind FROM awaited_events"), condition).toEqual([]);
    }
  });

  test("since_ms is the moment of parking where none is given, and follows it", async ({ db }) => {
    await db.given(`INSERT INTO tasks (id, queue, state, parked_at_ms, ready_condition) VALUES (1, 'q', 'parked', ${NOW - 5}, '{"kind":"event_seen","event":"e"}');`);
    expect(await db.rows(TERMS)).toMatchObject([{ since_ms: NOW - 5 }]);
    await db.given(`UPDATE tasks SET parked_at_ms = ${NOW - 3};`);
    expect(await db.rows(TERMS)).toMatchObject([{ since_ms: NOW - 3 }]);
    await db.given("UPDATE tasks SET parked_at_ms = NULL;");
    expect(await db.rows(TERMS)).toMatchObject([{ since_ms: NOW }]);
    expect(await db.rows("SELECT parked_at_ms FROM tasks")).toEqual([{ parked_at_ms: NOW }]);
  });

  test("changing the condition of a parked task takes it apart anew", async ({ db }) => {
    await db.given(`INSERT INTO tasks (id, queue, state, ready_condition) VALUES (1, 'q', 'parked', '{"all":[{"kind":"event_seen","event":"e"},${T}]}');
      UPDATE tasks SET ready_condition = '{"kind":"event_seen","event":"f","subject":"a"}';`);
    expect(await db.rows(TERMS)).toEqual([{ ...seen("f", "a"), branch: 0, term: 0, fault: null }]);
    expect(await db.rows(AWAITED)).toEqual([{ kind: "f", subject: "a", event_id: null, at_ms: 0 }]);

    await db.given(`UPDATE tasks SET ready_condition = '{"kind":"not_before","at_ms":${NOW + 7}}';`);
    expect(await db.rows("SELECT time_park_due_ms FROM tasks")).toEqual([{ time_park_due_ms: NOW + 7 }]);
    await db.given(`UPDATE tasks SET not_before_ms = ${NOW + 9};`);
    expect(await db.rows("SELECT time_park_due_ms FROM tasks")).toEqual([{ time_park_due_ms: NOW + 9 }]);
    await db.given("UPDATE tasks SET ready_condition = NULL;");
    expect(await db.rows(TERMS)).toEqual([]);
    expect(await db.rows("SELECT time_park_due_ms FROM tasks")).toEqual([{ time_park_due_ms: NOW + 9 }]);
    await db.given("UPDATE tasks SET not_before_ms = NULL;");
    expect(await db.rows("SELECT time_park_due_ms FROM tasks")).toEqual([{ time_park_due_ms: null }]);
  });

  test("leaving parked, or being deleted, forgets the terms, and what nobody waits for any more", async ({ db }) => {
    const waits = '{"all":[{"kind":"event_seen","event":"e"},{"kind":"event_seen","event":"e","subject":"a"}]}';
    await db.given(`INSERT INTO tasks (id, queue, state, ready_condition) VALUES (1, 'q', 'parked', '${waits}'), (2, 'q', 'parked', '${waits}'), (3, 'q', 'parked', '${waits}');`);
    const both = [{ kind: "e", subject: null, event_id: null, at_ms: 0 }, { kind: "e", subject: "a", event_id: null, at_ms: 0 }];
    const waiting = async () => (await db.rows("SELECT DISTINCT task_id FROM ready_terms ORDER BY task_id")).map(({ task_id }) => task_id);

    await db.given("UPDATE tasks SET state = 'queued' WHERE id = 1;");
    expect([await waiting(), await db.rows(AWAITED)]).toEqual([[2, 3], both]);
    await db.given("DELETE FROM tasks WHERE id = 2;");
    expect([await waiting(), await db.rows(AWAITED)]).toEqual([[3], both]);
    await db.given("UPDATE tasks SET state = 'cancelled' WHERE id = 3;");
    expect([await waiting(), await db.rows(AWAITED)]).toEqual([[], []]);
  });

  test("a task row needs no more than id, queue and state, whatever the state", async ({ db }) => {
    for (const [id, state] of ["queued", "parked", "done", "failed", "cancelled"].entries()) {
      await db.given(`INSERT INTO tasks (id, queue, state) VALUES (${id + 1}, 'q', '${state}');`);
    }
    expect(await db.rows("SELECT state, parked_at_ms FROM tasks ORDER BY id")).toEqual([
      { state: "queued", parked_at_ms: null },
      { state: "parked", parked_at_ms: NOW },
      { state: "done", parked_at_ms: null },
      { state: "failed", parked_at_ms: null },
      { state: "cancelled", parked_at_ms: null },
    ]);
    await expect(db.given("INSERT INTO tasks (id, queue, state) VALUES (9, 'q', 'leased');")).rejects.toThrow("tasks_binding_only_while_leased");
    await expect(db.given("INSERT INTO tasks (id, queue, state) VALUES (9, 'q', 'sleeping');")).rejects.toThrow("tasks_state_is_known");
  });
});
