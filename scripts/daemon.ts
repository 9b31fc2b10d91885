// Runs every sweep on its schedule in one process, where neither systemd nor cron is at hand. It keeps no state of its own:
// what is due follows from the ledger and the database's clock, so a restart, a second host or a week asleep changes nothing.
import { randomUUID } from "node:crypto";
import { statSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { openDatabase, type Database, type Row } from "./lib/database.js";
import { runAtMs, type Memory } from "./lib/due.js";
import { EXIT, Failure, oneLine, report, type ExitCode } from "./lib/exit.js";
import { readLanes, type Lane as Scheduled, type SweepName } from "./lib/lanes.js";
import { notify, watchdogPauseMs } from "./lib/notify.js";
import { readFile } from "./lib/queue.js";
import type { Target } from "./lib/target.js";
import { line, runSweep, stopSignal } from "./sweep.js";

const MINUTE_MS = 60_000;
/** However the clocks stand, nothing is asked for more often than this. */
const SHORTEST_PAUSE_MS = 1_000;
/** Hosts that wake for the same minute do so a little apart, and the second finds the work done. */
const SPLAY_MS = Math.random() * 2_000;
/** Told to stop, a server that does not answer is waited for no longer than this. */
const STOP_WITHIN_MS = 10_000;
/** A turn that takes longer than this, not counting runs, is stuck: three requests that time out, and what is between them. */
const LONGEST_TURN_MS = 3 * MINUTE_MS;

type Lane = Scheduled & { away: boolean; running: boolean; turnedAt: number; memory: Map<SweepName, Memory>; sentIds: Map<SweepName, string> };

/** How long it sleeps at most before it looks at the ledger again. Throws a configuration failure for a senseless SWEEP_POLL_MS. */
function readPollMs(): number {
  const given = process.env.SWEEP_POLL_MS || String(MINUTE_MS);
  if (!/^\d{1,7}$/.test(given) || Number(given) < 10 || Number(given) > 60 * MINUTE_MS) throw new Failure(EXIT.config, `SWEEP_POLL_MS is "${oneLine(given)}": give whole milliseconds from 10 to ${60 * MINUTE_MS}, or leave it out`);
  return Number(given);
}

/** A connection that is opened anew after a failure, and when another file has taken the file's place. */
function connection(target: Target): { open(): Promise<Database>; drop(): void } {
  let db: Database | undefined;
  let file: string | undefined;
  const identity = () => {
    const stat = target.path === undefined ? undefined : statSync(target.path, { throwIfNoEntry: false });
    return stat && `${stat.dev} ${stat.ino}`;
  };
  const drop = () => {
    db?.close();
    db = undefined;
  };
  const open = async () => {
    if (identity() !== file) drop();
    file = identity();
    return (db ??= await openDatabase(target));
  };
  return { open, drop };
}

/**
 * Runs until SIGTERM or SIGINT, then finishes the batch in hand. Prints one line a run, or with `json` one JSON object, and one
 * line on stderr when the database goes away or comes back. Returns 0. Throws a Failure where the very first look at the
 * database shows that it never will work: wrong configuration, pending migrations, a refused token.
 */
export async function daemonCommand(target: Target, json: boolean): Promise<ExitCode> {
  const pollMs = readPollMs();
  const stop = stopSignal();
  const lanes = readLanes().map((lane): Lane => ({ ...lane, away: false, running: false, turnedAt: performance.now(), memory: new Map(), sentIds: new Map() }));
  await firstLook(target);
  stop.addEventListener("abort", () => {
    void notify("STOPPING=1");
    setTimeout(() => {
      console.error(`${target.shown} did not answer within ${STOP_WITHIN_MS / 1000} s: stopped without it; the next run goes on where this one was`);
      process.exit(EXIT.ok);
    }, STOP_WITHIN_MS).unref();
  });

  // One line when the first lane finds the database gone, and one when the last has it back.
  const tell = (lane: Lane, error?: unknown) => {
    const before = lanes.some(({ away }) => away);
    lane.away = error !== undefined;
    const after = lanes.some(({ away }) => away);
    if (after === before) return;
    const text = after ? `${(error as Error).message}; trying again every minute` : `${target.shown} answers again`;
    console.error(oneLine(text));
    void notify(`STATUS=${oneLine(text)}`);
  };

  const watchdog = watchdogPauseMs();
  const alive = () => lanes.every(({ running, turnedAt }) => running || performance.now() - turnedAt < Math.max(LONGEST_TURN_MS, 2 * pollMs));
  const beat = watchdog && setInterval(() => alive() && void notify("WATCHDOG=1"), watchdog);
  await notify("READY=1", `STATUS=Sweeping ${target.shown}`);
  await Promise.all(lanes.map((lane) => follow(lane, { target, pollMs, stop, json, tell })));
  clearInterval(beat);
  return EXIT.ok;
}

/** Fails at once where waiting would not help. A database that is away may come. */
async function firstLook(target: Target): Promise<void> {
  try {
    const db = await openDatabase(target);
    await readFile(db, "db/ledger/read_last_runs.sql").finally(() => db.close());
  } catch (error) {
    if (!(error instanceof Failure) || error.exitCode === EXIT.config || error.exitCode === EXIT.refused) throw error;
  }
}

type Context = { target: Target; pollMs: number; stop: AbortSignal; json: boolean; tell(lane: Lane, error?: unknown): void };

/** Runs one lane's sweeps as they come due, each whatever becomes of the others, until told to stop. */
async function follow(lane: Lane, context: Context): Promise<void> {
  const { target, pollMs, stop, tell } = context;
  const { open, drop } = connection(target);
  while (!stop.aborted) {
    let waitMs = Math.min(pollMs, MINUTE_MS);
    try {
      const db = await open();
      waitMs = pollMs;
      for (const sweep of lane.sweeps) {
        if (stop.aborted) break;
        const row = (await readFile(db, "db/ledger/read_last_runs.sql")).find((candidate) => candidate.sweep === sweep)!;
        tell(lane);
        const memory = lane.memory.get(sweep) ?? { failures: 0 };
        const inMs = runAtMs(lane.pattern, row, memory) - Number(row.now_ms);
        if (inMs > 0) waitMs = Math.min(waitMs, inMs + SPLAY_MS);
        else lane.memory.set(sweep, await runOnce(db, lane, sweep, row, memory, context));
      }
    } catch (error) {
      drop();
      tell(lane, error);
    }
    lane.turnedAt = performance.now();
    await sleep(Math.max(waitMs, Math.min(SHORTEST_PAUSE_MS, pollMs)), undefined, { signal: stop }).catch(() => {});
  }
  drop();
}

/** One run, printed. Returns what is to be remembered of it. Throws where the database is away. */
async function runOnce(db: Database, lane: Lane, sweep: SweepName, row: Row, memory: Memory, { stop, json }: Context): Promise<Memory> {
  const nowMs = Number(row.now_ms);
  lane.running = true;
  try {
    const run = await runSweep(db, sweep, { origin: "daemon", stop, runId: runId(lane, sweep, row) });
    console.log(json ? JSON.stringify(run) : line(run));
    if (run.outcome === "ok") return { failures: 0 };
    if (run.mode === "off") return { failures: 0, offAtMs: nowMs };
    if (run.outcome === "skipped") return { failures: 0, askedAtMs: nowMs };
    throw new Failure(EXIT.failed, `${sweep}: run ${run.run_id} ended ${run.outcome}: ${run.error ?? "see sweep_runs"}`);
  } catch (error) {
    if (error instanceof Failure && (error.exitCode === EXIT.unreachable || error.exitCode === EXIT.busy || error.exitCode === EXIT.refused)) throw error;
    report(error);
    if (json) console.log(JSON.stringify({ sweep, run_id: null, mode: null, requested_mode: null, gated: false, outcome: "failed", drained: false, duration_ms: null, error: oneLine((error as Error).message) }));
    return { failures: memory.failures + 1, askedAtMs: nowMs };
  } finally {
    lane.running = false;
    lane.turnedAt = performance.now();
  }
}

/**
 * The run's id says which run it follows: hosts that saw the same ledger send the same id, and do the work once between them.
 * An id sent before did not get the sweep done (its run is over, and lies in a time that the clock has left): then a new one.
 * An expiry that finds nothing leaves no row, and one that comes second finds nothing, so it needs no such id.
 */
function runId(lane: Lane, sweep: SweepName, row: Row): string | undefined {
  if (sweep === "expire_leases") return undefined;
  const id = `${sweep}.after.${row.latest_started_at_ms ?? 0}`;
  const sent = lane.sentIds.get(sweep);
  lane.sentIds.set(sweep, id);
  return id === sent ? `${id}.${randomUUID()}` : id;
}
