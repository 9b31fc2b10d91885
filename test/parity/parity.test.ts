/**
 * The differential test: the same history on PostgreSQL (oracle.ts) and on the port (port.ts), compared at every step.
 *
 * Every answer is compared as it comes; after every sweep its counts, the verdicts and the whole
 * state, and before a revalidation the verdicts as well. What is compared, and nothing else, is the promise that the move away from PostgreSQL changed no decision.
 *
 *     RUNS=300      how many histories of 40 operations
 *     SEED=n        a seed to repeat; the ordinary run always has the same one, make parity draws one; printed with every failure
 *     REPLAY=path   the path that a failure printed beside its seed: goes straight to the smallest counterexample
 *     COVERAGE=1    print what the histories reached
 */

import { isDeepStrictEqual } from "node:util";
import fc from "fast-check";
import { afterAll, beforeAll, expect, test } from "vitest";
import { apply, histories, REFUSED, World } from "./histories.ts";
import { openOracle, type Oracle } from "./oracle.ts";
import { openPort } from "./port.ts";
import { inOrder, type QueueModel, type Verdict } from "./queue_model.ts";

const RUNS = Number(process.env["RUNS"] ?? 300);
const SEED = Number(process.env["SEED"] || 20261201);
const COVERAGE = Boolean(process.env["COVERAGE"]);
const OPERATIONS = 40;
/** From how many histories on the test also demands that they got everywhere; below that, chance may leave a corner out. */
const ENOUGH = 1000;

/** A differential test that never gets to a rule says nothing about it. */
const EVERYWHERE = [
  ...["confirmed time_park", "stale no_condition", "stale unreadable_condition", "release condition_met"].map((v) => `verdict judged by a run: ${v}`),
  ...["stale parked_too_long", "confirmed waiting"].map((v) => `verdict judged by a run: ${v}`),
  ...["failed", "cancelled", "missing"].map((state) => `verdict after a sweep: stale dependency_${state}`),
  ...["renew", "complete", "fail", "park"].flatMap((verb) => [`${verb} ok`, `${verb} lost`]),
  "park refused",
  "revalidation cut short by max_releases_per_run",
  "event at the end attempts_exhausted",
  "claim of a due time park",
  "prune with kept evidence",
  "boundary: a lease ending exactly now, expired",
  "boundary: an event exactly 30 days old at a prune",
  "boundary: an event in the millisecond of a park",
  "boundary: a task exactly 14 days parked at a revalidation",
];

let oracle: Oracle;
let port: QueueModel;
const reached = new Map<string, number>();
const reach = (what: string, n = 1) => reached.set(what, (reached.get(what) ?? 0) + n);

beforeAll(async () => {
  oracle = await openOracle();
  port = await openPort();
}, 120_000);

afterAll(async () => {
  await oracle?.close();
  await port?.close();
  if (COVERAGE) console.log([...reached].sort(([a], [b]) => (a < b ? -1 : 1)).map(([what, n]) => `${String(n).padStart(7)}  ${what}`).join("\n"));
});

