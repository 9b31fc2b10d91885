// What is done although its answer is lost is recognised by the run's id and done once; what was not done is asked for again.
import { expect } from "vitest";
import { openDatabase, type Database } from "../../scripts/lib/database.js";
import { queue } from "../../scripts/lib/queue.js";
import { readTarget } from "../../scripts/lib/target.js";
import { runSweep, SWEEPS, type SweepName } from "../../scripts/sweep.js";
import { NOW, onServer, type TestDatabase } from "../support.js";
import { http, startProxy, type Fault, type Proxy } from "./proxy.js";

const TIMEOUT_MS = 300;
const HTML = http("200 OK", "<html><body>Please log in</body></html>", "text/html");
const HALF = http("200 OK", '{"baton":null,"results":[{"type":"ok"');

/** The database as the program sees it through a proxy, until `work` is over. */
async function through<T>(db: TestDatabase, work: (far: Database, proxy: Proxy) => Promise<T>, scheme = "http"): Promise<T> {
  const proxy = await startProxy(db.url);
  const far = await openDatabase(readTarget({ DATABASE_URL: proxy.url.replace("http", scheme), SWEEP_REQUEST_TIMEOUT_MS: String(TIMEOUT_MS) }));
  try {
    return await work(far, proxy);
  } finally {
    far.close();
    await proxy.stop();
  }
}

const first = (fault: Fault) => (n: number): Fault => (n === 1 ? fault : { kind: "pass" });

/** Work for each sweep once: 3 leases to expire, 2 tasks to release and 1 to confirm, 4 events to prune. Ids from `base`. */
const work = (base: number) => `
  INSERT INTO tasks (id, queue, state, claimed_by, lease_token, attempts) VALUES ${[1, 2, 3].map((i) => `(${base + i}, 'q', 'leased', 'w', 't', 1)`)};
  INSERT INTO leases (task_id, worker, token, expires_at_ms) VALUES ${[1, 2, 3].map((i) => `(${base + i}, 'w', 't', ${NOW - i})`)};
  INSERT INTO tasks (id, queue, state) VALUES (${base + 4}, 'q', 'done');
  INSERT INTO tasks (id, queue, state, ready_condition) VALUES ${[5, 6].map((i) => `(${base + i}, 'q', 'parked', '{"kind":"task_done","task":${base + 4}}')`)};
  INSERT INTO events (at_ms, kind) VALUES ${[1, 2, 3, 4].map((i) => `(${NOW - 31 * 86_400_000 - i}, 'old')`)};`;

const SWEPT: Record<SweepName, { counts: object; events: [kind: string, count: number] }> = {
  expire_leases: { counts: { expired_leases: 3 }, events: ["lease_expired", 3] },
  revalidate_parked_tasks: { counts: { checked: 2, released: 2, would_release: 0, confirmed: 0, stale: 0 }, events: ["park_released", 2] },
  prune_events: { counts: { events_pruned: 4 }, events: ["events_pruned", 1] },
};

/** One run of each sweep over its work, each with this fault on its first request: the ledger, the log and the rows say once. */
async function sweptOnce(db: TestDatabase, far: Database, proxy: Proxy, fault: Fault, base: number): Promise<void> {
  await db.given(work(base));
  for (const name of SWEEPS) {
    const { counts, events: [kind, count] } = SWEPT[name];
    // A stranger's answers differ in nothing that a sweep could see: one sweep each is enough for them.
    proxy.fault("raw" in fault && name !== "expire_leases" ? () => ({ kind: "pass" }) : first(fault));
    const run = await runSweep(far, name, { mode: "enabled" });
    const what = `${JSON.stringify(fault)}, ${name}`;
    expect(run, what).toMatchObject({ sweep: name, outcome: "ok", drained: true, batches: 1, ...counts });
    if (!("raw" in fault)) expect(proxy.requests, `${what}: asked a second time, and where it was done already, the ledger`).toBeGreaterThanOrEqual(2);
    expect(await db.rows(`SELECT kind, count(*) AS n FROM events WHERE run_id = '${run.run_id}' GROUP BY kind`), what).toEqual([{ kind, n: count }]);
    expect(await db.rows(`SELECT outcome, batches FROM sweep_runs WHERE id = '${run.run_id}'`), what).toEqual([{ outcome: "ok", batches: 1 }]);
  }
  expect(await db.rows(`SELECT state, count(*) AS n, sum(attempts) AS attempts FROM tasks WHERE id > ${base} AND id < ${base + 10} GROUP BY state`)).toEqual([
    { state: "done", n: 1, attempts: 0 },
    { state: "queued", n: 5, attempts: 3 },
  ]);
}

