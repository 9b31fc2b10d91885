// The queue's verbs for callers in TypeScript: each is a file of db/queue, run as one write transaction.
import type { Database, Row, Value } from "./database.js";
import { bind, loadSteps } from "./steps.js";

export { openDatabase } from "./database.js";
export { Failure } from "./exit.js";
export { readTarget } from "./target.js";

type Values = Record<string, Value | number | undefined>;

const statements = (path: string, values: Values) => loadSteps(path).map((step) => bind(step, values));
const lastRows = (results: Row[][]) => results.findLast((rows) => rows.length > 0) ?? [];

/** Runs a .sql file's steps as one transaction. Returns the rows of its last step that has any, else []. Throws a Failure. */
export const runFile = async (db: Database, path: string, values: Values = {}, options?: { repeatable: boolean }) => lastRows(await db.batch(statements(path, values), options));

/** The same for a file that only reads: it waits for no writer, and none waits for it. */
export const readFile = async (db: Database, path: string, values: Values = {}) => lastRows(await db.read(statements(path, values)));

/**
 * The verbs. Each takes what its file's header lists; `_ms` values are whole milliseconds.
 * complete, fail, park and renew throw a Failure whose message holds "lease lost" where the token does not hold the task.
 * None is sent again when its answer is lost: the Failure says so, and the caller knows best what to look at.
 */
export const queue = {
  enqueue: (db: Database, task: Values) =>
    runFile(db, "db/queue/enqueue.sql", { key: null, queue: "default", priority: null, payload: null, not_before_ms: null, max_attempts: null, ...task }),
  claim: (db: Database, claim: { queue: string; worker: string; token: string; lease_ms: number }) => runFile(db, "db/queue/claim.sql", claim),
  renew: (db: Database, lease: { task_id: number; token: string; lease_ms: number }) => runFile(db, "db/queue/renew.sql", lease),
  complete: (db: Database, lease: { task_id: number; token: string }) => runFile(db, "db/queue/complete.sql", lease),
  fail: (db: Database, lease: { task_id: number; token: string }) => runFile(db, "db/queue/fail.sql", lease),
  park: (db: Database, park: { task_id: number; token: string } & Values) =>
    runFile(db, "db/queue/park.sql", { ready_condition: null, not_before_ms: null, park_reason: null, ...park }),
  release: (db: Database, task: { task_id: number; reason?: string | null }) => runFile(db, "db/queue/release.sql", { reason: null, ...task }),
};
