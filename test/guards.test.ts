import { createClient } from "@libsql/client";
import { expect } from "vitest";
import { DAY, everything, NOW, onEachEngine, type TestDatabase } from "./support.js";

/** What the database refuses, by anybody's hand: with this message, and with nothing changed. */
async function refused(db: TestDatabase, message: string | RegExp, ...statements: string[]): Promise<void> {
  const before = await everything(db);
  for (const statement of statements) await expect(db.client.execute(statement), statement).rejects.toThrow(message);
  expect(await everything(db)).toEqual(before);
}

onEachEngine("the log", (test) => {
  test("an event is never changed, by update, upsert or replacement", async ({ db }) => {
    await db.given(`INSERT INTO events (id, at_ms, kind) VALUES (1, ${NOW}, 'deploy'), (2, ${NOW}, 'proof.x');`);
    await refused(
      db,
      "events are append-only",
      "UPDATE events SET kind = 'x'",
      "UPDATE events SET payload = payload WHERE id = 2",
      "UPDATE OR REPLACE events SET id = 1 WHERE id = 2",
      `INSERT INTO events (id, kind) VALUES (1, 'x') ON CONFLICT (id) DO UPDATE SET kind = 'x'`,
      `INSERT OR REPLACE INTO events (id, kind) VALUES (1, 'x')`,
      `REPLACE INTO events (id, at_ms, kind) VALUES (2, ${NOW - 90 * DAY}, 'x')`,
    );
  });

  test("an event is deleted only when it is older than the retention; one exactly as old stays", async ({ db }) => {
    await db.given(`INSERT INTO events (id, at_ms, kind) VALUES (1, ${NOW}, 'e'), (2, ${NOW - 30 * DAY}, 'e'), (3, ${NOW - 30 * DAY - 1}, 'e'), (4, ${NOW + DAY}, 'e');`);
    await refused(db, "events younger than events_retention_days cannot be deleted", ...[1, 2, 4].map((id) => `DELETE FROM events WHERE id = ${id}`), "DELETE FROM events");
    await db.given("DELETE FROM events WHERE id = 3;");
    expect(await db.rows("SELECT id FROM events ORDER BY id")).toEqual([1, 2, 4].map((id) => ({ id })));
  });

  test("the retention in force is the setting's", async ({ db }) => {
    await db.given(`INSERT INTO events (id, at_ms, kind) VALUES (1, ${NOW - 10 * DAY - 1}, 'e'); UPDATE sweep_settings SET value = 10 WHERE name = 'events_retention_days'; DELETE FROM events;`);
    expect(await db.rows("SELECT * FROM events")).toEqual([]);
  });

  test("a proof's own events may be deleted at any age, and nothing that only looks like one", async ({ db }) => {
    await db.given(`INSERT INTO events (id, at_ms, kind) VALUES (1, ${NOW}, 'proof.seen'), (2, ${NOW}, 'proof'), (3, ${NOW}, 'Proof.seen'), (4, ${NOW}, 'disproof.seen'), (5, ${NOW}, 'proofxseen');`);
    await refused(db, "cannot be deleted", ...[2, 3, 4, 5].map((id) => `DELETE FROM events WHERE id = ${id}`));
    await db.given("DELETE FROM events WHERE id = 1;");
    expect(await db.rows("SELECT count(*) AS events FROM events")).toEqual([{ events: 4 }]);
  });

  test("an event's id is never given twice", async ({ db }) => {
    await db.given("INSERT INTO events (kind) VALUES ('proof.a'); DELETE FROM events; INSERT INTO events (kind) VALUES ('proof.b');");
    expect(await db.rows("SELECT id FROM events")).toEqual([{ id: 2 }]);
  });
});

const RANGES: Record<string, [number, number]> = {
  events_retention_days: [1, 3650],
  runs_retention_days: [1, 3650],
  stale_after_days: [1, 3650],
  max_releases_per_run: [1, 1_000_000],
  expire_batch_rows: [1, 100_000],
  revalidate_batch_rows: [1, 100_000],
  prune_batch_rows: [1, 100_000],
  expire_max_run_seconds: [1, 3600],
  daily_max_run_seconds: [1, 86_400],
  abandon_run_after_seconds: [10, 86_400],
};

