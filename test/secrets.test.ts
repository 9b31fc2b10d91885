// The token is seen nowhere, and what callers write is data wherever it goes.
import { generateKeyPairSync, randomUUID, sign } from "node:crypto";
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { createClient } from "@libsql/client";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { queue } from "../scripts/lib/queue.js";
import { http, startProxy } from "./network/proxy.js";
import { everything, fresh, NOW, onEachEngine, program, scratch, startServer, type Run } from "./support.js";

/** Signed by the server's key, and marked, so that any piece of it can be searched for. */
const key = generateKeyPairSync("ed25519");
const encode = (part: object) => Buffer.from(JSON.stringify(part)).toString("base64url");
const signed = `${encode({ alg: "EdDSA", typ: "JWT" })}.${encode({ marked: randomUUID() })}`;
const TOKEN = `${signed}.${sign(null, Buffer.from(signed), key.privateKey).toString("base64url")}`;
/** Any piece long enough to be of use to somebody. The head is the same in every token and no secret. */
const PIECES = TOKEN.split(".").slice(1).flatMap((part) => Array.from({ length: Math.floor(part.length / 16) }, (_, i) => part.slice(16 * i, 16 * i + 16)));
const leaks = (text: string) => PIECES.filter((piece) => text.includes(piece));

/** What every process of this machine shows of its command line while `work` is under way. */
async function commandLines<T>(work: () => Promise<T>): Promise<{ result: T; seen: Set<string> }> {
  const seen = new Set<string>();
  const look = () => {
    for (const pid of readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
      try {
        seen.add(readFileSync(`/proc/${pid}/cmdline`, "latin1"));
      } catch {
        // It has ended meanwhile.
      }
    }
  };
  const timer = setInterval(look, 20);
  const result = await work();
  clearInterval(timer);
  return { result, seen };
}

describe("the token", () => {
  let server: Awaited<ReturnType<typeof startServer>>;
  let client: ReturnType<typeof createClient>;
  beforeAll(async () => {
    const pem = fresh("key.pem");
    writeFileSync(pem, key.publicKey.export({ type: "spki", format: "pem" }));
    server = await startServer(fresh("server"), "--auth-jwt-key-file", pem);
    client = createClient({ url: server.url, authToken: TOKEN });
  });
  afterAll(async () => {
    client?.close();
    await server?.stop();
  });
  const clean = (what: string, { stdout, stderr }: Run) => expect(leaks(stdout + stderr), `${what}: ${stdout}${stderr}`).toEqual([]);

  test("is in no output, command line, table or core of any verb that works with it", { timeout: 120_000 }, async () => {
    const verbs = [["migrate"], ["migrate-status", "--json"], ["sweep-all", "--json"], ["sweep-revalidate", "--observe"], ["sweep-would-release"], ["sweep-explain"], ["sweep-proof"], ["verify"], ["help"]];
    for (const args of verbs) {
      const { result, seen } = await commandLines(() => program(args, { DATABASE_URL: server.url, TURSO_AUTH_TOKEN: TOKEN }));
      expect(result, args.join(" ")).toMatchObject({ code: 0, stderr: "" });
      clean(args.join(" "), result);
      if (existsSync("/proc/self/cmdline")) expect([...seen].some((line) => line.includes("dist/main.js"))).toBe(true);
      expect([...seen].filter((line) => leaks(line).length > 0), args.join(" ")).toEqual([]);
    }
    const file = { DATABASE_URL: `sqlite:${fresh("queue.db")}`, TURSO_AUTH_TOKEN: TOKEN };
    const { result, seen } = await commandLines(() => program(["migrate"], file));
    expect(result).toMatchObject({ code: 0, stderr: "" });
    clean("migrate a file", result);
    expect([...seen].filter((line) => leaks(line).length > 0)).toEqual([]);

    const tables = await everything({ client });
    expect(tables.sweep_runs!.length).toBeGreaterThan(3);
    expect(leaks(JSON.stringify(tables))).toEqual([]);
    expect(readdirSync(scratch).filter((name) => /^core/.test(name))).toEqual([]);
  });

  test("is in no message or ledger row when the server, or a stranger in its place, sends it back", async () => {
    const proxy = await startProxy(server.url);
    const body = { message: `who sent Bearer ${TOKEN}?`, code: "ODD" };
    const echoes = [http("500 Internal Server Error", JSON.stringify(body)), http("400 Bad Request", `Bearer ${TOKEN}`, "text/plain"), http("200 OK", TOKEN), http("200 OK", `{"baton":null,"base_url":null,"results":[{"type":"error","error":${JSON.stringify(body)}}]}`), `${TOKEN}\r\n\r\n`];
    for (const [i, raw] of echoes.entries()) {
      for (const scheme of i === 0 ? ["http", "ws"] : ["http"]) {
        // The first request meets the stranger, later ones the server: so a run that failed is written down.
        proxy.fault((n) => (n === 1 || raw !== echoes[0] ? { kind: "answer", raw } : { kind: "pass" }));
        const run = await program(["sweep-prune", "--json"], { DATABASE_URL: proxy.url.replace("http", scheme), TURSO_AUTH_TOKEN: TOKEN, SWEEP_REQUEST_TIMEOUT_MS: "2000" });
        clean(raw.slice(0, 40), run);
      }
    }
    await proxy.stop();
    const errors = (await client.execute("SELECT error FROM sweep_runs WHERE outcome = 'failed'")).rows.map(({ error }) => String(error));
    expect(errors.length).toBeGreaterThan(0);
    expect(errors[0]).toContain("who sent Bearer ***?");
    expect(leaks(JSON.stringify(await everything({ client })))).toEqual([]);
  });
});

