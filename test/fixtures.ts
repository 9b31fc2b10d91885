// Rows that more than one test file puts there, and what becomes of them.
import { DAY, NOW } from "./support.js";

export const PARKED_AT = NOW - DAY;

/** One parked task of every kind, with the verdict each deserves. The id says which is which. */
export const EVERY_KIND = `
  INSERT INTO tasks (id, queue, state) VALUES (100, 'q', 'done'), (101, 'q', 'cancelled'), (102, 'q', 'failed'), (103, 'q', 'queued');
  INSERT INTO events (at_ms, kind, subject) VALUES (${PARKED_AT - 1}, 'snapshot_refresh', 'early');
  INSERT INTO tasks (id, queue, state, parked_at_ms, ready_condition, not_before_ms) VALUES
    (1,  'q', 'parked', ${PARKED_AT}, '{"kind":"event_seen","event":"snapshot_refresh","subject":"met"}', NULL),
    (2,  'q', 'parked', ${PARKED_AT}, '{"kind":"event_seen","event":"snapshot_refresh","subject":"unmet"}', NULL),
    (3,  'q', 'parked', ${PARKED_AT}, '{"kind":"event_seen","event":"snapshot_refresh","subject":"early"}', NULL),
    (4,  'q', 'parked', ${PARKED_AT}, '{"kind":"task_done","task":100}', NULL),
    (5,  'q', 'parked', ${PARKED_AT}, '{"kind":"task_done","task":101}', NULL),
    (6,  'q', 'parked', ${PARKED_AT}, '{"kind":"task_done","task":102}', NULL),
    (7,  'q', 'parked', ${PARKED_AT}, '{"kind":"task_done","task":999}', NULL),
    (8,  'q', 'parked', ${PARKED_AT}, '{"kind":"manual"}', NULL),
    (9,  'q', 'parked', ${PARKED_AT}, '{"any":[{"kind":"manual"},{"all":[{"kind":"task_done","task":100},{"kind":"event_seen","event":"snapshot_refresh"}]}]}', NULL),
    (10, 'q', 'parked', ${PARKED_AT}, '{"any":[{"kind":"manual"},{"all":[{"kind":"task_done","task":100},{"kind":"task_done","task":103}]}]}', NULL),
    (11, 'q', 'parked', ${PARKED_AT}, NULL, ${NOW - 1000}),
    (12, 'q', 'parked', ${PARKED_AT}, '{"kind":"not_before","at_ms":${NOW - 1000}}', NULL),
    (13, 'q', 'parked', ${PARKED_AT}, NULL, NULL),
    (14, 'q', 'parked', ${NOW - 14 * DAY - 1}, '{"kind":"manual"}', NULL),
    (15, 'q', 'parked', ${NOW - 14 * DAY}, '{"kind":"manual"}', NULL),
    (16, 'q', 'parked', ${NOW - 20 * DAY}, '{"all":[{"kind":"task_done","task":100},{"kind":"not_before","at_ms":${NOW + 1}}]}', NULL),
    (17, 'q', 'parked', ${PARKED_AT}, '{"any":[{"kind":"task_done","task":999},{"kind":"task_done","task":103}]}', NULL),
    (18, 'q', 'parked', ${PARKED_AT}, '{"all":[{"kind":"task_done","task":103},{"kind":"task_done","task":101}]}', NULL);
  INSERT INTO events (at_ms, kind, subject) VALUES (${PARKED_AT}, 'snapshot_refresh', 'met');`;

export const FINDINGS = [
  { task_id: 1, verdict: "release", reason: "condition_met" },
  { task_id: 4, verdict: "release", reason: "condition_met" },
  { task_id: 5, verdict: "stale", reason: "dependency_cancelled" },
  { task_id: 6, verdict: "stale", reason: "dependency_failed" },
  { task_id: 7, verdict: "stale", reason: "dependency_missing" },
  { task_id: 9, verdict: "release", reason: "condition_met" },
  { task_id: 13, verdict: "stale", reason: "no_condition" },
  { task_id: 14, verdict: "stale", reason: "parked_too_long" },
  { task_id: 18, verdict: "stale", reason: "dependency_cancelled" },
];
export const OBSERVED = { checked: 18, would_release: 3, released: 0, confirmed: 9, stale: 6 };
export const RELEASED = { checked: 18, would_release: 0, released: 3, confirmed: 9, stale: 6 };

const T = '{"kind":"manual"}';
const SECONDS = Math.floor(NOW / 1000);
const shape = "it holds no term";
const member = "a term has a member that its kind does not take, or one twice";
const event = 'event_seen takes "event"';
const since = '"since_ms" must be whole milliseconds';
const task = 'task_done takes "task"';
const at = 'not_before takes "at_ms"';
const mixed = '"any" or "all" must stand alone';
const unknown = "unknown kind; use event_seen, task_done, not_before or manual";
const object = "it must be one JSON object";
const deep = "nested too deep";

