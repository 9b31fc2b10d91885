// The units under a real systemd: one is booted in a container from this machine's own /usr, with everything else empty.
import { execFile, execFileSync, spawn, spawnSync, type ChildProcess } from "node:child_process";
import { generateKeyPairSync, sign } from "node:crypto";
import { realpathSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { createClient, type Client } from "@libsql/client";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { fresh, program, ROOT, startServer } from "./support.js";

const INSIDE = "/opt/fleet-queue-sweepers";
const missing = process.getuid?.() !== 0 ? "it needs root" : spawnSync("systemd-nspawn", ["--version"]).status !== 0 ? "it needs systemd-nspawn (Debian: systemd-container)" : !process.execPath.startsWith("/usr/") ? "it needs node under /usr" : canBoot();

/** Why this machine cannot boot a container, or undefined. */
function canBoot(): string | undefined {
  const { status, stderr, signal } = spawnSync("systemd-nspawn", [...nspawn(`probe-${process.pid}`), "--as-pid2", "--pipe", "/bin/true"], { encoding: "utf8", timeout: 30_000, killSignal: "SIGKILL" });
  return status === 0 ? undefined : `it needs to be allowed containers (${(stderr || String(signal)).trim().split("\n").at(-1)})`;
}

function nspawn(machine: string): string[] {
  const modules = realpathSync(join(ROOT, "node_modules"));
  const elsewhere = modules.startsWith(realpathSync(ROOT)) ? [] : [`--bind-ro=${modules}`];
  return ["-q", "-D", "/", "--volatile=yes", `--machine=${machine}`, "--register=no", "--keep-unit", `--bind-ro=${resolve(ROOT)}:${INSIDE}`, ...elsewhere];
}

if (missing) console.log(`test/systemd.test.ts is skipped: ${missing}`);

describe.skipIf(missing)("under a real systemd", () => {
  const key = generateKeyPairSync("ed25519");
  const coded = (value: unknown) => Buffer.from(JSON.stringify(value)).toString("base64url");
  const unsigned = `${coded({ alg: "EdDSA", typ: "JWT" })}.${coded({ a: "rw" })}`;
  const token = `${unsigned}.${sign(null, Buffer.from(unsigned), key.privateKey).toString("base64url")}`;

  let server: Awaited<ReturnType<typeof startServer>>;
  let client: Client;
  let container: ChildProcess;
  let ended: Promise<void>;
  let init = "";
  /** Runs a shell script inside; at most a minute. Never throws. */
  const inside = (script: string) =>
    new Promise<{ code: number; out: string }>((done) => {
      execFile("nsenter", ["-t", init, "-a", "/bin/sh", "-c", script], { timeout: 60_000 }, (error, stdout, stderr) => done({ code: error ? Number(error.code ?? -1) : 0, out: stdout + stderr }));
    });
  const journal = async (unit: string) => (await inside(`journalctl --no-pager -o cat -u '${unit}'`)).out;
  const show = async (unit: string, ...properties: string[]) => Object.fromEntries((await inside(`systemctl show ${properties.map((name) => `-p ${name}`).join(" ")} '${unit}'`)).out.trim().split("\n").map((line) => line.split(/=(.*)/s).slice(0, 2)));
  const rows = async (select: string) => (await client.execute(select)).rows.map((row) => ({ ...row }));

  async function until<T>(read: () => Promise<T>, holds: (value: T) => boolean, seconds: number): Promise<T> {
    const end = performance.now() + seconds * 1000;
    for (;;) {
      const value = await read();
      if (holds(value) || performance.now() > end) {
        expect(value, `came to be within ${seconds} s`).toSatisfy(holds);
        return value;
      }
      await new Promise((done) => setTimeout(done, 250));
    }
  }

  beforeAll(async () => {
    const pem = fresh("key.pem");
    writeFileSync(pem, key.publicKey.export({ type: "spki", format: "pem" }));
    server = await startServer(fresh("server"), "--auth-jwt-key-file", pem);
    expect(await program(["migrate"], { DATABASE_URL: server.url, TURSO_AUTH_TOKEN: token })).toMatchObject({ code: 0 });
    client = createClient({ url: server.url, authToken: token });

    container = spawn("systemd-nspawn", [...nspawn(`sweepers-${process.pid}`), "--boot", "--console=pipe"], { stdio: ["pipe", "ignore", "ignore"] });
    ended = new Promise((done) => container.once("exit", () => done()));
    const state = async () => {
      init = spawnSync("pgrep", ["-P", String(container.pid)], { encoding: "utf8" }).stdout.trim().split("\n")[0]!;
      return init ? (await inside("systemctl is-system-running")).out.trim() : "";
    };
    await until(state, (text) => /^(running|degraded)$/m.test(text), 60);
    const ready = await inside(`
      set -e; umask 077
      node ${INSIDE}/dist/main.js install-units
      echo DATABASE_URL=${server.url} >/etc/fleet-queue-sweepers/env`);
    expect(ready).toMatchObject({ code: 0, out: expect.stringContaining("Nothing was started") });
    // The token through a pipe, as an operator would: on no command line.
    execFileSync("nsenter", ["-t", init, "-a", "/bin/sh", "-c", "umask 077; cat >/etc/fleet-queue-sweepers/turso-auth-token"], { input: `${token}\n`, timeout: 30_000 });
  }, 120_000);

  afterAll(async () => {
    if (init) await inside("systemctl poweroff");
    const late = setTimeout(() => container?.kill("SIGKILL"), 30_000);
    if (container) await ended;
    clearTimeout(late);
    client?.close();
    await server?.stop();
  }, 120_000);

  test("installing has started and enabled nothing", async () => {
    expect((await inside("systemctl list-units --all --plain --no-legend 'fleet-queue-*'")).out.trim()).toBe("");
    expect((await inside("systemctl is-enabled fleet-queue-sweep-expire.timer fleet-queue-sweep-daily.timer fleet-queue-sweep-daemon.service")).out.trim().split("\n")).toEqual(["disabled", "disabled", "disabled"]);
  });

  test("the timer returns a task whose lease ran out, with no claim in between", async () => {
    await client.executeMultiple(`
      INSERT INTO tasks (id, queue, state, claimed_by, lease_token, attempts) VALUES (1, 'q', 'leased', 'w', 't', 1);
      INSERT INTO leases (task_id, worker, token, expires_at_ms) SELECT 1, 'w', 't', now_ms - 1 FROM clock;`);
    expect(await inside("systemctl enable --now fleet-queue-sweep-expire.timer")).toMatchObject({ code: 0 });
    await until(() => rows("SELECT state FROM tasks"), ([task]) => task!.state === "queued", 100);
    expect(await rows("SELECT state, attempts, claimed_by FROM tasks")).toEqual([{ state: "queued", attempts: 1, claimed_by: null }]);
    expect(await rows(`SELECT kind, outcome, origin FROM events JOIN sweep_runs ON sweep_runs.id = events.run_id`)).toEqual([{ kind: "lease_expired", outcome: "ok", origin: "timer" }]);
    await until(() => show("fleet-queue-sweep@expire.service", "Result", "ExecMainStatus", "ActiveState"), ({ ActiveState }) => ActiveState === "inactive", 30);
    expect(await show("fleet-queue-sweep@expire.service", "Result", "ExecMainStatus")).toEqual({ Result: "success", ExecMainStatus: "0" });
    expect((await inside("systemctl disable --now fleet-queue-sweep-expire.timer")).code).toBe(0);
  }, 150_000);

  test("the daily unit makes up for the time it missed while the machine was off", async () => {
    await client.execute(`INSERT INTO events (at_ms, kind) SELECT now_ms - 31 * 86400000, 'old' FROM clock`);
    // As after two days switched off; and without its share of the random delay, for which no test waits.
    expect(await inside(`set -e
      echo enabled >/etc/fleet-queue-sweepers/revalidator-mode
      mkdir -p /var/lib/systemd/timers /etc/systemd/system/fleet-queue-sweep-daily.timer.d
      touch -d '2 days ago' /var/lib/systemd/timers/stamp-fleet-queue-sweep-daily.timer
      printf '[Timer]\\nRandomizedDelaySec=0\\n' >/etc/systemd/system/fleet-queue-sweep-daily.timer.d/test.conf
      systemctl daemon-reload && systemctl enable --now fleet-queue-sweep-daily.timer`)).toMatchObject({ code: 0 });
    await until(() => rows("SELECT sweep, outcome, origin FROM sweep_runs WHERE sweep <> 'expire_leases' ORDER BY rowid"), (runs) => runs.length === 2 && runs.every(({ outcome }) => outcome === "ok"), 60);
    expect(await rows("SELECT sweep, origin, requested_mode AS asked FROM sweep_runs WHERE sweep <> 'expire_leases' ORDER BY rowid")).toEqual(["revalidate_parked_tasks", "prune_events"].map((sweep) => ({ sweep, origin: "timer", asked: "enabled" })));
    expect(await rows("SELECT count(*) AS n FROM events WHERE kind = 'old'")).toEqual([{ n: 0 }]);
    expect((await inside("systemctl disable --now fleet-queue-sweep-daily.timer")).code).toBe(0);
  }, 120_000);

  test("the daemon tells systemd that it is ready, alive and stopping, and ends with success", async () => {
    expect(await inside(`set -e
      mkdir -p /etc/systemd/system/fleet-queue-sweep-daemon.service.d
      printf '[Service]\\nWatchdogSec=4s\\n' >/etc/systemd/system/fleet-queue-sweep-daemon.service.d/test.conf
      systemctl daemon-reload && systemctl start fleet-queue-sweep-daemon.service`)).toMatchObject({ code: 0 });
    const started = await show("fleet-queue-sweep-daemon.service", "ActiveState", "MainPID", "StatusText");
    expect(started).toMatchObject({ ActiveState: "active", StatusText: `Sweeping ${server.url}/` });
    await new Promise((done) => setTimeout(done, 10_000)); // two watchdogs and a half
    expect(await show("fleet-queue-sweep-daemon.service", "ActiveState", "MainPID", "NRestarts")).toEqual({ ActiveState: "active", MainPID: started.MainPID, NRestarts: "0" });

    // The daemon stopped dead is what the watchdog is for.
    expect((await inside("kill -STOP $(systemctl show -P MainPID fleet-queue-sweep-daemon.service)")).code).toBe(0);
    await until(() => journal("fleet-queue-sweep-daemon.service"), (text) => /Watchdog timeout/.test(text), 40);
    await inside("systemctl stop fleet-queue-sweep-daemon.service; systemctl reset-failed");
    expect((await inside("rm -r /etc/systemd/system/fleet-queue-sweep-daemon.service.d; systemctl daemon-reload; systemctl start fleet-queue-sweep-daemon.service")).code).toBe(0);
    expect((await inside("systemctl stop fleet-queue-sweep-daemon.service")).code).toBe(0);
    expect(await show("fleet-queue-sweep-daemon.service", "Result", "ExecMainStatus", "ActiveState")).toEqual({ Result: "success", ExecMainStatus: "0", ActiveState: "inactive" });
  }, 150_000);

  test("a failure keeps its exit code and sets off the hook; the token is in nobody's sight", async () => {
    expect((await inside("mv /etc/fleet-queue-sweepers/turso-auth-token /etc/fleet-queue-sweepers/away; systemctl start fleet-queue-sweep@expire.service")).code).not.toBe(0);
    expect(await show("fleet-queue-sweep@expire.service", "Result", "ExecMainStatus")).toEqual({ Result: "exit-code", ExecMainStatus: "77" });
    await until(() => journal("fleet-queue-sweep-failed@*"), (text) => text.includes("fleet-queue-sweep@expire.service has failed"), 20);
    expect(await inside("systemctl start fleet-queue-sweep-daemon.service")).not.toMatchObject({ code: 0 });
    await until(() => show("fleet-queue-sweep-daemon.service", "ActiveState", "NRestarts", "ExecMainStatus"), ({ ActiveState }) => ActiveState === "failed", 20);
    expect(await show("fleet-queue-sweep-daemon.service", "NRestarts", "ExecMainStatus")).toEqual({ NRestarts: "0", ExecMainStatus: "77" });
    const everything = (await inside("journalctl --no-pager; systemctl show 'fleet-queue-*'")).out;
    for (const part of token.split(".").slice(1)) expect(everything).not.toContain(part);
    expect(everything).toContain("fleet-queue-sweep@expire.service");
  }, 120_000);

  test("a user's own units run under that user's manager", async () => {
    // No PAM here, and no user but root: both are the container's poverty, not the units'.
    expect(await inside(`set -e
      echo 'op:x:4242:4242::/home/op:/bin/sh' >>/etc/passwd; echo 'op:x:4242:' >>/etc/group
      mkdir -p /home/op /run/systemd/system/user@.service.d; chown 4242:4242 /home/op
      printf '[Service]\nPAMName=\nEnvironment=XDG_RUNTIME_DIR=/run/user/4242 HOME=/home/op\n' >/run/systemd/system/user@.service.d/test.conf
      systemctl daemon-reload; systemctl start user@4242`)).toMatchObject({ code: 0 });
    const asUser = (script: string) => inside(`cd /home/op && export HOME=/home/op XDG_RUNTIME_DIR=/run/user/4242; exec setpriv --reuid 4242 --regid 4242 --clear-groups /bin/sh -c '${script}'`);
    const done = await asUser(`set -e; umask 077
      mkdir -p .config/fleet-queue-sweepers; echo DATABASE_URL=${server.url} >.config/fleet-queue-sweepers/env; echo TURSO_AUTH_TOKEN=${token} >>.config/fleet-queue-sweepers/env
      node ${INSIDE}/dist/main.js install-units --user
      systemctl --user start fleet-queue-sweep@expire.service fleet-queue-sweep-daemon.service
      systemctl --user is-active fleet-queue-sweep-daemon.service
      systemctl --user stop fleet-queue-sweep-daemon.service
      systemctl --user show -P Result fleet-queue-sweep@expire.service fleet-queue-sweep-daemon.service | xargs
      node ${INSIDE}/dist/main.js uninstall-units --user; ls -A .config/systemd/user`);
    expect(done).toMatchObject({ code: 0, out: expect.stringMatching(/^active\nsuccess success\n(removed .*\n){5}(?!default|fleet)/m) });
  }, 120_000);

  test("uninstalling stops and removes all of it", async () => {
    await inside("systemctl enable --now fleet-queue-sweep-daily.timer");
    expect((await inside(`node ${INSIDE}/dist/main.js uninstall-units`)).out).toMatch(/^removed .*daily\.timer$/m);
    expect((await inside("systemctl list-unit-files --no-legend 'fleet-queue-*'; systemctl list-timers --no-legend 'fleet-queue-*'; ls /etc/systemd/system/timers.target.wants 2>&1 | grep fleet")).out.trim()).toBe("");
  });
});
