// A .sql file as named steps, the convention of sqlc, yesql and aiosql: `-- name: snake_case`, then one statement.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import type { Statement, Value } from "./database.js";

export type Step = { name: string; sql: string; params: string[] };

/** The package's own folder, from scripts/lib as from dist/lib. */
export const ROOT = fileURLToPath(new URL("../../", import.meta.url));

/** The statement alone: comments and white space aside, string literals as they are. */
function bare(sql: string): string {
  return sql.replace(/('(?:[^']|'')*')|--[^\n]*|\s+/g, (_, literal?: string) => literal ?? " ").trim();
}

/**
 * Reads a .sql file's steps in order. `-- include: FILE STEP` stands for that step of another file, so that claim and
 * sweep run the same text. Throws where a file, a step or an included step is not there: the package is damaged.
 */
function readSteps(path: string): Step[] {
  const blocks = readFileSync(join(ROOT, path), "utf8").split(/^-- (?=name: |include: )/m).slice(1);
  return blocks.flatMap((block) => {
    const [heading = "", ...lines] = block.split("\n");
    const [kind, first = "", second] = heading.split(/\s+/);
    if (kind === "include:") {
      const from = relative(ROOT, join(ROOT, dirname(path), first));
      const step = loadSteps(from).find((candidate) => candidate.name === second);
      if (!step) throw new Error(`${path} includes ${second} of ${from}, which is not there`);
      return [step];
    }
    const sql = lines.join("\n").trim().replace(/;$/, "");
    const params = bare(sql).replace(/'(?:[^']|'')*'/g, "").match(/:[a-z_]+/g) ?? [];
    return [{ name: first, sql, params: [...new Set(params.map((param) => param.slice(1)))] }];
  });
}

const loaded = new Map<string, Step[]>();

/** A file's steps, as read once: a process that runs for a year goes on with the files that it started with. */
export function loadSteps(path: string): Step[] {
  let steps = loaded.get(path);
  if (!steps) loaded.set(path, (steps = readSteps(path)));
  return steps;
}

/** The .sql files of a folder of the package, by name without the ending. */
export function listSql(folder: string): string[] {
  return readdirSync(join(ROOT, folder)).filter((file) => file.endsWith(".sql")).map((file) => file.slice(0, -4)).sort();
}

/** A hash of what the steps say: it changes when a statement does, not when a comment does. */
export function sqlVersion(steps: Step[]): string {
  return createHash("sha256").update(steps.map((step) => bare(step.sql)).join(";\n")).digest("hex").slice(0, 16);
}

/**
 * A step with its arguments: exactly those it names, because the transports disagree about missing and spare ones.
 * Whole numbers go as BigInt, because the client would send a JS number as REAL. Throws where an argument is missing.
 */
export function bind(step: Step, values: Record<string, Value | number | undefined>): Statement {
  const args: Record<string, Value> = {};
  for (const param of step.params) {
    const value = values[param];
    if (value === undefined) throw new Error(`step ${step.name} needs :${param}`);
    args[param] = typeof value === "number" ? BigInt(value) : value;
  }
  return { sql: step.sql, args };
}
