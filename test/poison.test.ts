// One row that nobody should have written never stops the others: written by an older tool with checks and triggers off, or
// as big as the engine lets it be, or holding what is no text.
import { expect } from "vitest";
import { modeFile, NOW, onEachEngine, type TestDatabase } from "./support.js";

const DAY = 86_400_000;
/** As an older tool writes, that knows of no guard. Checks stay on where the engine keeps them on. */
async function pastGuards(db: TestDatabase, script: string): Promise<void> {
  const guards = await db.rows("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name IN ('tasks', 'ready_terms')");
  const checks = (state: string) => (db.engine === "file" ? `PRAGMA ignore_check_constraints = ${state};` : "");
  await db.given(`${guards.map(({ name }) => `DROP TRIGGER ${name};`).join("")} ${checks("ON")} ${script}; ${checks("OFF")} ${guards.map(({ sql }) => `${sql};`).join("\n")}`);
}
const HALF_PAIR = "CAST(X'61EDA08062' AS TEXT)"; // a lone surrogate, encoded
const NUL = "CAST(X'610062' AS TEXT)";
const NOT_UTF8 = "CAST(X'FF80FE' AS TEXT)";
const BIG = "hex(zeroblob(2450000))"; // 4.9 MB
const MB = "hex(zeroblob(500000))";
const parked = (id: number, condition: string) => `INSERT INTO tasks (id, queue, state, parked_at_ms, ready_condition) VALUES (${id}, 'q', 'parked', ${NOW - DAY}, ${condition});`;

