// Prints what an enabled revalidation would release: the view would_release_tasks, as it is.
import { openDatabase } from "./lib/database.js";
import { EXIT, type ExitCode } from "./lib/exit.js";
import { modeFile, readMode } from "./lib/mode.js";
import { readFile } from "./lib/queue.js";
import type { Target } from "./lib/target.js";

/** Prints one line a task with each term's state, or one JSON object. Returns 0, also where there is nothing to release. */
export async function wouldReleaseCommand(target: Target, json: boolean): Promise<ExitCode> {
  const mode = readMode(process.env);
  const db = await openDatabase(target);
  const rows = await readFile(db, "db/ledger/read_would_release.sql");
  db.close();
  const tasks = rows.map((row) => ({ ...row, evidence: JSON.parse(String(row.evidence)) as Record<string, unknown>[] }) as Record<string, unknown> & { evidence: Record<string, unknown>[] });
  if (json) {
    console.log(JSON.stringify({ would_release: tasks.length, mode, tasks }));
    return EXIT.ok;
  }
  for (const task of tasks) {
    const terms = task.evidence.map(({ kind, state, event, event_id, task: on }) => [kind, event ?? on, state, event_id && `by event ${event_id}`].filter(Boolean).join(" "));
    console.log(`task ${task.task_id} (queue ${task.queue}): ${task.reason}: ${terms.join("; ")}`);
  }
  console.log(`${tasks.length} parked tasks would be released; the mode is ${mode} (${modeFile(process.env)})`);
  return EXIT.ok;
}