/** Each way to be wrong, with the beginning of what the author is told. */
export const MALFORMED: [condition: string, message: string][] = [
  ["[]", object],
  [`[${T}]`, object],
  ["null", object],
  ["42", object],
  ['"manual"', object],
  ["true", object],
  ["{}", shape],
  ['{"all":[]}', shape],
  ['{"any":[]}', shape],
  ['{"all":{}}', shape],
  ['{"any":{}}', shape],
  [`{"all":${T}}`, shape],
  [`{"any":${T}}`, shape],
  ['{"all":"manual"}', shape],
  ['{"any":7}', shape],
  ['{"all":null}', shape],
  ['{"any":null}', shape],
  ['{"all":[1]}', shape],
  ['{"all":[null]}', shape],
  [`{"all":[${T},{}]}`, shape],
  [`{"any":[${T},"manual"]}`, shape],
  [`{"any":[[${T}]]}`, shape],
  [`{"any":[${T},{"all":[]}]}`, shape],
  [`{"any":[{"all":[[${T}]]}]}`, shape],
  [`{"any":[${T}],"all":[${T}]}`, mixed],
  [`{"all":[${T}],"kind":"manual"}`, mixed],
  [`{"kind":"manual","any":[${T}]}`, mixed],
  [`{"any":[{"all":[${T}],"note":1}]}`, mixed],
  [`{"any":[${T}],"any":[${T}]}`, mixed],
  [`{"all":[${T}],"all":[${T}]}`, mixed],
  [`{"any":[{"all":[${T}],"all":[${T}]}]}`, mixed],
  [`{"all":[{"all":[${T}]}]}`, deep],
  [`{"all":[{"any":[${T}]}]}`, deep],
  [`{"any":[{"any":[${T}]}]}`, deep],
  [`{"any":[{"all":[{"all":[${T}]}]}]}`, deep],
  [`{"any":[{"all":[{"any":[${T}]}]}]}`, deep],
  ['{"kind":"sometime"}', unknown],
  ['{"kind":"Manual"}', unknown],
  ['{"kind":"manual "}', unknown],
  ['{"kind":null}', unknown],
  ['{"kind":["manual"]}', unknown],
  ['{"event":"e"}', unknown],
  [`{"any":[${T},{"kind":"nope"}]}`, unknown],
  [`{"any":[{"all":[${T},{"kind":1}]}]}`, unknown],
  ['{"kind":"manual","note":"x"}', member],
  ['{"kind":"event_seen","event":"e","subjct":"a"}', member],
  ['{"kind":"event_seen","event":"e","at_ms":null}', member],
  ['{"kind":"event_seen","event":"e","event":"f"}', member],
  ['{"kind":"manual","kind":"manual"}', member],
  [`{"kind":"task_done","task":1,"since_ms":${NOW}}`, member],
  [`{"kind":"not_before","at_ms":${NOW},"since_ms":${NOW}}`, member],
  ['{"kind":"event_seen"}', event],
  ['{"kind":"event_seen","event":null}', event],
  ['{"kind":"event_seen","event":""}', event],
  ['{"kind":"event_seen","event":7}', event],
  ['{"kind":"event_seen","event":["e"]}', event],
  ['{"kind":"event_seen","event":"e","subject":7}', event],
  ['{"kind":"event_seen","event":"e","subject":["a"]}', event],
  ['{"kind":"event_seen","event":"e","subject":false}', event],
  [`{"kind":"event_seen","event":"e","since_ms":${SECONDS}}`, since],
  [`{"kind":"event_seen","event":"e","since_ms":"${NOW}"}`, since],
  [`{"kind":"event_seen","event":"e","since_ms":${NOW}.5}`, since],
  [`{"kind":"event_seen","event":"e","since_ms":${NOW}000}`, since],
  ['{"kind":"event_seen","event":"e","since_ms":946684799999}', since],
  ['{"kind":"task_done"}', task],
  ['{"kind":"task_done","task":null}', task],
  ['{"kind":"task_done","task":"42"}', task],
  ['{"kind":"task_done","task":42.0}', task],
  ['{"kind":"task_done","task":true}', task],
  ['{"kind":"task_done","task":[42]}', task],
  ['{"kind":"task_done","task":9223372036854775808}', task],
  ['{"kind":"not_before"}', at],
  ['{"kind":"not_before","at_ms":null}', at],
  [`{"kind":"not_before","at_ms":${SECONDS}}`, at],
  [`{"kind":"not_before","at_ms":"${NOW}"}`, at],
  ['{"kind":"not_before","at_ms":1.8e12}', at],
  ['{"kind":"not_before","at_ms":4133980800000}', at],
  [`{"any":[${T},{"kind":"not_before","at_ms":${SECONDS}}]}`, at],
];

/** Half a character, as an escape: JSON, but no text. */
export const HALVES: typeof MALFORMED = [
  ['{"kind":"event_seen","event":"half \\ud83d"}', event],
  ['{"kind":"event_seen","event":"\\ude00e"}', event],
  ['{"kind":"event_seen","event":"e","subject":"\\ud800"}', event],
];
