// Applies db/migrations: dbmate on a file; on a server the same files by the same rules, which dbmate cannot reach.
import { closeSync, existsSync, mkdirSync, openSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { explain, openDatabase, requireFile, type Database } from "./lib/database.js";
import { EXIT, Failure, type ExitCode } from "./lib/exit.js";
import { readFile } from "./lib/queue.js";
import { listSql, ROOT } from "./lib/steps.js";
import type { Target } from "./lib/target.js";

type Migration = { version: string; name: string; applied: boolean };

/** db/migrations beside what the database has applied. A database without the bookkeeping table has applied nothing. */
async function migrations(db: Database): Promise<Migration[]> {
  const applied = await readFile(db, "db/ledger/read_migrations.sql").catch((error: unknown) => {
    if (error instanceof Failure && /no such table/.test(error.message)) return [];
    throw error;
  });
  const versions = new Set(applied.map((row) => String(row.version)));
  return listSql("db/migrations").map((name) => {
    const version = name.split("_")[0]!;
    return { version, name, applied: versions.has(version) };
  });
}

/** The up block of a dbmate file. Throws where the file is none, or asks to run outside a transaction. */
function upBlock(name: string): string {
  const text = readFileSync(join(ROOT, "db/migrations", `${name}.sql`), "utf8");
  const [, up, down] = /^-- migrate:up *\n(.*)^-- migrate:down *\n(.*)/ms.exec(text) ?? [];
  if (up === undefined || down === undefined) throw new Failure(EXIT.config, `db/migrations/${name}.sql needs a plain "-- migrate:up" and a "-- migrate:down" line`);
  return up;
}

/**
 * One file, one transaction. The version goes in first: of two deploys at once the second fails on it and has done nothing.
 * Foreign keys are off meanwhile, as with dbmate, or rebuilding a table would delete what refers to it.
 */
function script(migration: Migration): string {
  return `PRAGMA foreign_keys = OFF;
BEGIN IMMEDIATE;
INSERT INTO schema_migrations (version) VALUES ('${migration.version}');
${upBlock(migration.name)}
;
COMMIT;
PRAGMA foreign_keys = ON;`;
}

async function migrateServer(target: Target): Promise<void> {
  const db = await openDatabase(target);
  // Word for word what dbmate makes, so that either tool can go on where the other stopped.
  await db.script(`CREATE TABLE IF NOT EXISTS "schema_migrations" (version varchar(128) primary key)`);
  for (const migration of (await migrations(db)).filter(({ applied }) => !applied)) {
    const connection = await openDatabase(target);
    try {
      await connection.script(script(migration));
      console.log(`applied ${migration.name}`);
    } catch (error) {
      if (!/UNIQUE constraint failed: schema_migrations/.test(String(error))) throw new Failure((error as Failure).exitCode ?? EXIT.failed, `migration ${migration.name}: ${(error as Error).message}; nothing of it was applied`);
      console.log(connection.retried ? `applied ${migration.name}` : `${migration.name} was applied by somebody else meanwhile`);
    } finally {
      connection.close();
    }
  }
  const dangling = await db.batch([{ sql: "PRAGMA foreign_key_check", args: {} }]);
  db.close();
  if (dangling[0]!.length > 0) throw new Failure(EXIT.failed, `${target.shown}: ${dangling[0]!.length} rows refer to rows that are not there: see PRAGMA foreign_key_check`);
}

function createFile(path: string): void {
  try {
    mkdirSync(dirname(path), { recursive: true });
    closeSync(openSync(path, "a", 0o600));
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === "EACCES" || code === "EPERM" || code === "EROFS") throw new Failure(EXIT.refused, `${path} cannot be created (${code}): give this user write permission on its directory`);
    throw new Failure(EXIT.config, `${path} cannot be created (${code}): correct DATABASE_URL`);
  }
}

async function migrateFile(target: Target): Promise<void> {
  const { $ } = await import("zx");
  const path = target.path!;
  // The queue may hold anything: what we create is for its owner alone.
  process.umask(0o077);
  if (existsSync(path)) requireFile(path);
  else createFile(path);
  for (let tries = 1; ; tries++) {
    const run = await $({
      nothrow: true,
      quiet: true,
      // A file needs no token: nobody else is given it.
      env: { ...process.env, TURSO_AUTH_TOKEN: undefined, DATABASE_URL: `sqlite:${path}` },
    })`${join(ROOT, "node_modules/.bin/dbmate")} --migrations-dir ${join(ROOT, "db/migrations")} --no-dump-schema up`;
    const applied = run.stdout.match(/^Applied: \S+/gm) ?? [];
    if (run.exitCode === 0) {
      for (const line of applied) console.log(line.toLowerCase().replace(":", "").replace(".sql", ""));
      break;
    }
    // Another deploy may have been at the same file: what it has applied is not pending any more, and the next try finds it done.
    const reason = run.stderr.trim().split("\n").at(-1) ?? "";
    if (tries === 3 || !/already exists|locked|UNIQUE constraint/.test(reason)) throw explain(new Error(`dbmate: ${reason}`), target);
  }
  // With a write-ahead log readers and the writer do not stop each other; the setting stays in the file.
  const db = await openDatabase(target);
  await db.script("PRAGMA journal_mode = WAL");
  db.close();
}

/** Brings the database up to date. Returns 0; throws a Failure that names the migration, of which nothing is applied then. */
export async function migrateCommand(target: Target): Promise<ExitCode> {
  await (target.path === undefined ? migrateServer(target) : migrateFile(target));
  console.log(`${target.shown} is up to date`);
  return EXIT.ok;
}

/** Prints what is applied and what is pending. Returns 1 where something is pending. */
export async function statusCommand(target: Target, json: boolean): Promise<ExitCode> {
  const db = await openDatabase(target);
  const all = await migrations(db);
  db.close();
  const pending = all.filter(({ applied }) => !applied);
  if (json) console.log(JSON.stringify({ applied: all.length - pending.length, pending: pending.map(({ name }) => name) }));
  else for (const { name, applied } of all) console.log(`${applied ? "applied" : "pending"}  ${name}`);
  if (pending.length > 0) console.error(`${target.shown}: ${pending.length} pending migrations: run "make migrate"`);
  return pending.length > 0 ? EXIT.failed : EXIT.ok;
}