onEachEngine("poison", (test, engine) => {
  test("a condition broken past the guards is stale with a reason, seen in the view and the findings, and the rest is judged and released", async ({ db }) => {
    db.allowedFaults = ["terms_differ_from_condition", "time_park_out_of_step"];
    await db.given(`INSERT INTO tasks (id, queue, state) VALUES (1, 'q', 'done'); ${parked(2, `'{"kind":"task_done","task":1}'`)} ${parked(99, `'{"kind":"task_done","task":1}'`)}`);
    const broken = ["'{\"all\":[]}'", "'[]'", "'7'", "'null'", `'{"kind":"event_seen","event":"\\ud800"}'`, `'{"kind":"task_done","task":"1"}'`, `'{"kind":"manual","payload":"' || ${MB} || '"}'`, `'{"any":[' || substr(replace(hex(zeroblob(9000)), '00', ',{"kind":"manual"}'), 2) || ',1]}'`];
    if (engine === "file") broken.push("''", "'{'", "'not JSON'", "'{kind:1}'", NUL, NOT_UTF8, HALF_PAIR, `'{"kind":"' || ${HALF_PAIR}`, BIG, "hex(zeroblob(20000))", "replace(hex(zeroblob(2000)), '00', '[')", `'{"kind":"manual"}' || char(0)`);
    await pastGuards(db, broken.map((text, i) => parked(10 + i, text)).join(""));

    const enabled = await modeFile("enabled");
    expect(await db.sweep("sweep-revalidate")).toMatchObject({ outcome: "ok", drained: true, checked: broken.length + 2, would_release: 2, stale: broken.length, confirmed: 0 });
    const run = await db.sweep("sweep-revalidate", [], enabled);
    expect(run).toMatchObject({ outcome: "ok", mode: "enabled", released: 2, stale: broken.length });

    const unreadable = broken.map((_, i) => ({ task_id: 10 + i, verdict: "stale", reason: "unreadable_condition" }));
    expect(await db.rows("SELECT task_id, verdict, reason FROM parked_verdicts ORDER BY task_id")).toEqual(unreadable);
    expect(await db.rows(`SELECT task_id, verdict, reason FROM sweep_findings WHERE run_id = '${run.run_id}' AND verdict = 'stale' ORDER BY task_id`)).toEqual(unreadable);
    // And none is claimed as a time park, or kept by pruning or expiry from going on.
    expect(await db.rows("SELECT task_id FROM claimable_tasks WHERE task_id BETWEEN 10 AND 98")).toEqual([]);
    for (const verb of ["sweep-expire", "sweep-prune", "sweep-would-release"]) expect(await db.run(verb, [], enabled), verb).toMatchObject({ code: 0, stderr: "" });
  });

  test("texts that are none, or are huge, are expired, released and pruned like any other", async ({ db }) => {
    await db.given("INSERT INTO tasks (id, queue, state) VALUES (1, 'q', 'done');");
    const odd = [HALF_PAIR, NUL, NOT_UTF8, MB, "''", "'a''b'", "char(10) || char(0)"];
    for (const [i, text] of odd.entries()) {
      const id = 10 * (i + 1);
      await db.given(`
        INSERT INTO tasks (id, key, queue, state, claimed_by, lease_token, attempts, max_attempts) VALUES (${id}, ${text} || ${i}, ${text}, 'leased', ${text}, ${text}, 1, 1);
        INSERT INTO leases (task_id, worker, token, expires_at_ms) VALUES (${id}, ${text}, ${text}, ${NOW});
        INSERT INTO tasks (id, queue, state, park_reason, ready_condition) VALUES (${id + 1}, ${text}, 'parked', ${text}, '{"kind":"task_done","task":1}');
        INSERT INTO events (at_ms, kind, subject) VALUES (${NOW - 40 * DAY}, 'x' || ${text}, ${text}), (${NOW - 1}, 'x' || ${text}, ${text});`);
    }
    // A row on a server holds no more than 5 MB.
    const big = engine === "file" ? BIG : "hex(zeroblob(1900000))";
    await db.given(`
      INSERT INTO tasks (id, queue, state, claimed_by, lease_token, payload) VALUES (500, 'q', 'leased', 'w', 't', '"' || ${big} || '"');
      INSERT INTO leases (task_id, worker, token, expires_at_ms) VALUES (500, 'w', 't', ${NOW});
      INSERT INTO tasks (id, queue, state, payload, parked_at_ms, ready_condition) VALUES
        (501, 'q', 'parked', '"' || ${big} || '"', ${NOW - DAY}, '{"kind":"task_done","task":1}'), (502, 'q', 'parked', '{}', ${NOW - DAY}, json_object('kind', 'event_seen', 'event', 'big', 'subject', ${MB}));
      INSERT INTO events (at_ms, kind, subject, payload) VALUES (${NOW - 40 * DAY}, 'big', ${MB}, '"' || ${big} || '"'), (${NOW - 1}, 'big', ${MB}, '{}');`);

    expect(await db.sweep("sweep-expire")).toMatchObject({ outcome: "ok", drained: true, expired_leases: odd.length + 1 });
    await db.sweep("sweep-revalidate", ["--observe"]);
    expect(await db.sweep("sweep-revalidate", [], await modeFile("enabled"))).toMatchObject({ outcome: "ok", mode: "enabled", released: odd.length + 2, stale: 0, drained: true });
    expect(await db.sweep("sweep-prune")).toMatchObject({ outcome: "ok", drained: true, events_pruned: odd.length + 1 });

    expect(await db.rows("SELECT state, count(*) AS n FROM tasks GROUP BY state ORDER BY state")).toEqual([{ state: "done", n: 1 }, { state: "failed", n: odd.length }, { state: "queued", n: odd.length + 3 }]);
    expect(await db.rows("SELECT count(*) AS n FROM events WHERE kind IN ('lease_expired', 'attempts_exhausted', 'park_released') AND NOT json_valid(payload)")).toEqual([{ n: 0 }]);
  });

  test("half a surrogate pair, which JSON can hold as an escape, does not get into what is read back", async ({ db }) => {
    // JSON.stringify writes it so; a client that is handed the bytes it stands for stops, and takes its process with it.
    const condition = JSON.stringify({ kind: "event_seen", event: "\ud800" });
    expect(condition).toContain("\\ud800");
    await expect(db.client.execute({ sql: "INSERT INTO tasks (queue, state, ready_condition) VALUES ('q', 'parked', ?)", args: [condition] })).rejects.toThrow("ready_condition refused: event_seen takes");
    await db.given(`INSERT INTO tasks (id, queue, payload) VALUES (1, 'q', '${JSON.stringify({ title: "\udfff" })}'); INSERT INTO events (kind, payload) VALUES ('k', '${JSON.stringify({ title: "\udfff" })}');`);
    expect(await db.rows("SELECT payload FROM tasks UNION ALL SELECT payload FROM events")).toEqual([{ payload: '{"title":"\\udfff"}' }, { payload: '{"title":"\\udfff"}' }]);
    for (const verb of ["sweep-all", "verify", "sweep-would-release"]) expect(await db.run(verb), verb).toMatchObject({ code: 0, stderr: "" });
  });
});
