// 20,000 generated conditions, JSON and not, most of them nearly right: each is refused with a message or judged, and none
// ever stops a revalidation. RUNS=200000 SEED=n for longer, or to repeat one; the seed is part of every message.
import fc from "fast-check";
import Native from "libsql";
import { expect } from "vitest";
import { queue } from "../../scripts/lib/queue.js";
import { NOW, onEachEngine, type Engine, type TestDatabase } from "../support.js";

const RUNS = Number(process.env.RUNS) || 20_000;
const SEED = Number(process.env.SEED) || 20_261_130;
/** A server is asked in one request each; the file, which runs the same SQL, gets the bulk. */
const SHARE: Record<Engine, number> = { file: 1, server: 0.02 };

const word = fc.constantFrom("kind", "event", "subject", "since_ms", "task", "at_ms", "all", "any", "event_seen", "task_done", "not_before", "manual", "", "e", "__proto__", "\\ud800", "\\ud83d\\ude00", "\\u0000", "ü", "'", '\\"', "$.kind", "%s", "; DROP TABLE tasks; --");
const number = fc.oneof(fc.constantFrom(`${NOW}`, `${NOW}.0`, `${NOW}000`, "1796000000", "0", "-1", "-0", "1e400", "1e3", "9223372036854775807", "9223372036854775808", "0.1", "NaN", "007", "+1", "0x10"), fc.integer().map(String), fc.double().map((n) => JSON.stringify(n)));
const scalar = fc.oneof(word.map((text) => `"${text}"`), number, fc.constantFrom("null", "true", "false", "undefined", "'x'", ""));
/** Text that is put together like JSON, duplicates and misplaced things included, as deep as a condition may go and deeper. */
const { value } = fc.letrec<{ value: string }>((tie) => ({
  value: fc.oneof(
    { depthSize: "small", maxDepth: 5 },
    scalar,
    fc.array(tie("value"), { maxLength: 4 }).map((items) => `[${items.join(",")}]`),
    fc.array(fc.tuple(word, tie("value")), { maxLength: 4 }).map((members) => `{${members.map(([key, item]) => `"${key}":${item}`).join(",")}}`),
  ),
}));
const whole = fc.oneof(
  fc.constant('{"kind":"manual"}'),
  fc.tuple(fc.string(), fc.string(), fc.integer({ min: 0, max: 1e9 })).map(([event, subject, ms]) => JSON.stringify({ kind: "event_seen", event: `e${event}`, subject, since_ms: NOW - ms })),
  fc.integer().map((id) => `{"kind":"task_done","task":${id}}`),
  fc.integer({ min: -1e9, max: 1e9 }).map((ms) => `{ "at_ms": ${NOW + ms}, "kind": "not_before" }`),
);
const oddTerm = fc.oneof(
  fc.tuple(word, scalar).map(([event, since]) => `{"kind":"event_seen","event":"${event}","since_ms":${since}}`),
  fc.tuple(word, word).map(([event, subject]) => `{"kind":"event_seen","event":"${event}","subject":"${subject}"}`),
  number.map((id) => `{"kind":"task_done","task":${id}}`),
  number.map((at) => `{"kind":"not_before","at_ms":${at}}`),
  value,
);
const term = fc.oneof({ weight: 9, arbitrary: whole }, { weight: 1, arbitrary: oddTerm });
const terms = (element: fc.Arbitrary<string>) => fc.array(element, { maxLength: 4 }).map((items) => `[${items.join(",")}]`);
const all = terms(term).map((list) => `{"all":${list}}`);
const right = fc.oneof(term, all, terms(fc.oneof(term, all)).map((list) => `{"any":${list}}`));
/** A condition with one piece of it replaced, doubled or gone. */
const mutated = fc.tuple(right, fc.nat(), fc.nat({ max: 9 }), fc.oneof(scalar, fc.string({ unit: "binary", maxLength: 3 }))).map(([text, at, length, piece]) => {
  const from = at % (text.length + 1);
  return text.slice(0, from) + piece + text.slice(from + length);
});
const condition = fc.oneof({ weight: 200, arbitrary: right }, { weight: 150, arbitrary: mutated }, { weight: 50, arbitrary: value }, { weight: 50, arbitrary: fc.json({ maxDepth: 4 }) }, { weight: 50, arbitrary: fc.string({ unit: "binary" }) }, { weight: 1, arbitrary: fc.integer({ min: 1, max: 3000 }).map((n) => '{"all":['.repeat(n) + "]}".repeat(n)) });

const REFUSED = /(ready_condition refused: \S.*|CHECK constraint failed: tasks_ready_condition_is_json)$/;

/** What becomes of a condition that is given to a task of its own. Returns whether it was accepted. */
async function given(id: number, text: string, write: () => Promise<unknown>): Promise<boolean> {
  try {
    await write();
    return true;
  } catch (error) {
    expect((error as Error).message, `seed ${SEED}, task ${id}, ${JSON.stringify(text)}`).toMatch(REFUSED);
    return false;
  }
}

