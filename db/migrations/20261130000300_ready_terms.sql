-- A parked task's ready condition, taken apart into one row per term, and what those terms wait to see.
--
-- Why apart: revalidation judges terms by index, never parses JSON, and so cannot be stopped by a condition that it
-- cannot read. Why by trigger: a condition is refused at the moment of parking, with a message that says
-- what is wrong, whoever parks the task and however.
--
-- A condition is a list of branches, and a branch is a list of terms: a task is ready when every term of some branch
-- is met. One term alone is one branch of one term; `all` is one branch; each element of `any` is a branch.

-- migrate:up
CREATE TABLE ready_terms (
    task_id INTEGER NOT NULL,
    branch INTEGER NOT NULL,                    -- position within `any`, from 0
    term INTEGER NOT NULL,                      -- position within the branch, from 0
    kind TEXT NOT NULL,
    event TEXT,                                 -- event_seen: the event's kind
    subject TEXT,                               -- event_seen: its subject; NULL takes any
    since_ms INTEGER,                           -- event_seen: not older than this
    depends_on INTEGER,                         -- task_done: the task that must be done
    at_ms INTEGER,                              -- not_before: the time that must be reached
    fault TEXT,                                 -- what is wrong with the condition; never stored, see the guard
    PRIMARY KEY (task_id, branch, term)
) STRICT;

-- Serves awaited_events: does anybody still wait for this?
CREATE INDEX ready_terms_event_subject_idx ON ready_terms (event, subject) WHERE kind = 'event_seen';

-- What the parked tasks wait to see: for each kind and subject, the newest such event.
-- "Some event at or after since_ms" is the same as "the newest event is at or after since_ms", so one row serves every
-- task that waits for it, appending an event touches at most two rows here, revalidation looks at no event at all, and
-- pruning an event takes no evidence away: observed today and enabled in six weeks, the task is still released.
CREATE TABLE awaited_events (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    subject TEXT,                               -- NULL: whatever the subject
    event_id INTEGER,                           -- NULL: none seen yet
    at_ms INTEGER NOT NULL DEFAULT 0            -- 0: none seen yet
) STRICT;

CREATE UNIQUE INDEX awaited_events_kind_subject_idx ON awaited_events (kind, subject);

-- In a unique index every NULL is different; this one makes "any subject" one row a kind.
CREATE UNIQUE INDEX awaited_events_kind_any_subject_idx ON awaited_events (kind) WHERE subject IS NULL;

