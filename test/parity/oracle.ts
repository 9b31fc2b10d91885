/**
 * The PostgreSQL side of the differential test: oracle.sql in PGlite, PostgreSQL compiled to WebAssembly, so that no server is needed.
 *
 * Written from the same words as oracle.sql. It decides nothing: every method is one statement that calls a function of oracle.sql,
 * and milliseconds become timestamptz there.
 */

import { readFile } from "node:fs/promises";
import { PGlite } from "@electric-sql/pglite";
import type { Counts, Mode, QueueModel, Snapshot, SweepName, Verdict } from "./queue_model.ts";

/** What the coverage report asks of the oracle beyond the interface; never compared with the port. */
export interface Oracle extends QueueModel {
  /** Rows of evidence at hand. */
  evidence(): Promise<number>;
  /** Parked tasks whose condition is met by evidence alone, the events themselves being pruned. */
  metByEvidence(): Promise<number>;
  /** Why the last refused condition was refused. */
  lastRefusal: string | null;
}

const SWEEPS: Record<SweepName, string> = {
  expire_leases: "SELECT expire_leases($1) AS expired_leases",
  revalidate_parked_tasks: "SELECT * FROM revalidation_counts($1)",
  prune_events: "SELECT prune_events($1) AS events_pruned",
};

export async function openOracle(): Promise<Oracle> {
  const db = await PGlite.create();
  await db.exec(await readFile(new URL("./oracle.sql", import.meta.url), "utf8"));

  async function one<T>(sql: string, parameters: unknown[] = []): Promise<T> {
    const { rows } = await db.query<T>(sql, parameters);
    return rows[0] as T;
  }

  /** What a verb's own refusal is called; anything else that goes wrong is a fault of the test. */
  async function refusable<R extends string>(sql: string, parameters: unknown[]): Promise<"ok" | R> {
    try {
      await db.query(sql, parameters);
      return "ok";
    } catch (error) {
      const message = (error as Error).message;
      if (message === "lease lost") return "lost" as R;
      const refusal = /^ready_condition refused: (.*)$/.exec(message);
      if (!refusal) throw error;
      oracle.lastRefusal = refusal[1] ?? null;
      return "refused" as R;
    }
  }

  const oracle: Oracle = {
    lastRefusal: null,

    async reset(nowMs) {
      await db.exec(`
        TRUNCATE tasks, leases, events, sweep_evidence, queue_settings RESTART IDENTITY;
        INSERT INTO queue_settings (fake_now) VALUES (ms_to_time(${nowMs}));
      `);
    },
    async setNow(nowMs) {
      await db.query("UPDATE queue_settings SET fake_now = ms_to_time($1)", [nowMs]);
    },
    async setMaxReleases(n) {
      await db.query("UPDATE queue_settings SET max_releases_per_run = $1", [n]);
    },

    async enqueue({ id, queue, priority, notBeforeMs, maxAttempts }) {
      await db.query("SELECT enqueue($1, $2, $3, ms_to_time($4), $5)", [id, queue, priority, notBeforeMs, maxAttempts]);
    },
    async claim({ queue, worker, token, leaseMs }) {
      const { id } = await one<{ id: number | null }>("SELECT claim_repo_task($1, $2, $3, $4) AS id", [queue, worker, token, leaseMs]);
      return id;
    },
    renew: ({ taskId, token, leaseMs }) => refusable<"lost">("SELECT renew($1, $2, $3)", [taskId, token, leaseMs]),
    complete: ({ taskId, token }) => refusable<"lost">("SELECT complete($1, $2)", [taskId, token]),
    fail: ({ taskId, token }) => refusable<"lost">("SELECT fail($1, $2)", [taskId, token]),
    park: ({ taskId, token, readyCondition, notBeforeMs, reason }) =>
      refusable<"lost" | "refused">("SELECT park($1, $2, $3, ms_to_time($4), $5)", [taskId, token, readyCondition, notBeforeMs, reason]),
    async release({ taskId }) {
      return (await one<{ released: boolean }>("SELECT release_by_hand($1) AS released", [taskId])).released;
    },

    async cancel({ taskId }) {
      await db.query("UPDATE tasks SET state = 'cancelled' WHERE id = $1 AND state IN ('queued', 'parked')", [taskId]);
    },
    async unbind({ taskId, by }) {
      const set = by === "cancelling" ? "state = 'cancelled', claimed_by = NULL, lease_token = NULL" : "lease_token = 'by hand'";
      await db.query(`UPDATE tasks SET ${set} WHERE id = $1 AND state = 'leased'`, [taskId]);
    },
    async spoil({ taskId, readyCondition }) {
      // As text: handed over as jsonb, the driver would make a JSON string of it.
      await db.query("UPDATE tasks SET ready_condition = $2::text::jsonb WHERE id = $1 AND state = 'parked'", [taskId, readyCondition]);
    },
    async event({ atMs, kind, subject }) {
      await db.query("INSERT INTO events (at, kind, subject) VALUES (ms_to_time($1), $2, $3)", [atMs, kind, subject]);
    },

    sweep: (name: SweepName, mode: Mode) => one<Counts>(SWEEPS[name], [mode]),
    async verdicts() {
      return (await db.query<Verdict>("SELECT * FROM verdicts()")).rows;
    },
    async snapshot() {
      return (await one<{ snapshot: Snapshot }>("SELECT snapshot()")).snapshot;
    },

    async evidence() {
      return (await one<{ n: number }>("SELECT count(*) AS n FROM sweep_evidence")).n;
    },
    async metByEvidence() {
      return (
        await one<{ n: number }>(`
          SELECT count(DISTINCT v.task_id) AS n
            FROM parked_verdicts AS v
            JOIN awaited_events AS a ON a.task_id = v.task_id
            JOIN sweep_evidence AS s ON s.kind = a.kind AND s.subject IS NOT DISTINCT FROM a.subject AND s.at >= a.since
           WHERE v.reason = 'condition_met'
             AND NOT EXISTS (SELECT FROM events AS e
                              WHERE e.kind = a.kind AND (a.subject IS NULL OR e.subject = a.subject) AND e.at >= a.since)`)
      ).n;
    },
    close: () => db.close(),
  };
  return oracle;
}
