// What happens to files: the disk fills up, a page goes bad, somebody replaces or deletes the database while it is in use.
import { execFileSync, spawn, spawnSync } from "node:child_process";
import { chmodSync, copyFileSync, mkdirSync, openSync, readFileSync, renameSync, rmSync, statSync, writeFileSync, writeSync, closeSync } from "node:fs";
import { join } from "node:path";
import { createClient } from "@libsql/client";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { openDatabase } from "../scripts/lib/database.js";
import { queue } from "../scripts/lib/queue.js";
import { readTarget } from "../scripts/lib/target.js";
import { runSweep } from "../scripts/sweep.js";
import { everything, fresh, program, ROOT, scratch } from "./support.js";

const at = (path: string) => ({ DATABASE_URL: `sqlite:${path}` });
const template = join(scratch, "template.db");
beforeAll(async () => {
  expect(await program(["migrate"], at(template))).toMatchObject({ code: 0, stderr: "" });
});
function migrated(path: string): string {
  copyFileSync(template, path);
  return path;
}

/** Events past the retention, which pruning deletes, and leases that have run out. */
const work = (n: number) => `
  INSERT INTO tasks (id, queue, state, claimed_by, lease_token) SELECT value, 'q', 'leased', 'w', 't' FROM json_each('${JSON.stringify(Array.from({ length: n }, (_, i) => i + 1))}');
  INSERT INTO leases (task_id, worker, token, expires_at_ms) SELECT id, 'w', 't', 1700000000000 FROM tasks;`;
const integrity = async (path: string) => {
  const client = createClient({ url: `file:${path}` });
  const [row] = (await client.execute("PRAGMA integrity_check")).rows;
  const left = await everything({ client });
  client.close();
  return { check: row!.integrity_check, left };
};

const disk = join(scratch, "small-disk");
mkdirSync(disk);
const canMount = spawnSync("mount", ["-t", "tmpfs", "-o", "size=1m", "tmpfs", disk]).status === 0;
afterAll(() => canMount && execFileSync("umount", ["--lazy", disk]));

describe.skipIf(!canMount)("a disk that is full (skipped where no small one may be mounted)", () => {
  test("fails the sweep with the reason in one line and code 1; nothing is half done, and it carries on once there is room", async () => {
    const path = migrated(join(disk, "queue.db"));
    const client = createClient({ url: `file:${path}` });
    await client.executeMultiple(work(300));
    await client.execute("PRAGMA wal_checkpoint(TRUNCATE)");
    const before = await everything({ client });
    client.close();
    const filler = join(disk, "filler");
    spawnSync("dd", ["if=/dev/zero", `of=${filler}`, "bs=4k"]);

    for (const verb of ["sweep-expire", "sweep-prune", "sweep-proof"]) {
      const { code, stdout, stderr } = await program([verb], at(path));
      expect({ code, stdout }, stderr).toEqual({ code: 1, stdout: "" });
      expect(stderr, verb).toMatch(/^[^\n]*queue.db is full, or its disk is: nothing of this was done; make room, then run it again\n$/);
    }
    rmSync(filler);
    expect(await integrity(path)).toEqual({ check: "ok", left: before });
    const { code, stdout } = await program(["sweep-expire", "--json"], at(path));
    expect(code).toBe(0);
    expect(JSON.parse(stdout)).toMatchObject({ outcome: "ok", expired_leases: 300, drained: true });
    rmSync(path);
  });

  test("keeps migrating from leaving half a schema", async () => {
    spawnSync("dd", ["if=/dev/zero", `of=${join(disk, "filler")}`, "bs=4k", "count=236"]);
    const path = join(disk, "new.db");
    const { code, stderr } = await program(["migrate"], at(path));
    expect(code, stderr).toBe(1);
    expect(stderr).toMatch(/^[^\n]*new.db is full, or its disk is[^\n]*\n$/);
    rmSync(join(disk, "filler"));
    expect(await program(["migrate"], at(path))).toMatchObject({ code: 0, stderr: "" });
    expect((await integrity(path)).check).toBe("ok");
  });
});

