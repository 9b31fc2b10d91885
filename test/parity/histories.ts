/**
 * Histories for the differential test: what a fleet may do to a queue in forty steps, as fast-check arbitraries.
 *
 * Written from sections 2 to 4 of the design and from docs/semantics.md. An operation names tasks, leases and moments by an index
 * into what there is when its turn comes, never by value: any operation can be taken out of a history and the rest still means
 * something, which is what makes shrinking work. `World` holds what there is; `apply` turns an operation into calls of the interface.
 *
 * The domains are small, so that things collide; every boundary of the contract (a lease ending now, an event exactly thirty days old,
 * an event in the millisecond of a park, fourteen days parked) has a generator that hits it to the millisecond and one beside.
 */

import fc, { Arbitrary, type Random, type Stream, type Value } from "fast-check";
import type { Mode, QueueModel, SweepName } from "./queue_model.ts";

const DAY = 86_400_000;
const START = 1_796_000_000_000;
const LAST_ID = 16;

// Moments ------------------------------------------------------------------------------------------------------------------

type Landmark = "now" | "lease_end" | "not_before" | "parked_at" | "event" | "awaited_event";

/** A landmark's time, so many days and milliseconds on. */
interface When {
  from: Landmark;
  index: number;
  days: number;
  ms: number;
}

const index = fc.nat(11);
const beside = fc.constantFrom(0, 0, -1, 1);

function when(from: Landmark, days: number, ms: Arbitrary<number> = beside): Arbitrary<When> {
  return fc.record({ from: fc.constant(from), index, days: fc.constant(days), ms });
}

/** Where time goes next. Landmarks that lie behind are passed over by `apply`, so none of these is wasted. */
const nextMoment = fc.oneof(
  { weight: 4, arbitrary: when("now", 0, fc.constantFrom(1, 1000, 60_000)) },
  { weight: 3, arbitrary: when("lease_end", 0) },
  { weight: 2, arbitrary: when("not_before", 0) },
  { weight: 2, arbitrary: when("parked_at", 14) },
  { weight: 2, arbitrary: when("event", 30) },
  { weight: 1, arbitrary: when("now", 1, fc.constant(0)) },
);

const eventMoment = fc.oneof(
  { weight: 3, arbitrary: when("now", 0, fc.constantFrom(0, 0, 0, -1, 1)) },
  { weight: 3, arbitrary: when("parked_at", 0) },
  { weight: 2, arbitrary: when("event", 0) },
  { weight: 4, arbitrary: when("now", -30) },
  { weight: 1, arbitrary: when("now", -31, fc.constant(0)) },
);

const sinceMoment = fc.oneof(
  { weight: 2, arbitrary: when("now", 0) },
  { weight: 1, arbitrary: when("parked_at", 0) },
  { weight: 3, arbitrary: when("event", 0) },
  { weight: 3, arbitrary: when("now", -30) },
  { weight: 1, arbitrary: when("now", -32, fc.constant(0)) },
);

const dueMoment = fc.oneof(
  { weight: 2, arbitrary: when("now", 0, fc.constantFrom(0, -1, 1, 1000, 60_000)) },
  { weight: 2, arbitrary: when("not_before", 0) },
  { weight: 1, arbitrary: when("now", 1) },
  { weight: 1, arbitrary: when("now", 20, fc.constant(0)) },
);

// Words --------------------------------------------------------------------------------------------------------------------

const queue = fc.constantFrom("builds", "builds", "reviews");
const worker = fc.constantFrom("w1", "w2");
const leaseMs = fc.constantFrom(60_000, 60_000, 1000, 1);
const parkReason = fc.constantFrom(null, "waiting for a person", "it's \"late\"");

const LONG = "r".repeat(3000);
const oddSubject = fc.constantFrom(
  "", "Repo-A", "repo-a ", "repo", "it's \"quoted\" \\ back", "caf\u00e9", "cafe\u0301", "\u{1f40c}", "null", "5", "%", LONG, `${LONG}x`,
);
const subject = fc.oneof(
  { weight: 4, arbitrary: fc.constant("repo-a") },
  { weight: 2, arbitrary: fc.constant("repo-b") },
  { weight: 2, arbitrary: oddSubject },
);
const eventKind = fc.oneof(
  { weight: 4, arbitrary: fc.constant("snapshot_refresh") },
  { weight: 3, arbitrary: fc.constant("deploy") },
  { weight: 1, arbitrary: fc.constantFrom("Deploy", "proof.deploy", "d\u00e9ploy") },
);
/** What the queue itself logs can be waited for like anything else. */
const ownKind = fc.constantFrom("parked", "lease_expired", "park_released", "events_pruned", "attempts_exhausted");

// Conditions ---------------------------------------------------------------------------------------------------------------

