// The migrations come to the same schema whoever applies them, and two deploys at once do no harm.
import { execFileSync } from "node:child_process";
import { readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { createClient } from "@libsql/client";
import { connect } from "@tursodatabase/database";
import { expect, test } from "vitest";
import { applyMigrations, fresh, program, ROOT, startServer, type Row } from "./support.js";

const SCHEMA = "SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE name NOT LIKE 'libsql_%' ORDER BY type, name";
const VERSIONS = "SELECT version FROM schema_migrations ORDER BY version";

function dbmate(path: string, ...args: string[]) {
  execFileSync(join(ROOT, "node_modules/.bin/dbmate"), ["--url", `sqlite:${path}`, "--migrations-dir", join(ROOT, "db/migrations"), "--no-dump-schema", ...args], { stdio: "pipe" });
}

async function read(url: string, ...selects: string[]) {
  const client = createClient({ url });
  const read = [];
  for (const select of selects) read.push((await client.execute(select)).rows.map((row) => ({ ...row })));
  client.close();
  return read;
}

test("a server migrated by us has the very schema that dbmate makes, and either can go on from the other", async () => {
  const file = fresh("dbmate.db");
  dbmate(file, "up");
  const server = await startServer(fresh("server"));

  expect(await program(["migrate"], { DATABASE_URL: server.url })).toMatchObject({ code: 0, stderr: "" });

  expect(await read(server.url, SCHEMA, VERSIONS)).toEqual(await read(`file:${file}`, SCHEMA, VERSIONS));
  expect(await program(["migrate-status"], { DATABASE_URL: `sqlite:${file}` })).toMatchObject({ code: 0 });
  const again = await program(["migrate"], { DATABASE_URL: server.url });
  expect(again).toMatchObject({ code: 0, stdout: `${server.url}/ is up to date\n` });
  await server.stop();
});

test("libSQL and Turso's engine, given the migrations themselves, make that schema too, and each opens the other's file", async () => {
  const [byDbmate, byLibsql, byTurso] = [fresh("dbmate.db"), fresh("libsql.db"), fresh("turso.db")];
  dbmate(byDbmate, "up");
  const libsql = createClient({ url: `file:${byLibsql}` });
  await applyMigrations((script) => libsql.executeMultiple(script));
  libsql.close();
  const turso = await connect(byTurso);
  await applyMigrations((script) => turso.exec(script));
  await turso.close();

  const schema = await read(`file:${byDbmate}`, SCHEMA, VERSIONS);
  expect(await read(`file:${byLibsql}`, SCHEMA, VERSIONS)).toEqual(schema);

  // Turso's engine keeps a statement as it would write it itself, without comments, and a table of its own beside sqlite_sequence.
  const spelledAlike = (rows: Row[]) =>
    rows.filter(({ name }) => !String(name).startsWith("__turso_internal_")).map((row) => ({
      ...row,
      sql: row.sql && String(row.sql).replace(/('(?:[^']|'')*')|--[^\n]*|\s+/g, (_, literal?: string) => literal ?? "").replaceAll("<>", "!=").replaceAll("INSERTORREPLACE", "REPLACE").replaceAll("LEFTOUTERJOIN", "LEFTJOIN").replaceAll('"', "").toLowerCase(),
    }));
  expect((await read(`file:${byTurso}`, SCHEMA, VERSIONS)).map(spelledAlike)).toEqual(schema.map(spelledAlike));
  expect(await read(`file:${byTurso}`, "PRAGMA integrity_check")).toEqual([[{ integrity_check: "ok" }]]);

  const opened = await connect(byDbmate);
  expect(await (await opened.prepare(VERSIONS)).all()).toEqual(schema[1]);
  expect(await (await opened.prepare("SELECT count(*) AS runs FROM sweep_reports")).all()).toEqual([{ runs: 1 }]);
  await opened.close();
});

test("two deploys at once: one applies, the other finds it done", async () => {
  const server = await startServer(fresh("server"));
  for (const DATABASE_URL of [server.url, `sqlite:${fresh("file.db")}`]) {
    const both = await Promise.all([program(["migrate"], { DATABASE_URL }), program(["migrate"], { DATABASE_URL })]);
    expect(both.map(({ code, stderr }) => ({ code, stderr }))).toEqual([{ code: 0, stderr: "" }, { code: 0, stderr: "" }]);
    expect(await program(["migrate-status"], { DATABASE_URL })).toMatchObject({ code: 0 });
    expect(await program(["sweep-all"], { DATABASE_URL })).toMatchObject({ code: 0 });
  }
  await server.stop();
}, 90_000);

test("every migration can be undone, and made again to the same schema", async () => {
  const file = fresh("down.db");
  dbmate(file, "up");
  const [schema] = await read(`file:${file}`, SCHEMA);
  const migrations = execFileSync("ls", [join(ROOT, "db/migrations")], { encoding: "utf8" }).trim().split("\n");

  for (const _ of migrations) dbmate(file, "rollback");
  const [left] = await read(`file:${file}`, SCHEMA);
  expect(left!.map(({ name }) => name).filter((name) => !/^sqlite_/.test(String(name)))).toEqual(["schema_migrations"]);

  dbmate(file, "up");
  expect((await read(`file:${file}`, SCHEMA))[0]).toEqual(schema);
});

test("a migration that fails leaves nothing of itself, and is named", async () => {
  const server = await startServer(fresh("server"));
  const client = createClient({ url: server.url });
  // The third migration will find a view of its name there.
  await client.execute("CREATE VIEW condition_terms AS SELECT 1");

  const run = await program(["migrate"], { DATABASE_URL: server.url });

  expect(run.code).toBe(1);
  expect(run.stderr).toMatch(/^migration 20261130000300_ready_terms: .*condition_terms already exists.*; nothing of it was applied\n$/);
  expect((await client.execute(VERSIONS)).rows.map((row) => row.version)).toEqual(["20261130000100", "20261130000200"]);
  expect((await client.execute("SELECT name FROM sqlite_schema WHERE name = 'ready_terms'")).rows).toEqual([]);
  client.close();
  await server.stop();
});

test("a file made by us is for its owner alone, and keeps a write-ahead log", async () => {
  const file = fresh("mine.db");
  await program(["migrate"], { DATABASE_URL: `sqlite:${file}` });
  expect(statSync(file).mode & 0o777).toBe(0o600);
  expect((await read(`file:${file}`, "PRAGMA journal_mode"))[0]).toEqual([{ journal_mode: "wal" }]);
});

test("db/schema.sql says what db/migrations makes", async () => {
  const file = fresh("schema.db");
  dbmate(file, "up");
  const [schema] = await read(`file:${file}`, "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'");
  const squeezed = (text: string) => text.replace(/\s+/g, " ");
  const dump = squeezed(readFileSync(join(ROOT, "db/schema.sql"), "utf8")).replaceAll("CREATE TABLE IF NOT EXISTS ", "CREATE TABLE ");
  for (const { sql } of schema!) expect(dump).toContain(squeezed(String(sql)));
});
