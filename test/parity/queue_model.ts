/**
 * The interface behind which the two sides of the differential test stand: the PostgreSQL oracle (oracle.ts) and the port (port.ts).
 *
 * Written from sections 2 to 4 of the design and from docs/semantics.md. All times are epoch milliseconds. Nothing here says how a
 * side does what it does; what a caller can see of it is all that is compared.
 */

export type Mode = "observe" | "enabled";
export type SweepName = "expire_leases" | "revalidate_parked_tasks" | "prune_events";

/**
 * The counts a sweep reports, and no others: `expired_leases` | `checked`, `would_release`, `released`, `confirmed`, `stale` |
 * `events_pruned`. An observing expiry or prune counts under the same name what an enabled one would have done.
 */
export type Counts = Record<string, number>;

export interface Verdict {
  task_id: number;
  verdict: string;
  reason: string;
}

export interface TaskRow {
  id: number;
  queue: string;
  state: string;
  priority: number;
  claimed_by: string | null;
  lease_token: string | null;
  attempts: number;
  not_before_ms: number | null;
  parked_at_ms: number | null;
  park_reason: string | null;
}

export interface LeaseRow {
  task_id: number;
  worker: string;
  token: string;
  expires_at_ms: number;
}

export interface EventRow {
  at_ms: number;
  kind: string;
  subject: string | null;
  task_id: number | null;
}

export interface Snapshot {
  tasks: TaskRow[];
  leases: LeaseRow[];
  /** The package's own events included. */
  events: EventRow[];
}

export interface QueueModel {
  /** An empty queue, every setting at its default, the clock at `nowMs`. */
  reset(nowMs: number): Promise<void>;
  setNow(nowMs: number): Promise<void>;
  setMaxReleases(n: number): Promise<void>;

  enqueue(a: { id: number; queue: string; priority: number; notBeforeMs: number | null; maxAttempts: number | null }): Promise<void>;
  /** The id of the task claimed, if there was one. */
  claim(a: { queue: string; worker: string; token: string; leaseMs: number }): Promise<number | null>;
  renew(a: { taskId: number; token: string; leaseMs: number }): Promise<"ok" | "lost">;
  complete(a: { taskId: number; token: string }): Promise<"ok" | "lost">;
  fail(a: { taskId: number; token: string }): Promise<"ok" | "lost">;
  park(a: {
    taskId: number;
    token: string;
    readyCondition: string | null;
    notBeforeMs: number | null;
    reason: string | null;
  }): Promise<"ok" | "lost" | "refused">;
  /** By hand. Whether the task was parked. */
  release(a: { taskId: number }): Promise<boolean>;

  /** A queued or parked task's `state` set to `cancelled` by a plain UPDATE of that column; anything else is left alone. */
  cancel(a: { taskId: number }): Promise<void>;
  /**
   * A leased task unbound by a plain UPDATE, which leaves a lease row that binds nothing: the task set to `cancelled` and its binding
   * cleared, or its `lease_token` set to `by hand`. A task that is not leased is left alone.
   */
  unbind(a: { taskId: number; by: "cancelling" | "another token" }): Promise<void>;
  /** A parked task's condition overwritten with JSON that the grammar refuses, past whatever guards there are. */
  spoil(a: { taskId: number; readyCondition: string }): Promise<void>;
  /** An event written by somebody else. */
  event(a: { atMs: number; kind: string; subject: string | null }): Promise<void>;

  /** One run, to its end. `enabled` is honoured: whatever a mode gate asks for has been done before. */
  sweep(name: SweepName, mode: Mode): Promise<Counts>;
  /** Of every parked task now, by id. */
  verdicts(): Promise<Verdict[]>;
  snapshot(): Promise<Snapshot>;
  close(): Promise<void>;
}

/** A snapshot in an order that owes nothing to insertion or to a collation. */
export function inOrder(s: Snapshot): Snapshot {
  const event = (e: EventRow) => JSON.stringify([e.at_ms, e.kind, e.subject, e.task_id]);
  const compare = (a: string, b: string) => (a < b ? -1 : a > b ? 1 : 0);
  return {
    tasks: [...s.tasks].sort((a, b) => a.id - b.id),
    leases: [...s.leases].sort((a, b) => a.task_id - b.task_id),
    events: [...s.events].sort((a, b) => compare(event(a), event(b))),
  };
}