interface TaskRef {
  /** `awaited`: some parked task's condition names it. `ended`: done, failed or cancelled. */
  among: "existing" | "parked" | "awaited" | "ended" | "all ids";
  index: number;
}

type Term =
  | { kind: "event_seen"; event: string; subject?: string | null; since?: When | null }
  /** An event_seen of an event that another task waited for and that was pruned since: of its subject or any, from about its time. */
  | { kind: "event_seen"; outlived: number; anySubject: boolean; ms: number }
  | { kind: "task_done"; task: TaskRef | number }
  | { kind: "not_before"; at: When | number }
  | { kind: "manual" };

type Shape = { term: Term } | { all: Term[] } | { any: ({ term: Term } | { all: Term[] })[] };

/** How it is written: the same JSON value in another spelling must mean the same. */
type Spelling = "plain" | "spaced" | "reversed" | "escaped" | "escaped throughout";

type Condition = { shape: Shape; spelling: Spelling } | { refused: string };

const eventSeen: Arbitrary<Term> = fc.record(
  {
    kind: fc.constant("event_seen" as const),
    event: fc.oneof({ weight: 6, arbitrary: eventKind }, { weight: 1, arbitrary: ownKind }),
    subject: fc.oneof({ weight: 5, arbitrary: subject }, { weight: 1, arbitrary: fc.constant(null) }),
    since: fc.oneof({ weight: 6, arbitrary: sinceMoment }, { weight: 1, arbitrary: fc.constant(null) }),
  },
  { requiredKeys: ["kind", "event"] },
);

const taskDone: Arbitrary<Term> = fc.record({
  kind: fc.constant("task_done" as const),
  task: fc.oneof(
    { weight: 9, arbitrary: fc.record({ among: fc.constantFrom("existing", "parked", "ended", "ended", "ended", "all ids"), index }) as Arbitrary<TaskRef> },
    { weight: 1, arbitrary: fc.constantFrom(0, -1, Number.MAX_SAFE_INTEGER) },
  ),
});

const notBefore: Arbitrary<Term> = fc.record({
  kind: fc.constant("not_before" as const),
  at: fc.oneof(
    { weight: 12, arbitrary: dueMoment as Arbitrary<When | number> },
    // The first and the last milliseconds that are taken, and one that any reading of "2000..2100" takes.
    { weight: 1, arbitrary: fc.constantFrom(946_684_800_000, 4_102_444_800_000, 4_133_980_799_999) },
  ),
});

const manual: Arbitrary<Term> = fc.constant({ kind: "manual" as const });

const outlivedEvent: Arbitrary<Term> = fc.record({
  kind: fc.constant("event_seen" as const),
  outlived: fc.constantFrom(0, 0, 1, 2),
  anySubject: fc.constantFrom(false, false, true),
  ms: beside,
});

/** Met by what a run releases, though not in that run's own batch: the tasks of a batch are judged before the first is released. */
const someRelease: Arbitrary<Term> = fc.constant({ kind: "event_seen" as const, event: "park_released" });

const term = fc.oneof(
  { weight: 14, arbitrary: eventSeen },
  { weight: 8, arbitrary: taskDone },
  { weight: 6, arbitrary: notBefore },
  { weight: 2, arbitrary: manual },
  { weight: 3, arbitrary: someRelease },
  { weight: 3, arbitrary: outlivedEvent },
);

function shapeOf(t: Arbitrary<Term>): Arbitrary<Shape> {
  const alone = fc.record({ term: t });
  const all = fc.record({ all: fc.array(t, { minLength: 1, maxLength: 3, size: "max" }) });
  return fc.oneof(
    { weight: 5, arbitrary: alone as Arbitrary<Shape> },
    { weight: 3, arbitrary: all as Arbitrary<Shape> },
    { weight: 4, arbitrary: fc.record({ any: fc.array(fc.oneof(alone, all), { minLength: 1, maxLength: 3, size: "max" }) }) as Arbitrary<Shape> },
  );
}

const spelling: Arbitrary<Spelling> = fc.constantFrom("plain", "plain", "plain", "spaced", "reversed", "escaped", "escaped throughout");

const M = '{"kind":"manual"}';

