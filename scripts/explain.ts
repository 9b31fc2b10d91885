// Prints the query plan of each step of each sweep, as the database at hand would run it.
import { openDatabase } from "./lib/database.js";
import { EXIT, type ExitCode } from "./lib/exit.js";
import { bind, listSql, loadSteps } from "./lib/steps.js";
import type { Target } from "./lib/target.js";

/** Prints plans as indented trees. Returns 0. */
export async function explainCommand(target: Target): Promise<ExitCode> {
  // A connection that nothing else uses: EXPLAIN leaves a statement open on a file, and with it a lock.
  const db = await openDatabase(target);
  for (const sweep of listSql("db/sweeps")) {
    for (const step of loadSteps(`db/sweeps/${sweep}.sql`)) {
      const unbound = Object.fromEntries(step.params.map((param) => [param, null]));
      const plan = await db.plan(bind(step, unbound));
      console.log(`${sweep}: ${step.name}`);
      const depth = new Map<unknown, number>();
      for (const { id, parent, detail } of plan) {
        depth.set(id, (depth.get(parent) ?? 0) + 1);
        console.log(`${"  ".repeat(depth.get(id)!)}${detail}`);
      }
    }
  }
  db.close();
  return EXIT.ok;
}