onEachEngine("the settings", (test, engine) => {
  test("a value that cannot be meant is refused however it is written, and the message names the setting", async ({ db }) => {
    const nonsense = ["0", "-3", "-1", "'thirty'", "'1e2'", "NULL", "1e9", "1.5", "''", "'30 days'", "x'3330'", "9e999", "'0x1e'"];
    for (const value of nonsense) {
      const message = "events_retention_days_is_a_whole_number_from_1_to_3650";
      await refused(
        db,
        message,
        `INSERT OR REPLACE INTO sweep_settings (name, value) VALUES ('events_retention_days', ${value})`,
        `INSERT INTO sweep_settings (name, value) VALUES ('events_retention_days', ${value}) ON CONFLICT (name) DO UPDATE SET value = excluded.value`,
        `INSERT INTO sweep_settings (name, value) VALUES ('events_retention_days', 30) ON CONFLICT (name) DO UPDATE SET value = ${value}`,
        `UPDATE sweep_settings SET value = ${value} WHERE name = 'events_retention_days'`,
        `UPDATE OR REPLACE sweep_settings SET value = ${value} WHERE name = 'events_retention_days'`,
      );
    }
  });

  test("every setting has a range of its own, and keeps to it", async ({ db }) => {
    expect((await db.rows("SELECT name FROM sweep_settings WHERE name <> 'fake_now_ms'")).map(({ name }) => name).sort()).toEqual(Object.keys(RANGES).sort());
    for (const [name, [least, most]] of Object.entries(RANGES)) {
      for (const value of [least, most]) await db.given(`UPDATE sweep_settings SET value = ${value} WHERE name = '${name}';`);
      for (const value of [least - 1, most + 1, "'many'", "NULL"]) {
        await expect(db.client.execute(`UPDATE sweep_settings SET value = ${value} WHERE name = '${name}'`), `${name} = ${value}`).rejects.toThrow(`${name}_is_a_whole_number_from_${least}_to_${most}`);
      }
    }
    await refused(db, "fake_now_ms_is_null_or_milliseconds_between_2000_and_2100", ...[0, NOW / 1000, "'now'"].map((value) => `UPDATE sweep_settings SET value = ${value} WHERE name = 'fake_now_ms'`));
  });

  test("a whole number given as text or with a decimal point will do, and is used as that number", async ({ db }) => {
    await db.given(`INSERT INTO events (id, at_ms, kind) VALUES (1, ${NOW - 45 * DAY}, 'e'), (2, ${NOW - 45 * DAY - 1}, 'e');`);
    for (const value of ["'45'", "45.0", "45", "'45.0'"]) {
      await db.given(`UPDATE sweep_settings SET value = ${value} WHERE name = 'events_retention_days';`);
      expect(await db.rows("SELECT id FROM prunable_events"), value).toEqual([{ id: 2 }]);
    }
    expect(await db.sweep("sweep-prune")).toMatchObject({ outcome: "ok", events_pruned: 1 });
  });

  test("a setting is not added, renamed or deleted", async ({ db }) => {
    await refused(db, "sweep_settings: no setting of that name", "INSERT INTO sweep_settings (name, value) VALUES ('event_retention_days', 5)", "INSERT OR REPLACE INTO sweep_settings (name, value) VALUES ('x', 5)");
    await refused(db, "sweep_settings: a setting keeps its name", "UPDATE sweep_settings SET name = 'x' WHERE name = 'stale_after_days'");
    await refused(db, "sweep_settings: a setting cannot be deleted", "DELETE FROM sweep_settings WHERE name = 'stale_after_days'", "DELETE FROM sweep_settings");
  });

  // A server refuses PRAGMA ignore_check_constraints; only a file can be written with the checks off.
  if (engine === "file") {
    test("a retention written past the checks stops pruning with 78, and deletes nothing", async ({ db }) => {
      await db.given(`INSERT INTO events (at_ms, kind) VALUES (${NOW - 90 * DAY}, 'e'), (${NOW - 1}, 'e');`);
      for (const value of ["0", "-3", "'thirty'", "'1e2'", "1.5", "'30 days'", "NULL", "x'31'"]) {
        const unchecked = createClient({ url: db.url });
        await unchecked.executeMultiple(`PRAGMA ignore_check_constraints = ON; UPDATE sweep_settings SET value = ${value} WHERE name = 'events_retention_days';`);
        unchecked.close();
        const before = await everything(db);

        const { code, stdout, stderr } = await db.run("sweep-prune");

        expect({ code, stdout }, value).toEqual({ code: 78, stdout: "" });
        expect(stderr).toMatch(/^[^\n]*sweep_settings[^\n]*\n$/);
        await expect(db.client.execute("DELETE FROM events"), value).rejects.toThrow("cannot be deleted");
        expect(await everything(db)).toEqual(before);
      }
    });
  }
});