/** Every sentence of the grammar that refuses, in more than one way where there is more than one way to get it wrong. */
export const REFUSED: readonly string[] = [
  // not JSON, though some of it is JSON5
  "", " ", "manual", "{kind:\"manual\"}", "{'kind':'manual'}", '{"kind":"manual",}', `${M} ${M}`, `${M}/* later */`,
  '{"kind":"not_before","at_ms":0x1A22A8B2C00}', '{"kind":"not_before","at_ms":+1796000000000}', `{"any":[${M}`,
  // not an object
  "null", "true", "5", '"manual"', `[${M}]`, "[]",
  // an empty list; a list that is none
  "{}", '{"any":[]}', '{"all":[]}', `{"any":[${M},{"all":[]}]}`, `{"any":${M}}`, `{"all":${M}}`, '{"any":null}', '{"all":"manual"}', '{"any":[{"all":null}]}',
  // an element that is no term
  `{"any":[${M},null]}`, '{"all":["manual"]}', '{"all":[5]}', `{"any":[[${M}]]}`, `{"all":[${M},{}]}`,
  // an unknown kind, or none
  '{"kind":"event"}', '{"kind":"Manual"}', '{"kind":""}', '{"kind":null}', '{"kind":5}', '{"kind":["manual"]}', '{"Kind":"manual"}',
  '{"event":"deploy"}', `{"any":[${M},{"kind":"mañana"}]}`,
  // a member the kind does not take
  '{"kind":"event_seen","event":"deploy","subjct":"repo-a"}', '{"kind":"event_seen","event":"deploy","Subject":"repo-a"}',
  '{"kind":"event_seen","event":"deploy","at_ms":1796000000000}', '{"kind":"manual","subject":null}', '{"kind":"manual","":1}',
  '{"kind":"not_before","at_ms":1796000000000,"since_ms":null}', '{"kind":"task_done","task":1,"state":"done"}',
  // a member twice
  '{"kind":"manual","kind":"manual"}', '{"kind":"event_seen","event":"deploy","event":"deploy"}',
  '{"kind":"event_seen","event":"deploy","subject":"repo-a","subject":null}', '{"kind":"event_seen","event":"deploy","subject":null,"subject":null}',
  `{"any":[${M}],"any":[${M}]}`, `{"any":[{"all":[${M}],"all":[${M}]}]}`, '{"kind":"task_done","task":1,"t\\u0061sk":1}',
  // a member missing, or null where it is required
  '{"kind":"event_seen"}', '{"kind":"event_seen","subject":"repo-a"}', '{"kind":"task_done"}', '{"kind":"not_before"}',
  '{"kind":"event_seen","event":null}', '{"kind":"task_done","task":null}', '{"kind":"not_before","at_ms":null}',
  // a wrong type
  '{"kind":"event_seen","event":5}', '{"kind":"event_seen","event":["deploy"]}', '{"kind":"event_seen","event":"deploy","subject":5}',
  '{"kind":"event_seen","event":"deploy","subject":{}}', '{"kind":"event_seen","event":"deploy","subject":false}',
  '{"kind":"event_seen","event":"deploy","since_ms":"1796000000000"}', '{"kind":"event_seen","event":"deploy","since_ms":true}',
  '{"kind":"task_done","task":"1"}', '{"kind":"task_done","task":true}', '{"kind":"task_done","task":[1]}', '{"kind":"task_done","task":1.5}',
  '{"kind":"task_done","task":1.0}', '{"kind":"task_done","task":99999999999999999999}', '{"kind":"not_before","at_ms":"2026-12-01"}',
  '{"kind":"not_before","at_ms":1796000000000.5}', '{"kind":"not_before","at_ms":1.796e12}', '{"kind":"not_before","at_ms":false}',
  // a time outside 2000..2100: seconds, microseconds, one millisecond before and after
  '{"kind":"not_before","at_ms":1796000000}', '{"kind":"not_before","at_ms":1796000000000000}', '{"kind":"not_before","at_ms":946684799999}',
  '{"kind":"not_before","at_ms":4133980800000}', '{"kind":"not_before","at_ms":0}', '{"kind":"not_before","at_ms":-1796000000000}',
  '{"kind":"event_seen","event":"deploy","since_ms":1796000000}', '{"kind":"event_seen","event":"deploy","since_ms":0}',
  '{"kind":"not_before","at_ms":99999999999999999999}',
  // any or all beside other members
  `{"any":[${M}],"all":[${M}]}`, `{"all":[${M}],"kind":"manual"}`, `{"any":[${M}],"note":"x"}`, `{"any":[${M}],"all":null}`, `{"any":[{"all":[${M}],"kind":"manual"}]}`,
  // deeper nesting
  `{"any":[{"any":[${M}]}]}`, `{"all":[{"all":[${M}]}]}`, `{"all":[{"any":[${M}]}]}`, `{"any":[{"all":[{"all":[${M}]}]}]}`, `{"any":[{"all":[{"any":[${M}]}]}]}`,
];

const condition: Arbitrary<Condition | null> = fc.oneof(
  { weight: 14, arbitrary: fc.record({ shape: shapeOf(term), spelling }) as Arbitrary<Condition | null> },
  { weight: 4, arbitrary: fc.record({ shape: shapeOf(notBefore), spelling }) as Arbitrary<Condition | null> },
  { weight: 4, arbitrary: fc.record({ shape: shapeOf(outlivedEvent), spelling }) as Arbitrary<Condition | null> },
  { weight: 3, arbitrary: fc.record({ shape: shapeOf(taskDone), spelling }) as Arbitrary<Condition | null> },
  { weight: 4, arbitrary: fc.record({ refused: fc.constantFrom(...REFUSED) }) as Arbitrary<Condition | null> },
  { weight: 2, arbitrary: fc.record({ shape: fc.record({ term: someRelease }), spelling }) as Arbitrary<Condition | null> },
  { weight: 2, arbitrary: fc.constant(null) },
);