const DONE: Fault[] = [{ kind: "cut_after" }, { kind: "hang_after" }, { kind: "trickle" }, ...[HTML, HALF, http("503 Service Unavailable", ""), http("502 Bad Gateway", "bad gateway")].map((raw): Fault => ({ kind: "answer_after", raw }))];
const NOT_DONE: Fault[] = [{ kind: "cut_before" }, { kind: "hang" }, ...[HTML, HALF, http("200 OK", ""), http("200 OK", "{}"), "SSH-2.0-OpenSSH_9.2\r\n", http("429 Too Many Requests", "slow down"), http("502 Bad Gateway", "<html>", "text/html"), http("503 Service Unavailable", "")].map((raw): Fault => ({ kind: "answer", raw }))];

onServer("an answer lost on the network", (test) => {
  const observed = (db: TestDatabase) => runSweep(db.queue, "revalidate_parked_tasks", { mode: "observe" });

  test("after the commit: the run is known by its id, and nothing is done twice", async ({ db }) => {
    await observed(db);
    await through(db, async (far, proxy) => {
      for (const [i, fault] of DONE.entries()) await sweptOnce(db, far, proxy, fault, i * 10);
    });
  });

  test("before the server saw the request: it is asked again, and done once", async ({ db }) => {
    await observed(db);
    await through(db, async (far, proxy) => {
      for (const [i, fault] of NOT_DONE.entries()) await sweptOnce(db, far, proxy, fault, i * 10);
    });
  });

  test("over a web socket: cut before, cut after the commit, and silence before and after it", async ({ db }) => {
    await observed(db);
    for (const [i, kind] of (["cut_before", "cut_after", "hang", "hang_after"] as const).entries()) {
      // A socket of its own each, because a fault lasts as long as its socket.
      await db.given(work(i * 10));
      const run = await through(db, async (far, proxy) => (proxy.fault(first({ kind })), runSweep(far, "expire_leases")), "ws");
      expect(run, kind).toMatchObject({ outcome: "ok", expired_leases: 3, batches: 1 });
      expect(await db.rows(`SELECT count(*) AS n FROM events WHERE run_id = '${run.run_id}'`), kind).toEqual([{ n: 3 }]);
    }
  });

  test("a request that arrives after its sender gave up and asked again changes nothing more", async ({ db }) => {
    await observed(db);
    await through(db, async (far, proxy) => {
      await sweptOnce(db, far, proxy, { kind: "delay", ms: 2 * TIMEOUT_MS }, 0);
      const settled = await db.rows("SELECT (SELECT count(*) FROM events) AS events, (SELECT group_concat(outcome || batches || counts) FROM sweep_runs WHERE id <> 'expire_leases.idle') AS runs");
      await new Promise((resolve) => setTimeout(resolve, 3 * TIMEOUT_MS));
      expect(await db.rows("SELECT (SELECT count(*) FROM events) AS events, (SELECT group_concat(outcome || batches || counts) FROM sweep_runs WHERE id <> 'expire_leases.idle') AS runs")).toEqual(settled);
    });
  });

  const leases = (n: number) => Array.from({ length: n }, (_, i) => `INSERT INTO tasks (id, queue, state, claimed_by, lease_token) VALUES (${i + 1}, 'q', 'leased', 'w', 't'); INSERT INTO leases (task_id, worker, token, expires_at_ms) VALUES (${i + 1}, 'w', 't', ${NOW - i});`).join("");

  test("in the middle of a run of many batches: it goes on where the ledger stands, and counts each row once", async ({ db }) => {
    await db.given(`UPDATE sweep_settings SET value = 10 WHERE name = 'expire_batch_rows'; ${leases(95)}`);
    await through(db, async (far, proxy) => {
      const faults: Record<number, Fault> = { 2: { kind: "cut_after" }, 4: { kind: "cut_before" }, 6: { kind: "answer_after", raw: HTML }, 8: { kind: "hang_after" }, 10: { kind: "answer", raw: http("503 Service Unavailable", "") } };
      proxy.fault((n) => faults[n] ?? { kind: "pass" });
      expect(await runSweep(far, "expire_leases")).toMatchObject({ outcome: "ok", drained: true, expired_leases: 95, batches: 10 });
    });
    expect(await db.rows("SELECT count(*) AS n, count(DISTINCT task_id) AS tasks FROM events WHERE kind = 'lease_expired'")).toEqual([{ n: 95, tasks: 95 }]);
    expect(await db.rows("SELECT count(*) AS n FROM leases")).toEqual([{ n: 0 }]);
  });

  test("for good in the middle of a run: what was done stays, nobody waits for ever, and after two minutes the next run takes over", async ({ db }) => {
    await db.given(`UPDATE sweep_settings SET value = 10 WHERE name = 'expire_batch_rows'; ${leases(40)}`);
    await through(db, async (far, proxy) => {
      proxy.fault((n) => (n < 3 ? { kind: "pass" } : { kind: "cut_after" }));
      await expect(runSweep(far, "expire_leases")).rejects.toMatchObject({ exitCode: 69, message: expect.stringMatching(/^expire_leases: http:\/\/127.0.0.1:\d+\/ cannot be reached \(UND_ERR_SOCKET\): check DATABASE_URL and the server, then try again$/) });
      expect(proxy.requests).toBe(5);
    });
    // Batches 3 to 5 were carried out, though nobody learned of it; the run is over then, or to be taken over.
    await db.given(`${leases(45).split(/(?=INSERT INTO tasks)/).slice(40).join("")}`);
    await db.setNow(NOW + 120_000);
    expect(await db.sweep("sweep-expire")).toMatchObject({ outcome: "ok", drained: true, expired_leases: 5 });
    expect(await db.rows("SELECT count(*) AS n, count(DISTINCT task_id) AS tasks FROM events WHERE kind = 'lease_expired'")).toEqual([{ n: 45, tasks: 45 }]);
  });
});

