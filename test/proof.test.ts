import { spawn } from "node:child_process";
import { join } from "node:path";
import { expect } from "vitest";
import { DAY, modeFile, onEachEngine, ROOT, scratch, type Run, type TestDatabase } from "./support.js";

/** Only where time moves does a lease run out. */
const LET_TIME_PASS = "UPDATE sweep_settings SET value = NULL WHERE name = 'fake_now_ms';";

/** A queue at work: a lease that is held, a parked task that is ready, old events, runs that somebody made. */
const LIVE = `${LET_TIME_PASS}
  INSERT INTO tasks (id, queue, state, claimed_by, lease_token) VALUES (1, 'q', 'leased', 'w1', 't1');
  INSERT INTO leases (task_id, worker, token, expires_at_ms) SELECT 1, 'w1', 't1', now_ms + 600000 FROM clock;
  INSERT INTO tasks (id, queue, state) VALUES (2, 'q', 'done'), (3, 'q', 'queued');
  INSERT INTO tasks (id, queue, state, ready_condition) VALUES (4, 'q', 'parked', '{"kind":"task_done","task":2}'), (5, 'q', 'parked', '{"kind":"event_seen","event":"refresh"}');
  INSERT INTO tasks (id, queue, state, not_before_ms) SELECT 6, 'q', 'parked', now_ms - 1 FROM clock;
  INSERT INTO events (at_ms, kind, subject, task_id) SELECT now_ms - 31 * ${DAY}, kind, 'q', 3 FROM clock, (SELECT 'refresh' AS kind UNION ALL SELECT 'proof.like');
  INSERT INTO sweep_runs (id, sweep, outcome, finished_at_ms, counts) VALUES ('theirs', 'expire_leases', 'ok', 1796000000000, '{"expired_leases":1}');`;

/** Every row of every table but what the proof's own log entries are. */
async function everybodyElses(db: TestDatabase) {
  const found: Record<string, unknown> = {};
  for (const table of ["tasks", "leases", "ready_terms", "awaited_events", "sweep_runs", "sweep_findings", "sweep_batch", "sweep_settings"]) found[table] = await db.rows(`SELECT * FROM ${table} ORDER BY rowid`);
  found.events = await db.rows("SELECT * FROM events WHERE subject IS NULL OR subject NOT GLOB 'proof-*' ORDER BY id");
  return found;
}
const proofsOwn = (db: TestDatabase) => db.rows("SELECT kind FROM events WHERE subject GLOB 'proof-*' ORDER BY id");

/** The table at the end of the output, one object a row. */
function table({ stdout }: Run): { claim: string; readBack: string; result: string }[] {
  const lines = stdout.trimEnd().split("\n");
  const head = lines.indexOf("| claim | expected | read back | result |");
  expect(lines[head + 1]).toBe("|---|---|---|---|");
  return lines.slice(head + 2).map((line) => {
    expect(line).toMatch(/^\| .* \|$/);
    const [claim, , readBack, result] = line.slice(2, -2).split(/(?<!\\) \| /);
    return { claim: claim!, readBack: readBack!, result: result! };
  });
}
const results = (run: Run) => table(run).map(({ result }) => result);
const rowAbout = (run: Run, what: RegExp) => table(run).find(({ claim }) => what.test(claim))!;
const ALL_OK = Array(8).fill("ok");

