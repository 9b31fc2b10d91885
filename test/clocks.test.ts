// Whose clock counts: the database's alone. A runner's or a worker's may be a year off; the database's own may be set back.
import { writeFileSync } from "node:fs";
import { expect } from "vitest";
import { EVERY_KIND, RELEASED } from "./fixtures.js";
import { everything, fresh, modeFile, NOW, onEachEngine, type TestDatabase } from "./support.js";

const YEAR = 365 * 86_400_000;
const MINUTE = 60_000;

/** The environment of a program whose clock is off by so much, in every way that JavaScript can read it. */
function clockOff(ms: number): Record<string, string> {
  const path = fresh("clock.mjs");
  writeFileSync(path, `const Real = Date;
    const origin = performance.timeOrigin;
    globalThis.Date = class extends Real {
      constructor(...args) { args.length === 0 ? super(Real.now() + ${ms}) : super(...args); }
      static now() { return Real.now() + ${ms}; }
    };
    Object.defineProperty(performance, "timeOrigin", { value: origin + ${ms} });
    if (Math.abs(new Date() - new Real() - ${ms}) > 1000) throw new Error("the clock was not turned");`);
  return { NODE_OPTIONS: `--import=${path}` };
}

const leased = (id: number, endsAt: number) => `INSERT INTO tasks (id, queue, state, claimed_by, lease_token, attempts) VALUES (${id}, 'q', 'leased', 'w', 't${id}', 1);
  INSERT INTO leases (task_id, worker, token, acquired_at_ms, expires_at_ms) VALUES (${id}, 'w', 't${id}', ${endsAt - MINUTE}, ${endsAt});`;
const old = `INSERT INTO events (at_ms, kind) VALUES (${NOW - 30 * 86_400_000 - 1}, 'old'), (${NOW - 30 * 86_400_000}, 'as old as the retention');`;

/** What the sweeps left, whichever runner it was: their own names and durations aside. */
const left = async (db: TestDatabase) => {
  const { tasks, leases, events, ready_terms, awaited_events, sweep_runs, sweep_findings } = await everything(db);
  const sameRun = (rows: Record<string, unknown>[] = []) => rows.map(({ run_id, ...row }) => row);
  return { tasks, leases, events: sameRun(events), ready_terms, awaited_events, findings: sameRun(sweep_findings).length, runs: (sweep_runs ?? []).map(({ id, runner, ...run }) => run) };
};