-- The one place that reads a ready condition: every parked task's terms, faults included.
-- What cannot be read is replaced by '[null]', a list of one term that is none, so that it yields a row with a fault
-- rather than no row or an error. An optional member given as null counts as not given.
CREATE VIEW condition_terms AS
WITH conditions AS (
    SELECT id AS task_id,
           parked_at_ms,
           CASE WHEN json_valid(ready_condition) THEN json_type(ready_condition) END AS type,
           CASE WHEN json_valid(ready_condition) AND json_type(ready_condition) = 'object'
                THEN ready_condition ELSE '{}' END AS condition
      FROM tasks
     WHERE state = 'parked'
       AND ready_condition IS NOT NULL
),
branches AS (
    SELECT conditions.task_id,
           conditions.parked_at_ms,
           conditions.type AS condition_type,
           each_branch.key AS branch,
           json_type(conditions.condition, '$.any') IS NOT NULL
               AND (SELECT count(*) FROM json_each(conditions.condition)) > 1 AS is_mixed,
           CASE WHEN each_branch.type = 'object' THEN each_branch.value ELSE '{}' END AS branch_body
      FROM conditions,
           json_each(CASE WHEN json_type(conditions.condition, '$.any') IS NULL
                          THEN json_array(json(conditions.condition))
                          WHEN json_array_length(conditions.condition, '$.any') > 0
                          THEN json_extract(conditions.condition, '$.any')
                          ELSE '[null]' END) AS each_branch
),
terms AS (
    SELECT branches.task_id,
           branches.parked_at_ms,
           branches.condition_type,
           branches.branch,
           each_term.key AS term,
           branches.is_mixed
               OR json_type(branches.branch_body, '$.all') IS NOT NULL
              AND (SELECT count(*) FROM json_each(branches.branch_body)) > 1 AS is_mixed,
           each_term.type AS type,
           CASE WHEN each_term.type = 'object' THEN each_term.value ELSE '{}' END AS body
      FROM branches,
           json_each(CASE WHEN json_type(branches.branch_body, '$.all') IS NULL
                          THEN json_array(json(branches.branch_body))
                          WHEN json_array_length(branches.branch_body, '$.all') > 0
                          THEN json_extract(branches.branch_body, '$.all')
                          ELSE '[null]' END) AS each_term
)
SELECT task_id,
       branch,
       term,
       coalesce(body ->> '$.kind', '?') AS kind,
       body ->> '$.event' AS event,
       body ->> '$.subject' AS subject,
       CASE WHEN body ->> '$.kind' = 'event_seen' THEN coalesce(body ->> '$.since_ms', parked_at_ms) END AS since_ms,
       body ->> '$.task' AS depends_on,
       body ->> '$.at_ms' AS at_ms,
       CASE
           WHEN condition_type IS NULL THEN 'not_json'
           WHEN condition_type <> 'object' THEN 'not_an_object'
           WHEN is_mixed THEN 'mixed'
           WHEN type <> 'object' OR body = '{}' THEN 'not_a_term'
           WHEN json_type(body, '$.any') IS NOT NULL OR json_type(body, '$.all') IS NOT NULL THEN 'too_deep'
           WHEN coalesce(json_type(body, '$.kind'), '') <> 'text'
             OR body ->> '$.kind' NOT IN ('event_seen', 'task_done', 'not_before', 'manual') THEN 'unknown_kind'
           WHEN EXISTS (SELECT 1
                          FROM json_each(terms.body) AS member
                         WHERE member.key <> 'kind'
                           AND CASE terms.body ->> '$.kind'
                                   WHEN 'event_seen' THEN member.key NOT IN ('event', 'subject', 'since_ms')
                                   WHEN 'task_done' THEN member.key <> 'task'
                                   WHEN 'not_before' THEN member.key <> 'at_ms'
                                   ELSE true
                               END)
             OR (SELECT count(*) <> count(DISTINCT member.key) FROM json_each(terms.body) AS member) THEN 'unknown_member'
           WHEN body ->> '$.kind' = 'event_seen'
            AND (coalesce(json_type(body, '$.event'), '') <> 'text'
                 OR body ->> '$.event' = ''
                 OR coalesce(json_type(body, '$.subject'), 'null') NOT IN ('text', 'null')
                 -- Half a surrogate pair, as an escape, is JSON but no text: it would stop every client that reads it.
                 OR body ->> '$.event' GLOB '*' || char(65533) || '*'
                 OR body ->> '$.subject' GLOB '*' || char(65533) || '*') THEN 'bad_event'
           WHEN body ->> '$.kind' = 'event_seen'
            AND coalesce(json_type(body, '$.since_ms'), 'null') <> 'null'
            AND NOT (json_type(body, '$.since_ms') = 'integer'
                     AND body ->> '$.since_ms' BETWEEN 946684800000 AND 4133980799999) THEN 'bad_since_ms'
           WHEN body ->> '$.kind' = 'task_done'
            AND NOT (coalesce(json_type(body, '$.task'), '') = 'integer'
                     AND typeof(body ->> '$.task') = 'integer') THEN 'bad_task'
           WHEN body ->> '$.kind' = 'not_before'
            AND NOT (coalesce(json_type(body, '$.at_ms'), '') = 'integer'
                     AND body ->> '$.at_ms' BETWEEN 946684800000 AND 4133980799999) THEN 'bad_at_ms'
       END AS fault
  FROM terms;

