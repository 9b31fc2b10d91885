// Proves by readback, on any database, that the sweeps do what they promise: seeds fixtures in a queue of their own, sweeps
// them, reads them back and cleans up. What is seeded, read and cleaned stands in db/proof.
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { openDatabase, type Database, type Row } from "./lib/database.js";
import { EXIT, Failure, oneLine, type ExitCode } from "./lib/exit.js";
import { queue, readFile, runFile } from "./lib/queue.js";
import type { Target } from "./lib/target.js";
import { runSweep } from "./sweep.js";
import { verify } from "./verify.js";

type Shown = { readBack: string; holds: boolean };
type Line = Shown & { claim: string; expected: string };

const LEASE_MS = 200;
/** Long enough that a schedule which happens to run at this moment does not look like one that waited for the lease's end. */
const WAITED_LEASE_MS = 2_000;
const POLL_MS = 1_000;
/** A schedule of every minute, its jitter and its start included. */
const WAIT_SECONDS = 150;
/** On a busy queue some worker's claim may expire the lease before the sweep does; then the task is claimed once more. */
const MOST_CLAIMS = 5;

/**
 * Runs the proof and prints a Markdown table of what was read back. With `wait` the deployed schedule has to expire the
 * lease. Returns 1 where a row is not as it should be, or where it was stopped; what it seeded is gone in any case.
 */
export async function proofCommand(target: Target, wait: boolean): Promise<ExitCode> {
  const stopped = stopSignal();
  const db = await openDatabase(target);
  try {
    const [clock] = await readFile(db, "db/proof/read_clock.sql");
    if (clock!.fake_now_ms !== null) throw new Failure(EXIT.config, `${target.shown}: fake_now_ms is set, so time stands still and no lease runs out: set it to NULL in sweep_settings, then run the proof again`);
    for (const row of await readFile(db, "db/proof/find_leftovers.sql")) said(String(row.queue), await runFile(db, "db/proof/clean.sql", { queue: String(row.queue) }));
    const lines = await prove(db, `proof-${randomUUID()}`, Number(clock!.retention_days), wait, stopped);
    const failed = lines.filter(({ holds }) => !holds);
    if (failed.length > 0) console.error(`${target.shown}: ${failed.length} of ${lines.length} rows of the proof are not as they should be: see FAILED in its table`);
    console.log(["| claim | expected | read back | result |", "|---|---|---|---|", ...lines.map(tableRow)].join("\n"));
    return failed.length > 0 ? EXIT.failed : EXIT.ok;
  } finally {
    db.close();
  }
}

