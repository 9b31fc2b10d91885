// Whether a sweep is to run now, out of what the ledger says and of what this process alone knows.
import type { Row } from "./database.js";
import { dueAtMs } from "./schedule.js";

const MINUTE_MS = 60_000;
const LONGEST_PAUSE_MS = 60 * MINUTE_MS;

/** What no ledger has: that the mode said off, or how a run ended that left no row. Times are the database's. */
export type Memory = { offAtMs?: number; askedAtMs?: number; failures: number };

/** A failed run is tried again after a minute, then after twice as long each time, at most an hour. */
const pauseMs = (failures: number) => (failures > 0 ? Math.min(MINUTE_MS * 2 ** (failures - 1), LONGEST_PAUSE_MS) : 0);

/**
 * When a sweep is to run, by the database's clock: at its due time, after the pause that its failures ask for, and not while
 * somebody else is at it, who has been heard of within the last minute (the ledger refuses a second runner in any case).
 * Takes its schedule, its row of last_runs and what this process remembers; forgets what lies in the future, because the clock was set back.
 */
export function runAtMs(pattern: string, row: Row, memory: Memory): number {
  const now = Number(row.now_ms);
  const passed = (ms: number | undefined) => (ms !== undefined && ms <= now + MINUTE_MS ? ms : undefined);
  const ended = [row.done_started_at_ms as number | null, passed(memory.offAtMs)].filter((ms) => typeof ms === "number");
  const latestAt = Number(row.latest_at_ms);
  const times = [dueAtMs(pattern, ended.length > 0 ? Math.max(...ended) : null)];
  if (row.latest_outcome === "running") times.push(latestAt + MINUTE_MS);
  if (Number(row.failures) > 0) times.push(latestAt + pauseMs(Number(row.failures)));
  const asked = passed(memory.askedAtMs);
  if (asked !== undefined) times.push(asked + Math.max(pauseMs(memory.failures), MINUTE_MS));
  return Math.max(...times);
}
