// A server that fails for good: every verb waits for a bounded time, ends with the right code, and says so in one line.
import { afterAll, beforeAll, expect, test } from "vitest";
import { createClient } from "@libsql/client";
import { fresh, program, startServer } from "../support.js";
import { http, startProxy, type Fault } from "./proxy.js";

const TIMEOUT_MS = 500;
/** Three tries and the pauses between them; and a program's start on a busy machine. */
const BOUND_MS = 3 * TIMEOUT_MS + 1_200 + 15_000;
const TOKEN = "a-token-that-an-echo-would-give-away";

let server: Awaited<ReturnType<typeof startServer>>;
beforeAll(async () => {
  server = await startServer(fresh("server"));
  expect(await program(["migrate"], { DATABASE_URL: server.url })).toMatchObject({ code: 0 });
});
afterAll(() => server?.stop());

/** Runs a verb while every request meets this fault: the code, one line that matches, no token, and an end to the waiting. */
async function fails(verb: string, fault: Fault, code: number, message: RegExp, scheme = "http"): Promise<void> {
  const proxy = await startProxy(server.url);
  proxy.fault(() => fault);
  const started = performance.now();
  const run = await program([verb], { DATABASE_URL: proxy.url.replace("http", scheme), TURSO_AUTH_TOKEN: TOKEN, SWEEP_REQUEST_TIMEOUT_MS: String(TIMEOUT_MS) });
  const what = `${verb}, ${JSON.stringify(fault)}: ${run.stderr}`;
  expect({ code: run.code, stdout: run.stdout }, what).toEqual({ code, stdout: "" });
  expect(run.stderr, what).toMatch(/^[^\n]+\n$/);
  expect(run.stderr, what).toMatch(message);
  // Nor any longer piece of it: what a stranger echoes is not quoted.
  for (let i = 0; i + 12 <= TOKEN.length; i++) expect(run.stderr, what).not.toContain(TOKEN.slice(i, i + 12));
  expect(performance.now() - started, what).toBeLessThan(BOUND_MS);
  expect(proxy.requests, what).toBeLessThanOrEqual(3);
  await proxy.stop();
}

const echo = `<html>You sent: Bearer ${TOKEN}</html>`;
const KINDS: [what: string, fault: Fault, code: number, message: RegExp][] = [
  ["cut before", { kind: "cut_before" }, 69, /cannot be reached \(UND_ERR_SOCKET\): check DATABASE_URL and the server, then try again$/m],
  ["cut after the commit", { kind: "cut_after" }, 69, /cannot be reached \(UND_ERR_SOCKET\)/],
  ["silence", { kind: "hang" }, 69, /did not answer within 0.5 s: check the server, then try again$/m],
  ["silence after the commit", { kind: "hang_after" }, 69, /did not answer within 0.5 s/],
  ["an answer without end", { kind: "trickle" }, 69, /did not answer within 0.5 s/],
  ["a page instead", { kind: "answer", raw: http("200 OK", echo, "text/html") }, 69, /cannot be reached \(what answers is no libSQL server\)/],
  ["the token echoed", { kind: "answer", raw: http("200 OK", `Bearer ${TOKEN}`) }, 69, /no libSQL server/],
  ["half an answer", { kind: "answer", raw: http("200 OK", `{"baton":"${TOKEN}","results":[{`) }, 69, /no libSQL server/],
  ["an empty answer", { kind: "answer", raw: http("200 OK", "") }, 69, /no libSQL server/],
  ["an empty object", { kind: "answer", raw: http("200 OK", "{}") }, 69, /cannot be reached/],
  ["another protocol", { kind: "answer", raw: `SSH-2.0-${TOKEN}\r\n` }, 69, /cannot be reached/],
  ["429", { kind: "answer", raw: http("429 Too Many Requests", echo) }, 75, /asks for patience \(429\): try again$/m],
  ["429 with a message", { kind: "answer", raw: http("429 Too Many Requests", `{"message":"${TOKEN}","code":"RATE"}`) }, 75, /asks for patience \(429\)/],
  ["502", { kind: "answer", raw: http("502 Bad Gateway", echo, "text/html") }, 69, /cannot be reached \(502\)/],
  ["503", { kind: "answer", raw: http("503 Service Unavailable", echo) }, 69, /cannot be reached \(503\)/],
  ["504 after the commit", { kind: "answer_after", raw: http("504 Gateway Timeout", "") }, 69, /cannot be reached \(504\)/],
  ["500", { kind: "answer", raw: http("500 Internal Server Error", echo, "text/html") }, 69, /cannot be reached \(500\)/],
  ["401", { kind: "answer", raw: http("401 Unauthorized", echo) }, 77, /refused the token \(401\): check TURSO_AUTH_TOKEN$/m],
  ["404", { kind: "answer", raw: http("404 Not Found", echo, "text/html") }, 69, /cannot be reached \(404\)/],
];