onEachEngine("clocks", (test, engine) => {
  test("a runner whose clock is a year off changes nothing", async ({ db }) => {
    const enabled = await modeFile("enabled");
    const seeded = EVERY_KIND + leased(201, NOW) + leased(202, NOW + 1) + old;
    const seen = [];
    for (const off of engine === "file" ? [0, YEAR, -YEAR] : [0, -YEAR]) {
      await db.given("DELETE FROM leases; DELETE FROM tasks; UPDATE sweep_settings SET value = NULL WHERE name = 'fake_now_ms'; DELETE FROM sweep_findings; DELETE FROM sweep_runs; UPDATE sweep_runs SET batches = 0, finished_at_ms = NULL;");
      // The log keeps what it has: this test's own is told apart by its ids.
      await db.setNow(NOW + YEAR);
      await db.given("UPDATE sweep_settings SET value = 1 WHERE name = 'events_retention_days'; DELETE FROM events; DELETE FROM sqlite_sequence WHERE name = 'events'; UPDATE sweep_settings SET value = 30 WHERE name = 'events_retention_days';");
      await db.setNow(NOW);
      await db.given(`${seeded} UPDATE tasks SET created_at_ms = ${NOW}, updated_at_ms = ${NOW};`);
      const env = { ...clockOff(off), ...enabled };
      expect(await db.sweep("sweep-revalidate", ["--observe"], env)).toMatchObject({ outcome: "ok" });
      expect(await db.sweep("sweep-expire", [], env), `${off}`).toMatchObject({ outcome: "ok", expired_leases: 1 });
      expect(await db.sweep("sweep-revalidate", [], env), `${off}`).toMatchObject({ mode: "enabled", ...RELEASED });
      expect(await db.sweep("sweep-prune", [], env), `${off}`).toMatchObject({ outcome: "ok", events_pruned: 1 });
      seen.push(await left(db));
    }
    for (const other of seen.slice(1)) expect(other).toEqual(seen[0]);
  });

  test("the database's clock set back between two runs: nothing is lost or done early, the run says so, and all comes in time", async ({ db }) => {
    const enabled = await modeFile("enabled");
    await db.given(EVERY_KIND + leased(201, NOW) + leased(202, NOW + MINUTE) + old);
    expect(await db.run("sweep-all")).toMatchObject({ code: 0, stderr: "" });
    expect(await db.rows("SELECT * FROM clock_steps")).toEqual([]);
    const before = await db.rows("SELECT id, state, lease_token FROM tasks ORDER BY id");
    const log = await db.rows("SELECT count(*) AS n, max(id) AS last FROM events");

    await db.setNow(NOW - 3 * 86_400_000);
    expect(await db.rows("SELECT sweep, back_ms FROM clock_steps ORDER BY sweep")).toEqual(["expire_leases", "prune_events", "revalidate_parked_tasks"].map((sweep) => ({ sweep, back_ms: 3 * 86_400_000 })));
    const pruned = await db.run("sweep-prune");
    expect(pruned).toMatchObject({ code: 0, stderr: "" });
    expect(pruned.stdout).toContain("events_pruned=0");
    expect(pruned.stdout).toContain("the database's clock stands 259200000 ms before what it was");
    expect(await db.sweep("sweep-expire", ["--observe"])).toMatchObject({ outcome: "ok", expired_leases: 0, clock_back_ms: 3 * 86_400_000 });
    expect(await db.sweep("sweep-expire")).toMatchObject({ outcome: "ok", expired_leases: 0 });
    // Observed before the step, the gate is open after it; what parked "later" waits on.
    expect(await db.sweep("sweep-revalidate", [], enabled)).toMatchObject({ outcome: "ok", mode: "enabled", released: 3 });
    expect(await db.rows("SELECT id, state, lease_token FROM tasks WHERE id NOT IN (1, 4, 9) ORDER BY id")).toEqual(before.filter(({ id }) => ![1, 4, 9].includes(Number(id))));
    expect((await db.rows("SELECT count(*) AS n FROM events WHERE id <= " + log[0]!.last))[0]!.n).toBe(log[0]!.n);

    // The lease that was still running then runs out when its time comes round again.
    await db.setNow(NOW + MINUTE);
    const run = await db.sweep("sweep-expire");
    expect(run).toMatchObject({ outcome: "ok", expired_leases: 1 });
    expect(run).not.toHaveProperty("clock_back_ms");
    expect(await db.rows("SELECT * FROM clock_steps")).toEqual([]);
  });

  test("set back in the middle of a run: the run goes on and ends, and a dead one does not block for as long as the step", async ({ db }) => {
    await db.given(`UPDATE sweep_settings SET value = 1 WHERE name = 'expire_batch_rows'; ${leased(1, NOW - 5)} ${leased(2, NOW - 4)} ${leased(3, NOW - 4 * MINUTE)} ${leased(4, NOW - 3 * MINUTE)}
      INSERT INTO sweep_runs (id, sweep, batches, started_at_ms, heartbeat_at_ms, counts) VALUES ('cut off', 'expire_leases', 2, ${NOW}, ${NOW}, '{"expired_leases":1}');`);
    await db.setNow(NOW - MINUTE);
    // Its own runner, sent on after the step, finishes what is due by the clock as it now stands.
    expect(await db.sweep("sweep-expire", ["--run-id", "cut off"])).toMatchObject({ outcome: "ok", drained: true, expired_leases: 3, clock_back_ms: MINUTE });
    expect(await db.rows("SELECT id FROM tasks WHERE state = 'leased' ORDER BY id")).toEqual([{ id: 1 }, { id: 2 }]);

    await db.given(`INSERT INTO sweep_runs (id, sweep, started_at_ms, heartbeat_at_ms) VALUES ('dead', 'expire_leases', ${NOW + YEAR / 10}, ${NOW + YEAR / 10});`);
    await db.setNow(NOW);
    expect(await db.sweep("sweep-expire")).toMatchObject({ outcome: "ok", expired_leases: 2 });
    expect(await db.rows("SELECT outcome FROM sweep_runs WHERE id = 'dead'")).toEqual([{ outcome: "abandoned" }]);
  });
});