/** What an older tool may have written: JSON, but nothing the grammar takes, in any spelling. */
const spoilt = fc.constantFrom('{"until":"tomorrow"}', "[]", '{"kind":"event_seen","evnt":"deploy"}', '{"any":[]}', `{"all":[${M},{"all":[${M}]}]}`);

// Operations ---------------------------------------------------------------------------------------------------------------

/** A task and a token: of a lease that is thought to hold, of one whose task a parked task waits for, of any there ever was, of two different ones, or the token that `unbind` writes and no lease has. */
interface LeaseRef {
  which: "live" | "awaited" | "ever" | "crossed" | "by hand";
  index: number;
}

interface ParkArguments {
  condition: Condition | null;
  notBefore: When | null;
  reason: string | null;
}

export type Operation =
  | { do: "enqueue"; slot: number; queue: string; priority: number; notBefore: When | null; maxAttempts: number | null }
  | { do: "claim"; queue: string; worker: string; leaseMs: number }
  | { do: "renew"; lease: LeaseRef; leaseMs: number }
  | { do: "complete" | "fail"; lease: LeaseRef }
  | ({ do: "park"; lease: LeaseRef } & ParkArguments)
  /** Enqueue, claim, park in one: a history that had to do these one by one would have little room left to wait in. */
  | ({ do: "enqueue, claim and park"; slot: number; queue: string; priority: number; worker: string; maxAttempts: number | null } & ParkArguments)
  | { do: "release" | "cancel"; task: TaskRef }
  | { do: "unbind"; lease: LeaseRef; by: "cancelling" | "another token" }
  | { do: "spoil"; task: TaskRef; readyCondition: string }
  | { do: "event"; at: When; kind: string; subject: string | null }
  /** An event that a parked task waits for, or one that is nearly that: a millisecond too early, or another word by a hair. */
  | { do: "awaited event"; index: number; at: "since" | "now"; ms: number; twist: Twist }
  /** The same, and then the thirty days pass after which a prune takes it. */
  | { do: "awaited event, outlived"; index: number; ms: number; twist: Twist }
  | { do: "tick"; to: When }
  /** Now, or at a moment of its own choosing. */
  | { do: "sweep"; name: SweepName; mode: Mode; to: When | null }
  | { do: "set max releases"; n: number };

/** What makes two words nearly the same, to a database that compares more loosely than byte by byte. */
type Twist = "none" | "case" | "kind's case" | "space" | "normal form" | "one less" | "empty or none";
const twist: Arbitrary<Twist> = fc.oneof(
  { weight: 2, arbitrary: fc.constant("none" as const) },
  { weight: 1, arbitrary: fc.constantFrom("case", "kind's case", "space", "normal form", "one less", "empty or none") as Arbitrary<Twist> },
);

function twisted(e: { kind: string; subject: string | null }, by: Twist): { kind: string; subject: string | null } {
  if (by === "kind's case") return { kind: e.kind === e.kind.toUpperCase() ? e.kind.toLowerCase() : e.kind.toUpperCase(), subject: e.subject };
  const s = e.subject ?? "";
  const subject = {
    none: e.subject,
    case: s === s.toUpperCase() ? s.toLowerCase() : s.toUpperCase(),
    space: s.endsWith(" ") ? s.trimEnd() : `${s} `,
    "normal form": s === s.normalize("NFC") ? s.normalize("NFD") : s.normalize("NFC"),
    "one less": Array.from(s).slice(0, -1).join(""),
    "empty or none": e.subject === "" ? null : "",
  }[by];
  return { kind: e.kind, subject };
}

const lease: Arbitrary<LeaseRef> = fc.record({
  which: fc.constantFrom("live", "live", "live", "awaited", "awaited", "ever", "crossed", "by hand"),
  index,
});
const parkedTask: Arbitrary<TaskRef> = fc.record({ among: fc.constantFrom("parked", "parked", "existing", "all ids"), index });
const cancelledTask: Arbitrary<TaskRef> = fc.record({ among: fc.constantFrom("awaited", "awaited", "parked", "all ids"), index });
const slot = fc.nat(LAST_ID - 1);
const priority = fc.constantFrom(0, 0, 0, 1, -1);
const maxAttempts = fc.constantFrom(null, null, 1, 2);
const seldom = <T>(a: Arbitrary<T>): Arbitrary<T | null> => fc.option(a, { freq: 2, nil: null });

