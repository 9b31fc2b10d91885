/**
 * The port's side of the differential test: the queue's verbs and sweeps as they ship, on libSQL in a file.
 *
 * Each history gets a copy of one migrated file. Sweeps go through the runner's own function, within this process.
 */

import { copyFileSync, existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout } from "node:timers/promises";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { openDatabase, type Database } from "../../scripts/lib/database.js";
import { queue } from "../../scripts/lib/queue.js";
import { migrateCommand } from "../../scripts/migrate.js";
import { runSweep } from "../../scripts/sweep.js";
import type { EventRow, LeaseRow, QueueModel, TaskRow, Verdict } from "./queue_model.ts";

const COUNTS = ["expired_leases", "checked", "would_release", "released", "confirmed", "stale", "events_pruned"];

setFlagsFromString("--expose-gc");
const collectGarbage = runInNewContext("gc") as () => void;

export async function openPort(): Promise<QueueModel> {
  // In memory where the system has a place for it: what is compared does not depend on a disk.
  const dir = mkdtempSync(join(existsSync("/dev/shm") ? "/dev/shm" : tmpdir(), "parity-"));
  const target = (name: string) => ({ url: `file:${join(dir, name)}`, path: join(dir, name), shown: name });
  const log = console.log;
  console.log = () => {};
  await migrateCommand(target("template.db")).finally(() => (console.log = log));

  let db: Database;
  let histories = 0;
  let observed = false;
  const rows = async <T>(sql: string, args: Record<string, bigint | string | null> = {}) => (await db.read([{ sql, args }]))[0] as T[];
  const write = async (sql: string, args: Record<string, bigint | string | null>) => {
    await db.batch([{ sql, args }]);
  };
  const ms = (value: number | null) => (value === null ? null : BigInt(value));
  const fenced = async (work: Promise<unknown>): Promise<"ok" | "lost"> => {
    try {
      await work;
      return "ok";
    } catch (error) {
      if (/lease lost/.test(String(error))) return "lost";
      throw error;
    }
  };

  const port: QueueModel = {
    async reset(nowMs) {
      if (histories++ > 0) {
        // Closed while a statement waits to be collected, libsql's native connection is never freed: some MB a history.
        collectGarbage();
        await setTimeout(1);
        db.close();
      }
      const file = target(`${histories}.db`);
      copyFileSync(join(dir, "template.db"), file.path);
      rmSync(join(dir, `${histories - 1}.db`), { force: true });
      db = await openDatabase(file);
      observed = false;
      await port.setNow(nowMs);
    },
    setNow: (nowMs) => write("UPDATE sweep_settings SET value = :now_ms WHERE name = 'fake_now_ms'", { now_ms: BigInt(nowMs) }),
    setMaxReleases: (n) => write("UPDATE sweep_settings SET value = :n WHERE name = 'max_releases_per_run'", { n: BigInt(n) }),

    async enqueue({ id, ...a }) {
      await write(
        `INSERT INTO tasks (id, queue, priority, not_before_ms, max_attempts, created_at_ms, updated_at_ms)
         SELECT :id, :queue, :priority, :not_before_ms, :max_attempts, now_ms, now_ms FROM clock`,
        { id: BigInt(id), queue: a.queue, priority: BigInt(a.priority), not_before_ms: ms(a.notBeforeMs), max_attempts: ms(a.maxAttempts) },
      );
    },
    claim: async (a) => ((await queue.claim(db, { queue: a.queue, worker: a.worker, token: a.token, lease_ms: a.leaseMs }))[0]?.task_id as number | undefined) ?? null,
    renew: (a) => fenced(queue.renew(db, { task_id: a.taskId, token: a.token, lease_ms: a.leaseMs })),
    complete: (a) => fenced(queue.complete(db, { task_id: a.taskId, token: a.token })),
    fail: (a) => fenced(queue.fail(db, { task_id: a.taskId, token: a.token })),
    park: (a) =>
      fenced(queue.park(db, { task_id: a.taskId, token: a.token, ready_condition: a.readyCondition, not_before_ms: a.notBeforeMs ?? null, park_reason: a.reason })).catch((error) => {
        if (/ready_condition refused|tasks_ready_condition_is_json/.test(String(error))) return "refused" as const;
        throw error;
      }),
    release: async (a) => (await queue.release(db, { task_id: a.taskId })).length > 0,

    cancel: (a) => write("UPDATE tasks SET state = 'cancelled' WHERE id = :id AND state IN ('queued', 'parked')", { id: BigInt(a.taskId) }),
    unbind: (a) =>
      write(
        a.by === "cancelling"
          ? "UPDATE tasks SET state = 'cancelled', claimed_by = NULL, lease_token = NULL WHERE id = :id AND state = 'leased'"
          : "UPDATE tasks SET lease_token = 'by hand' WHERE id = :id AND state = 'leased'",
        { id: BigInt(a.taskId) },
      ),
    async spoil(a) {
      const [guard] = await rows<{ sql: string }>("SELECT sql FROM sqlite_schema WHERE name = 'tasks_take_condition_apart'");
      await db.batch([
        { sql: "DROP TRIGGER tasks_take_condition_apart", args: {} },
        { sql: "UPDATE tasks SET ready_condition = :condition WHERE id = :id AND state = 'parked'", args: { id: BigInt(a.taskId), condition: a.readyCondition } },
        { sql: guard!.sql, args: {} },
        // What it waited for before goes too, as it does on the other side, which keeps no terms.
        { sql: "DELETE FROM ready_terms WHERE task_id = :id AND EXISTS (SELECT 1 FROM tasks WHERE id = :id AND state = 'parked')", args: { id: BigInt(a.taskId) } },
      ]);
    },
    event: (a) => write("INSERT INTO events (at_ms, kind, subject) VALUES (:at_ms, :kind, :subject)", { at_ms: BigInt(a.atMs), kind: a.kind, subject: a.subject }),

    async sweep(name, mode) {
      // The gate asks for an observation by the same SQL first; it changes nothing that is compared.
      if (name === "revalidate_parked_tasks" && mode === "enabled" && !observed) {
        await runSweep(db, name, { mode: "observe" });
        observed = true;
      }
      const run = await runSweep(db, name, { mode });
      return Object.fromEntries(COUNTS.filter((count) => count in run).map((count) => [count, Number(run[count])]));
    },
    verdicts: () => rows<Verdict>("SELECT task_id, verdict, reason FROM parked_verdicts ORDER BY task_id"),
    async snapshot() {
      const [tasks, leases, events] = await db.read([
        { sql: "SELECT id, queue, state, priority, claimed_by, lease_token, attempts, not_before_ms, parked_at_ms, park_reason FROM tasks", args: {} },
        { sql: "SELECT task_id, worker, token, expires_at_ms FROM leases", args: {} },
        { sql: "SELECT at_ms, kind, subject, task_id FROM events", args: {} },
      ]);
      return { tasks: tasks as unknown as TaskRow[], leases: leases as unknown as LeaseRow[], events: events as unknown as EventRow[] };
    },
    async close() {
      db?.close();
      rmSync(dir, { recursive: true, force: true });
    },
  };
  return port;
}
