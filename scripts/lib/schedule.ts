// When each sweep is due. Its schedule is the line `-- schedule:` of its own file, five cron fields in local time; what has
// been done is the view last_runs. "Due" and "overdue" are decided here and nowhere else.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Cron } from "croner";
import { EXIT, Failure } from "./exit.js";
import { ROOT } from "./steps.js";

/** This many occurrences are looked at for the longest gap between two: a week of a daily one, days off included. */
const OCCURRENCES = 8;

/** The zone in which a schedule is meant, where none is given: the machine's, or that of the variable TZ. */
const localZone = () => Intl.DateTimeFormat().resolvedOptions().timeZone;

/** The five cron fields of a sweep's header. Throws a Failure where the line is missing. */
export function readSchedule(sweep: string): string {
  const header = readFileSync(join(ROOT, "db/sweeps", `${sweep}.sql`), "utf8");
  const pattern = /^-- schedule: (.*\S) *$/m.exec(header)?.[1];
  if (!pattern) throw new Failure(EXIT.config, `db/sweeps/${sweep}.sql has no line "-- schedule: MINUTE HOUR DAY MONTH WEEKDAY": the package is damaged, install it again`);
  return pattern;
}

const parsed = new Map<string, Cron>();

function cron(pattern: string, zone: string): Cron {
  const key = `${zone} ${pattern}`;
  let found = parsed.get(key);
  if (!found) {
    try {
      found = new Cron(pattern, { mode: "5-part", timezone: zone, paused: true });
      if (!found.nextRun(new Date(0))) throw new Error("it never comes due");
    } catch (error) {
      throw new Failure(EXIT.config, `schedule "${pattern}" (${zone}): ${(error as Error).message}: correct the line "-- schedule:", or TZ`);
    }
    parsed.set(key, found);
  }
  return found;
}

/**
 * When a run is due: the first occurrence after the last run began, however long ago that is, so that what was missed is
 * caught up, once. 0, that is at once, where there was none (null). On the day the clocks change, a daily sweep has one occurrence.
 */
export function dueAtMs(pattern: string, lastStartedAtMs: number | null, zone = localZone()): number {
  return lastStartedAtMs === null ? 0 : cron(pattern, zone).nextRun(new Date(lastStartedAtMs))!.getTime();
}

/** The longest pause that the schedule makes between two runs, seen from a moment. */
export function intervalMs(pattern: string, fromMs: number, zone = localZone()): number {
  const occurrences = cron(pattern, zone).nextRuns(OCCURRENCES, new Date(fromMs)).map((date) => date.getTime());
  return Math.max(...occurrences.slice(1).map((at, i) => at - occurrences[i]!));
}

/** Overdue: the last run began more than twice its interval ago, or there was none at all (null). */
export function isOverdue(pattern: string, lastStartedAtMs: number | null, nowMs: number, zone = localZone()): boolean {
  return lastStartedAtMs === null || nowMs - lastStartedAtMs > 2 * intervalMs(pattern, lastStartedAtMs, zone);
}