test.concurrent.each(KINDS)("a sweep ends with its code when it meets nothing but this: %s", (_, fault, code, message) => fails("sweep-expire", fault, code, message));

test.concurrent.each(["migrate", "migrate-status", "verify", "sweep-would-release", "sweep-explain", "sweep-proof"])("%s too waits for an answer that never comes no longer than it says", async (verb) => {
  await fails(verb, { kind: "hang" }, 69, /did not answer within 0.5 s/);
});

test.concurrent.each([
  ["sweep-expire", { kind: "hang" } as Fault, 69, /did not answer within 0.5 s/],
  ["verify", { kind: "hang" } as Fault, 69, /did not answer within 0.5 s/],
  ["verify", { kind: "hang_after" } as Fault, 69, /did not answer within 0.5 s/],
  ["sweep-prune", { kind: "cut_before" } as Fault, 69, /cannot be reached \(socket hang up\)/],
  ["sweep-prune", { kind: "cut_after" } as Fault, 69, /cannot be reached \(WebSocket was closed with code 1006\)/],
  ["migrate-status", { kind: "answer", raw: http("429 Too Many Requests", echo) } as Fault, 75, /asks for patience \(429\)/],
])("over a web socket %s ends as well: %j", (verb, fault, code, message) => fails(verb, fault, code, message, "ws"));

test("a slow network is only slow", async () => {
  const proxy = await startProxy(server.url);
  proxy.fault(() => ({ kind: "delay", ms: 150 }));
  expect(await program(["sweep-expire"], { DATABASE_URL: proxy.url, SWEEP_REQUEST_TIMEOUT_MS: "20000" })).toMatchObject({ code: 0, stderr: "" });
  expect(await program(["verify"], { DATABASE_URL: proxy.url, SWEEP_REQUEST_TIMEOUT_MS: "20000" })).toMatchObject({ code: 0, stderr: "" });
  expect(proxy.requests).toBeGreaterThan(2);
  await proxy.stop();
});

test("a migration whose answer is lost after the commit is known to be applied", async () => {
  const bare = await startServer(fresh("bare"));
  const far = await startProxy(bare.url);
  // The bookkeeping table, what is applied, then one request a migration.
  far.fault((n) => (n === 1 || n === 4 ? { kind: "cut_after" } : { kind: "pass" }));
  const run = await program(["migrate"], { DATABASE_URL: far.url });
  expect(run).toMatchObject({ code: 0, stderr: "" });
  expect(run.stdout.match(/^applied \d+_\w+$/gm)).toHaveLength(5);
  expect(run.stdout).not.toContain("somebody else");
  const client = createClient({ url: bare.url });
  expect((await client.execute("SELECT count(*) AS n FROM schema_migrations")).rows[0]).toMatchObject({ n: 5 });
  client.close();
  await far.stop();
  await bare.stop();
});

test("a time-out that makes no sense is refused by name", async () => {
  for (const ms of ["0", "-1", "1e3", "30s", "601000", "soon"]) {
    expect(await program(["sweep-expire"], { DATABASE_URL: server.url, SWEEP_REQUEST_TIMEOUT_MS: ms })).toEqual({ code: 78, stdout: "", stderr: `SWEEP_REQUEST_TIMEOUT_MS must be whole milliseconds from 100 to 600000, got "${ms}"\n` });
  }
});
