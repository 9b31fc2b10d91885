// The one database client, with the traps of @libsql/client closed.
import { accessSync, constants, statSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import type { Client, InArgs, ResultSet } from "@libsql/client";
import { EXIT, Failure, oneLine } from "./exit.js";
import type { Target } from "./target.js";

export type Value = bigint | string | null;
export type Statement = { sql: string; args: Record<string, Value> };
export type Row = Record<string, unknown>;

/** How long a file's lock is waited for. Without waiting, contention would be an error at once. */
const BUSY_TIMEOUT_MS = 5_000;
/** Pauses before a further try where nothing was done, or where doing it twice does it once. */
const RETRY_PAUSES_MS = [200, 1_000];

export type Database = {
  target: Target;
  /**
   * Sends the statements as one write transaction: all or nothing. Returns each statement's rows. Throws a Failure.
   * Only where doing it twice does it once (`repeatable`) is it sent again when an answer is lost on the network.
   */
  batch(statements: Statement[], options?: { repeatable: boolean }): Promise<Row[][]>;
  /** The same for statements that only read: one snapshot, and no writer waits for it. */
  read(statements: Statement[]): Promise<Row[][]>;
  /** Asks for one statement's query plan, outside of a transaction: on a file EXPLAIN stays open, and no COMMIT gets past it. */
  plan(statement: Statement): Promise<Row[]>;
  /** Runs one script of several statements, its own BEGIN and COMMIT included. Throws a Failure. */
  script(sql: string): Promise<void>;
  /** Whether the latest call needed a further try, so that an earlier one may have been carried out and its answer lost. */
  retried: boolean;
  close(): void;
};

async function connect(target: Target): Promise<Client> {
  const config = { url: target.url, authToken: target.authToken };
  // Each transport by itself: the whole client costs a tenth of a second at every start.
  if (target.path !== undefined) return (await import("@libsql/client/sqlite3")).createClient({ ...config, timeout: BUSY_TIMEOUT_MS });
  if (target.url.startsWith("ws")) return (await import("@libsql/client/ws")).createClient(config);
  const fetchInTime = async (request: Request) => {
    const response = await fetch(request, { signal: AbortSignal.timeout(target.requestTimeoutMs) });
    if (response.ok) return response;
    // Whoever stands before the server refuses with a body of any kind, over which the client would stumble.
    const body = await response.text();
    if (![429, 502, 503, 504].includes(response.status) && /^\s*\{.*\}\s*$/s.test(body)) return new Response(body, response);
    throw new Error(`HTTP status ${response.status}`, { cause: { status: response.status } });
  };
  return (await import("@libsql/client/http")).createClient({ ...config, fetch: fetchInTime });
}

/** Waits for a web socket's answer no longer than a server may take: the socket itself would be waited for without end. */
async function inTime<T>(answer: Promise<T>, target: Target): Promise<T> {
  if (!target.url.startsWith("ws")) return answer;
  const stop = new AbortController();
  const late = sleep(target.requestTimeoutMs, undefined, { signal: stop.signal }).then(() => {
    throw new DOMException("no answer", "TimeoutError");
  });
  return Promise.race([answer, late]).finally(() => stop.abort());
}

/** Which file stands at the path, as one word. Throws a Failure where there is none, or none that may be read. */
export function requireFile(path: string): string {
  try {
    const { dev, ino } = statSync(path);
    if (!statSync(path).isFile()) throw new Failure(EXIT.config, `${path} is no database but a directory or device: correct DATABASE_URL`);
    accessSync(path, constants.R_OK);
    return `${dev}:${ino}`;
  } catch (error) {
    if (error instanceof Failure) throw error;
    const { code } = error as NodeJS.ErrnoException;
    if (code === "EACCES" || code === "EPERM") throw new Failure(EXIT.refused, `${path} may not be read: give this user permission on the file and its directory`);
    throw new Failure(EXIT.unreachable, `no database at ${path}: run "make migrate" or correct DATABASE_URL`);
  }
}

/**
 * Opens the database. A file must exist, because a client would silently create an empty one under a mistyped name.
 * Throws a Failure where the file is missing or is none; a server is first spoken to by the first batch.
 */
export async function openDatabase(target: Target): Promise<Database> {
  const findFile = () => target.path && requireFile(target.path);
  let file = findFile();
  let client: Client | undefined = await connect(target).catch((error: unknown) => {
    throw explain(error, target);
  });

  const attempt = async <T>(work: (client: Client) => Promise<T>, repeatable = true): Promise<T> => {
    for (let tries = 0; ; tries++) {
      db.retried = tries > 0;
      try {
        // A file may be deleted or replaced at any time, and what is open would be written on, out of everybody's sight.
        if (file !== (file = findFile())) client = void client?.close();
        client ??= await connect(target);
        const result = await inTime(work(client), target);
        if (target.path && file !== findFile()) throw new Failure(EXIT.unreachable, `${target.path} was replaced while it was written: look which file is the right one, then run it again`);
        return result;
      } catch (error) {
        const failure = explain(error, target);
        // After SQLITE_BUSY a connection to a file loses later writes without a word: never use it again. Nor a web socket
        // after any failure: one that is left open keeps the process from ending.
        if (failure.exitCode === EXIT.busy || target.url.startsWith("ws")) {
          client?.close();
          client = undefined;
        }
        const lost = failure.exitCode === EXIT.unreachable && target.path === undefined;
        const undone = failure instanceof DatabaseFailure && failure.neverSent;
        const passing = failure.exitCode === EXIT.busy || (lost && (repeatable || undone));
        const pause = RETRY_PAUSES_MS[tries];
        if (passing && pause !== undefined) await sleep(pause);
        else if (lost && !repeatable && !undone) throw new Failure(failure.exitCode, `${failure.message}; the answer was lost and what was asked for may be done: look before asking again`);
        else throw failure;
      }
    }
  };

  const send = (statements: Statement[], mode: "write" | "read", repeatable: boolean) =>
    attempt(async (client) => {
      const results: ResultSet[] = await client.batch(statements as { sql: string; args: InArgs }[], mode);
      return results.map((result) => result.rows.map((row) => ({ ...row })));
    }, repeatable);

  const db: Database = {
    target,
    retried: false,
    batch: (statements, options) => send(statements, "write", options?.repeatable ?? false),
    read: (statements) => send(statements, "read", true),
    plan: ({ sql, args }) => attempt(async (client) => (await client.execute({ sql: `EXPLAIN QUERY PLAN ${sql}`, args })).rows.map((row) => ({ ...row }))),
    script: (sql) => attempt((client) => client.executeMultiple(sql)),
    close: () => client?.close(),
  };
  return db;
}

/** A Failure that remembers which statement of the batch it was, where the engine says so, and whether it can have arrived at all. */
export class DatabaseFailure extends Failure {
  statementIndex?: number;
  neverSent = false;
}

/** Turns whatever the client throws into a Failure: the table of platform codes, in one place. */
export function explain(error: unknown, target: Target): Failure {
  if (error instanceof Failure) return error;
  const e = error as { code?: unknown; message?: string; name?: string; statementIndex?: number; cause?: { code?: string; status?: number } };
  const text = oneLine(String(e.message ?? error).replace(/^(?:[A-Z_]+: )+(?:error executing a request on the primary: )?(?:SQLite error: )?/, ""));
  const code = typeof e.code === "string" ? e.code : ""; // what fetch throws when it is late has a number there
  // A web socket that is refused as it opens has the status in its text alone.
  const status = e.cause?.status ?? Number(/^Unexpected server response: (\d{3})/.exec(text)?.[1] ?? 0);
  const at = target.shown;
  const fail = (exitCode: Failure["exitCode"], message: string) => {
    const failure = new DatabaseFailure(exitCode, message);
    failure.statementIndex = e.statementIndex;
    failure.neverSent = /\b(ECONNREFUSED|ENOTFOUND|EAI_AGAIN)\b/.test(`${e.cause?.code} ${text}`);
    return failure;
  };

  if (/^SQLITE_(BUSY|LOCKED)|^TRANSACTION_TIMEOUT/.test(code) || /database is locked/.test(text)) return fail(EXIT.busy, `${at} is busy: another writer holds it; try again`);
  if (status === 401 || status === 403) return fail(EXIT.refused, `${at} refused the token (${status}): check TURSO_AUTH_TOKEN`);
  if (code.startsWith("AUTH_")) return fail(EXIT.refused, `${at} refused the token (${text}): check TURSO_AUTH_TOKEN`);
  if (code === "BLOCKED") return fail(EXIT.refused, `${at} is blocked (${text}): ask who runs the server`);
  if (code.startsWith("URL_")) return fail(EXIT.config, `${at}: ${text}: correct DATABASE_URL`);
  if (status === 429) return fail(EXIT.busy, `${at} asks for patience (429): try again`);
  if (code.startsWith("SQLITE_READONLY") || /readonly database/.test(text)) return fail(EXIT.refused, `${at} may not be written: give this user write permission on the file and its directory`);
  if (code.startsWith("SQLITE_NOTADB") || /file is not a database/.test(text)) return fail(EXIT.config, `${at} is not a SQLite database: correct DATABASE_URL`);
  if (/^no such (table|view|column)/.test(text)) return fail(EXIT.config, `${at}: ${text}: pending migrations; run "make migrate"`);
  if (/pending_migrations/.test(text)) return fail(EXIT.config, `${at}: pending migrations: the schema is older than the sweeps; run "make migrate"`);
  if (/^run id taken:/.test(text)) return fail(EXIT.usage, `${at}: ${text}`);
  if (/^sweep_settings:/.test(text)) return fail(EXIT.config, `${at}: ${text}`);
  if (/^SQLITE_FULL/.test(code) || /database or disk is full/.test(text)) return fail(EXIT.failed, `${at} is full, or its disk is: nothing of this was done; make room, then run it again`);
  if (/^SQLITE_CORRUPT/.test(code) || /disk image is malformed/.test(text)) return fail(EXIT.failed, `${at} is damaged (${text}): stop its writers and restore it from a backup`);
  if (/ConnectionFailed|unable to open database/i.test(text)) return fail(EXIT.unreachable, `${at} cannot be opened: check that the path exists and may be read`);
  if (e.name === "TimeoutError") return fail(EXIT.unreachable, `${at} did not answer within ${target.requestTimeoutMs / 1000} s: check the server, then try again`);
  const network = /^(?:E[A-Z]+|UND_\w+)$/.exec(e.cause?.code ?? "")?.[0] ?? (error instanceof TypeError ? text : undefined);
  // A server that refuses a token over a web socket often just hangs up.
  if (code.startsWith("HRANA_WEBSOCKET")) return fail(EXIT.unreachable, `${at} cannot be reached (${text}): check DATABASE_URL, TURSO_AUTH_TOKEN and the server, then try again`);
  // What a stranger answered is not quoted: it may hold anything, a piece of our token included.
  if (error instanceof SyntaxError) return fail(EXIT.unreachable, `${at} cannot be reached (what answers is no libSQL server): check DATABASE_URL and the server, then try again`);
  if (network || status >= 400 || /^(SERVER_ERROR|HRANA)/.test(code)) {
    return fail(EXIT.unreachable, `${at} cannot be reached (${status || network || text}): check DATABASE_URL and the server, then try again`);
  }
  return fail(EXIT.failed, `${at}: ${text}`);
}