/** Both sides behind the one interface: every call goes to both, and both must answer alike. */
function inParity(world: () => World, calls: string[]): QueueModel {
  const shorten = (text: string) => text.replace(/(r|\\\\u0072){50,}/g, "r...");

  function same<T>(what: string, onPostgres: T, onPort: T): T {
    if (isDeepStrictEqual(onPostgres, onPort)) return onPostgres;
    // vitest's own message holds the difference; what led there is ours to tell.
    const told = shorten([...calls, `differs: ${what}`].join("\n"));
    expect(onPort, told).toEqual(onPostgres);
    throw new Error(told);
  }

  async function both<T>(name: string, argument: unknown, call: (m: QueueModel) => Promise<T>): Promise<T> {
    calls.push(`${name} ${JSON.stringify(argument)}`);
    current = undefined;
    const onPostgres = await call(oracle);
    const answer = same(name, onPostgres, await call(port));
    if (answer !== undefined) calls.push(`  -> ${JSON.stringify(answer)}`);
    return answer;
  }

  /** The verdicts after a sweep, for whoever asks again before anything has changed. */
  let current: Verdict[] | undefined;

  const verdicts = async (m: QueueModel) => (await m.verdicts()).map(({ task_id, verdict, reason }) => ({ task_id, verdict, reason }));
  const snapshot = async (m: QueueModel) => inOrder(await m.snapshot());

  const pair: QueueModel = {
    reset: (nowMs) => both("reset", nowMs, (m) => m.reset(nowMs)),
    setNow: (nowMs) => both("setNow", nowMs, (m) => m.setNow(nowMs)),
    setMaxReleases: (n) => both("setMaxReleases", n, (m) => m.setMaxReleases(n)),
    enqueue: (a) => both("enqueue", a, (m) => m.enqueue(a)),
    claim: (a) => both("claim", a, (m) => m.claim(a)),
    renew: (a) => both("renew", a, (m) => m.renew(a)),
    complete: (a) => both("complete", a, (m) => m.complete(a)),
    fail: (a) => both("fail", a, (m) => m.fail(a)),
    park: (a) => both("park", a, (m) => m.park(a)),
    release: (a) => both("release", a, (m) => m.release(a)),
    cancel: (a) => both("cancel", a, (m) => m.cancel(a)),
    unbind: (a) => both("unbind", a, (m) => m.unbind(a)),
    spoil: (a) => both("spoil", a, (m) => m.spoil(a)),
    event: (a) => both("event", a, (m) => m.event(a)),
    verdicts: async () => (current ??= same("verdicts", await verdicts(oracle), await verdicts(port))),
    snapshot: async () => same("snapshot", await snapshot(oracle), await snapshot(port)),
    close: async () => {},

    async sweep(name, mode) {
      // What a revalidation is about to release is gone from the verdicts after it.
      const before = name === "revalidate_parked_tasks" ? await pair.verdicts() : [];
      const metByEvidence = COVERAGE && name === "revalidate_parked_tasks" && (await oracle.evidence()) > 0 ? await oracle.metByEvidence() : 0;

      const counts = await both("sweep", [name, mode], (m) => m.sweep(name, mode));

      const after = await pair.verdicts();
      calls.push(...(before.length > 0 ? [`  verdicts before ${JSON.stringify(before)}`] : []), `  verdicts after ${JSON.stringify(after)}`);
      await pair.snapshot();

      reach(`sweep ${name} ${mode}`);
      for (const v of after) reach(`verdict after a sweep: ${v.verdict} ${v.reason}`);
      for (const v of before) reach(`verdict judged by a run: ${v.verdict} ${v.reason}`);
      for (const [count, n] of Object.entries(counts)) reach(`count ${name} ${mode} ${count}`, n);
      if (name === "revalidate_parked_tasks" && mode === "enabled") {
        if (counts["released"] === world().maxReleases && before.length > counts["checked"]!) reach("revalidation cut short by max_releases_per_run");
        if (metByEvidence > 0 && counts["released"]! > 0) reach("revalidation that had tasks met by evidence alone");
        if (counts["released"]! > before.filter((v) => v.verdict === "release").length) reach("release that an earlier release of the run made ready");
      }
      if (mode === "enabled" && (await oracle.evidence()) > 0) {
        if (name === "prune_events" && counts["events_pruned"]! > 0) reach("prune with kept evidence");
        if (COVERAGE) reach("verdict met by evidence alone, after a sweep", await oracle.metByEvidence());
      }
      return counts;
    },
  };

  const park = pair.park;
  pair.park = async (a) => {
    const answer = await park(a);
    reach(`park ${answer}`);
    if (answer === "refused") reach(`refused: ${oracle.lastRefusal}`);
    return answer;
  };
  for (const verb of ["renew", "complete", "fail"] as const) {
    const call = pair[verb] as (a: { taskId: number; token: string; leaseMs: number }) => Promise<"ok" | "lost">;
    pair[verb] = async (a: { taskId: number; token: string; leaseMs?: number }) => {
      const answer = await call(a as { taskId: number; token: string; leaseMs: number });
      reach(`${verb} ${answer}`);
      return answer;
    };
  }
  return pair;
}

test("what the grammar refuses is refused by both, and leaves the task as it was", async () => {
  const model = inParity(() => new World(), []);
  await World.begin(model);
  await model.enqueue({ id: 1, queue: "builds", priority: 0, notBeforeMs: null, maxAttempts: null });
  await model.claim({ queue: "builds", worker: "w1", token: "t1", leaseMs: 60_000 });
  for (const readyCondition of REFUSED) {
    const answer = await model.park({ taskId: 1, token: "t1", readyCondition, notBeforeMs: null, reason: null });
    expect(answer, readyCondition).toBe("refused");
  }
  await model.snapshot();
});

test(
  `${RUNS} histories of ${OPERATIONS} operations go the same way on PostgreSQL and on the port`,
  async () => {
    reached.clear();
    const property = fc.asyncProperty(histories(OPERATIONS), async (history) => {
      let world = new World();
      const model = inParity(() => world, []);
      world = await World.begin(model, reach);

      for (const operation of history) {
        reach(`operation ${operation.do}`);
        await apply(world, model, operation);
      }
      const end = await model.snapshot();
      await model.verdicts();
      for (const e of end.events) if (e.task_id !== null || e.kind === "events_pruned") reach(`event at the end ${e.kind}`);
    });

    await fc.assert(property, {
      numRuns: RUNS,
      seed: SEED,
      ...(process.env["REPLAY"] ? { path: process.env["REPLAY"] } : {}),
      includeErrorInReport: true,
      // Shrinking may take long; what it has found by then is small enough.
      interruptAfterTimeLimit: RUNS * 1000 + 240_000,
      markInterruptAsFailure: true,
    });

    if (RUNS >= ENOUGH && !process.env["REPLAY"]) {
      const missed = EVERYWHERE.filter((what) => !reached.has(what));
      expect(missed, `seed ${SEED}: where no history got to`).toEqual([]);
    }
  },
  RUNS * 1000 + 300_000,
);
