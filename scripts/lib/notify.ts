// Tells systemd how a service is: READY=1, WATCHDOG=1, STATUS=..., STOPPING=1.
// By the program systemd-notify, which is wherever systemd is: Node opens no datagram socket of the kind that
// systemd listens on, and a native package is too much for a line a minute. Needs NotifyAccess=all in the unit.
import { execFile } from "node:child_process";

/** Sends lines such as "READY=1" where a service manager listens; elsewhere does nothing. Never throws, and waits at most 5 s. */
export function notify(...lines: string[]): Promise<void> {
  if (!process.env.NOTIFY_SOCKET) return Promise.resolve();
  return new Promise((resolve) => {
    execFile("systemd-notify", lines, { timeout: 5_000, env: { PATH: process.env.PATH, NOTIFY_SOCKET: process.env.NOTIFY_SOCKET } }, (error) => {
      if (error) console.error(`systemd-notify ${lines[0]} failed (${error.code ?? error.signal}): the unit needs NotifyAccess=all`);
      resolve();
    });
  });
}

/** How often a sign of life is due: half of what the unit's WatchdogSec grants; undefined where it grants none. */
export function watchdogPauseMs(): number | undefined {
  const micros = Number(process.env.WATCHDOG_USEC);
  return process.env.NOTIFY_SOCKET && micros > 0 ? micros / 2_000 : undefined;
}
