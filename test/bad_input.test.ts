import { execFile, execFileSync, spawnSync } from "node:child_process";
import { generateKeyPairSync, sign, type KeyObject } from "node:crypto";
import { chmodSync, copyFileSync, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer, type AddressInfo } from "node:net";
import { join } from "node:path";
import { createClient } from "@libsql/client";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { explain } from "../scripts/lib/database.js";
import { everything, freePort, fresh, program, ROOT, scratch, startServer, type Run } from "./support.js";

/** Every verb that opens the database; the daily pair stands for those that run several sweeps. */
const SWEEPS = ["sweep-expire", "sweep-revalidate", "sweep-prune", "sweep-daily"];
const LOOKS = ["migrate-status", "verify", "sweep-would-release", "sweep-explain"];
const ALL = [...SWEEPS, ...LOOKS, "migrate"];

/** The run failed with this code, and said why in one line (one a sweep), without a stack trace. */
function expectFailure(verb: string, run: Run, code: number, message: string | RegExp): void {
  expect({ verb, code: run.code, stdout: run.stdout, stderr: run.stderr }).toMatchObject({ verb, code, stdout: "" });
  const lines = run.stderr.split("\n");
  expect(lines.pop(), `${verb} ends its line`).toBe("");
  expect(lines.length, run.stderr).toBeLessThanOrEqual(verb === "sweep-daily" ? 2 : 1);
  for (const line of lines) expect(line).toMatch(message);
  expect(run.stderr).not.toMatch(/^\s+at |node:|unexpected:/m);
}

/** Runs the verbs two at a time, as many as there are processors to spare. */
async function eachFails(verbs: string[], env: Record<string, string>, code: number, message: string | RegExp): Promise<void> {
  for (let i = 0; i < verbs.length; i += 2) {
    const pair = verbs.slice(i, i + 2);
    const runs = await Promise.all(pair.map((verb) => program([verb], env)));
    pair.forEach((verb, j) => expectFailure(verb, runs[j]!, code, message));
  }
}

const template = join(scratch, "template.db");
const at = (path: string) => ({ DATABASE_URL: `sqlite:${path}` });
function migrated(name: string): string {
  const path = fresh(name);
  copyFileSync(template, path);
  return path;
}
beforeAll(async () => {
  expect(await program(["migrate"], at(template))).toMatchObject({ code: 0, stderr: "" });
});

describe("usage", () => {
  test("a verb or option that is none, or is missing, is wrong usage, before any database is looked at", async () => {
    const nowhere = { DATABASE_URL: "mysql://x" };
    const wrong: [args: string[], message: string][] = [
      [[], "no verb given: see fleet-queue-sweepers help"],
      [["sweep"], 'unknown verb "sweep": see fleet-queue-sweepers help'],
      [["toString"], 'unknown verb "toString"'],
      [["sweep-expire", "sweep-prune"], "one verb at a time, got sweep-expire sweep-prune"],
      [["sweep-expire", "--force"], "Unknown option '--force': see fleet-queue-sweepers help"],
      [["sweep-expire", "-x"], "Unknown option '-x'"],
      [["--observe"], "no verb given"],
      [["sweep-expire", "--observe=yes"], "Option '--observe' does not take an argument"],
      [["sweep-expire", "--origin", "cron"], '--origin takes timer, daemon or manual, got "cron"'],
      [["sweep-expire", "--run-id"], "argument missing"],
      [["sweep-expire", "--run-id", ""], "--run-id is empty"],
    ];
    for (const [args, message] of wrong) expectFailure(args.join(" "), await program(args, nowhere), 64, message);
  });

  test("an identity for one run is not shared out among several sweeps", async () => {
    expectFailure("sweep-daily", await program(["sweep-daily", "--run-id", "x"], at(migrated("queue.db"))), 64, "--run-id names one run");
  });
});

