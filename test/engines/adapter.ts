// What an engine has to offer to be asked for the package's promises: a migrated queue, and write transactions on it.
import { cpSync, mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { Database, Row, Statement, Value } from "../../scripts/lib/database.js";
import { runFile } from "../../scripts/lib/queue.js";
import { fresh, program, ROOT } from "../support.js";

export type Values = Record<string, Value>;
export type Queue = {
  /** One write transaction, all or nothing. Returns each statement's rows. */
  batch(statements: Statement[]): Promise<Row[][]>;
  /** Statements that only read. */
  read: Queue["batch"];
  /** A sweep file as one write transaction. Returns what its step `report` says. */
  sweep(name: string, values: Values): Promise<Row>;
  close(): Promise<void>;
};
export type Engine = {
  name: string;
  version: string;
  /** Why the engine cannot be asked on this machine, where it cannot. */
  missing?: string;
  /** A fresh queue, migrated in the way that belongs to the engine. */
  open(): Promise<Queue>;
};

/** For engines that are sent a file's steps one by one, as the runner sends them. */
export const sweepByBatch = (batch: Queue["batch"]): Queue["sweep"] => async (name, values) => (await runFile({ batch } as Database, `db/sweeps/${name}.sql`, values))[0]!;

/** Fills a folder once; each call returns a copy of it. */
export function copies(fill: (folder: string) => Promise<void>): () => Promise<string> {
  let template: Promise<string> | undefined;
  const make = async () => {
    const folder = fresh("template");
    mkdirSync(folder);
    await fill(folder);
    return folder;
  };
  return async () => {
    const copy = fresh("copy");
    cpSync(await (template ??= make()), copy, { recursive: true });
    return copy;
  };
}

export async function migrate(url: string): Promise<void> {
  const { code, stderr } = await program(["migrate"], { DATABASE_URL: url });
  if (code !== 0) throw new Error(stderr);
}

/** A file migrated by dbmate, as every file is. */
export const migratedFile = copies((folder) => migrate(`sqlite:${join(folder, "queue.db")}`));

export const packageVersion = (name: string): string => JSON.parse(readFileSync(join(ROOT, "node_modules", name, "package.json"), "utf8")).version;