/** The proof from its seeds to its cleaning. Returns the table's rows. Throws where it could not seed, or was stopped. */
async function prove(db: Database, name: string, days: number, wait: boolean, stopped: AbortSignal): Promise<Line[]> {
  const lines: Line[] = [];
  const show = async (claim: string, expected: string, read: () => Promise<Shown>) => {
    stopped.throwIfAborted();
    const shown = await read().catch((error: Error): Shown => {
      stopped.throwIfAborted();
      return { readBack: oneLine(error.message), holds: false };
    });
    lines.push({ claim, expected, ...shown });
    console.log(`${shown.holds ? "ok    " : "FAILED"} ${claim}: ${shown.readBack}`);
  };
  const read = async (file: string, values: Record<string, string> = {}) => (await runFile(db, `db/proof/${file}.sql`, { queue: name, ...values }))[0]!;
  // A run's id is known before it runs, and says whose it is to whoever finds it in the log.
  const observation = { scopeQueue: name, origin: "proof", mode: "observe", runId: `${name}/observe` } as const;
  const release = { scopeQueue: name, origin: "proof", mode: "enabled", runId: `${name}/release` } as const;
  const pruning = { scopeQueue: name, origin: "proof", runId: `${name}/prune` } as const;

  const faultsBefore = await countFaults(db);
  stopped.throwIfAborted();
  try {
    await runFile(db, "db/proof/seed.sql", { queue: name });
  } catch (error) {
    // All or nothing; only where the answer was lost may something be there.
    if ((error as Failure).exitCode === EXIT.unreachable) await clean(db, name);
    throw error;
  }
  try {
    console.log(`seeded 4 tasks and 3 events in queue ${name}`);

    await show(
      wait ? "the deployed schedule returns a task whose lease ran out, no claim involved" : "a task whose lease ran out is returned, no claim involved",
      `\`queued\`, attempts as claimed, \`lease_expired\` by a run${wait ? " that is not the proof's" : ""}`,
      () => proveExpiry(db, name, wait, stopped),
    );
    await show("observing lists the parked task whose condition is met, and moves nothing", "listed: ready; all three `parked`, no `park_released`", async () => {
      await runSweep(db, "revalidate_parked_tasks", observation);
      const parked = await read("read_parked", { run_id: observation.runId });
      const holds = parked.listed === "ready: condition_met" && [parked.ready, parked.unmet, parked.time_park].every((state) => state === "parked") && parked.releases === 0;
      return { holds, readBack: `listed: ${parked.listed}; ready \`${parked.ready}\`, unmet \`${parked.unmet}\`, time park \`${parked.time_park}\`; \`park_released\`: ${parked.releases}${firstComer(parked, release.runId)}` };
    });
    await show("released, that task goes back", "`queued`, one `park_released` by the proof's run", async () => {
      const run = await runSweep(db, "revalidate_parked_tasks", release);
      const parked = await read("read_parked", { run_id: release.runId });
      const gated = run.gated ? `; gated: ${run.gate_reason}` : "";
      return { holds: parked.ready === "queued" && parked.releases === 1 && parked.released_by === release.runId, readBack: `\`${parked.ready}\`, \`park_released\`: ${parked.releases}, by ${parked.released_by ?? "no run"}${gated}${firstComer(parked, release.runId)}` };
    });
    await show("the one whose condition is not met and the time park stay", "both `parked`", async () => {
      const parked = await read("read_parked", { run_id: release.runId });
      return { holds: parked.unmet === "parked" && parked.time_park === "parked", readBack: `unmet \`${parked.unmet}\`, time park \`${parked.time_park}\`` };
    });
    await show(`pruning takes a ${days + 1}-day-old event and leaves a ${days - 1}-day-old one`, `${days + 1} days: gone; ${days - 1} days: there`, async () => {
      const run = await runSweep(db, "prune_events", pruning);
      const events = await read("read_pruning", { run_id: pruning.runId });
      const first = events.past === 0 && run.events_pruned === 0 ? "; the queue's own pruning took it first: run the proof again" : "";
      return { holds: events.past === 0 && events.within === 1 && run.events_pruned === 1, readBack: `${days + 1} days: ${events.past ? "there" : "gone"}; ${days - 1} days: ${events.within ? "there" : "gone"}${first}` };
    });
    await show("the pruning is logged", "one `events_pruned` with a count of 1", async () => {
      const { logged, pruned } = await read("read_pruning", { run_id: pruning.runId });
      return { holds: logged === 1 && pruned === 1, readBack: `\`events_pruned\`: ${logged}, with a count of ${pruned ?? "nothing"}, by ${pruning.runId}` };
    });
  } finally {
    await clean(db, name);
  }
  await show("nothing of the proof stays", "no task, lease, event of its own or run", async () => {
    const left = Object.entries(await read("read_left"));
    return { holds: left.every(([, count]) => count === 0), readBack: left.map(([what, count]) => `${what}: ${count}`).join(", ") };
  });
  await show("no rows that must not exist have come about (`make verify`)", "none more than before", async () => {
    const faults = await countFaults(db);
    const grown = [...faults].filter(([query, count]) => count > faultsBefore.get(query)!);
    const sum = (counts: Map<string, number>) => [...counts.values()].reduce((total, count) => total + count, 0);
    return { holds: grown.length === 0, readBack: [`before: ${sum(faultsBefore)}, after: ${sum(faults)}`, ...grown.map(([query]) => query)].join("; ") };
  });
  stopped.throwIfAborted();
  return lines;
}

