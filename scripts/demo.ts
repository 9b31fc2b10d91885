// Shows the three sweeps on a small queue in a fresh file: observed first, then for real, and what each task came to.
import { rmSync } from "node:fs";
import { openDatabase } from "./lib/database.js";
import { EXIT, Failure, type ExitCode } from "./lib/exit.js";
import { readFile, runFile } from "./lib/queue.js";
import { readTarget } from "./lib/target.js";
import { migrateCommand } from "./migrate.js";
import { line, runSweep, SWEEPS } from "./sweep.js";
import { verify } from "./verify.js";

const FILE = ".data/demo.db";

/** Makes, sweeps and shows the demo's queue. Returns 0; throws a Failure where a step fails or leaves rows that must not exist. */
export async function demoCommand(): Promise<ExitCode> {
  for (const file of [FILE, `${FILE}-wal`, `${FILE}-shm`]) rmSync(file, { force: true });
  const target = readTarget({ DATABASE_URL: `sqlite:${FILE}` });
  await migrateCommand(target);
  const db = await openDatabase(target);
  await runFile(db, "db/demo/fleet.sql");
  const before = await readFile(db, "db/demo/read_fleet.sql");

  for (const mode of ["observe", "enabled"] as const) {
    console.log(mode === "observe" ? "\nObserved: nothing moves, the ledger says what would" : "\nFor real: enabled is honoured, because this very SQL has observed everything before");
    for (const name of SWEEPS) console.log(`  ${line(await runSweep(db, name, { mode }))}`);
  }

  const after = new Map((await readFile(db, "db/demo/read_fleet.sql")).map(({ id, state }) => [id, state]));
  const faults = (await verify(db)).filter(({ rows }) => rows.length > 0);
  db.close();
  console.log(`\n${"".padEnd(50)}${"before".padEnd(20)}after`);
  for (const { id, what, state } of before) console.log(`${state === after.get(id) ? " " : "*"} ${String(what).padEnd(48)}${String(state).padEnd(20)}${after.get(id)}`);
  if (faults.length > 0) throw new Failure(EXIT.failed, `${FILE}: rows that must not exist: ${faults.map(({ name }) => name).join(", ")}`);
  console.log(`\nThe database is ${FILE}: look at it with sqlite3, or with DATABASE_URL=sqlite:${FILE} make sweep-would-release`);
  return EXIT.ok;
}
