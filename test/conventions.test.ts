// What a reviewer would otherwise have to check by eye.
import { execFileSync } from "node:child_process";
import { copyFileSync, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { listSql, loadSteps } from "../scripts/lib/steps.js";
import { fresh, ROOT } from "./support.js";

const read = (path: string) => readFileSync(join(ROOT, path), "utf8");
const SQL_FOLDERS = ["db/sweeps", "db/queue", "db/ledger", "db/verify", "db/proof", "db/demo"];
const files = SQL_FOLDERS.flatMap((folder) => listSql(folder).map((name) => `${folder}/${name}.sql`));
const scripts = ["scripts", "scripts/lib"].flatMap((folder) => readdirSync(join(ROOT, folder)).filter((name) => name.endsWith(".ts")).map((name) => `${folder}/${name}`));
/** The statement without literals and comments. */
const bare = (sql: string) => sql.replace(/'(?:[^']|'')*'|--[^\n]*/g, "");

test.each(files)("%s opens with prose, and each of its steps is one statement", (path) => {
  expect(read(path)).toMatch(/^-- \S.*\n/);
  const steps = loadSteps(path);
  expect(steps.length).toBeGreaterThan(0);
  for (const { name, sql } of steps) {
    expect(name).toMatch(/^[a-z_]+$/);
    expect(bare(sql), name).not.toContain(";");
    expect(bare(sql), name).not.toMatch(/\b(BEGIN|COMMIT|unixepoch|julianday)\b/i);
  }
});

test.each(listSql("db/sweeps"))("sweep %s says its schedule, and takes parameters in its first step only", (name) => {
  expect(read(`db/sweeps/${name}.sql`)).toMatch(/^-- schedule: \S+ \S+ \S+ \S+ \S+$/m);
  const [first, ...later] = loadSteps(`db/sweeps/${name}.sql`);
  expect(first!.params.sort()).toEqual(["batch_rows", "mode", "needs_schema_version", "origin", "run_id", "runner", "scope_queue", "sql_version"]);
  for (const step of later) expect(step.params, step.name).toEqual([]);
});

