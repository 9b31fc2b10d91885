// Looks for rows that must not exist: every query of db/verify, on the database at hand.
import { openDatabase, type Database, type Row } from "./lib/database.js";
import { EXIT, type ExitCode } from "./lib/exit.js";
import { readFile } from "./lib/queue.js";
import { listSql } from "./lib/steps.js";
import type { Target } from "./lib/target.js";

/** What each query of db/verify found, by its name; rows at all are faults. */
export async function verify(db: Database): Promise<{ name: string; rows: Row[] }[]> {
  const found = [];
  for (const name of listSql("db/verify")) found.push({ name, rows: await readFile(db, `db/verify/${name}.sql`) });
  return found;
}

/** Prints one line a query and each row found. Returns 1 where there is any. */
export async function verifyCommand(target: Target, json: boolean): Promise<ExitCode> {
  const db = await openDatabase(target);
  const found = await verify(db);
  db.close();
  const faults = found.filter(({ rows }) => rows.length > 0);
  if (json) console.log(JSON.stringify(Object.fromEntries(found.map(({ name, rows }) => [name, rows]))));
  else {
    for (const { name, rows } of found) {
      console.log(`${rows.length === 0 ? "ok    " : "FAULT "} ${name}`);
      for (const row of rows) console.log(`         ${JSON.stringify(row)}`);
    }
  }
  if (faults.length > 0) console.error(`${target.shown}: rows that must not exist: ${faults.map(({ name, rows }) => `${name} (${rows.length})`).join(", ")}; the head of db/verify/NAME.sql says what each means`);
  return faults.length > 0 ? EXIT.failed : EXIT.ok;
}