/** The program at work, its output as it comes, and how it ended. */
function start(db: TestDatabase, args: string[]) {
  const child = spawn(process.execPath, [join(ROOT, "dist/main.js"), "sweep-proof", ...args], { env: { PATH: process.env.PATH, HOME: scratch, DATABASE_URL: db.url } });
  let stdout = "";
  let stderr = "";
  child.stdout.on("data", (chunk) => (stdout += chunk));
  child.stderr.on("data", (chunk) => (stderr += chunk));
  const ended = new Promise<Run & { signal: string | null }>((resolve) => child.on("close", (code, signal) => resolve({ code: code ?? -1, signal, stdout, stderr })));
  const says = async (text: string) => {
    while (!stdout.includes(text)) {
      if (child.exitCode !== null) throw new Error(`ended without saying "${text}": ${stdout}${stderr}`);
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
  };
  return { child, ended, says };
}

onEachEngine("proof", (test) => {
  test("on an empty database every row is as it should be, and nothing stays but the log", async ({ db }) => {
    await db.given(LET_TIME_PASS);
    const before = await everybodyElses(db);

    const run = await db.run("sweep-proof");

    expect(run).toMatchObject({ code: 0, stderr: "" });
    expect(results(run)).toEqual(ALL_OK);
    expect(rowAbout(run, /lease ran out/).readBack).toMatch(/^`queued`, attempts 1 of 1, `lease_expired` by run expire_leases-\S+ \(proof, /);
    expect(rowAbout(run, /pruning takes/).claim).toBe("pruning takes a 31-day-old event and leaves a 29-day-old one");
    expect(await everybodyElses(db)).toEqual(before);
    expect(await proofsOwn(db)).toEqual([{ kind: "lease_expired" }, { kind: "park_released" }, { kind: "events_pruned" }]);
  });

  test("on a live queue nothing of anyone else's is touched, whatever the mode file says", async ({ db }) => {
    await db.given(LIVE);
    const before = await everybodyElses(db);

    for (const mode of ["observe", "enabled", "off", "nonsense"]) {
      const run = await db.run("sweep-proof", [], await modeFile(mode));
      expect(run, mode).toMatchObject({ code: 0, stderr: "" });
      expect(results(run), mode).toEqual(ALL_OK);
    }

    expect(await everybodyElses(db)).toEqual(before);
  });

  test("the proof follows the retention that is set", async ({ db }) => {
    await db.given(LET_TIME_PASS + "UPDATE sweep_settings SET value = 1 WHERE name = 'events_retention_days'");
    const run = await db.run("sweep-proof");
    expect(results(run)).toEqual(ALL_OK);
    expect(rowAbout(run, /pruning takes/).claim).toBe("pruning takes a 2-day-old event and leaves a 0-day-old one");
  });

  test("while time stands still it refuses, and seeds nothing", async ({ db }) => {
    const before = await everybodyElses(db);
    const run = await db.run("sweep-proof");
    expect(run).toMatchObject({ code: 78, stdout: "", stderr: expect.stringMatching(/fake_now_ms is set.*NULL.*\n$/) });
    expect(await everybodyElses(db)).toEqual(before);
  });

  for (const signal of ["SIGINT", "SIGTERM"] as const) {
    test(`${signal} midway leaves nothing behind`, async ({ db }) => {
      await db.given(LIVE);
      const before = await everybodyElses(db);
      const proof = start(db, ["--wait"]);
      await proof.says("now waiting");
      expect(await db.rows("SELECT count(*) AS seeded FROM tasks WHERE queue GLOB 'proof-*'")).toEqual([{ seeded: 4 }]);

      proof.child.kill(signal);
      const ended = await proof.ended;

      expect(ended).toMatchObject({ code: 1, stderr: expect.stringMatching(new RegExp(`^the proof was stopped \\(${signal}\\).*\n$`)) });
      expect(ended.stdout).not.toContain("| claim |");
      expect(await everybodyElses(db)).toEqual(before);
      expect(await proofsOwn(db)).toEqual([]);
    });
  }

  test("a reader that closes the pipe leaves nothing behind", async ({ db }) => {
    await db.given(LIVE);
    const before = await everybodyElses(db);
    const proof = start(db, []);
    await proof.says("seeded");
    proof.child.stdout.destroy();
    expect(await proof.ended).toMatchObject({ code: 1 });
    expect(await everybodyElses(db)).toEqual(before);
  });

  test("what a proof killed outright left behind goes with the next proof, an hour later and not before", async ({ db }) => {
    await db.given(LIVE);
    const before = await everybodyElses(db);
    const proof = start(db, ["--wait"]);
    await proof.says("now waiting");
    proof.child.kill("SIGKILL");
    await proof.ended;

    expect(await db.run("sweep-proof")).toMatchObject({ code: 0 });
    expect(await db.rows("SELECT count(*) AS left_over FROM tasks WHERE queue GLOB 'proof-*'")).toEqual([{ left_over: 4 }]);

    await db.given("UPDATE tasks SET updated_at_ms = (SELECT now_ms - 3600001 FROM clock) WHERE queue GLOB 'proof-*'");
    expect(await db.run("sweep-proof")).toMatchObject({ code: 0 });
    expect(await everybodyElses(db)).toEqual(before);
  });

  test("a revalidation that confirms everything is found out", async ({ db }) => {
    await db.given(`${LIVE} DROP VIEW parked_verdicts;
      CREATE VIEW parked_verdicts AS SELECT id AS task_id, queue, 'confirmed' AS verdict, 'waiting' AS reason, parked_at_ms, park_reason, '[]' AS evidence FROM tasks WHERE state = 'parked';`);
    const before = await everybodyElses(db);

    const run = await db.run("sweep-proof");

    expect(run).toMatchObject({ code: 1, stderr: expect.stringMatching(/2 of 8 rows/) });
    expect(table(run).filter(({ result }) => result === "FAILED")).toMatchObject([
      { claim: expect.stringMatching(/^observing lists/), readBack: expect.stringMatching(/^listed: none;/) },
      { claim: expect.stringMatching(/^released/), readBack: expect.stringMatching(/^`parked`, `park_released`: 0, by no run/) },
    ]);
    expect(await everybodyElses(db)).toEqual(before);
  });

  test("a revalidation that releases everything is found out", async ({ db }) => {
    await db.given(`${LIVE} DROP VIEW parked_verdicts;
      CREATE VIEW parked_verdicts AS SELECT id AS task_id, queue, 'release' AS verdict, 'condition_met' AS reason, parked_at_ms, park_reason, '[]' AS evidence FROM tasks WHERE state = 'parked';`);
    const run = await db.run("sweep-proof");
    expect(run.code).toBe(1);
    expect(rowAbout(run, /time park stay/)).toMatchObject({ result: "FAILED", readBack: "unmet `queued`, time park `queued`" });
  });

  test("a sweep that cannot run fails its rows; the others are shown, and all is cleaned up", async ({ db }) => {
    await db.given(LIVE);
    const before = await everybodyElses(db);
    await db.given("CREATE TRIGGER broken BEFORE DELETE ON leases WHEN OLD.worker GLOB 'proof-*' AND EXISTS (SELECT 1 FROM sweep_batch) BEGIN SELECT RAISE(ABORT, 'the disk | is full'); END;");

    const run = await db.run("sweep-proof");

    expect(run.code).toBe(1);
    expect(results(run)).toEqual(["FAILED", ...ALL_OK.slice(1)]);
    expect(rowAbout(run, /lease ran out/).readBack).toContain("expire_leases, step delete_leases: ");
    expect(rowAbout(run, /lease ran out/).readBack).toContain("the disk \\| is full");
    expect(await everybodyElses(db)).toEqual(before);
  });

  test("pruning that is too eager, or idle, is found out", async ({ db }) => {
    await db.given(`${LIVE} DROP VIEW prunable_events; CREATE VIEW prunable_events AS SELECT id, at_ms, kind, subject, task_id FROM events;`);
    expect(rowAbout(await db.run("sweep-proof"), /pruning takes/)).toMatchObject({ result: "FAILED", readBack: "31 days: gone; 29 days: gone" });
    await db.given("DROP VIEW prunable_events; CREATE VIEW prunable_events AS SELECT id, at_ms, kind, subject, task_id FROM events WHERE false;");
    expect(rowAbout(await db.run("sweep-proof"), /pruning takes/)).toMatchObject({ result: "FAILED", readBack: "31 days: there; 29 days: there" });
  });

  test("a lease that a worker's claim expired first is claimed once more", async ({ db }) => {
    await db.given(`${LIVE} CREATE TRIGGER claim_comes_first AFTER UPDATE OF state ON tasks WHEN NEW.state = 'leased' AND NEW.attempts = 1 AND NEW.queue GLOB 'proof-*'
      BEGIN
        INSERT INTO events (kind, subject, task_id, payload) VALUES ('lease_expired', NEW.queue, NEW.id, '{"attempts":1}');
        UPDATE tasks SET state = 'queued', claimed_by = NULL, lease_token = NULL WHERE id = NEW.id;
        DELETE FROM leases WHERE task_id = NEW.id;
      END;`);
    const run = await db.run("sweep-proof");
    expect(results(run)).toEqual(ALL_OK);
    expect(rowAbout(run, /lease ran out/).readBack).toMatch(/^`queued`, attempts 2 of 2, `lease_expired` by run /);
  });

  test("where the live queue releases the task first, the table says so", async ({ db }) => {
    await db.given(`${LIVE} INSERT INTO sweep_runs (id, sweep, origin, outcome, counts) VALUES ('live', 'revalidate_parked_tasks', 'timer', 'ok', '{"checked":0,"would_release":0,"released":0,"confirmed":0,"stale":0}');
      CREATE TRIGGER live_comes_first AFTER INSERT ON events WHEN NEW.kind = 'proof.awaited'
      BEGIN
        INSERT INTO events (kind, subject, task_id, run_id) VALUES ('park_released', NEW.subject, NEW.task_id, 'live');
        UPDATE tasks SET state = 'queued', ready_condition = NULL, park_reason = NULL, parked_at_ms = NULL WHERE id = NEW.task_id;
      END;`);
    const run = await db.run("sweep-proof");
    expect(run.code).toBe(1);
    expect(rowAbout(run, /^released/).readBack).toMatch(/run live \(timer\) of the queue's own came first: run the proof again$/);
  });

  test("waiting shows that the schedule did it, and which run", async ({ db }) => {
    await db.given(LIVE);
    const before = await everybodyElses(db);
    const proof = start(db, ["--wait"]);
    await proof.says("now waiting");
    let swept = "";
    while (proof.child.exitCode === null && swept === "") {
      await new Promise((resolve) => setTimeout(resolve, 300));
      const run = await db.sweep("sweep-expire", ["--origin", "timer"]);
      if (run.expired_leases === 1) swept = String(run.run_id);
    }

    const ended = await proof.ended;

    expect(ended).toMatchObject({ code: 0, stderr: "" });
    expect(results(ended)).toEqual(ALL_OK);
    expect(rowAbout(ended, /deployed schedule/).readBack).toContain(`attempts 1 of 1, \`lease_expired\` by run ${swept} (timer, `);
    const after = await everybodyElses(db);
    const others = (runs: unknown) => (runs as { id: string }[]).filter(({ id }) => id !== swept && id !== "expire_leases.idle");
    expect({ ...after, sweep_runs: others(after.sweep_runs) }).toEqual({ ...before, sweep_runs: others(before.sweep_runs) });
  });

  test("waiting for a schedule that is not there says so, and what to do", async ({ db }) => {
    await db.given(LIVE);
    const before = await everybodyElses(db);
    const run = await db.run("sweep-proof", ["--wait"], { SWEEP_PROOF_WAIT_SECONDS: "3" });
    expect(run.code).toBe(1);
    expect(results(run)).toEqual(["FAILED", ...ALL_OK.slice(1)]);
    expect(rowAbout(run, /deployed schedule/).readBack).toMatch(/^`leased`, attempts 1 of 1: nothing expired it within 3 s: see that the timer or daemon runs/);
    expect(await everybodyElses(db)).toEqual(before);
  });
});
