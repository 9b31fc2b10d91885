// Whether revalidation may release: the word in the mode file, read at each run.
import { readFileSync, statSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { EXIT, Failure } from "./exit.js";

export type Mode = "observe" | "enabled" | "off";

/** Where the mode file is: $SWEEP_MODE_FILE, by default ~/.config/queue-broker/revalidator-mode. */
export function modeFile(env: NodeJS.ProcessEnv): string {
  return env.SWEEP_MODE_FILE || join(homedir(), ".config/queue-broker/revalidator-mode");
}

/**
 * The mode asked for. A file that is missing or empty says observe; white space and line endings around the word do not
 * matter. Throws a configuration failure for anything else: a switch that cannot be read must not release anything.
 */
export function readMode(env: NodeJS.ProcessEnv): Mode {
  const file = modeFile(env);
  let content: string;
  try {
    if (!statSync(file).isFile()) throw new Failure(EXIT.config, `mode file ${file} is no regular file: write observe, enabled or off into a file of that name`);
    content = readFileSync(file, "utf8");
  } catch (error) {
    if (error instanceof Failure) throw error;
    const { code } = error as NodeJS.ErrnoException;
    if (code === "ENOENT") return "observe";
    throw new Failure(EXIT.config, `mode file ${file} cannot be read (${code}): nothing was released; make it readable`);
  }
  const word = content.trim();
  if (word === "") return "observe";
  if (word === "observe" || word === "enabled" || word === "off") return word;
  throw new Failure(EXIT.config, `mode file ${file} says ${JSON.stringify(word.slice(0, 60))}: nothing was released; allowed are observe, enabled and off`);
}
