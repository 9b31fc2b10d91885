/**
 * The differential test: the same history on PostgreSQL (oracle.ts) and on the port (port.ts), compared at every step.
 *
 * Every answer is compared as it comes; after every sweep its counts, the verdicts and the whole
 * state, and before a revalidation the verdicts as well. What is compared, and nothing else, is the promise that the move away from PostgreSQL changed no decision.
 *
 *     RUNS=300      how many histories of 40 operations
 *     SEED=n        a seed to repeat; one is drawn where it is unset, and printed with every failure
 *     REPLAY=path   the path that a failure printed beside its seed: goes straight to the smallest counterexample
 *     COVERAGE=1    print what the histories reached
 */

import { isDeepStrictEqual } from "node:util";
import fc from "fast-check";
import { afterAll, beforeAll, expect, test } from "vitest";
import { apply, histories, World } from "./histories.ts";
import { openOracle, type Oracle } from "./oracle.ts";
import { openPort } from "./port.ts";
import { inOrder, type QueueModel, type Verdict } from "./queue_model.ts";

const RUNS = Number(process.env["RUNS"] ?? 300);
const SEED = Number(process.env["SEED"] ?? Math.floor(Math.random() * 0x7fffffff));
const OPERATIONS = 40;

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
  if (process.env["COVERAGE"]) console.log([...reached].sort(([a], [b]) => (a < b ? -1 : 1)).map(([what, n]) => `${String(n).padStart(7)}  ${what}`).join("\n"));
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
      const metByEvidence = name === "revalidate_parked_tasks" && (await oracle.evidence()) > 0 ? await oracle.metByEvidence() : 0;

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
        reach("verdict met by evidence alone, after a sweep", await oracle.metByEvidence());
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

test(
  `${RUNS} histories of ${OPERATIONS} operations go the same way on PostgreSQL and on the port`,
  async () => {
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
  },
  RUNS * 1000 + 300_000,
);