/** Writes them as an older tool does that knows of no guard: triggers gone and back, checks off where the engine lets them be. */
async function pastGuards(db: TestDatabase, texts: [id: number, text: string][]): Promise<void> {
  const guards = await db.rows("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'tasks'");
  const checks = (state: string) => (db.engine === "file" ? `PRAGMA ignore_check_constraints = ${state};` : "");
  // No literal can hold a NUL, and a server's checks stay on: it is given what is JSON at least.
  const writable = texts.filter(([, text]) => db.engine === "file" || isJson(text));
  const values = writable.map(([id, text]) => `(${id}, 'past', 'parked', ${NOW}, CAST(X'${Buffer.from(text, "utf8").toString("hex")}' AS TEXT))`);
  await db.given(`${guards.map(({ name }) => `DROP TRIGGER ${name};`).join("")} ${checks("ON")}
    INSERT INTO tasks (id, queue, state, parked_at_ms, ready_condition) VALUES ${values.join(",")};
    ${checks("OFF")} ${guards.map(({ sql }) => `${sql};`).join("\n")}`);
}
function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

onEachEngine("generated ready conditions", (test, engine) => {
  test("each is refused with a message or judged; a share written past the guards is stale; no revalidation fails", { timeout: 600_000 }, async ({ db }) => {
    db.allowedFaults = ["terms_differ_from_condition", "time_park_out_of_step"];
    const count = Math.round(RUNS * SHARE[engine]);
    const texts = fc.sample(condition, { numRuns: count, seed: SEED });
    const ids = texts.map((_, i) => i + 1);
    await db.given(`INSERT INTO tasks (id, queue, state, parked_at_ms) SELECT value, 'guarded', 'parked', ${NOW} FROM json_each('${JSON.stringify(ids.filter((id) => id % 5 !== 0))}');`);

    // Four in five through the guards. On the file in one transaction, the statement prepared once: one that is refused undoes itself alone.
    const accepted = new Set<number>();
    const update = "UPDATE tasks SET ready_condition = ? WHERE id = ?";
    const native = engine === "file" ? new Native(db.url.slice("file:".length)) : undefined;
    native?.exec("BEGIN IMMEDIATE");
    const prepared = native?.prepare(update);
    for (const id of ids.filter((id) => id % 5 !== 0)) {
      const args = [texts[id - 1]!.toWellFormed(), BigInt(id)] as const;
      if (await given(id, texts[id - 1]!, async () => (prepared ? prepared.run(...args) : db.client.execute({ sql: update, args: [...args] })))) accepted.add(id);
    }
    native?.exec("COMMIT");
    native?.close();

    // Some by the worker's own verb; refused, it still holds its task.
    const parked = new Set<number>();
    for (const [i, text] of texts.slice(0, 100).entries()) {
      const [{ task_id } = {}] = await queue.enqueue(db.queue, { queue: `verb${i}` });
      await queue.claim(db.queue, { queue: `verb${i}`, worker: "w", token: `t${task_id}`, lease_ms: 60_000 });
      const was = await given(Number(task_id), text, () => queue.park(db.queue, { task_id: Number(task_id), token: `t${task_id}`, ready_condition: text.toWellFormed() }));
      if (was) parked.add(Number(task_id));
      else await queue.complete(db.queue, { task_id: Number(task_id), token: `t${task_id}` });
    }
    await pastGuards(db, ids.filter((id) => id % 5 === 0).map((id) => [1_000_000 + id, texts[id - 1]!.toWellFormed()]));

    const [{ past, all: everything } = {}] = await db.rows("SELECT sum(queue = 'past') AS past, count(*) AS \"all\" FROM tasks WHERE state = 'parked'");
    const run = await db.sweep("sweep-revalidate");

    expect(run, `seed ${SEED}`).toMatchObject({ outcome: "ok", drained: true, checked: everything });
    expect(Number(run.would_release) + Number(run.confirmed) + Number(run.stale)).toBe(run.checked);
    expect(await db.rows(`SELECT count(*) AS n FROM sweep_findings JOIN tasks ON tasks.id = task_id WHERE queue = 'past' AND verdict = 'stale' AND reason = 'unreadable_condition'`)).toEqual([{ n: past }]);
    // Through the guards nothing unreadable came, and refused, a task kept what it had.
    expect(await db.rows(`SELECT count(*) AS n FROM sweep_findings JOIN tasks ON tasks.id = task_id WHERE queue <> 'past' AND reason = 'unreadable_condition'`)).toEqual([{ n: 0 }]);
    expect(await db.rows("SELECT count(ready_condition) AS conditions FROM tasks WHERE queue = 'guarded'")).toEqual([{ conditions: accepted.size }]);
    expect(await db.rows("SELECT count(*) AS n FROM tasks WHERE queue GLOB 'verb*' AND state = 'parked'")).toEqual([{ n: parked.size }]);
    // Generated well enough to say something: plenty of either.
    expect(accepted.size).toBeGreaterThan(count / 10);
    expect(accepted.size).toBeLessThan(count * 0.7);
    for (const verb of ["sweep-would-release", "sweep-daily"]) expect(await db.run(verb), verb).toMatchObject({ code: 0, stderr: "" });
  });
});
