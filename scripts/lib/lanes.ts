// Which sweeps run together: those of one schedule, one after the other, as one command. Those of another do not wait for them.
import { EXIT, Failure } from "./exit.js";
import { readSchedule } from "./schedule.js";

/** The sweeps in the order in which they run together. */
export const SWEEPS = ["expire_leases", "revalidate_parked_tasks", "prune_events"] as const;
export type SweepName = (typeof SWEEPS)[number];

/** `job` is the command without its "sweep-": expire, daily ... */
export type Lane = { job: string; pattern: string; sweeps: SweepName[] };

const JOBS: Record<string, SweepName[]> = {
  expire: ["expire_leases"],
  revalidate: ["revalidate_parked_tasks"],
  prune: ["prune_events"],
  daily: ["revalidate_parked_tasks", "prune_events"],
  all: [...SWEEPS],
};

/** The lanes, out of the headers of db/sweeps. Throws a Failure where no command runs just those sweeps. */
export function readLanes(): Lane[] {
  const patterns = [...new Set(SWEEPS.map(readSchedule))];
  return patterns.map((pattern) => {
    const sweeps = SWEEPS.filter((sweep) => readSchedule(sweep) === pattern);
    const job = Object.keys(JOBS).find((name) => JOBS[name]!.join() === sweeps.join());
    if (!job) throw new Failure(EXIT.config, `schedule "${pattern}": no command runs just ${sweeps.join(" and ")}: give them schedules of their own`);
    return { job, pattern, sweeps };
  });
}