CREATE TRIGGER ready_terms_refuse_fault
BEFORE INSERT ON ready_terms
WHEN NEW.fault IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'ready_condition refused: it is not JSON') WHERE NEW.fault = 'not_json';
    SELECT RAISE(ABORT, 'ready_condition refused: it must be one JSON object, a term, {"all": [...]} or {"any": [...]}') WHERE NEW.fault = 'not_an_object';
    SELECT RAISE(ABORT, 'ready_condition refused: "any" or "all" must stand alone in its object, and once') WHERE NEW.fault = 'mixed';
    SELECT RAISE(ABORT, 'ready_condition refused: it holds no term; "any" and "all" take a list of at least one, and a term is an object with a "kind"') WHERE NEW.fault = 'not_a_term';
    SELECT RAISE(ABORT, 'ready_condition refused: nested too deep; "any" may hold terms and {"all": [...]}, "all" may hold terms only') WHERE NEW.fault = 'too_deep';
    SELECT RAISE(ABORT, 'ready_condition refused: unknown kind; use event_seen, task_done, not_before or manual') WHERE NEW.fault = 'unknown_kind';
    SELECT RAISE(ABORT, 'ready_condition refused: a term has a member that its kind does not take, or one twice') WHERE NEW.fault = 'unknown_member';
    SELECT RAISE(ABORT, 'ready_condition refused: event_seen takes "event", a text that is not empty, and at will "subject", a text; both of whole characters') WHERE NEW.fault = 'bad_event';
    SELECT RAISE(ABORT, 'ready_condition refused: "since_ms" must be whole milliseconds since 1970, between the years 2000 and 2100') WHERE NEW.fault = 'bad_since_ms';
    SELECT RAISE(ABORT, 'ready_condition refused: task_done takes "task", the id of a task as a whole number') WHERE NEW.fault = 'bad_task';
    SELECT RAISE(ABORT, 'ready_condition refused: not_before takes "at_ms", whole milliseconds since 1970, between the years 2000 and 2100') WHERE NEW.fault = 'bad_at_ms';
    SELECT RAISE(ABORT, 'ready_condition refused');
END;

-- When a time park is due: the earliest branch, and within it the latest term; not before not_before_ms either.
-- A task that waits for anything but time has no row here.
CREATE VIEW time_parks AS
SELECT id AS task_id,
       max(coalesce(not_before_ms, 0),
           coalesce((SELECT min(branch_due_ms)
                       FROM (SELECT max(at_ms) AS branch_due_ms
                               FROM ready_terms
                              WHERE task_id = tasks.id
                              GROUP BY branch)), 0)) AS due_ms
  FROM tasks
 WHERE state = 'parked'
   AND CASE WHEN ready_condition IS NULL
            THEN not_before_ms IS NOT NULL
            ELSE EXISTS (SELECT 1 FROM ready_terms WHERE task_id = tasks.id)
             AND NOT EXISTS (SELECT 1 FROM ready_terms WHERE task_id = tasks.id AND kind <> 'not_before')
       END;

-- The events that a term waits for, from the log as it stands when the first task begins to wait for them.
CREATE TRIGGER awaited_events_look_back
AFTER INSERT ON awaited_events
BEGIN
    UPDATE awaited_events
       SET event_id = newest.id,
           at_ms = newest.at_ms
      FROM (SELECT id, max(at_ms) AS at_ms FROM events WHERE kind = NEW.kind AND subject = NEW.subject) AS newest
     WHERE awaited_events.id = NEW.id
       AND NEW.subject IS NOT NULL
       AND newest.id IS NOT NULL;
    UPDATE awaited_events
       SET event_id = newest.id,
           at_ms = newest.at_ms
      FROM (SELECT id, max(at_ms) AS at_ms FROM events WHERE kind = NEW.kind) AS newest
     WHERE awaited_events.id = NEW.id
       AND NEW.subject IS NULL
       AND newest.id IS NOT NULL;
END;

-- And from then on each event as it arrives. An event that arrives late, with an old time, is never the newest.
CREATE TRIGGER events_meet_awaited
AFTER INSERT ON events
BEGIN
    UPDATE awaited_events
       SET event_id = NEW.id,
           at_ms = NEW.at_ms
     WHERE kind = NEW.kind
       AND subject = NEW.subject
       AND at_ms < NEW.at_ms;
    UPDATE awaited_events
       SET event_id = NEW.id,
           at_ms = NEW.at_ms
     WHERE kind = NEW.kind
       AND subject IS NULL
       AND at_ms < NEW.at_ms;
END;

CREATE TRIGGER ready_terms_await_event
AFTER INSERT ON ready_terms
WHEN NEW.kind = 'event_seen'
BEGIN
    INSERT INTO awaited_events (kind, subject)
    SELECT NEW.event, NEW.subject
     WHERE NOT EXISTS (SELECT 1 FROM awaited_events WHERE kind = NEW.event AND subject IS NEW.subject);
END;