test("credentials in a URL are in no message, whatever else is wrong with it", async () => {
  const secret = "swordfish-1234";
  for (const url of [`http://user:${secret}@127.0.0.1:1`, `libsql://db.example?authToken=${secret}`, `ws://x:${secret}@h/p?tls=0`, `mysql://u:${secret}@h`, `file:q.db?authToken=${secret}`, `http://${secret}@`, `http://h/?jwt=${secret}`, `sqlite:q.db#${secret}`]) {
    for (const verb of ["sweep-expire", "migrate", "verify"]) {
      const { code, stdout, stderr } = await program([verb], { DATABASE_URL: url });
      expect(code, url).toBe(78);
      expect(stdout + stderr, url).not.toContain(secret);
    }
  }
});

const HOSTILE = [`'; DROP TABLE tasks; --`, `"); DELETE FROM events; --`, `:run_id`, `$1 @x ?1`, `%s\\`, "`${process.exit()}`", `a'||(SELECT 1)||'b`, "line\nbreak\u0007", "\u202e😀"];

onEachEngine("what callers write", (test) => {
  test("is data in every field of every verb, and never a statement", async ({ db }) => {
    const schema = await db.rows("SELECT count(*) AS n FROM sqlite_schema");
    for (const [i, text] of HOSTILE.entries()) {
      await queue.enqueue(db.queue, { key: `${text}${i}`, queue: text, payload: JSON.stringify(text) });
      const [task] = await queue.claim(db.queue, { queue: text, worker: text, token: text, lease_ms: 1000 });
      expect(task).toMatchObject({ key: `${text}${i}`, queue: text, payload: JSON.stringify(text) });
      const task_id = Number(task!.task_id);
      await queue.park(db.queue, { task_id, token: text, park_reason: text, ready_condition: JSON.stringify({ kind: "event_seen", event: text, subject: text }) });
      await db.client.execute({ sql: "INSERT INTO events (at_ms, kind, subject) VALUES (?, ?, ?)", args: [BigInt(NOW), text, text] });
      expect(await db.rows("SELECT task_id FROM would_release_tasks")).toEqual([{ task_id }]);
      expect(await db.run("sweep-would-release")).toMatchObject({ code: 0, stderr: "" });
      expect(await db.sweep("sweep-expire", ["--observe", "--run-id", `${text}${i}`])).toMatchObject({ run_id: `${text}${i}` });
      expect(await queue.release(db.queue, { task_id, reason: text })).toMatchObject([{ task_id }]);
      expect(await db.rows(`SELECT count(*) AS n FROM tasks`)).toEqual([{ n: i + 1 }]);
    }
    expect((await db.rows("SELECT payload ->> '$.reason' AS reason FROM events WHERE kind = 'park_released' ORDER BY id")).map(({ reason }) => reason)).toEqual(HOSTILE);
    expect(await db.rows("SELECT count(*) AS n FROM sqlite_schema")).toEqual(schema);
  });
});
