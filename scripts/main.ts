#!/usr/bin/env node
// The program behind the make targets: one verb, a few options, an exit code of the contract.
import { parseArgs } from "node:util";
import { EXIT, Failure, report, type ExitCode } from "./lib/exit.js";
import { readTarget, type Target } from "./lib/target.js";
import type { SweepName } from "./lib/lanes.js";
import type { SweepOptions } from "./sweep.js";

type Options = { observe: boolean; json: boolean; wait: boolean; user: boolean; origin: string; "run-id"?: string; format?: string };
type Verb = { help: string; takes?: (keyof Options)[]; run: (target: Target, options: Options) => Promise<ExitCode> };

const sweeping = (help: string, ...names: SweepName[]): Verb => ({
  help,
  takes: ["observe", "json", "origin", "run-id"],
  run: async (target, options) => {
    const sweep: SweepOptions = { observe: options.observe, json: options.json, origin: options.origin, runId: options["run-id"] };
    if (sweep.runId && names.length > 1) throw new Failure(EXIT.usage, "--run-id names one run: give it to a single sweep");
    return (await import("./sweep.js")).sweepCommand(target, names, sweep);
  },
});

// Each command's code is loaded only when it is asked for: an idle minute should start fast.
const VERBS: Record<string, Verb> = {
  migrate: { help: "apply db/migrations", run: async (target) => (await import("./migrate.js")).migrateCommand(target) },
  "migrate-status": { takes: ["json"], help: "what is applied and pending; 1 where something is pending", run: async (target, { json }) => (await import("./migrate.js")).statusCommand(target, json) },
  "sweep-expire": sweeping("expire leases that have run out", "expire_leases"),
  "sweep-revalidate": sweeping("judge the parked tasks; release the ready ones where the mode file says enabled", "revalidate_parked_tasks"),
  "sweep-prune": sweeping("delete events past the retention", "prune_events"),
  "sweep-daily": sweeping("revalidate, then prune", "revalidate_parked_tasks", "prune_events"),
  "sweep-all": sweeping("expire, then daily", "expire_leases", "revalidate_parked_tasks", "prune_events"),
  "sweep-daemon": { takes: ["json"], help: "run all on their schedule in one process, until told to stop", run: async (target, { json }) => (await import("./daemon.js")).daemonCommand(target, json) },
  "sweep-would-release": { takes: ["json"], help: "the parked tasks that an enabled run would release, and why", run: async (target, { json }) => (await import("./would-release.js")).wouldReleaseCommand(target, json) },
  "sweep-explain": { help: "each step's query plan", run: async (target) => (await import("./explain.js")).explainCommand(target) },
  "sweep-proof": { takes: ["wait"], help: "seed fixtures in a queue of their own, sweep, read back, clean up", run: async (target, { wait }) => (await import("./proof.js")).proofCommand(target, wait) },
  verify: { takes: ["json"], help: "look for rows that must not exist; 1 where there are any", run: async (target, { json }) => (await import("./verify.js")).verifyCommand(target, json) },
  schedule: { takes: ["format"], help: "the schedule as --format crontab, k8s, gha or systemd", run: async (_, { format }) => (await import("./schedule.js")).scheduleCommand(format) },
  "install-units": { takes: ["user"], help: "put the systemd units in place; starts nothing", run: async (_, { user }) => (await import("./units.js")).installUnits(user) },
  "uninstall-units": { takes: ["user"], help: "stop and remove the systemd units", run: async (_, { user }) => (await import("./units.js")).uninstallUnits(user) },
  demo: { help: "a fresh embedded queue, swept: observed, then for real, before and after", run: async () => (await import("./demo.js")).demoCommand() },
};

const usage = () =>
  ["usage: fleet-queue-sweepers VERB [--observe] [--json] [--wait] [--origin timer|daemon|manual] [--run-id ID] [--user] [--format FORMAT]", "", ...Object.entries(VERBS).map(([verb, { help }]) => `  ${verb.padEnd(20)} ${help}`)].join("\n");

function parse(argv: string[]): { verb: string; options: Options } {
  try {
    const flag = { type: "boolean", default: false } as const;
    const { values, positionals } = parseArgs({
      args: argv,
      allowPositionals: true,
      options: { observe: flag, json: flag, wait: flag, user: flag, format: { type: "string" }, help: { ...flag, short: "h" }, origin: { type: "string", default: "manual" }, "run-id": { type: "string" } },
    });
    if (values.help) return { verb: "help", options: values };
    if (positionals.length !== 1) throw new Error(positionals.length === 0 ? "no verb given" : `one verb at a time, got ${positionals.join(" ")}`);
    if (values["run-id"] === "") throw new Error("--run-id is empty");
    if (!/^(timer|daemon|manual)$/.test(values.origin)) throw new Error(`--origin takes timer, daemon or manual, got "${values.origin}"`);
    return { verb: positionals[0]!, options: values };
  } catch (error) {
    throw new Failure(EXIT.usage, `${(error as Error).message.split(". ")[0]}: see fleet-queue-sweepers help`);
  }
}

async function main(): Promise<ExitCode> {
  const { verb, options } = parse(process.argv.slice(2));
  if (verb === "help") {
    console.log(usage());
    return EXIT.ok;
  }
  const found = Object.hasOwn(VERBS, verb) ? VERBS[verb] : undefined;
  if (!found) throw new Failure(EXIT.usage, `unknown verb "${verb}": see fleet-queue-sweepers help`);
  for (const option of ["observe", "json", "wait", "run-id", "user", "format"] as const) {
    if (options[option] && !found.takes?.includes(option)) throw new Failure(EXIT.usage, `${verb} takes no --${option}: see fleet-queue-sweepers help`);
  }
  return found.run(readTarget(process.env), options);
}

// A server that ends a transaction rejects twice: once to the caller, who reports it, and once to nobody.
process.on("unhandledRejection", (error) => {
  process.exitCode ||= report(error);
});
// A reader that closes the pipe early (head, less) is no failure of ours.
process.stdout.on("error", () => process.exit());

process.exitCode = await main().catch(report);
