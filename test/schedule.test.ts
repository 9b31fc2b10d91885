// When a sweep is due, and what the ledger says was done.
import { describe, expect, test } from "vitest";
import { dueAtMs, intervalMs, isOverdue, readSchedule } from "../scripts/lib/schedule.js";
import { readFile } from "../scripts/lib/queue.js";
import { DAY, modeFile, NOW, onEachEngine } from "./support.js";

const BERLIN = "Europe/Berlin";
const at = (iso: string) => new Date(iso).getTime();
const iso = (ms: number) => new Date(ms).toISOString();
const MINUTE = 60_000;

describe("due", () => {
  test("each sweep's schedule is its header's", () => {
    expect(["expire_leases", "revalidate_parked_tasks", "prune_events"].map(readSchedule)).toEqual(["* * * * *", "17 5 * * *", "17 5 * * *"]);
  });

  test("a run missed for days is due since the first of them, and once done, next at the next occurrence", () => {
    expect(iso(dueAtMs("17 5 * * *", at("2026-11-20T05:17:02Z"), "UTC"))).toBe("2026-11-21T05:17:00.000Z");
    expect(iso(dueAtMs("17 5 * * *", at("2026-12-01T09:30:00Z"), "UTC"))).toBe("2026-12-02T05:17:00.000Z");
    expect(dueAtMs("17 5 * * *", null, "UTC")).toBe(0);
    expect(dueAtMs("* * * * *", NOW, "UTC") - NOW).toBeLessThanOrEqual(MINUTE);
  });

  test.each(["17 5 * * *", "30 2 * * *"])("%s comes once on either day on which the clocks change", (pattern) => {
    for (const day of ["2027-03-28", "2027-10-31"]) {
      const end = at(`${day}T22:30:00Z`);
      const runs: number[] = [];
      for (let due = dueAtMs(pattern, at(`${day}T00:00:00Z`) - 2 * 3_600_000, BERLIN); due < end; due = dueAtMs(pattern, due, BERLIN)) runs.push(due);
      expect(runs.map(iso)).toHaveLength(1);
    }
  });

  test("local time stays local across the change", () => {
    expect(iso(dueAtMs("17 5 * * *", at("2027-03-27T12:00:00Z"), BERLIN))).toBe("2027-03-28T03:17:00.000Z");
    expect(iso(dueAtMs("17 5 * * *", at("2027-10-30T12:00:00Z"), BERLIN))).toBe("2027-10-31T04:17:00.000Z");
  });

  test("overdue is more than twice the interval, and a sweep that never ran is", () => {
    expect(intervalMs("* * * * *", NOW, "UTC")).toBe(MINUTE);
    expect(intervalMs("17 5 * * *", NOW, "UTC")).toBe(DAY);
    expect(intervalMs("17 5 * * 1-5", NOW, "UTC")).toBe(3 * DAY);
    expect(isOverdue("17 5 * * *", NOW, NOW + 2 * DAY, "UTC")).toBe(false);
    expect(isOverdue("17 5 * * *", NOW, NOW + 2 * DAY + 1, "UTC")).toBe(true);
    expect(isOverdue("17 5 * * *", null, NOW, "UTC")).toBe(true);
  });

  test.each(["* * * * * *", "61 5 * * *", "0 0 30 2 *", "daily"])("a schedule that is none is refused: %s", (pattern) => {
    expect(() => dueAtMs(pattern, NOW, "UTC")).toThrow(/^schedule "/);
  });
});

onEachEngine("last_runs", (test) => {
  test("done is what ran as the schedule would have: not a proof, not a failure, not a run told to stop, not an observation by hand", async ({ db }) => {
    const last = async (sweep: string) => (await readFile(db.queue, "db/ledger/read_last_runs.sql")).find((row) => row.sweep === sweep)!;
    const never = { done_run_id: null, done_started_at_ms: null, latest_run_id: null, latest_outcome: null, failures: 0 };
    for (const sweep of ["expire_leases", "revalidate_parked_tasks", "prune_events"]) expect(await last(sweep)).toMatchObject({ now_ms: NOW, ...never });

    await db.sweep("sweep-revalidate", ["--run-id", "by-hand"]);
    expect(await last("revalidate_parked_tasks")).toMatchObject({ done_run_id: null, latest_run_id: "by-hand", latest_outcome: "ok" });
    await db.setNow(NOW + 1);
    await db.sweep("sweep-revalidate", ["--run-id", "scheduled", "--origin", "timer"]);
    await db.setNow(NOW + 2);
    await db.sweep("sweep-revalidate", ["--observe", "--run-id", "looked"]);
    expect(await last("revalidate_parked_tasks")).toMatchObject({ done_run_id: "scheduled", done_started_at_ms: NOW + 1, latest_run_id: "looked" });
    await db.sweep("sweep-revalidate", ["--run-id", "gated"], await modeFile("enabled"));
    expect(await last("revalidate_parked_tasks")).toMatchObject({ done_run_id: "gated" });

    await db.sweep("sweep-prune", ["--observe"]);
    expect(await last("prune_events")).toMatchObject({ done_run_id: null, latest_outcome: "ok" });
    await db.sweep("sweep-prune", ["--run-id", "pruned"]);
    expect(await last("prune_events")).toMatchObject({ done_run_id: "pruned" });
    await db.given(`
      INSERT INTO sweep_runs (id, sweep, origin, mode, batch_rows, started_at_ms, finished_at_ms, outcome) VALUES ('stopped', 'prune_events', 'timer', 'observe', 0, ${NOW + 2}, ${NOW + 3}, 'ok');
      INSERT INTO sweep_runs (id, sweep, started_at_ms, finished_at_ms, outcome, error) VALUES
        ('bad-1', 'prune_events', ${NOW + 3}, ${NOW + 4}, 'failed', 'no room'), ('bad-2', 'prune_events', ${NOW + 5}, ${NOW + 6}, 'abandoned', 'silent');
      INSERT INTO sweep_runs (id, sweep, mode, origin, scope_queue, started_at_ms, finished_at_ms, outcome) VALUES ('p', 'prune_events', 'observe', 'proof', 'proof-1', ${NOW + 7}, ${NOW + 8}, 'ok');`);
    expect(await last("prune_events")).toMatchObject({ done_run_id: "pruned", failures: 2, latest_run_id: "bad-2", latest_outcome: "abandoned", latest_at_ms: NOW + 6, latest_error: "silent" });
  });

  test("an idle expiry is a run like any other", async ({ db }) => {
    const last = async () => (await readFile(db.queue, "db/ledger/read_last_runs.sql")).find((row) => row.sweep === "expire_leases")!;
    await db.sweep("sweep-expire");
    expect(await last()).toMatchObject({ done_run_id: "expire_leases.idle", done_started_at_ms: NOW, latest_run_id: "expire_leases.idle", latest_outcome: "ok", latest_at_ms: NOW });
    await db.setNow(NOW + MINUTE);
    await db.given(`
      INSERT INTO tasks (id, queue, state, claimed_by, lease_token) VALUES (1, 'q', 'leased', 'w', 't');
      INSERT INTO leases (task_id, worker, token, expires_at_ms) VALUES (1, 'w', 't', ${NOW});`);
    await db.sweep("sweep-expire", ["--run-id", "busy"]);
    expect(await last()).toMatchObject({ done_run_id: "busy", done_started_at_ms: NOW + MINUTE });
    await db.setNow(NOW + 2 * MINUTE);
    await db.sweep("sweep-expire");
    expect(await last()).toMatchObject({ done_run_id: "expire_leases.idle", done_started_at_ms: NOW + 2 * MINUTE });
  });

  test("after the clock was set back, a run from the future says nothing", async ({ db }) => {
    await db.sweep("sweep-prune", ["--run-id", "today"]);
    await db.setNow(NOW + DAY);
    await db.sweep("sweep-prune", ["--run-id", "tomorrow"]);
    await db.sweep("sweep-expire");
    await db.setNow(NOW + MINUTE);
    const rows = await readFile(db.queue, "db/ledger/read_last_runs.sql");
    expect(rows.find(({ sweep }) => sweep === "prune_events")).toMatchObject({ done_run_id: "today", latest_run_id: "today" });
    expect(rows.find(({ sweep }) => sweep === "expire_leases")).toMatchObject({ done_run_id: null, latest_run_id: null });
  });
});