describe("DATABASE_URL", () => {
  test("what names no database is a wrong configuration; no password or token in it is ever printed", async () => {
    const nonsense: [url: string, message: string][] = [
      ["nonsense", "DATABASE_URL is none of sqlite:PATH"],
      ["/var/lib/queue.db", "DATABASE_URL is none of sqlite:PATH"],
      ["mysql://x", "DATABASE_URL is none of sqlite:PATH"],
      ["postgres://user:secret@host/db", "DATABASE_URL carries credentials"],
      ["http://", "DATABASE_URL is none of sqlite:PATH"],
      ["http://user:secret@host", "DATABASE_URL carries credentials"],
      ["libsql://secret@host", "DATABASE_URL carries credentials"],
      ["libsql://host?authToken=secret", "DATABASE_URL for host carries credentials"],
      ["file://user:secret@host/x.db", "DATABASE_URL carries credentials"],
      ["sqlite:", "DATABASE_URL must name a plain file"],
      ["file:", "DATABASE_URL must name a plain file"],
      ["sqlite::memory:", "DATABASE_URL must name a plain file"],
      ["file:x?mode=ro", "DATABASE_URL must name a plain file, without parameters"],
      ["file:x?authToken=secret", "DATABASE_URL must name a plain file, without parameters"],
      ["http://127.0.0.1:9?jwt=secret", 'Unsupported URL query parameter "jwt": correct DATABASE_URL'],
    ];
    for (const [url, message] of nonsense) {
      const run = await program(["sweep-expire"], { DATABASE_URL: url });
      expectFailure("sweep-expire", run, 78, message);
      expect(run.stderr).not.toContain("secret");
    }
    for (const verb of ["migrate", "verify"]) expectFailure(verb, await program([verb], { DATABASE_URL: "mysql://x" }), 78, "DATABASE_URL is none of");
    expect(readdirSync(scratch).filter((name) => name.startsWith("x"))).toEqual([]);
  });
});

describe("a file", () => {
  test("that is not there is not made by a mistyped name", async () => {
    const path = fresh("none.db");
    await eachFails([...SWEEPS, ...LOOKS], at(path), 69, `no database at ${path}: run "make migrate" or correct DATABASE_URL`);
    expect(existsSync(path)).toBe(false);
  });

  test("that is a directory is no database", async () => {
    const path = fresh("folder");
    mkdirSync(path);
    await eachFails(ALL, at(path), 78, `${path} is no database but a directory or device: correct DATABASE_URL`);
  });

  test("below another file cannot be made", async () => {
    const path = join(template, "below.db");
    expectFailure("migrate", await program(["migrate"], at(path)), 78, `${path} cannot be created`);
  });

  test("that is something else is no database, and is left as it is", async () => {
    const path = fresh("letter.txt");
    writeFileSync(path, "Dear reader,\n".repeat(500));
    const before = readFileSync(path);
    await eachFails(ALL, at(path), 78, `${path} is not a SQLite database: correct DATABASE_URL`);
    expect(readFileSync(path)).toEqual(before);
  });

  test("that is empty has everything pending", async () => {
    const path = fresh("empty.db");
    writeFileSync(path, "");
    await eachFails([...SWEEPS, "verify", "sweep-would-release", "sweep-explain"], at(path), 78, /pending migrations; run "make migrate"$/);
    const status = await program(["migrate-status"], at(path));
    expect(status).toMatchObject({ code: 1, stderr: `${path}: 5 pending migrations: run "make migrate"\n` });
    expect(status.stdout.match(/^pending /gm)).toHaveLength(5);
    expect(readFileSync(path)).toHaveLength(0);
  });

  test("migrated only by the first files is told to migrate, and is whole once it is", async () => {
    const path = fresh("half.db");
    const first = fresh("first");
    mkdirSync(first);
    for (const file of readdirSync(join(ROOT, "db/migrations")).sort().slice(0, 2)) copyFileSync(join(ROOT, "db/migrations", file), join(first, file));
    execFileSync(join(ROOT, "node_modules/.bin/dbmate"), ["--url", `sqlite:${path}`, "--migrations-dir", first, "--no-dump-schema", "up"]);

    await eachFails([...SWEEPS, "verify", "sweep-would-release", "sweep-explain"], at(path), 78, /no such table: \w+: pending migrations; run "make migrate"$/);
    expect(await program(["migrate-status"], at(path))).toMatchObject({ code: 1, stderr: `${path}: 3 pending migrations: run "make migrate"\n` });

    expect(await program(["migrate"], at(path))).toMatchObject({ code: 0, stderr: "" });
    expect(await program(["sweep-expire"], at(path))).toMatchObject({ code: 0, stderr: "" });
  });

  test("whose newest migration is not recorded is not swept", async () => {
    const path = migrated("older.db");
    const client = createClient({ url: `file:${path}` });
    await client.execute("DELETE FROM schema_migrations WHERE version = (SELECT max(version) FROM schema_migrations)");
    // An idle expiry finds out when it reads itself back; it has counted itself by then, which is all it did.
    const uncounted = async () => JSON.stringify(await everything({ client }), (_, row) => (row?.id === "expire_leases.idle" ? "idle" : row));
    const before = await uncounted();

    await eachFails(SWEEPS, at(path), 78, /pending migrations: the schema is older than the sweeps; run "make migrate"$/);

    expect(await uncounted()).toEqual(before);
    client.close();
    expect(await program(["migrate-status"], at(path))).toMatchObject({ code: 1, stderr: `${path}: 1 pending migrations: run "make migrate"\n` });
  });

  test("in which another process holds a write transaction for too long is busy, and is swept once that is over", async () => {
    const path = migrated("busy.db");
    const empty = fresh("busy-empty.db");
    writeFileSync(empty, "");
    const clients = [path, empty].map((file) => createClient({ url: `file:${file}` }));
    const before = await everything({ client: clients[0]! });
    const held = await Promise.all(clients.map((client) => client.transaction("write")));
    const verbs = ["sweep-expire", "sweep-revalidate", "sweep-prune"];

    // Looking waits for nobody.
    for (const verb of ["verify", "sweep-would-release", "migrate-status"]) expect(await program([verb], at(path)), verb).toMatchObject({ code: 0, stderr: "" });
    const [migrate, ...runs] = await Promise.all([program(["migrate"], at(empty)), ...verbs.map((verb) => program([verb], at(path)))]);

    for (const transaction of held) await transaction.rollback();
    verbs.forEach((verb, i) => expectFailure(verb, runs[i]!, 75, `${path} is busy: another writer holds it; try again`));
    expectFailure("migrate", migrate!, 75, `${empty} is busy: another writer holds it; try again`);
    expect(await everything({ client: clients[0]! })).toEqual(before);
    for (const client of clients) client.close();
    expect(await program(["sweep-expire"], at(path))).toMatchObject({ code: 0, stderr: "" });
  });
});

