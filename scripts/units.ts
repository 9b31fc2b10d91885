// Puts the systemd units where systemd finds them, and takes them away again. Starts nothing.
import { spawnSync } from "node:child_process";
import { accessSync, chmodSync, constants, existsSync, mkdirSync, readFileSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { EXIT, Failure, type ExitCode } from "./lib/exit.js";
import { ROOT } from "./lib/steps.js";
import { makeUnits, ON_PATH } from "./lib/units.js";

const CONFIG_DIR = "/etc/fleet-queue-sweepers";

/** $UNIT_DIR, or where an administrator's own units go; under $DESTDIR, where a package is being made. */
function unitDir(user: boolean): string {
  const dir = process.env.UNIT_DIR || (user ? join(process.env.XDG_CONFIG_HOME || join(homedir(), ".config"), "systemd/user") : "/etc/systemd/system");
  return join(process.env.DESTDIR || "", dir);
}

/** How the units call this very program; for a package, wherever the path has it. Throws where the system's units could not read it. */
function programPath(user: boolean): string {
  if (process.env.DESTDIR) return ON_PATH;
  const words = [process.execPath, join(realpathSync(ROOT), "dist/main.js")];
  for (const word of words) {
    if (/[\s"'%$\\]/.test(word)) throw new Failure(EXIT.config, `${word} holds characters that a unit's command line cannot: install the package under a plain path`);
    if (!user && /^\/(home|root|run\/user|tmp|var\/tmp)\//.test(word)) throw new Failure(EXIT.config, `${word} lies where the system's units may not look: install the package for all users (npm install --global), or give USER=1`);
  }
  return words.join(" ");
}

/** Asks the running systemd; where there is none, or a directory of one's own was named, does nothing and says false. */
function systemctl(user: boolean, ...words: string[]): boolean {
  if (process.env.UNIT_DIR || process.env.DESTDIR) return false;
  return spawnSync("systemctl", [...(user ? ["--user"] : []), ...words], { stdio: "ignore", timeout: 60_000 }).status === 0;
}

function writing<T>(path: string, work: () => T): T {
  try {
    return work();
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    throw new Failure(EXIT.refused, `${path} cannot be written (${code}): run as root, or give USER=1 for this user's own units`);
  }
}

/** Writes the units that differ from what is there. Returns 0; throws a Failure where it may not write. */
export function installUnits(user: boolean): ExitCode {
  const dir = unitDir(user);
  const units = makeUnits(user, programPath(user));
  writing(dir, () => mkdirSync(dir, { recursive: true }));
  for (const [name, text] of Object.entries(units)) {
    const path = join(dir, name);
    const as = !existsSync(path) ? "installed" : readFileSync(path, "utf8") === text ? "unchanged" : "updated";
    if (as !== "unchanged") writing(path, () => writeFileSync(path, text, { mode: 0o644 }));
    console.log(`${as.padEnd(9)}  ${path}`);
  }
  systemctl(user, "daemon-reload");
  // Open to look into, whatever the umask: the services read the mode file there as a user of their own.
  if (!user && !process.env.UNIT_DIR && !process.env.DESTDIR && !existsSync(CONFIG_DIR)) writing(CONFIG_DIR, () => (mkdirSync(CONFIG_DIR), chmodSync(CONFIG_DIR, 0o755)));
  const manager = user ? "systemctl --user" : "systemctl";
  const timers = Object.keys(units).filter((name) => name.endsWith(".timer")).join(" ");
  console.log(`
Nothing was started. Next, DATABASE_URL=... into ${user ? "~/.config" : "/etc"}/fleet-queue-sweepers/env (mode 600); then either
    ${manager} enable --now ${timers}
or, as one process,
    ${manager} enable --now fleet-queue-sweep-daemon.service`);
  return EXIT.ok;
}

/** Stops and disables the units where they run, and removes them. Returns 0, also where there were none. */
export function uninstallUnits(user: boolean): ExitCode {
  const dir = unitDir(user);
  const present = Object.keys(makeUnits(user)).filter((name) => existsSync(join(dir, name)));
  if (present.length > 0) writing(dir, () => accessSync(dir, constants.W_OK));
  const own = present.filter((name) => !name.includes("@"));
  if (own.length > 0) systemctl(user, "disable", "--now", ...own);
  for (const name of present) {
    writing(join(dir, name), () => rmSync(join(dir, name)));
    console.log(`removed  ${join(dir, name)}`);
  }
  if (present.length > 0) systemctl(user, "daemon-reload");
  else console.log(`no units in ${dir}`);
  return EXIT.ok;
}