CREATE TRIGGER ready_terms_stop_waiting
AFTER DELETE ON ready_terms
WHEN OLD.kind = 'event_seen'
BEGIN
    DELETE FROM awaited_events
     WHERE kind = OLD.event
       AND subject IS OLD.subject
       AND NOT EXISTS (SELECT 1
                         FROM ready_terms
                        WHERE kind = 'event_seen'
                          AND event = OLD.event
                          AND subject IS OLD.subject);
END;

-- A task written straight into `parked` takes the same way as one that is parked later.
CREATE TRIGGER tasks_park_on_insert
AFTER INSERT ON tasks
WHEN NEW.state = 'parked'
BEGIN
    UPDATE tasks SET parked_at_ms = coalesce(parked_at_ms, (SELECT now_ms FROM clock)) WHERE id = NEW.id;
END;

-- Who parks a task without saying when, parks it now: also where the column still holds the time of an earlier park.
CREATE TRIGGER tasks_stamp_park
AFTER UPDATE OF state, parked_at_ms ON tasks
WHEN NEW.state = 'parked'
 AND (NEW.parked_at_ms IS NULL OR OLD.state <> 'parked' AND NEW.parked_at_ms IS OLD.parked_at_ms)
BEGIN
    UPDATE tasks SET parked_at_ms = (SELECT now_ms FROM clock) WHERE id = NEW.id;
END;

CREATE TRIGGER tasks_take_condition_apart
AFTER UPDATE OF state, ready_condition, not_before_ms, parked_at_ms ON tasks
WHEN NEW.state = 'parked' AND NEW.parked_at_ms IS NOT NULL
BEGIN
    -- The old terms go last: what old and new both wait for must not be forgotten in between, pruned as it may be.
    UPDATE ready_terms SET branch = -1 - branch WHERE task_id = NEW.id;
    INSERT INTO ready_terms (task_id, branch, term, kind, event, subject, since_ms, depends_on, at_ms, fault)
    -- Of a faulty term only the fault: a value of the wrong type would be refused before the guard can say what is wrong.
    SELECT task_id, branch, term, kind, event, subject,
           CASE WHEN fault IS NULL THEN since_ms END,
           CASE WHEN fault IS NULL THEN depends_on END,
           CASE WHEN fault IS NULL THEN at_ms END,
           fault
      FROM condition_terms
     WHERE task_id = NEW.id;
    DELETE FROM ready_terms WHERE task_id = NEW.id AND branch < 0;
    UPDATE tasks
       SET time_park_due_ms = (SELECT due_ms FROM time_parks WHERE task_id = NEW.id),
           parsed_condition = ready_condition
     WHERE id = NEW.id;
END;

CREATE TRIGGER tasks_forget_condition
AFTER UPDATE OF state ON tasks
WHEN OLD.state = 'parked' AND NEW.state <> 'parked'
BEGIN
    DELETE FROM ready_terms WHERE task_id = NEW.id;
    UPDATE tasks SET time_park_due_ms = NULL, parsed_condition = NULL WHERE id = NEW.id;
END;

-- A row that replaces a parked one takes nothing over from it; no delete trigger sees a REPLACE.
CREATE TRIGGER tasks_forget_on_replace
AFTER INSERT ON tasks
WHEN NEW.state <> 'parked'
BEGIN
    DELETE FROM ready_terms WHERE task_id = NEW.id;
END;

CREATE TRIGGER tasks_refuse_new_id
BEFORE UPDATE OF id ON tasks
WHEN NEW.id <> OLD.id
BEGIN
    SELECT RAISE(ABORT, 'tasks: a task keeps its id: its lease, its terms and its events go by it');
END;

CREATE TRIGGER tasks_forget_on_delete
AFTER DELETE ON tasks
BEGIN
    DELETE FROM ready_terms WHERE task_id = OLD.id;
END;

-- migrate:down
DROP TRIGGER tasks_refuse_new_id;
DROP TRIGGER tasks_forget_on_replace;
DROP TRIGGER tasks_forget_on_delete;
DROP TRIGGER tasks_forget_condition;
DROP TRIGGER tasks_take_condition_apart;
DROP TRIGGER tasks_stamp_park;
DROP TRIGGER tasks_park_on_insert;
DROP TRIGGER events_meet_awaited;
DROP VIEW time_parks;
DROP TABLE awaited_events;
DROP TABLE ready_terms;
DROP VIEW condition_terms;