const MAIN = join(ROOT, "dist/main.js");
const NOBODY = ["--reuid=65534", "--regid=65534", "--clear-groups"];
const isRoot = process.getuid?.() === 0;
/** Root may do everything, so these tests need somebody who may not: the user of the tests, or nobody. */
const hasSomebody = !isRoot || spawnSync("setpriv", [...NOBODY, process.execPath, "-e", `require("fs").readFileSync(${JSON.stringify(MAIN)})`]).status === 0;

describe.skipIf(!hasSomebody)("without permission (skipped for root where setpriv is missing or nobody may not read the package)", () => {
  beforeAll(() => chmodSync(scratch, 0o755));

  const unprivileged = (verb: string, path: string): Promise<Run> =>
    new Promise((resolve) => {
      const command = isRoot ? ["setpriv", ...NOBODY, process.execPath] : [process.execPath];
      execFile(command[0]!, [...command.slice(1), MAIN, verb], { env: { PATH: process.env.PATH, HOME: scratch, ...at(path) }, cwd: scratch }, (error, stdout, stderr) =>
        resolve({ code: error ? Number(error.code) : 0, stdout, stderr }),
      );
    });

  test("a file that may only be read is refused to the sweeps, and looked at by the rest", async () => {
    const path = migrated("read-only.db");
    const client = createClient({ url: `file:${path}` });
    await client.execute("PRAGMA journal_mode = DELETE");
    client.close();
    chmodSync(path, 0o444);
    const before = readFileSync(path);

    for (const verb of [...SWEEPS, "sweep-proof"]) expectFailure(verb, await unprivileged(verb, path), 77, `${path} may not be written: give this user write permission on the file and its directory`);
    for (const verb of LOOKS) expect(await unprivileged(verb, path), verb).toMatchObject({ code: 0, stderr: "" });

    expect(readFileSync(path)).toEqual(before);
  });

  test("a write-ahead log that may not be written keeps everybody out", async () => {
    const folder = fresh("folder");
    mkdirSync(folder);
    const path = join(folder, "queue.db");
    copyFileSync(template, path);
    chmodSync(path, 0o444);
    chmodSync(folder, 0o555);
    for (const verb of ALL) expectFailure(verb, await unprivileged(verb, path), 77, `${path} may not be written`);
    chmodSync(folder, 0o755);
  });

  test("a file that may not be read, or a folder that may not be entered, is refused", async () => {
    const path = migrated("secret.db");
    chmodSync(path, 0);
    for (const verb of ["sweep-expire", "verify", "migrate"]) expectFailure(verb, await unprivileged(verb, path), 77, `${path} may not be read: give this user permission on the file and its directory`);
    const folder = fresh("secret");
    mkdirSync(folder, { mode: 0o700 });
    if (!isRoot) chmodSync(folder, 0);
    expectFailure("sweep-expire", await unprivileged("sweep-expire", join(folder, "queue.db")), 77, "queue.db may not be read");
    expectFailure("migrate", await unprivileged("migrate", join(folder, "queue.db")), 77, "cannot be created (EACCES): give this user write permission on its directory");
    if (!isRoot) chmodSync(folder, 0o755);
  });
});