const parkArguments = {
  condition,
  notBefore: fc.oneof({ weight: 3, arbitrary: fc.constant(null) }, { weight: 1, arbitrary: dueMoment as Arbitrary<When | null> }),
  reason: parkReason,
};

function operation<D extends Operation["do"]>(name: D, members: Record<string, Arbitrary<unknown>>): Arbitrary<Operation> {
  return fc.record({ do: fc.constant(name), ...members }) as unknown as Arbitrary<Operation>;
}

function sweep(name: SweepName, moments: Arbitrary<When>[]): Arbitrary<Operation> {
  const mode = fc.constantFrom("enabled", "enabled", "observe");
  return operation("sweep", { name: fc.constant(name), mode, to: fc.option(fc.oneof(...moments), { freq: 1, nil: null }) });
}

const anyOperation: Arbitrary<Operation> = fc.oneof(
  { weight: 4, arbitrary: operation("enqueue", { slot, queue, priority, notBefore: seldom(dueMoment), maxAttempts }) },
  { weight: 6, arbitrary: operation("claim", { queue, worker, leaseMs }) },
  { weight: 2, arbitrary: operation("renew", { lease, leaseMs }) },
  { weight: 3, arbitrary: operation("complete", { lease }) },
  { weight: 2, arbitrary: operation("fail", { lease }) },
  { weight: 3, arbitrary: operation("park", { lease, ...parkArguments }) },
  { weight: 9, arbitrary: operation("enqueue, claim and park", { slot, queue, priority, worker, maxAttempts, ...parkArguments }) },
  { weight: 1, arbitrary: operation("release", { task: parkedTask }) },
  { weight: 2, arbitrary: operation("cancel", { task: cancelledTask }) },
  { weight: 1, arbitrary: operation("unbind", { lease, by: fc.constantFrom("cancelling", "another token") }) },
  { weight: 1, arbitrary: operation("spoil", { task: parkedTask, readyCondition: spoilt }) },
  { weight: 5, arbitrary: operation("awaited event", { index, at: fc.constantFrom("since", "since", "now"), ms: beside, twist }) },
  { weight: 3, arbitrary: operation("awaited event, outlived", { index, ms: beside, twist }) },
  { weight: 6, arbitrary: operation("event", { at: eventMoment, kind: eventKind, subject: fc.option(subject, { freq: 3, nil: null }) }) },
  { weight: 5, arbitrary: operation("tick", { to: nextMoment }) },
  { weight: 3, arbitrary: sweep("expire_leases", [when("lease_end", 0)]) },
  { weight: 4, arbitrary: sweep("revalidate_parked_tasks", [when("not_before", 0), when("parked_at", 14), when("parked_at", 14)]) },
  { weight: 4, arbitrary: sweep("prune_events", [when("event", 30), when("awaited_event", 30, fc.constantFrom(0, 1, 1))]) },
  { weight: 2, arbitrary: operation("set max releases", { n: fc.constantFrom(1, 1, 1, 2, 1000) }) },
);

/** Generates at full length, shrinks to any: fc.array would generate at any length as well, or shrink to none but full. */
class FullLength<T> extends Arbitrary<T[]> {
  private readonly full: Arbitrary<T[]>;
  private readonly any: Arbitrary<T[]>;
  constructor(element: Arbitrary<T>, length: number) {
    super();
    this.full = fc.array(element, { minLength: length, maxLength: length, size: "max" });
    this.any = fc.array(element, { minLength: 0, maxLength: length, size: "max" });
  }
  override generate(random: Random, biasFactor: number | undefined): Value<T[]> {
    return this.full.generate(random, biasFactor);
  }
  override canShrinkWithoutContext(value: unknown): value is T[] {
    return this.any.canShrinkWithoutContext(value);
  }
  override shrink(value: T[], context: unknown): Stream<Value<T[]>> {
    return this.any.shrink(value, context);
  }
}

export function histories(length: number): Arbitrary<Operation[]> {
  return new FullLength(anyOperation, length);
}

// Applying them ------------------------------------------------------------------------------------------------------------

interface Lease {
  taskId: number;
  token: string;
  endsMs: number;
  /** As far as the history knows: nothing has ended it. */
  live: boolean;
}

/** An event term of a task that was parked. */
interface Awaited {
  taskId: number;
  kind: string;
  subject: string | null;
  sinceMs: number;
}

/** What a history knows of the queue while it unfolds: enough to name things by index, too little to predict anything. */
export class World {
  nowMs = START;
  maxReleases = 1000;
  readonly taskIds: number[] = [];
  readonly parked = new Set<number>();
  readonly leases: Lease[] = [];
  readonly awaited: Awaited[] = [];
  /** Events that a task waited for, or nearly, and that a prune took away. */
  readonly outlived: { kind: string; subject: string | null; atMs: number }[] = [];
  readonly dependencies: { taskId: number; on: number }[] = [];
  readonly ended = new Set<number>();
  private readonly landmarks: Record<Exclude<Landmark, "now">, number[]> = { lease_end: [], not_before: [], parked_at: [], event: [], awaited_event: [] };