onEachEngine("the tables", (test) => {
  const seconds = Math.floor(NOW / 1000);
  const rows = `INSERT INTO tasks (id, queue, state, claimed_by, lease_token) VALUES (1, 'q', 'leased', 'w', 't'); INSERT INTO tasks (id, queue, state) VALUES (2, 'q', 'parked');
    INSERT INTO leases (task_id, worker, token, expires_at_ms) VALUES (1, 'w', 't', ${NOW + 1});
    INSERT INTO sweep_runs (id, sweep, outcome) VALUES ('r', 'expire_leases', 'ok');`;

  test("a time in seconds or microseconds is refused in every column of a time", async ({ db }) => {
    await db.given(rows);
    const columns = await db.rows(`SELECT t.name AS "table", c.name AS "column" FROM sqlite_schema AS t, pragma_table_info(t.name) AS c
      WHERE t.name IN ('tasks', 'leases', 'sweep_runs') AND c.name LIKE '%\\_ms' ESCAPE '\\' ORDER BY 1, 2`);
    expect(columns.map(({ column }) => column)).toEqual(["acquired_at_ms", "expires_at_ms", "finished_at_ms", "heartbeat_at_ms", "started_at_ms", "created_at_ms", "not_before_ms", "parked_at_ms", "time_park_due_ms", "updated_at_ms"]);
    for (const { table, column } of columns) {
      await refused(db, `${table}_${column}_is_milliseconds`, ...[seconds, 0, -1, NOW * 1000].map((time) => `UPDATE ${table} SET ${column} = ${time}`));
    }
    await refused(db, "events_at_ms_is_milliseconds", ...[seconds, 0, -1, NOW * 1000].map((time) => `INSERT INTO events (at_ms, kind) VALUES (${time}, 'e')`));
    await refused(db, /cannot store|datatype/, "INSERT INTO events (at_ms, kind) VALUES ('2026-11-30', 'e')", `UPDATE leases SET expires_at_ms = '${new Date(NOW).toISOString()}'`, `UPDATE tasks SET not_before_ms = ${NOW}.5`);
  });

  test("a binding is there while a task is leased, and only then, and whole", async ({ db }) => {
    await db.given(rows);
    await refused(
      db,
      "tasks_binding_only_while_leased",
      "UPDATE tasks SET state = 'leased' WHERE id = 2",
      "UPDATE tasks SET state = 'leased', claimed_by = 'w' WHERE id = 2",
      "UPDATE tasks SET state = 'leased', lease_token = 't' WHERE id = 2",
      "UPDATE tasks SET claimed_by = 'w' WHERE id = 2",
      "UPDATE tasks SET lease_token = 't' WHERE id = 2",
      "UPDATE tasks SET claimed_by = NULL WHERE id = 1",
      "UPDATE tasks SET lease_token = NULL WHERE id = 1",
      ...["queued", "parked", "done", "failed", "cancelled"].map((state) => `UPDATE tasks SET state = '${state}' WHERE id = 1`),
    );
  });

  test("what cannot be right is refused by a name that says so", async ({ db }) => {
    await db.given(rows);
    for (const json of ["", "{", "{a:1}", "nope", "{} {}"]) {
      await refused(db, "tasks_payload_is_json", `INSERT INTO tasks (queue, payload) VALUES ('q', '${json}')`, `UPDATE tasks SET payload = '${json}'`);
      await refused(db, "events_payload_is_json", `INSERT INTO events (kind, payload) VALUES ('e', '${json}')`);
    }
    await refused(db, "tasks_state_is_known", "UPDATE tasks SET state = 'Queued' WHERE id = 2");
    await refused(db, "tasks_attempts_are_counted_from_0", "UPDATE tasks SET attempts = -1");
    await refused(db, "tasks_max_attempts_is_1_or_more_or_null", "UPDATE tasks SET max_attempts = 0", "UPDATE tasks SET max_attempts = -1");
    await refused(db, "events_kind_is_not_empty", "INSERT INTO events (kind) VALUES ('')");
    await refused(db, "NOT NULL constraint failed", "INSERT INTO tasks (state) VALUES (NULL)", "INSERT INTO tasks (queue) VALUES (NULL)", "INSERT INTO events (kind) VALUES (NULL)", "UPDATE leases SET expires_at_ms = NULL");
    await refused(db, "FOREIGN KEY constraint failed", `INSERT INTO leases (task_id, worker, token, expires_at_ms) VALUES (99, 'w', 't', ${NOW})`, "DELETE FROM tasks WHERE id = 1");
  });

  test("a task keeps its id, one that replaces a parked one takes nothing over, and ids below 1 are judged too", async ({ db }) => {
    await db.given(`INSERT INTO tasks (id, queue, state, ready_condition) VALUES (1, 'q', 'parked', '{"kind":"manual"}'), (0, 'q', 'parked', NULL), (-5, 'q', 'parked', NULL);`);
    await expect(db.given("UPDATE tasks SET id = 2 WHERE id = 1")).rejects.toThrow(/a task keeps its id/);
    await db.given("INSERT OR REPLACE INTO tasks (id, queue, state) VALUES (1, 'q', 'queued')");
    expect(await db.rows("SELECT * FROM ready_terms")).toEqual([]);
    expect(await db.sweep("sweep-revalidate")).toMatchObject({ checked: 2, stale: 2 });
    await db.given("DELETE FROM sweep_runs");
    expect(await db.sweep("sweep-expire")).toMatchObject({ outcome: "ok" });
    expect((await db.rows("SELECT sweep, last_outcome, waiting FROM sweep_status ORDER BY sweep")).map(({ sweep }) => sweep)).toEqual(["expire_leases", "prune_events", "revalidate_parked_tasks"]);
  });
});