describe("a server", () => {
  const key = generateKeyPairSync("ed25519");
  const tokenOf = (privateKey: KeyObject, claims: object) => {
    const encode = (part: object) => Buffer.from(JSON.stringify(part)).toString("base64url");
    const signed = `${encode({ alg: "EdDSA", typ: "JWT" })}.${encode(claims)}`;
    return `${signed}.${sign(null, Buffer.from(signed), privateKey).toString("base64url")}`;
  };
  const good = tokenOf(key.privateKey, {});
  let server: Awaited<ReturnType<typeof startServer>>;
  let client: ReturnType<typeof createClient>;

  beforeAll(async () => {
    const pem = fresh("key.pem");
    writeFileSync(pem, key.publicKey.export({ type: "spki", format: "pem" }));
    server = await startServer(fresh("server"), "--auth-jwt-key-file", pem);
    expect(await program(["migrate"], { DATABASE_URL: server.url, TURSO_AUTH_TOKEN: good })).toMatchObject({ code: 0, stderr: "" });
    client = createClient({ url: server.url, authToken: good });
  });
  afterAll(async () => {
    client?.close();
    await server?.stop();
  });

  test("that is not there cannot be reached, by any transport or verb", async () => {
    const port = await freePort();
    await eachFails(ALL, { DATABASE_URL: `http://127.0.0.1:${port}` }, 69, `http://127.0.0.1:${port}/ cannot be reached (ECONNREFUSED): check DATABASE_URL and the server, then try again`);
    for (const scheme of ["libsql", "https", "ws"]) {
      expectFailure("sweep-expire", await program(["sweep-expire"], { DATABASE_URL: `${scheme}://127.0.0.1:${port}` }), 69, /cannot be reached \(.*ECONNREFUSED/);
    }
  });

  test("that takes the call and never answers counts as not there", async () => {
    const silent = createServer().listen(0, "127.0.0.1");
    await new Promise((resolve) => silent.once("listening", resolve));
    const url = `http://127.0.0.1:${(silent.address() as AddressInfo).port}`;
    const error: unknown = await fetch(url, { signal: AbortSignal.timeout(50) }).catch((late: unknown) => late);
    expect(explain(error, { url, shown: url, requestTimeoutMs: 30_000 })).toMatchObject({ exitCode: 69, message: `${url} did not answer within 30 s: check the server, then try again` });
    silent.close();
  });

  test("that has no such name cannot be reached", async () => {
    expectFailure("sweep-expire", await program(["sweep-expire"], { DATABASE_URL: "http://sweepers.invalid" }), 69, /sweepers.invalid\/ cannot be reached \((ENOTFOUND|EAI_AGAIN)\)/);
  });

  test("takes a good token, with the line ending that a file leaves behind it", async () => {
    for (const token of [good, `${good}\n`, ` ${good}\r\n`]) expect(await program(["sweep-expire"], { DATABASE_URL: server.url, TURSO_AUTH_TOKEN: token })).toMatchObject({ code: 0, stderr: "" });
  });

  test("refuses a wrong, expired or missing token; the token is never printed and nothing changes", async () => {
    const before = await everything({ client });
    const wrong: Record<string, string> = {
      "of another key": tokenOf(generateKeyPairSync("ed25519").privateKey, {}),
      expired: tokenOf(key.privateKey, { exp: 1_700_000_000 }),
      "cut short": good.slice(0, -9),
      garbage: "swordfish",
    };
    for (const [name, token] of Object.entries(wrong)) {
      for (const verb of name === "of another key" ? ALL : ["sweep-expire"]) {
        const run = await program([verb], { DATABASE_URL: server.url, TURSO_AUTH_TOKEN: token });
        expectFailure(verb, run, 77, `${server.url}/ refused the token (401): check TURSO_AUTH_TOKEN`);
        for (const part of token.split(".")) expect(run.stdout + run.stderr).not.toContain(part);
      }
    }
    expectFailure("sweep-expire", await program(["sweep-expire"], { DATABASE_URL: server.url }), 77, "refused the token (401)");
    expect(await everything({ client })).toEqual(before);
  });

  test("a token that cannot be one is refused before it is sent, and not printed", async () => {
    for (const token of ["sword\nfish", "sword fish", "swordfish→"]) {
      const run = await program(["sweep-expire"], { DATABASE_URL: server.url, TURSO_AUTH_TOKEN: token });
      expectFailure("sweep-expire", run, 77, "TURSO_AUTH_TOKEN holds characters that no token has");
      expect(run.stderr).not.toMatch(/sword|fish/);
    }
  });

  test("with --json too the token is never printed", async () => {
    const token = tokenOf(generateKeyPairSync("ed25519").privateKey, {});
    const { code, stdout, stderr } = await program(["sweep-daily", "--json"], { DATABASE_URL: server.url, TURSO_AUTH_TOKEN: token });
    expect(code).toBe(77);
    expect(stdout.trim().split("\n").map((line) => JSON.parse(line))).toMatchObject([{ sweep: "revalidate_parked_tasks", outcome: "failed" }, { sweep: "prune_events", outcome: "failed" }]);
    expect(stdout + stderr).not.toContain(token.split(".")[2]);
  });

  test("lets a token that may only read look, and refuses it everything else", async () => {
    const env = { DATABASE_URL: server.url, TURSO_AUTH_TOKEN: tokenOf(key.privateKey, { a: "ro" }) };
    const before = await everything({ client });
    for (const verb of LOOKS) expect(await program([verb], env), verb).toMatchObject({ code: 0, stderr: "" });
    for (const verb of SWEEPS) expectFailure(verb, await program([verb], env), 77, "refused the token (403)");
    expect(await everything({ client })).toEqual(before);
  });

  test("over a web socket a bad token is refused, or, where the server hangs up first, named among the causes", async () => {
    const url = server.url.replace("http", "ws");
    const run = await program(["sweep-expire"], { DATABASE_URL: url, TURSO_AUTH_TOKEN: tokenOf(key.privateKey, { exp: 1_700_000_000 }) });
    expect([69, 77]).toContain(run.code);
    expectFailure("sweep-expire", run, run.code, "TURSO_AUTH_TOKEN");
  });

  test("that has only the first migrations has the rest pending", async () => {
    const bare = await startServer(fresh("bare"));
    await eachFails(["sweep-expire", "sweep-daily", "verify", "sweep-would-release", "sweep-explain"], { DATABASE_URL: bare.url }, 78, /no such table: \w+: pending migrations; run "make migrate"$/);
    expect(await program(["migrate-status"], { DATABASE_URL: bare.url })).toMatchObject({ code: 1, stderr: `${bare.url}/: 5 pending migrations: run "make migrate"\n` });
    await program(["migrate"], { DATABASE_URL: bare.url });
    const half = createClient({ url: bare.url });
    await half.execute("DELETE FROM schema_migrations WHERE version = (SELECT max(version) FROM schema_migrations)");
    half.close();
    await eachFails(["sweep-expire", "sweep-daily"], { DATABASE_URL: bare.url }, 78, /pending migrations: the schema is older than the sweeps; run "make migrate"$/);
    await bare.stop();
  });
});
