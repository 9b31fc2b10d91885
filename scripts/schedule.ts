// Prints the schedule of db/sweeps for whoever runs it: a crontab, Kubernetes, GitHub Actions, systemd.
import { EXIT, Failure, type ExitCode } from "./lib/exit.js";
import { readLanes, type Lane } from "./lib/lanes.js";
import { makeUnits } from "./lib/units.js";

/** GitHub starts no workflow more often. */
const GITHUB_MINUTES = 5;

const command = ({ job }: Lane) => `fleet-queue-sweepers sweep-${job} --origin timer`;

const crontab = (lanes: Lane[]) => `# crontab: the host's local time. The file holds DATABASE_URL and TURSO_AUTH_TOKEN, a line each, mode 600.
SHELL=/bin/sh
PATH=/usr/local/bin:/usr/bin:/bin
${lanes.map((lane) => `${lane.pattern} set -a; . "$HOME/.config/fleet-queue-sweepers/env" && ${command(lane)}`).join("\n")}`;

const kubernetes = (lanes: Lane[]) => lanes.map((lane) => `apiVersion: batch/v1
kind: CronJob
metadata:
  name: fleet-queue-sweep-${lane.job}
spec:
  schedule: "${lane.pattern}"
  timeZone: Etc/UTC # the schedule means local time: name yours
  concurrencyPolicy: Forbid # kind to the cluster; the ledger refuses a second runner in any case
  startingDeadlineSeconds: 3600
  jobTemplate:
    spec:
      backoffLimit: 0
      activeDeadlineSeconds: 1500
      template:
        spec:
          restartPolicy: Never
          containers:
            - name: sweep
              image: node:20-slim # with the package installed
              command: [${command(lane).split(" ").map((word) => `"${word}"`).join(", ")}]
              envFrom:
                - secretRef:
                    name: fleet-queue-sweepers # DATABASE_URL, TURSO_AUTH_TOKEN
              env:
                - name: SWEEP_MODE_FILE
                  value: /etc/fleet-queue-sweepers/revalidator-mode
              volumeMounts:
                - { name: mode, mountPath: /etc/fleet-queue-sweepers }
          volumes:
            - { name: mode, configMap: { name: fleet-queue-sweepers, optional: true } }`).join("\n---\n");

const often = (pattern: string) => (pattern.startsWith("* ") ? pattern.replace("*", `*/${GITHUB_MINUTES}`) : pattern);
const github = (lanes: Lane[]) => `# .github/workflows/sweep.yml: UTC, and no more often than every ${GITHUB_MINUTES} minutes. A stand-in where there is no host to run on.
name: sweep
on:
  schedule:
${lanes.map((lane) => `    - cron: "${often(lane.pattern)}" # sweep-${lane.job}`).join("\n")}
jobs:
${lanes.map((lane) => `  ${lane.job}:
    if: github.event.schedule == '${often(lane.pattern)}'
    runs-on: ubuntu-latest
    timeout-minutes: 25
    steps:
      - uses: actions/setup-node@v4
        with: { node-version: 20 }
      - run: npx --yes ${command(lane)}
        env:
          DATABASE_URL: \${{ secrets.DATABASE_URL }}
          TURSO_AUTH_TOKEN: \${{ secrets.TURSO_AUTH_TOKEN }}`).join("\n")}`;

const systemd = () => Object.entries(makeUnits(false)).map(([name, text]) => `# systemd/${name}\n${text}`).join("\n");

const FORMATS: Record<string, (lanes: Lane[]) => string> = { crontab, k8s: kubernetes, gha: github, systemd };

/** Prints the schedule in a format, by default as a crontab. Throws a usage failure for an unknown one. */
export function scheduleCommand(format = "crontab"): ExitCode {
  if (!Object.hasOwn(FORMATS, format)) throw new Failure(EXIT.usage, `--format takes ${Object.keys(FORMATS).join(", ")}, got "${format}"`);
  console.log(FORMATS[format]!(readLanes()).trimEnd());
  return EXIT.ok;
}
