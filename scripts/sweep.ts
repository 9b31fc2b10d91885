// Runs sweeps: sends each file's steps as one write batch until the ledger says that the run is over, and prints what the
// ledger says of it. Which rows a sweep touches, when it is done and what it counts is decided in db/sweeps.
import { randomUUID } from "node:crypto";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { DatabaseFailure, openDatabase, type Database, type Row } from "./lib/database.js";
import { EXIT, Failure, report, type ExitCode } from "./lib/exit.js";
import type { SweepName } from "./lib/lanes.js";
import { readMode, type Mode } from "./lib/mode.js";
import { readFile, runFile } from "./lib/queue.js";
import { bind, listSql, loadSteps, sqlVersion } from "./lib/steps.js";
import type { Target } from "./lib/target.js";

export { SWEEPS, type SweepName } from "./lib/lanes.js";
export type SweepOptions = { observe?: boolean; json?: boolean; origin?: string; runId?: string; scopeQueue?: string; mode?: Mode; stop?: AbortSignal };
export type Report = { sweep: string; run_id: string | null; mode: string | null; requested_mode: string | null; gated: boolean; outcome: string } & Row;

/** No batch should hold the write lock for longer than the first; after one that did the next is half the size, and twice after a quick one. */
const SLOW_BATCH_MS = 250;
const QUICK_BATCH_MS = 60;
const SMALLEST_BATCH_ROWS = 50;

function requestedMode(name: SweepName, options: SweepOptions): Mode {
  if (options.observe) return "observe";
  return options.mode ?? (name === "revalidate_parked_tasks" ? readMode(process.env) : "enabled");
}

/**
 * One run of one sweep, in as many batches as it takes. Returns the run as the ledger has it, read back in the same
 * transaction as its last batch; outcome `skipped` where the mode is off or another runner is at it. Told to `stop`, it
 * finishes the batch in hand and ends the run, with what is left over for the next.
 * Throws a Failure after writing the run down as failed.
 */
export async function runSweep(db: Database, name: SweepName, options: SweepOptions = {}): Promise<Report> {
  const requested = requestedMode(name, options);
  const shared = { sweep: name, requested_mode: requested, gated: false, gate_reason: null, drained: false };
  if (requested === "off") return { ...shared, run_id: null, mode: "off", outcome: "skipped", duration_ms: 0, reason: "the mode file says off" };

  const steps = loadSteps(`db/sweeps/${name}.sql`);
  const values = {
    run_id: options.runId ?? `${name}-${randomUUID()}`,
    mode: requested,
    origin: options.origin ?? "manual",
    runner: `${hostname()}:${process.pid}`,
    sql_version: sqlVersion(steps),
    needs_schema_version: listSql("db/migrations").at(-1)!.split("_")[0]!,
    scope_queue: options.scopeQueue ?? null,
  };
  const started = performance.now();
  let batchRows: number | null = null; // as the setting says
  let fullSize: number | undefined;
  for (;;) {
    const sent = performance.now();
    let rows: Row[][];
    try {
      rows = await db.batch(steps.map((step) => bind(step, { ...values, batch_rows: batchRows })), { repeatable: true });
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      if (!/sweep held/.test(error.message)) throw await writtenDown(db, error, { ...values, sweep: name }, steps);
      const durationMs = performance.now() - started;
      // Either this run is over and was asked for once more, or it was taken over; else somebody else is at it.
      const [own] = await runFile(db, "db/ledger/read_run.sql", values, { repeatable: true });
      if (own) return asReport(own, durationMs);
      return { ...shared, run_id: null, mode: requested, outcome: "skipped", duration_ms: Math.round(durationMs), reason: await whoHolds(db, name, values.scope_queue) };
    }
    let run = rows.flat().at(-1); // only what reports returns a row
    // A run whose answer was lost on the way, or that was asked for again, is over already: the ledger has it.
    if (!run || (run.run_id !== values.run_id && (options.runId || db.retried))) run = (await runFile(db, "db/ledger/read_run.sql", values, { repeatable: true }))[0] ?? run;
    if (!run) throw new Failure(EXIT.failed, `${name}: run ${values.run_id} left no trace in the ledger: look into sweep_runs before running it again`);
    if (String(run.schema_version) < values.needs_schema_version) throw new Failure(EXIT.config, `${name}: ${db.target.shown}: pending migrations: the schema is older than the sweeps; run "make migrate"`);
    if (run.sweep !== name) throw new Failure(EXIT.usage, `${name}: ${db.target.shown}: run id taken: ${values.run_id} is a run of ${run.sweep}; give each run an id of its own`);
    const took = performance.now() - sent;
    if (run.outcome !== "running") return asReport(run, performance.now() - started);
    const size = Number(run.row_limit);
    fullSize ??= size;
    // As long a pause as the batch took: batches sent back to back starve every other writer on a server.
    await sleep(took, undefined, { signal: options.stop }).catch(() => {});
    if (options.stop?.aborted) batchRows = 0;
    else if (took > SLOW_BATCH_MS) batchRows = Math.min(size, Math.max(SMALLEST_BATCH_ROWS, Math.floor(size / 2)));
    else if (took < QUICK_BATCH_MS) batchRows = Math.min(size * 2, fullSize);
  }
}

