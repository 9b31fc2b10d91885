// libSQL in a file, on a server, and through a server's replica: each by the package's own client.
import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { openDatabase } from "../../scripts/lib/database.js";
import { readTarget } from "../../scripts/lib/target.js";
import { fresh, freePort, SQLD, startServer } from "../support.js";
import { copies, migrate, migratedFile, packageVersion, sweepByBatch, type Engine, type Queue } from "./adapter.js";

const sqld = execFileSync(SQLD, ["--version"], { encoding: "utf8" }).match(/\d+\.\d+\.\d+/)![0];

async function connect(url: string, stop = async () => {}): Promise<Queue> {
  const { batch, read, close } = await openDatabase(readTarget({ DATABASE_URL: url }));
  return { batch, read, sweep: sweepByBatch(batch), close: async () => (close(), stop()) };
}

export const file: Engine = {
  name: "libSQL file",
  version: `libsql ${packageVersion("libsql")}`,
  open: async () => connect(`file:${join(await migratedFile(), "queue.db")}`),
};

const migratedServer = copies(async (folder) => {
  const server = await startServer(folder);
  await migrate(server.url);
  await server.stop();
});

export const server: Engine = {
  name: "libSQL server",
  version: `sqld ${sqld}`,
  open: async () => {
    const { url, stop } = await startServer(await migratedServer());
    return connect(url, stop);
  },
};

/** A primary on this folder, and a new replica of it; `url` is the replica's. */
export async function startPair(folder: string): Promise<{ url: string; primary: string; stop(): Promise<void> }> {
  const grpc = `127.0.0.1:${await freePort()}`;
  const primary = await startServer(folder, "--grpc-listen-addr", grpc);
  const replica = await startServer(fresh("replica"), "--primary-grpc-url", `http://${grpc}`);
  return { url: replica.url, primary: primary.url, stop: async () => void (await replica.stop(), await primary.stop()) };
}

const migratedThroughReplica = copies(async (folder) => {
  const pair = await startPair(folder);
  await migrate(pair.url);
  await pair.stop();
});

/**
 * Everything goes through the replica. It passes a transaction on to its primary only where some statement of it writes; what
 * only reads it answers from its own copy, which may be behind the write just made. So that a test reads back what it
 * wrote, each of its transactions ends in a statement that writes nothing.
 */
export const replica: Engine = {
  name: "server's replica",
  version: `sqld ${sqld}`,
  open: async () => {
    const { url, stop } = await startPair(await migratedThroughReplica());
    const queue = await connect(url, stop);
    const batch: Queue["batch"] = async (statements) => (await queue.batch([...statements, { sql: "DELETE FROM lease_fence WHERE false", args: {} }])).slice(0, -1);
    return { ...queue, batch, sweep: sweepByBatch(batch) };
  },
};