  /** How often something worth reaching was reached; for the coverage report only. */
  constructor(readonly reached: (what: string) => void = () => {}) {}

  static async begin(model: QueueModel, reached?: (what: string) => void): Promise<World> {
    const world = new World(reached);
    await model.reset(world.nowMs);
    return world;
  }

  mark(landmark: Exclude<Landmark, "now">, ms: number): void {
    this.landmarks[landmark].push(ms);
  }

  has(landmark: Exclude<Landmark, "now">, ms: number): boolean {
    return this.landmarks[landmark].includes(ms);
  }

  moment(w: When, notBehind = false): number {
    const on = w.days * DAY + w.ms;
    const candidates = w.from === "now" ? [] : this.landmarks[w.from].filter((ms) => !notBehind || ms + on >= this.nowMs);
    const base = candidates[w.index % candidates.length];
    // The years 2000 to 2100 are all there is.
    if (base !== undefined) return Math.min(Math.max(base + on, 946_684_800_000), 4_102_444_800_000);
    return notBehind ? Math.max(this.nowMs, this.nowMs + w.ms) : this.nowMs + on;
  }

  task(ref: TaskRef): number {
    const ids = {
      existing: () => this.taskIds,
      parked: () => [...this.parked],
      awaited: () => this.awaitedTasks(),
      ended: () => [...this.ended],
      "all ids": () => [],
    }[ref.among]();
    return ids[ref.index % ids.length] ?? (ref.index % LAST_ID) + 1;
  }

  private awaitedTasks(): number[] {
    return this.dependencies.filter((d) => this.parked.has(d.taskId)).map((d) => d.on);
  }

  lease(ref: LeaseRef): { taskId: number; token: string; lease?: Lease } {
    const live = this.leases.filter((l) => l.live);
    const awaited = live.filter((l) => this.awaitedTasks().includes(l.taskId));
    const among = ref.which === "awaited" && awaited.length > 0 ? awaited : ["live", "awaited"].includes(ref.which) && live.length > 0 ? live : this.leases;
    const lease = among[ref.index % among.length];
    if (lease === undefined) return { taskId: (ref.index % LAST_ID) + 1, token: "by hand" };
    if (ref.which === "by hand") return { taskId: lease.taskId, token: "by hand" };
    if (ref.which === "crossed") {
      const other = among[(ref.index + 1) % among.length] ?? lease;
      return { taskId: lease.taskId, token: other.token, ...(other === lease ? { lease } : {}) };
    }
    return { taskId: lease.taskId, token: lease.token, lease };
  }

  unusedId(slot: number): number | undefined {
    const unused = Array.from({ length: LAST_ID }, (_, i) => i + 1).filter((id) => !this.taskIds.includes(id));
    return unused[slot % unused.length];
  }

  render(condition: Condition | null): string | null {
    if (condition === null) return null;
    if ("refused" in condition) return condition.refused;
    return spell(this.value(condition.shape), condition.spelling);
  }

  private value(shape: Shape): unknown {
    if ("term" in shape) return this.termValue(shape.term);
    if ("all" in shape) return { all: shape.all.map((t) => this.termValue(t)) };
    return { any: shape.any.map((b) => this.value(b)) };
  }

  private termValue(t: Term): unknown {
    switch (t.kind) {
      case "event_seen":
        if ("outlived" in t) {
          const { kind: event, subject, atMs } = this.outlived.at(-1 - (t.outlived % this.outlived.length)) ?? {
            kind: "snapshot_refresh",
            subject: null,
            atMs: this.nowMs,
          };
          return { kind: t.kind, event, ...(subject !== null && !t.anySubject ? { subject } : {}), since_ms: atMs + t.ms };
        }
        return {
          kind: t.kind,
          event: t.event,
          ...("subject" in t ? { subject: t.subject } : {}),
          ...("since" in t ? { since_ms: t.since ? this.moment(t.since) : null } : {}),
        };
      case "task_done":
        return { kind: t.kind, task: typeof t.task === "number" ? t.task : this.task(t.task) };
      case "not_before": {
        const at_ms = typeof t.at === "number" ? t.at : this.moment(t.at);
        // A landmark to go to, where it is one that a history can live to see.
        if (at_ms < this.nowMs + 60 * DAY) this.mark("not_before", at_ms);
        return { kind: t.kind, at_ms };
      }
      case "manual":
        return { kind: t.kind };
    }
  }