function asReport(run: Row, durationMs: number): Report {
  const { run_id, sweep, mode, requested_mode, gate_reason, outcome, batches } = run;
  return {
    sweep, run_id, mode, requested_mode, gated: Boolean(run.gated), gate_reason: gate_reason ?? null, outcome,
    drained: Boolean(run.drained), duration_ms: Math.round(durationMs), batches,
    ...JSON.parse(String(run.counts)),
    ...(run.clock_back_ms ? { clock_back_ms: run.clock_back_ms } : {}),
    ...(run.error ? { error: run.error } : {}),
  } as Report;
}

async function whoHolds(db: Database, sweep: string, scopeQueue: string | null): Promise<string> {
  const [holder] = await readFile(db, "db/ledger/read_holder.sql", { sweep, scope_queue: scopeQueue });
  return holder ? `held by run ${holder.run_id} of ${holder.runner}, silent for ${holder.silent_ms} ms` : "held by a run that has just finished";
}

/** Writes a run down as failed, if the database can still be written at all. Returns the failure with its place in the message. */
async function writtenDown(db: Database, failure: Failure, values: Record<string, string | null>, steps: { name: string }[]): Promise<Failure> {
  const index = failure instanceof DatabaseFailure ? failure.statementIndex : undefined;
  const place = index === undefined ? values.sweep : `${values.sweep}, step ${steps[index]?.name}`;
  const located = new Failure(failure.exitCode, `${place}: ${failure.message}`);
  if (failure.exitCode === EXIT.failed) {
    await runFile(db, "db/ledger/fail_run.sql", { ...values, error: located.message }, { repeatable: true }).catch(() => {});
  }
  return located;
}

/** A run as one line for people. */
export function line(run: Report): string {
  const { sweep, run_id, mode, requested_mode, gated, gate_reason, outcome, drained, duration_ms, batches, reason, clock_back_ms, error, ...counts } = run;
  const numbers = Object.entries(counts).map(([name, count]) => `${name}=${count}`);
  const words = [`${sweep}: ${outcome}`, `mode=${mode}`, ...numbers];
  if (outcome !== "skipped") words.push(`drained=${drained}`, `run=${run_id}`);
  words.push(`${duration_ms} ms`);
  if (gated) words.push(`(enabled was asked for, but gated: ${gate_reason})`);
  if (clock_back_ms) words.push(`(the database's clock stands ${clock_back_ms} ms before what it was: see clock_steps)`);
  if (reason) words.push(`(${reason})`);
  return words.join("  ");
}

/**
 * Runs the sweeps one after the other, each whatever becomes of the others, and prints one line a run, or with `json` one
 * JSON object. Returns the exit code of the first that failed, else 0.
 */
export async function sweepCommand(target: Target, names: SweepName[], options: SweepOptions): Promise<ExitCode> {
  const db = await openDatabase(target);
  const stop = stopSignal();
  let exitCode: ExitCode = EXIT.ok;
  for (const name of names) {
    let run: Report | undefined;
    try {
      if (stop.aborted) throw new Failure(EXIT.failed, `${name}: not run, because the program was told to stop; run it again`);
      run = await runSweep(db, name, { ...options, stop });
      if (run.outcome !== "ok" && run.outcome !== "skipped") throw new Failure(EXIT.failed, `${name}: run ${run.run_id} ended ${run.outcome}: ${run.error ?? "see sweep_runs"}`);
    } catch (error) {
      const code = report(error);
      exitCode ||= code;
      run ??= { sweep: name, run_id: null, mode: null, requested_mode: null, gated: false, outcome: "failed", drained: false, duration_ms: null, error: (error as Error).message };
      if (!options.json && !run.run_id) continue;
    }
    console.log(options.json ? JSON.stringify(run) : line(run));
  }
  db.close();
  return exitCode;
}

/** Aborted by the first SIGTERM or SIGINT; a second one ends the process as it would have. */
export function stopSignal(): AbortSignal {
  const controller = new AbortController();
  for (const signal of ["SIGTERM", "SIGINT"] as const) process.once(signal, () => controller.abort());
  return controller.signal;
}