/** Claims the task for a short while and does nothing; then sweeps, or with `wait` watches until somebody else has. */
async function proveExpiry(db: Database, name: string, wait: boolean, stopped: AbortSignal): Promise<Shown> {
  const waitSeconds = Number(process.env.SWEEP_PROOF_WAIT_SECONDS) || WAIT_SECONDS;
  const deadline = performance.now() + waitSeconds * 1000;
  const readLease = async () => (await runFile(db, "db/proof/read_lease.sql", { queue: name }))[0]!;
  const pause = (ms: number) => sleep(ms, undefined, { signal: stopped });
  for (let claims = 1; ; claims++) {
    await queue.claim(db, { queue: name, worker: name, token: randomUUID(), lease_ms: wait ? WAITED_LEASE_MS : LEASE_MS });
    console.log(`claimed a task for ${wait ? WAITED_LEASE_MS : LEASE_MS} ms${wait ? `; now waiting up to ${waitSeconds} s for the schedule` : ""}`);
    let lease = await readLease();
    for (; Number(lease.left_ms) > 0; lease = await readLease()) await pause(Number(lease.left_ms));
    if (wait) for (; lease.left_ms !== null && performance.now() < deadline; lease = await readLease()) await pause(POLL_MS);
    else {
      await runSweep(db, "expire_leases", { scopeQueue: name, origin: "proof" });
      lease = await readLease();
    }
    const state = `\`${lease.state}\`, attempts ${lease.attempts} of ${claims}`;
    if (!lease.expired && wait) return { holds: false, readBack: `${state}: nothing expired it within ${waitSeconds} s: see that the timer or daemon runs and names this database, then run the proof again` };
    if (!lease.expired) return { holds: false, readBack: `${state}, no \`lease_expired\`` };
    if (lease.run_id !== null) return { holds: lease.state === "queued" && lease.left_ms === null && lease.attempts === claims && (!wait || lease.origin === "timer" || lease.origin === "daemon"), readBack: `${state}, \`lease_expired\` by run ${lease.run_id} (${lease.origin}, ${lease.runner})` };
    if (wait ? performance.now() >= deadline : claims === MOST_CLAIMS) return { holds: false, readBack: `${state}, but a worker's claim came first, ${claims} times: run the proof again when the queue is quieter` };
  }
}

/** On the live queue an enabled revalidation may come between; the table then says that nothing was shown. */
function firstComer(parked: Row, ownRun: string): string {
  return parked.released_by && parked.released_by !== ownRun ? `; run ${parked.released_by} (${parked.origin}) of the queue's own came first: run the proof again` : "";
}

/** Removes what a proof seeded, and says what the log keeps. Never throws: what it could not remove is read back later. */
async function clean(db: Database, name: string): Promise<void> {
  await runFile(db, "db/proof/clean.sql", { queue: name }).then(
    (rows) => said(name, rows),
    (error: Error) => console.error(`queue ${name} was not cleaned up, any proof started an hour from now does it: ${oneLine(error.message)}`),
  );
}

function said(name: string, [row]: Row[]): void {
  console.log(`cleaned up queue ${name}; ${row!.kept} events that the sweeps logged about it (lease_expired, park_released, events_pruned) stay in the log until they are pruned`);
}

async function countFaults(db: Database): Promise<Map<string, number>> {
  return new Map((await verify(db)).map(({ name, rows }) => [name, rows.length]));
}

/** Aborts on a signal, or when nobody reads the output any more. The statement under way is finished, then all is cleaned up. */
function stopSignal(): AbortSignal {
  const controller = new AbortController();
  const stop = (why: string) => controller.abort(new Failure(EXIT.failed, `the proof was stopped (${why}) and has proved nothing: run it again`));
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) process.on(signal, () => stop(signal));
  process.stdout.removeAllListeners("error").on("error", () => stop("its output was closed"));
  return controller.signal;
}

function tableRow({ claim, expected, readBack, holds }: Line): string {
  return `| ${[claim, expected, readBack, holds ? "ok" : "FAILED"].map((cell) => cell.replaceAll("|", "\\|")).join(" | ")} |`;
}
