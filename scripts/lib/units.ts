// The systemd units, for the system and for one user, out of the schedules in the headers. systemd/ holds what this makes.
import { onCalendar } from "./calendar.js";
import { readLanes, type Lane } from "./lanes.js";
import { intervalMs } from "./schedule.js";

export type Units = Record<string, string>;
/** How the units call the program where a package has put it on the path. */
export const ON_PATH = "/usr/bin/env fleet-queue-sweepers";
const HOUR_MS = 3_600_000;

/** What both managers enforce. MemoryDenyWriteExecute is not there, and @pkey is: Node compiles as it runs, and is killed otherwise. */
const CONFINED = `UMask=0077
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
SystemCallArchitectures=native
SystemCallFilter=@system-service @pkey
SystemCallFilter=~@privileged
MemoryMax=1G`;

const SYSTEM = `Environment=DATABASE_URL=sqlite:/var/lib/fleet-queue-sweepers/queue.db
Environment=SWEEP_MODE_FILE=/etc/fleet-queue-sweepers/revalidator-mode
# DATABASE_URL and whatever else differs; mode 600 where it holds a token. Better, the token in a file of its own, mode 600:
EnvironmentFile=-/etc/fleet-queue-sweepers/env
LoadCredential=turso-auth-token:/etc/fleet-queue-sweepers/turso-auth-token
# Without that file it is empty, and there is no token.
SetCredential=turso-auth-token:\\x20
DynamicUser=yes
# Made where it is missing, mode 0755: the mode file in it has to be readable by the service, the other two are root's, mode 600.
ConfigurationDirectory=fleet-queue-sweepers
StateDirectory=fleet-queue-sweepers
WorkingDirectory=/var/lib/fleet-queue-sweepers
CapabilityBoundingSet=
DevicePolicy=closed
PrivateDevices=yes
PrivateMounts=yes
PrivateTmp=yes
PrivateUsers=yes
ProcSubset=pid
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
ProtectSystem=strict
RemoveIPC=yes
${CONFINED}`;

const USER = `Environment=DATABASE_URL=sqlite:%h/.local/share/fleet-queue-sweepers/queue.db
# DATABASE_URL, TURSO_AUTH_TOKEN and whatever else differs; mode 600.
EnvironmentFile=-%h/.config/fleet-queue-sweepers/env
${CONFINED}`;

const head = (about: string) => `# Made from the headers of db/sweeps by "make units". To change a setting: systemctl edit, which keeps your lines apart.
[Unit]
Description=${about}
`;

/** The timer of a lane. What runs rarely is spread over the hosts, and caught up where the machine was off. */
function timer({ job, pattern, sweeps }: Lane): string {
  const rare = intervalMs(pattern, 0, "UTC") > HOUR_MS;
  return `${head(`fleet queue: ${sweeps.join(", ")} on schedule`)}
[Timer]
# ${pattern}
OnCalendar=${onCalendar(pattern)}
${rare ? "Persistent=true\nRandomizedDelaySec=10min\nFixedRandomDelay=yes" : "AccuracySec=1s"}
Unit=fleet-queue-sweep@${job}.service

[Install]
WantedBy=timers.target
`;
}

/** All units of one manager by file name, calling the program in this way. */
export function makeUnits(user: boolean, program = ON_PATH): Units {
  const service = user ? USER : SYSTEM;
  const online = user ? "" : "Wants=network-online.target\nAfter=network-online.target\n";
  const units: Units = {
    "fleet-queue-sweep@.service": `${head("fleet queue: sweep-%i")}${online}OnFailure=fleet-queue-sweep-failed@%n.service

[Service]
Type=oneshot
ExecStart=${program} sweep-%i --origin timer
# Both daily sweeps may take daily_max_run_seconds each (sweep_settings); a run that ends sooner makes nobody wait.
TimeoutStartSec=25min
${service}
`,
    "fleet-queue-sweep-daemon.service": `${head("fleet queue: every sweep on its schedule, in one process (instead of the timers)")}${online}OnFailure=fleet-queue-sweep-failed@%n.service
StartLimitIntervalSec=0

[Service]
Type=notify
# The daemon speaks through the program systemd-notify.
NotifyAccess=all
ExecStart=${program} sweep-daemon
Restart=on-failure
RestartSec=30s
# Wrong usage, a refused token, wrong configuration: a person has to look.
RestartPreventExitStatus=64 77 78
TimeoutStartSec=5min
TimeoutStopSec=30s
WatchdogSec=5min
${service}

[Install]
WantedBy=${user ? "default" : "multi-user"}.target
`,
    "fleet-queue-sweep-failed@.service": `${head("fleet queue: %i has failed")}
[Service]
Type=oneshot
# Put your own alarm here: systemctl ${user ? "--user " : ""}edit fleet-queue-sweep-failed@.service
ExecStart=/bin/sh -c 'echo "$1 has failed: see journalctl ${user ? "--user " : ""}-u $1"' sh %i
SyslogLevel=err
${user ? "" : "DynamicUser=yes\n"}NoNewPrivileges=yes
`,
  };
  for (const lane of readLanes()) units[`fleet-queue-sweep-${lane.job}.timer`] = timer(lane);
  return units;
}