test.each(listSql("db/migrations"))("migration %s opens with prose, names its constraints, and can be undone", (name) => {
  const text = read(`db/migrations/${name}.sql`);
  expect(text).toMatch(/^-- \S.*\n--\n/);
  expect(text).toMatch(/^-- migrate:up\n[^]*^-- migrate:down\n\s*DROP /m);
  expect(bare(text)).not.toMatch(/\bWITHOUT ROWID\b|\bWITH RECURSIVE\b|\bsubsec\b/i);
  for (const line of text.split("\n").filter((line) => /^\s+CHECK \(/.test(line))) expect(text.split("\n")[text.split("\n").indexOf(line) - 1], line).toMatch(/^\s+CONSTRAINT \w+$/);
});

test.each(scripts)("%s is short, and changes no queue data by SQL of its own", (path) => {
  const text = read(path);
  expect(text.split("\n").length).toBeLessThan(200);
  expect(text).toMatch(/^(#!.*\n)?\/\/ \S/);
  expect(text).not.toMatch(/\b(UPDATE|DELETE FROM|INSERT INTO) (tasks|leases|events|sweep_\w+)\b/);
});

test("no statement is built from data: SQL in scripts is whole, but for a plan's EXPLAIN and a migration file's own transaction", () => {
  const built = scripts.flatMap((path) => [...read(path).replace(/^\s*(?:\/\/|\*).*$/gm, "").matchAll(/`[^`]*`/g)].map(([literal]) => ({ path, literal })).filter(({ literal }) => literal.includes("${") && /\b(SELECT|INSERT|UPDATE|DELETE|REPLACE|PRAGMA|CREATE|DROP|ALTER|EXPLAIN|BEGIN|ATTACH)\b/.test(literal.replace(/see (SELECT|PRAGMA)/g, ""))));
  expect(built.map(({ path, literal }) => `${path}: ${literal.split("\n")[0]}`)).toEqual(["scripts/migrate.ts: `PRAGMA foreign_keys = OFF;", "scripts/lib/database.ts: `EXPLAIN QUERY PLAN ${sql}`"]);
  // Nor put together with a plus sign.
  for (const path of scripts) expect(read(path), path).not.toMatch(/["'`](?:SELECT|INSERT|UPDATE|DELETE|PRAGMA)\b[^"'`\n]*["'`]\s*\+/);
});

test("make help lists every target with a line of its own, and the program's help every verb", () => {
  const makefile = read("Makefile");
  const targets = [...makefile.matchAll(/^([a-z-]+):(?!=)/gm)].map((match) => match[1]!);
  const help = execFileSync("make", ["-C", ROOT, "--no-print-directory", "help"], { encoding: "utf8" });
  for (const target of targets) expect(help).toMatch(new RegExp(`^  make ${target} +\\S`, "m"));
  const verbs = execFileSync(process.execPath, [join(ROOT, "dist/main.js"), "help"], { encoding: "utf8" });
  for (const verb of /^VERBS := (.*)$/m.exec(makefile)![1]!.split(" ")) {
    expect(targets).toContain(verb);
    expect(verbs).toMatch(new RegExp(`^  ${verb} +\\S`, "m"));
  }
});

test("every target and path that README names is there", () => {
  const readme = read("README.md");
  const makefile = read("Makefile");
  for (const [, target] of readme.matchAll(/(?:`|^ {4}|\$ )make ([a-z-]+)/gm)) expect(makefile, target).toMatch(new RegExp(`^${target}:`, "m"));
  for (const [, path] of readme.matchAll(/\]\((?!https?:)([^)]+)\)/g)) expect(existsSync(join(ROOT, path!)), path).toBe(true);
  for (const [, path] of readme.matchAll(/^    ((?:db|scripts|test|docs)\S*) +\S/gm)) expect(existsSync(join(ROOT, path!)), path).toBe(true);
});

test("every test that docs/guarantees.md names is there", () => {
  const links = [...read("docs/guarantees.md").matchAll(/\]\(\.\.\/([^)]+)\)/g)].map(([, path]) => path!);
  expect(links.length).toBeGreaterThan(10);
  for (const path of links) expect(existsSync(join(ROOT, path)), path).toBe(true);
});

test("the lockfile names every optional package, so that npm ci works on every platform and with every registry", () => {
  const { packages } = JSON.parse(read("package-lock.json")) as { packages: Record<string, { optionalDependencies?: Record<string, string>; resolved?: string }> };
  for (const [from, { optionalDependencies = {}, resolved }] of Object.entries(packages)) {
    expect(resolved, from).toBeUndefined();
    for (const name of Object.keys(optionalDependencies)) expect(Object.keys(packages), `${from} needs ${name}`).toContain(`node_modules/${name}`);
  }
});

test("the lockfile pins every package to its content, and agrees with package.json", () => {
  const { packages } = JSON.parse(read("package-lock.json")) as { packages: Record<string, { version?: string; integrity?: string; optional?: boolean; os?: string[] }> };
  for (const [name, { version, integrity, optional }] of Object.entries(packages)) {
    if (name === "") continue;
    expect(version, name).toMatch(/^\d+\.\d+\.\d+/);
    // Completed by hand: packages for other machines, which the registry at hand did not have. npm asks the registry for these.
    if (/^node_modules\/(@dbmate\/|napi-windows-process-start-time$)/.test(name) && optional) continue;
    expect(integrity, name).toMatch(/^sha512-/);
  }
  const folder = fresh("pinned");
  mkdirSync(folder);
  for (const file of ["package.json", "package-lock.json", ".npmrc"]) copyFileSync(join(ROOT, file), join(folder, file));
  expect(execFileSync("npm", ["ci", "--dry-run", "--offline"], { cwd: folder, encoding: "utf8" })).toMatch(/added \d+ packages/);
  writeFileSync(join(folder, "package.json"), read("package.json").replace(/("zx": "\^)\d+/, "$1999"));
  expect(() => execFileSync("npm", ["ci", "--dry-run", "--offline"], { cwd: folder, stdio: "ignore" })).toThrow();
});