/** The daemon on this file, looking often. Its errors, a line each, and an end to it. */
function daemon(path: string) {
  const child = spawn(process.execPath, [join(ROOT, "dist/main.js"), "sweep-daemon"], { env: { PATH: process.env.PATH, HOME: scratch, SWEEP_POLL_MS: "100", ...at(path) }, stdio: ["ignore", "ignore", "pipe"] });
  let stderr = "";
  child.stderr.on("data", (text) => (stderr += text));
  const ended = new Promise<number | null>((resolve) => child.once("close", resolve));
  onTestFinished(() => void child.kill("SIGKILL"));
  return { process: child, errors: () => stderr.split("\n").slice(0, -1), stop: () => (child.kill("SIGTERM"), ended) };
}
async function until(holds: () => boolean | Promise<boolean>, what: () => string): Promise<void> {
  for (let tries = 0; !(await holds()); tries++) {
    if (tries === 600) throw new Error(`did not come to be within half a minute: ${what()}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

describe("under the daemon", () => {
  const expired = async (path: string) => {
    const client = createClient({ url: `file:${path}`, timeout: 5000 });
    const { rows } = await client.execute("SELECT count(*) AS n FROM events WHERE kind = 'lease_expired'");
    client.close();
    return Number(rows[0]!.n);
  };

  test.skipIf(!canMount)("a full disk is told, nothing is half done, and the work is done once there is room", async () => {
    const path = migrated(join(disk, "daemon.db"));
    const client = createClient({ url: `file:${path}`, timeout: 5000 });
    // As in a quiet minute: what is left of the disk is filled before there is anything to do.
    await client.executeMultiple(`${work(300)} PRAGMA wal_checkpoint(TRUNCATE);`);
    client.close();
    const filler = join(disk, "filler");
    spawnSync("dd", ["if=/dev/zero", `of=${filler}`, "bs=4k"]);
    const running = daemon(path);
    await until(() => running.errors().length > 0, () => "no error");
    expect(running.errors()[0]).toMatch(/daemon.db is full, or its disk is: nothing of this was done; make room, then run it again/);
    expect(running.process.exitCode).toBe(null);
    rmSync(filler);
    // A sweep that failed is tried again after a minute, by the database's clock, which need not be waited for.
    const later = createClient({ url: `file:${path}`, timeout: 5000 });
    await later.executeMultiple(`UPDATE sweep_settings SET value = ${Date.now() + 600_000} WHERE name = 'fake_now_ms'`);
    later.close();
    await until(async () => (await expired(path)) === 300, () => running.errors().join("\n"));
    expect(await running.stop()).toBe(0);
    expect((await integrity(path)).check).toBe("ok");
    rmSync(path);
  });

  test("a database that is deleted is told in one line, and one put in its place is swept", async () => {
    const path = migrated(fresh("queue.db"));
    const running = daemon(path);
    await new Promise((resolve) => setTimeout(resolve, 1500));
    for (const file of [path, `${path}-wal`, `${path}-shm`]) rmSync(file, { force: true });
    await until(() => running.errors().length > 0, () => "no error");
    expect(running.errors()).toEqual([`no database at ${path}: run "make migrate" or correct DATABASE_URL; trying again every minute`]);
    const restored = migrated(fresh("restored.db"));
    const client = createClient({ url: `file:${restored}` });
    await client.executeMultiple(`${work(5)} PRAGMA wal_checkpoint(TRUNCATE);`);
    client.close();
    renameSync(restored, path);
    await until(async () => (await expired(path)) === 5, () => running.errors().join("\n"));
    expect(running.errors().at(-1)).toMatch(/answers again$/);
    expect(await running.stop()).toBe(0);
  });
});

describe("a database file", () => {
  test("that has a damaged page is said to be damaged, and nothing of the sweep stays", async () => {
    const path = migrated(fresh("damaged.db"));
    const client = createClient({ url: `file:${path}` });
    await client.executeMultiple(work(2000) + "PRAGMA wal_checkpoint(TRUNCATE);");
    const [{ pageno } = {}] = (await client.execute("SELECT max(pageno) AS pageno FROM dbstat WHERE name = 'leases'")).rows.map((row) => ({ ...row }));
    client.close();
    const handle = openSync(path, "r+");
    writeSync(handle, Buffer.alloc(4096, 0x5a), 0, 4096, (Number(pageno) - 1) * 4096);
    closeSync(handle);

    const { code, stdout, stderr } = await program(["sweep-expire"], at(path));
    expect({ code, stdout }, stderr).toEqual({ code: 1, stdout: "" });
    expect(stderr).toMatch(/^expire_leases[^\n]*damaged.db is damaged \([^\n]*malformed\): stop its writers and restore it from a backup\n$/);
  });

  test("of another application is told to be migrated, and is left as it is", async () => {
    const path = fresh("other.db");
    const client = createClient({ url: `file:${path}` });
    await client.executeMultiple("CREATE TABLE tasks (id INTEGER PRIMARY KEY, title TEXT); INSERT INTO tasks (title) VALUES ('buy milk');");
    client.close();
    const before = readFileSync(path);
    for (const verb of ["sweep-expire", "sweep-revalidate", "sweep-prune", "verify", "sweep-would-release"]) {
      const { code, stderr } = await program([verb], at(path));
      expect(code, stderr).toBe(78);
      expect(stderr, verb).toMatch(/^[^\n]+pending migrations[^\n]*\n$/);
    }
    // And not migrated over: what is there under our names is not ours.
    const { code, stderr } = await program(["migrate"], at(path));
    expect(code, stderr).toBe(1);
    expect(stderr).toMatch(/^[^\n]*table tasks already exists[^\n]*\n$/);
    const after = await integrity(path);
    expect(after.check).toBe("ok");
    expect(after.left.tasks).toEqual([{ id: 1, title: "buy milk" }]);
    expect(before.length).toBeGreaterThan(0);
  });

  test("that is deleted while it is open is not written on out of sight, and one that takes its place is found", async () => {
    const path = migrated(fresh("queue.db"));
    const db = await openDatabase(readTarget(at(path)));
    expect(await queue.enqueue(db, { queue: "q" })).toEqual([{ task_id: 1 }]);

    for (const file of [path, `${path}-wal`, `${path}-shm`]) rmSync(file, { force: true });
    await expect(queue.enqueue(db, { queue: "q" })).rejects.toMatchObject({ exitCode: 69, message: `no database at ${path}: run "make migrate" or correct DATABASE_URL` });
    mkdirSync(path);
    await expect(queue.enqueue(db, { queue: "q" })).rejects.toMatchObject({ exitCode: 78, message: `${path} is no database but a directory or device: correct DATABASE_URL` });
    rmSync(path, { recursive: true });

    const other = migrated(fresh("restored.db"));
    renameSync(other, path);
    expect(await queue.enqueue(db, { queue: "q", key: "after" })).toEqual([{ task_id: 1 }]);
    db.close();
    expect((await integrity(path)).left.tasks).toMatchObject([{ id: 1, key: "after" }]);
  });

  test("that is deleted in the middle of a run fails it, with code 69", async () => {
    const path = migrated(fresh("queue.db"));
    const client = createClient({ url: `file:${path}` });
    await client.executeMultiple(`${work(500)} UPDATE sweep_settings SET value = 1 WHERE name = 'expire_batch_rows';`);
    client.close();
    const db = await openDatabase(readTarget(at(path)));
    const run = runSweep(db, "expire_leases");
    setTimeout(() => [path, `${path}-wal`, `${path}-shm`].forEach((file) => rmSync(file, { force: true })), 60);
    await expect(run).rejects.toMatchObject({ exitCode: 69, message: expect.stringMatching(/^expire_leases: no database at /) });
    db.close();
  });

  test("made by us is its owner's alone, whatever the umask, with its log and the folder made for it", async () => {
    const folder = join(fresh("home"), ".data");
    const path = join(folder, "queue.db");
    const run = spawnSync("sh", ["-c", 'umask 000; exec "$0" "$@"', process.execPath, join(import.meta.dirname, "../dist/main.js"), "migrate"], { env: { PATH: process.env.PATH, ...at(path) }, encoding: "utf8" });
    expect(run).toMatchObject({ status: 0, stderr: "" });
    const client = createClient({ url: `file:${path}` });
    await client.executeMultiple(work(1));
    const mode = (file: string) => (statSync(file).mode & 0o777).toString(8);
    expect([path, `${path}-wal`, `${path}-shm`, folder].map(mode)).toEqual(["600", "600", "600", "700"]);
    client.close();
    // What an operator has opened up to a group stays as the operator made it.
    chmodSync(path, 0o660);
    expect(await program(["migrate"], at(path))).toMatchObject({ code: 0 });
    expect(mode(path)).toBe("660");
  });
});

test("a mode file in another encoding is an error, not a release", async () => {
  const path = migrated(fresh("queue.db"));
  const file = fresh("mode");
  writeFileSync(file, Buffer.from("\ufeffenabled", "utf16le"));
  const { code, stderr } = await program(["sweep-revalidate"], { ...at(path), SWEEP_MODE_FILE: file });
  expect(code).toBe(78);
  expect(stderr).toMatch(/^revalidate_parked_tasks: mode file [^\n]*nothing was released; allowed are observe, enabled and off\n$|^mode file [^\n]*nothing was released; allowed are observe, enabled and off\n$/);
});
