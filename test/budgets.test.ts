// What a sweep costs in the unit that is billed: rows read and written, as the server counts them.
import { expect, test } from "vitest";
import type { Statement } from "../scripts/lib/database.js";
import { bind, loadSteps } from "../scripts/lib/steps.js";
import { fresh, NOW, program, startServer } from "./support.js";

const UNBOUND = { run_id: null, mode: null, origin: null, runner: null, sql_version: null, needs_schema_version: null, scope_queue: null, batch_rows: null };

/** Runs a file's steps as one transaction over the server's own protocol, which tells the rows of each. */
async function cost(url: string, path: string): Promise<{ read: number; written: number }> {
  const steps: Statement[] = [{ sql: "BEGIN IMMEDIATE", args: {} }, ...loadSteps(path).map((step) => bind(step, UNBOUND)), { sql: "COMMIT", args: {} }];
  const batch = { steps: steps.map(({ sql, args }) => ({ stmt: { sql, named_args: Object.keys(args).map((name) => ({ name, value: { type: "null" } })) } })) };
  const answer = await fetch(`${url}/v2/pipeline`, { method: "POST", body: JSON.stringify({ requests: [{ type: "batch", batch }, { type: "close" }] }) });
  const { results } = (await answer.json()) as { results: { response: { result: { step_results: { rows_read: number; rows_written: number }[]; step_errors: unknown[] } } }[] };
  const { step_results, step_errors } = results[0]!.response.result;
  expect(step_errors.filter(Boolean)).toEqual([]);
  return { read: step_results.reduce((sum, step) => sum + step.rows_read, 0), written: step_results.reduce((sum, step) => sum + step.rows_written, 0) };
}

test("an idle expiry reads at most 8 rows and writes at most 2, whatever the queue's size", async () => {
  const server = await startServer(fresh("server"));
  await program(["migrate"], { DATABASE_URL: server.url });
  const { createClient } = await import("@libsql/client");
  const client = createClient({ url: server.url });
  const idle = { read: 8, written: expect.toBeOneOf([1, 2]) };

  expect(await cost(server.url, "db/sweeps/expire_leases.sql")).toEqual(idle);
  const numbers = `json_each('[${"0,".repeat(999)}0]')`;
  await client.executeMultiple(`
    INSERT INTO tasks (queue, state, claimed_by, lease_token) SELECT 'q', 'leased', 'w', 't' FROM ${numbers}, json_each('[0,0,0,0,0]');
    INSERT INTO leases (task_id, worker, token, expires_at_ms) SELECT id, 'w', 't', ${Date.now() + 3_600_000} + id FROM tasks;
    INSERT INTO tasks (queue, state) SELECT 'q', 'queued' FROM ${numbers};
    INSERT INTO events (at_ms, kind, subject) SELECT ${NOW}, 'noise', 's' FROM ${numbers};`);
  expect(await cost(server.url, "db/sweeps/expire_leases.sql")).toEqual(idle);
  expect(await cost(server.url, "db/sweeps/expire_leases.sql")).toEqual(idle);

  client.close();
  await server.stop();
});

test("asking who ran last reads a handful of rows, whatever the ledger's size", async () => {
  const server = await startServer(fresh("server"));
  await program(["migrate"], { DATABASE_URL: server.url });
  await program(["sweep-all", "--origin", "timer"], { DATABASE_URL: server.url });
  const handful = { read: expect.toBeOneOf([14, 15, 16, 17, 18]), written: 0 };
  expect(await cost(server.url, "db/ledger/read_last_runs.sql")).toEqual(handful);
  const { createClient } = await import("@libsql/client");
  const client = createClient({ url: server.url });
  await client.execute(`
    INSERT INTO sweep_runs (id, sweep, origin, started_at_ms, finished_at_ms, outcome)
    SELECT sweep.value || month.key || run.key, sweep.value, 'timer', ${NOW} - 40000000000 + month.key * 1000000 + run.key, ${NOW}, 'ok'
      FROM json_each('["expire_leases","revalidate_parked_tasks","prune_events"]') AS sweep, json_each('[0,0,0]') AS month, json_each('[${"0,".repeat(999)}0]') AS run`);
  expect(await cost(server.url, "db/ledger/read_last_runs.sql")).toEqual(handful);
  client.close();
  await server.stop();
});