onServer("a worker's verb whose answer is lost", (test) => {
  const lost = /cannot be reached .*; the answer was lost and what was asked for may be done: look before asking again$/;

  test("is not sent again: the worker is told, and what it finds when it looks is the truth", async ({ db }) => {
    await db.given("INSERT INTO tasks (id, queue) VALUES (1, 'q'), (2, 'q');");
    await through(db, async (far, proxy) => {
      const claim = (token: string) => queue.claim(far, { queue: "q", worker: "w", token, lease_ms: 60_000 });
      proxy.fault(first({ kind: "cut_after" }));
      await expect(claim("t1")).rejects.toMatchObject({ exitCode: 69, message: expect.stringMatching(lost) });
      expect(proxy.requests).toBe(1);
      expect(await db.rows("SELECT id, state, lease_token, attempts FROM tasks ORDER BY id")).toEqual([{ id: 1, state: "leased", lease_token: "t1", attempts: 1 }, { id: 2, state: "queued", lease_token: null, attempts: 0 }]);

      // Claiming again takes the next one; the lost one runs out. Completing again says that the lease is gone, because it was done.
      expect(await claim("t2")).toMatchObject([{ task_id: 2 }]);
      proxy.fault(first({ kind: "hang_after" }));
      await expect(queue.complete(far, { task_id: 2, token: "t2" })).rejects.toThrow(/did not answer within 0.3 s.*the answer was lost/);
      expect(await db.rows("SELECT state FROM tasks WHERE id = 2")).toEqual([{ state: "done" }]);
      await expect(queue.complete(far, { task_id: 2, token: "t2" })).rejects.toThrow("lease lost");

      // A key makes enqueueing safe to repeat.
      proxy.fault(first({ kind: "cut_after" }));
      await expect(queue.enqueue(far, { key: "k", queue: "q" })).rejects.toThrow(lost);
      expect(await queue.enqueue(far, { key: "k", queue: "q" })).toEqual(await db.rows("SELECT id AS task_id FROM tasks WHERE key = 'k'"));

      proxy.fault(first({ kind: "answer", raw: http("429 Too Many Requests", "slow down") }));
      expect(await queue.enqueue(far, { key: "patience", queue: "q" }), "429 says that nothing was done").toHaveLength(1);
    });
    expect(await db.rows("SELECT key, count(*) AS n FROM tasks WHERE key IS NOT NULL GROUP BY key")).toEqual([{ key: "k", n: 1 }, { key: "patience", n: 1 }]);
  });

  test("that cannot have arrived is sent again: a server that restarts is waited for", async ({ db }) => {
    const proxy = await startProxy(db.url);
    const far = await openDatabase(readTarget({ DATABASE_URL: proxy.url }));
    await proxy.stop();
    const enqueued = queue.enqueue(far, { queue: "q" });
    const back = await new Promise<Proxy>((resolve, reject) => setTimeout(() => startProxy(db.url, Number(new URL(proxy.url).port)).then(resolve, reject), 100));
    expect(await enqueued).toHaveLength(1);
    expect(await db.rows("SELECT count(*) AS n FROM tasks")).toEqual([{ n: 1 }]);
    far.close();
    await back.stop();
  });
});