  /** Notes what a task waits for, wherever in its condition that stands. */
  await(taskId: number, condition: unknown): void {
    if (Array.isArray(condition)) return condition.forEach((c) => this.await(taskId, c));
    const c = condition as { all?: unknown; any?: unknown; kind?: string; event: string; subject?: string | null; since_ms?: number | null; task: number };
    if (c.all ?? c.any) return this.await(taskId, c.all ?? c.any);
    if (c.kind === "event_seen") this.awaited.push({ taskId, kind: c.event, subject: c.subject ?? null, sinceMs: c.since_ms ?? this.nowMs });
    if (c.kind === "task_done") this.dependencies.push({ taskId, on: c.task });
  }

  /** What a claim or an expiry does to the leases this history knows: those that are over hold no longer. */
  expire(): void {
    for (const l of this.leases) {
      if (l.live && l.endsMs === this.nowMs) this.reached("boundary: a lease ending exactly now, expired");
      if (l.live && l.endsMs - 1 === this.nowMs) this.reached("boundary: a lease ending in 1 ms, not expired");
      if (l.endsMs <= this.nowMs) l.live = false;
    }
  }
}

function spell(value: unknown, spelling: Spelling): string {
  if (spelling === "plain") return JSON.stringify(value);
  if (spelling === "spaced") return `\n ${JSON.stringify(value, null, "\t")} `;
  const escaped = (text: string) =>
    `"${Array.from({ length: text.length }, (_, i) => `\\u${text.charCodeAt(i).toString(16).padStart(4, "0")}`).join("")}"`;
  const text = spelling === "reversed" ? (s: string) => JSON.stringify(s) : escaped;
  const key = spelling === "escaped throughout" ? escaped : (s: string) => JSON.stringify(s);
  const write = (v: unknown): string => {
    if (typeof v === "string") return text(v);
    if (Array.isArray(v)) return `[${v.map(write).join(",")}]`;
    if (v === null || typeof v !== "object") return JSON.stringify(v);
    const members = Object.entries(v).map(([k, m]) => `${key(k)}:${write(m)}`);
    return `{${(spelling === "reversed" ? members.reverse() : members).join(",")}}`;
  };
  return write(value);
}

async function claim(w: World, m: QueueModel, a: { queue: string; worker: string; leaseMs: number }): Promise<Lease | undefined> {
  const token = `t${w.leases.length + 1}`;
  w.expire();
  const taskId = await m.claim({ queue: a.queue, worker: a.worker, token, leaseMs: a.leaseMs });
  if (taskId === null) return undefined;
  if (w.parked.delete(taskId)) w.reached("claim of a due time park");
  const lease = { taskId, token, endsMs: w.nowMs + a.leaseMs, live: true };
  w.leases.push(lease);
  w.mark("lease_end", lease.endsMs);
  return lease;
}

async function enqueue(
  w: World,
  m: QueueModel,
  a: { slot: number; queue: string; priority: number; notBeforeMs: number | null; maxAttempts: number | null },
): Promise<void> {
  const id = w.unusedId(a.slot);
  if (id === undefined) return;
  w.taskIds.push(id);
  await m.enqueue({ id, queue: a.queue, priority: a.priority, notBeforeMs: a.notBeforeMs, maxAttempts: a.maxAttempts });
}

async function park(w: World, m: QueueModel, at: { taskId: number; token: string; lease?: Lease }, a: ParkArguments): Promise<void> {
  const readyCondition = w.render(a.condition);
  const notBeforeMs = a.notBefore && w.moment(a.notBefore);
  if (notBeforeMs !== null) w.mark("not_before", notBeforeMs);
  const answer = await m.park({ taskId: at.taskId, token: at.token, readyCondition, notBeforeMs, reason: a.reason });
  if (answer === "refused") return;
  if (answer === "lost") {
    if (a.condition && "refused" in a.condition) w.reached("park that is both lost and refused");
    return;
  }
  if (at.lease) {
    if (at.lease.endsMs <= w.nowMs) w.reached("park after the lease's end");
    at.lease.live = false;
  }
  if (w.has("event", w.nowMs)) w.reached("boundary: a park in the millisecond of an event");
  w.parked.add(at.taskId);
  w.mark("parked_at", w.nowMs);
  if (readyCondition !== null) w.await(at.taskId, JSON.parse(readyCondition));
}

async function awaitedEvent(
  w: World,
  m: QueueModel,
  o: { index: number; at: "since" | "now"; ms: number; twist: Twist },
): Promise<{ kind: string; subject: string | null; atMs: number } | undefined> {
  const awaited = w.awaited.filter((a) => w.parked.has(a.taskId));
  const a = awaited[o.index % awaited.length];
  if (a === undefined) return undefined;
  const atMs = (o.at === "since" ? a.sinceMs : w.nowMs) + o.ms;
  const { kind, subject } = twisted(a, o.twist);
  if (kind !== a.kind || subject !== a.subject) w.reached(`boundary: an awaited event but for its ${o.twist}`);
  else w.reached(`boundary: an awaited event ${atMs < a.sinceMs ? "before" : atMs === a.sinceMs ? "at" : "after"} since`);
  await m.event({ atMs, kind, subject });
  w.mark("event", atMs);
  w.mark("awaited_event", atMs);
  return { kind, subject, atMs };
}

