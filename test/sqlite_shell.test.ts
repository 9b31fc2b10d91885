// The sweep files run as they stand in the sqlite3 shell, on rows put in by hand.
import { execFileSync, spawnSync } from "node:child_process";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { DAY, fresh, NOW, program, ROOT } from "./support.js";

const there = spawnSync("sqlite3", ["--version"]).status === 0;

function shell(file: string, ...commands: string[]): string[] {
  return execFileSync("sqlite3", ["-bail", file, ...commands], { encoding: "utf8" }).trim().split("\n");
}

describe.skipIf(!there)("in the sqlite3 shell (skipped where there is none)", () => {
  test("an operator sweeps by hand what the program sweeps, and the ledger is the same", async () => {
    const file = fresh("shell.db");
    await program(["migrate"], { DATABASE_URL: `sqlite:${file}` });
    shell(file, `
      UPDATE sweep_settings SET value = ${NOW} WHERE name = 'fake_now_ms';
      INSERT INTO tasks (id, queue, state, claimed_by, lease_token) VALUES (1, 'q', 'leased', 'w', 'a'), (2, 'q', 'leased', 'w', 'b');
      INSERT INTO leases (task_id, worker, token, expires_at_ms) VALUES (1, 'w', 'a', ${NOW}), (2, 'w', 'b', ${NOW + 1});
      INSERT INTO tasks (id, queue, state) VALUES (10, 'q', 'done');
      INSERT INTO tasks (id, queue, state, ready_condition) VALUES (3, 'q', 'parked', '{"kind":"task_done","task":10}'), (4, 'q', 'parked', '{"kind":"manual"}');
      INSERT INTO events (at_ms, kind) VALUES (${NOW - 31 * DAY}, 'old'), (${NOW - 30 * DAY}, 'young');`);
    const sweep = (name: string) => shell(file, "BEGIN IMMEDIATE", `.read ${join(ROOT, "db/sweeps", `${name}.sql`)}`, "COMMIT");

    expect(sweep("expire_leases")[0]).toContain('{"expired_leases":1}');
    expect(sweep("revalidate_parked_tasks")[0]).toContain('{"checked":2,"would_release":1,"released":0,"confirmed":1,"stale":0}');
    expect(sweep("prune_events")[0]).toContain('{"events_pruned":1}');

    expect(shell(file, "SELECT id, state FROM tasks ORDER BY id")).toEqual(["1|queued", "2|leased", "3|parked", "4|parked", "10|done"]);
    expect(shell(file, "SELECT kind, coalesce(task_id, '') FROM events ORDER BY id")).toEqual(["young|", "lease_expired|1", "events_pruned|"]);
    expect(shell(file, "SELECT sweep, mode, outcome FROM sweep_runs WHERE id <> 'expire_leases.idle' ORDER BY sweep")).toEqual([
      "expire_leases|enabled|ok",
      "prune_events|enabled|ok",
      "revalidate_parked_tasks|observe|ok",
    ]);
    expect(await program(["verify"], { DATABASE_URL: `sqlite:${file}` })).toMatchObject({ code: 0 });
  });
});
