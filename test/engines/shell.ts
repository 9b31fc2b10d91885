// The sqlite3 shell: it reads a sweep file as it stands, comments and all.
import { spawn, spawnSync } from "node:child_process";
import { join } from "node:path";
import type { Row } from "../../scripts/lib/database.js";
import { ROOT } from "../support.js";
import { migratedFile, type Engine, type Queue, type Values } from "./adapter.js";

const found = spawnSync("sqlite3", ["--version"], { encoding: "utf8" });
const literal = (value: Values[string]) => (typeof value === "string" ? `'${value.replaceAll("'", "''")}'` : String(value ?? "NULL"));

/** Runs these pieces of script as one transaction of a new shell. Returns the rows that each printed. */
function run(path: string, pieces: string[], values: Values): Promise<Row[][]> {
  // The shell binds what it finds in this table. Filled before the transaction, so that changes() and last_insert_rowid() are the steps' own.
  const bound = Object.entries(values).map(([name, value]) => `INSERT INTO temp.sqlite_parameters VALUES (':${name}', ${literal(value)});`);
  const script = [".mode json", ".parameter init", ...bound, "BEGIN IMMEDIATE;", ...pieces.flatMap((piece) => [".print ----", piece]), "COMMIT;", ""].join("\n");
  return new Promise((resolve, reject) => {
    const shell = spawn("sqlite3", ["-bail", path]);
    let printed = "";
    let complaint = "";
    shell.stdout.on("data", (data) => (printed += data));
    shell.stderr.on("data", (data) => (complaint += data));
    shell.on("close", (code) => {
      if (code !== 0) reject(new Error(complaint));
      else resolve(printed.split("----\n").slice(1).map((rows) => (rows.trim() ? JSON.parse(rows) : [])));
    });
    shell.stdin.on("error", () => {}); // it has bailed out; its exit code says so
    shell.stdin.end(script);
  });
}

export const shell: Engine = {
  name: "sqlite3 shell",
  version: `sqlite3 ${found.stdout?.split(" ")[0]}`,
  ...(found.status === 0 ? {} : { missing: "there is no sqlite3 on this machine" }),
  open: async () => {
    const path = join(await migratedFile(), "queue.db");
    const batch: Queue["batch"] = (statements) => run(path, statements.map(({ sql }) => `${sql}\n;`), Object.assign({}, ...statements.map(({ args }) => args)));
    return {
      batch,
      read: batch,
      sweep: async (name, values) => (await run(path, [`.read '${join(ROOT, "db/sweeps", `${name}.sql`)}'`], values))[0]![0]!,
      close: async () => {},
    };
  },
};