/** Time never goes back. */
async function moveOn(w: World, m: QueueModel, ms: number): Promise<void> {
  if (ms <= w.nowMs) return;
  w.nowMs = ms;
  await m.setNow(ms);
}

const AGES = [[-1, "1 ms less than"], [0, "exactly"], [1, "1 ms more than"]] as const;

/** Turns one operation into calls. What the model answers feeds the world, so that later operations find it. */
export async function apply(w: World, m: QueueModel, o: Operation): Promise<void> {
  switch (o.do) {
    case "enqueue": {
      const notBeforeMs = o.notBefore && w.moment(o.notBefore);
      if (notBeforeMs !== null) w.mark("not_before", notBeforeMs);
      return enqueue(w, m, { ...o, notBeforeMs });
    }
    case "claim":
      await claim(w, m, o);
      return;
    case "renew": {
      const { lease, ...at } = w.lease(o.lease);
      const answer = await m.renew({ ...at, leaseMs: o.leaseMs });
      if (answer !== "ok" || !lease) return;
      if (w.nowMs + o.leaseMs < lease.endsMs) w.reached("renewal that ends sooner");
      lease.endsMs = w.nowMs + o.leaseMs;
      w.mark("lease_end", lease.endsMs);
      return;
    }
    case "complete":
    case "fail": {
      const { lease, ...at } = w.lease(o.lease);
      if ((await m[o.do](at)) !== "ok" || !lease) return;
      if (lease.endsMs <= w.nowMs) w.reached(`${o.do} after the lease's end`);
      lease.live = false;
      w.ended.add(lease.taskId);
      return;
    }
    case "park":
      return park(w, m, w.lease(o.lease), o);
    case "enqueue, claim and park": {
      await enqueue(w, m, { ...o, notBeforeMs: null });
      const lease = await claim(w, m, { ...o, leaseMs: 60_000 });
      if (lease) await park(w, m, { taskId: lease.taskId, token: lease.token, lease }, o);
      return;
    }
    case "release": {
      const taskId = w.task(o.task);
      if (await m.release({ taskId })) w.parked.delete(taskId);
      return;
    }
    case "cancel": {
      const taskId = w.task(o.task);
      await m.cancel({ taskId });
      w.parked.delete(taskId);
      // Unless it was leased; `ended` is for aiming, not for knowing.
      if (w.taskIds.includes(taskId)) w.ended.add(taskId);
      return;
    }
    case "unbind":
      return m.unbind({ taskId: w.lease(o.lease).taskId, by: o.by });
    case "spoil":
      return m.spoil({ taskId: w.task(o.task), readyCondition: o.readyCondition });
    case "event": {
      const atMs = w.moment(o.at);
      if (w.has("parked_at", atMs)) w.reached("boundary: an event in the millisecond of a park");
      if (atMs > w.nowMs) w.reached("event dated in the future");
      await m.event({ atMs, kind: o.kind, subject: o.subject });
      w.mark("event", atMs);
      return;
    }
    case "awaited event":
      await awaitedEvent(w, m, o);
      return;
    case "awaited event, outlived": {
      const event = await awaitedEvent(w, m, { ...o, at: "since" });
      if (event === undefined) return;
      await moveOn(w, m, event.atMs + 30 * DAY + 1);
      w.outlived.push(event);
      await m.sweep("prune_events", "enabled");
      return;
    }
    case "tick":
      return moveOn(w, m, w.moment(o.to, true));
    case "sweep": {
      if (o.to) await moveOn(w, m, w.moment(o.to, true));
      if (o.name === "expire_leases" && o.mode === "enabled") w.expire();
      if (o.name === "prune_events") {
        for (const [ms, age] of AGES) {
          if (w.has("event", w.nowMs - 30 * DAY - ms)) w.reached(`boundary: an event ${age} 30 days old at a prune`);
        }
      }
      if (o.name === "revalidate_parked_tasks") {
        for (const [ms, age] of AGES) {
          if (w.has("parked_at", w.nowMs - 14 * DAY - ms)) w.reached(`boundary: a task ${age} 14 days parked at a revalidation`);
        }
      }
      await m.sweep(o.name, o.mode);
      if (o.name === "revalidate_parked_tasks" && o.mode === "enabled") {
        w.parked.clear();
        for (const v of await m.verdicts()) w.parked.add(v.task_id);
      }
      return;
    }
    case "set max releases":
      w.maxReleases = o.n;
      return m.setMaxReleases(o.n);
  }
}
