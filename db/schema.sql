CREATE TABLE IF NOT EXISTS "schema_migrations" (version varchar(128) primary key);
CREATE TABLE tasks (
    id INTEGER PRIMARY KEY,
    key TEXT UNIQUE,                            -- the caller's own name for the task
    queue TEXT NOT NULL DEFAULT 'default',
    state TEXT NOT NULL DEFAULT 'queued',
    priority INTEGER NOT NULL DEFAULT 0,        -- higher first
    payload TEXT NOT NULL DEFAULT '{}',
    not_before_ms INTEGER,                      -- claim leaves the task alone until then
    ready_condition TEXT,                       -- parked: what it waits for; see ready_terms
    park_reason TEXT,                           -- parked: for people
    parked_at_ms INTEGER,                       -- parked: since when
    time_park_due_ms INTEGER,                   -- parked on time alone: when claim may take it; kept by a trigger
    parsed_condition TEXT,                      -- parked: the ready_condition that ready_terms was made of; kept by a trigger
    claimed_by TEXT,                            -- leased: the worker
    lease_token TEXT,                           -- leased: the fence
    attempts INTEGER NOT NULL DEFAULT 0,        -- counted at claim
    max_attempts INTEGER,                       -- NULL: no limit
    created_at_ms INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)),
    updated_at_ms INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)),
    CONSTRAINT tasks_state_is_known
        CHECK (state IN ('queued', 'leased', 'parked', 'done', 'failed', 'cancelled')),
    CONSTRAINT tasks_binding_only_while_leased
        CHECK ((state = 'leased') = (claimed_by IS NOT NULL) AND (state = 'leased') = (lease_token IS NOT NULL)),
    CONSTRAINT tasks_payload_is_json
        CHECK (json_valid(payload)),
    CONSTRAINT tasks_ready_condition_is_json
        CHECK (ready_condition IS NULL OR json_valid(ready_condition)),
    CONSTRAINT tasks_attempts_are_counted_from_0
        CHECK (attempts >= 0),
    CONSTRAINT tasks_max_attempts_is_1_or_more_or_null
        CHECK (max_attempts >= 1),
    CONSTRAINT tasks_not_before_ms_is_milliseconds
        CHECK (not_before_ms BETWEEN 946684800000 AND 4133980799999),
    CONSTRAINT tasks_parked_at_ms_is_milliseconds
        CHECK (parked_at_ms BETWEEN 946684800000 AND 4133980799999),
    CONSTRAINT tasks_time_park_due_ms_is_milliseconds
        CHECK (time_park_due_ms BETWEEN 946684800000 AND 4133980799999),
    CONSTRAINT tasks_created_at_ms_is_milliseconds
        CHECK (created_at_ms BETWEEN 946684800000 AND 4133980799999),
    CONSTRAINT tasks_updated_at_ms_is_milliseconds
        CHECK (updated_at_ms BETWEEN 946684800000 AND 4133980799999)
) STRICT;
CREATE INDEX tasks_queued_idx ON tasks (queue, priority DESC, created_at_ms, id) WHERE state = 'queued';
CREATE INDEX tasks_time_park_due_ms_idx ON tasks (queue, time_park_due_ms) WHERE time_park_due_ms IS NOT NULL;
CREATE INDEX tasks_parked_idx ON tasks (id) WHERE state = 'parked';
CREATE TABLE leases (
    task_id INTEGER PRIMARY KEY REFERENCES tasks (id),
    worker TEXT NOT NULL,
    token TEXT NOT NULL,
    acquired_at_ms INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)),
    expires_at_ms INTEGER NOT NULL,
    CONSTRAINT leases_acquired_at_ms_is_milliseconds
        CHECK (acquired_at_ms BETWEEN 946684800000 AND 4133980799999),
    CONSTRAINT leases_expires_at_ms_is_milliseconds
        CHECK (expires_at_ms BETWEEN 946684800000 AND 4133980799999)
) STRICT;
CREATE INDEX leases_expires_at_ms_idx ON leases (expires_at_ms);
CREATE TABLE lease_fence (
    task_id INTEGER,
    token TEXT,
    renewing INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TRIGGER lease_fence_refuse_lost_lease
BEFORE INSERT ON lease_fence
BEGIN
    SELECT RAISE(ABORT, 'lease lost: this token does not hold this task; stop working on it and claim again')
     WHERE NOT EXISTS (
               SELECT 1
                 FROM leases
                 JOIN tasks ON tasks.id = leases.task_id AND tasks.lease_token = leases.token
                WHERE leases.task_id = NEW.task_id
                  AND leases.token = NEW.token
           );
    -- Completing late is harmless while nobody else holds the task; coming back to life is not.
    SELECT RAISE(ABORT, 'lease lost: it has run out and cannot be renewed; stop working on the task and claim again')
     WHERE NEW.renewing
       AND EXISTS (SELECT 1 FROM expired_leases WHERE task_id = NEW.task_id);
    SELECT RAISE(IGNORE);
END;
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,       -- never used twice, so that "after this id" stays true after pruning
    at_ms INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)),
    kind TEXT NOT NULL,
    subject TEXT,
    task_id INTEGER,
    run_id TEXT,
    payload TEXT NOT NULL DEFAULT '{}',
    CONSTRAINT events_at_ms_is_milliseconds
        CHECK (at_ms BETWEEN 946684800000 AND 4133980799999),
    CONSTRAINT events_kind_is_not_empty
        CHECK (kind <> ''),
    CONSTRAINT events_payload_is_json
        CHECK (json_valid(payload))
) STRICT;
CREATE INDEX events_at_ms_idx ON events (at_ms);
CREATE INDEX events_kind_subject_at_ms_idx ON events (kind, subject, at_ms);
CREATE TRIGGER events_refuse_update
BEFORE UPDATE ON events
BEGIN
    SELECT RAISE(ABORT, 'events are append-only: write a new event instead of changing an old one');
END;
CREATE TRIGGER events_refuse_replace
BEFORE INSERT ON events
WHEN EXISTS (SELECT 1 FROM events WHERE id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'events are append-only: there is an event of this id already; leave the id out');
END;
CREATE TRIGGER events_refuse_young_delete
BEFORE DELETE ON events
WHEN OLD.kind NOT GLOB 'proof.*'
BEGIN
    SELECT RAISE(ABORT, 'events younger than events_retention_days cannot be deleted: leave them to prune_events')
     WHERE NOT EXISTS (SELECT 1 FROM prunable_events WHERE id = OLD.id);
END;
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
CREATE INDEX ready_terms_event_subject_idx ON ready_terms (event, subject) WHERE kind = 'event_seen';
CREATE TABLE awaited_events (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    subject TEXT,                               -- NULL: whatever the subject
    event_id INTEGER,                           -- NULL: none seen yet
    at_ms INTEGER NOT NULL DEFAULT 0            -- 0: none seen yet
) STRICT;
CREATE UNIQUE INDEX awaited_events_kind_subject_idx ON awaited_events (kind, subject);
CREATE UNIQUE INDEX awaited_events_kind_any_subject_idx ON awaited_events (kind) WHERE subject IS NULL;
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
  FROM terms
/* condition_terms(task_id,branch,term,kind,event,subject,since_ms,depends_on,at_ms,fault) */;
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
       END
/* time_parks(task_id,due_ms) */;
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
CREATE TRIGGER tasks_park_on_insert
AFTER INSERT ON tasks
WHEN NEW.state = 'parked'
BEGIN
    UPDATE tasks SET parked_at_ms = coalesce(parked_at_ms, (SELECT now_ms FROM clock)) WHERE id = NEW.id;
END;
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
CREATE TABLE sweep_settings (
    name TEXT PRIMARY KEY NOT NULL,
    value ANY,
    note TEXT NOT NULL DEFAULT '',
    -- ANY, so that a word is met by the constraint that names the setting; whole numbers given as text or real will do.
    CONSTRAINT events_retention_days_is_a_whole_number_from_1_to_3650
        CHECK (name <> 'events_retention_days' OR coalesce(CAST(value AS INTEGER) = value AND CAST(value AS INTEGER) BETWEEN 1 AND 3650, 0)),
    CONSTRAINT runs_retention_days_is_a_whole_number_from_1_to_3650
        CHECK (name <> 'runs_retention_days' OR coalesce(CAST(value AS INTEGER) = value AND CAST(value AS INTEGER) BETWEEN 1 AND 3650, 0)),
    CONSTRAINT stale_after_days_is_a_whole_number_from_1_to_3650
        CHECK (name <> 'stale_after_days' OR coalesce(CAST(value AS INTEGER) = value AND CAST(value AS INTEGER) BETWEEN 1 AND 3650, 0)),
    CONSTRAINT max_releases_per_run_is_a_whole_number_from_1_to_1000000
        CHECK (name <> 'max_releases_per_run' OR coalesce(CAST(value AS INTEGER) = value AND CAST(value AS INTEGER) BETWEEN 1 AND 1000000, 0)),
    CONSTRAINT expire_batch_rows_is_a_whole_number_from_1_to_100000
        CHECK (name <> 'expire_batch_rows' OR coalesce(CAST(value AS INTEGER) = value AND CAST(value AS INTEGER) BETWEEN 1 AND 100000, 0)),
    CONSTRAINT revalidate_batch_rows_is_a_whole_number_from_1_to_100000
        CHECK (name <> 'revalidate_batch_rows' OR coalesce(CAST(value AS INTEGER) = value AND CAST(value AS INTEGER) BETWEEN 1 AND 100000, 0)),
    CONSTRAINT prune_batch_rows_is_a_whole_number_from_1_to_100000
        CHECK (name <> 'prune_batch_rows' OR coalesce(CAST(value AS INTEGER) = value AND CAST(value AS INTEGER) BETWEEN 1 AND 100000, 0)),
    CONSTRAINT expire_max_run_seconds_is_a_whole_number_from_1_to_3600
        CHECK (name <> 'expire_max_run_seconds' OR coalesce(CAST(value AS INTEGER) = value AND CAST(value AS INTEGER) BETWEEN 1 AND 3600, 0)),
    CONSTRAINT daily_max_run_seconds_is_a_whole_number_from_1_to_86400
        CHECK (name <> 'daily_max_run_seconds' OR coalesce(CAST(value AS INTEGER) = value AND CAST(value AS INTEGER) BETWEEN 1 AND 86400, 0)),
    CONSTRAINT abandon_run_after_seconds_is_a_whole_number_from_10_to_86400
        CHECK (name <> 'abandon_run_after_seconds' OR coalesce(CAST(value AS INTEGER) = value AND CAST(value AS INTEGER) BETWEEN 10 AND 86400, 0)),
    CONSTRAINT fake_now_ms_is_null_or_milliseconds_between_2000_and_2100
        CHECK (name <> 'fake_now_ms' OR value IS NULL OR coalesce(CAST(value AS INTEGER) = value AND CAST(value AS INTEGER) BETWEEN 946684800000 AND 4133980799999, 0))
) STRICT;
CREATE TRIGGER sweep_settings_refuse_unknown
BEFORE INSERT ON sweep_settings
WHEN NOT EXISTS (SELECT 1 FROM sweep_settings WHERE name = NEW.name)
BEGIN
    SELECT RAISE(ABORT, 'sweep_settings: no setting of that name; SELECT name, note FROM sweep_settings lists them');
END;
CREATE TRIGGER sweep_settings_refuse_rename
BEFORE UPDATE OF name ON sweep_settings
WHEN NEW.name <> OLD.name
BEGIN
    SELECT RAISE(ABORT, 'sweep_settings: a setting keeps its name; change its value');
END;
CREATE TRIGGER sweep_settings_refuse_delete
BEFORE DELETE ON sweep_settings
BEGIN
    SELECT RAISE(ABORT, 'sweep_settings: a setting cannot be deleted; change its value');
END;
CREATE TABLE fake_clock (
    name TEXT PRIMARY KEY NOT NULL DEFAULT 'now' CHECK (name = 'now'),
    now_ms INTEGER NOT NULL
) STRICT;
CREATE TRIGGER sweep_settings_set_fake_clock
AFTER UPDATE OF value ON sweep_settings
WHEN NEW.name = 'fake_now_ms'
BEGIN
    DELETE FROM fake_clock;
    INSERT INTO fake_clock (now_ms) SELECT CAST(NEW.value AS INTEGER) WHERE NEW.value IS NOT NULL;
END;
CREATE TRIGGER sweep_settings_replace_fake_clock
AFTER INSERT ON sweep_settings
WHEN NEW.name = 'fake_now_ms'
BEGIN
    UPDATE sweep_settings SET value = NEW.value WHERE name = NEW.name;
END;
CREATE VIEW sweep_limits AS
SELECT name, CAST(value AS INTEGER) AS value
  FROM sweep_settings
 WHERE CAST(value AS INTEGER) >= 1
   AND CAST(value AS INTEGER) = value
/* sweep_limits(name,value) */;
CREATE TABLE sweep_runs (
    id TEXT PRIMARY KEY NOT NULL,               -- the idempotency key: the same id never does its work twice
    sweep TEXT NOT NULL,
    requested_mode TEXT NOT NULL DEFAULT 'enabled',
    mode TEXT NOT NULL DEFAULT 'enabled',       -- what it did; observe writes nothing but sweep_* rows
    gate_reason TEXT,                           -- why a run that was asked to release only observed
    origin TEXT NOT NULL DEFAULT 'manual',
    runner TEXT NOT NULL DEFAULT '',            -- host and pid
    sql_version TEXT NOT NULL DEFAULT '',       -- of the sweep file's statements and of the schema
    schema_version TEXT NOT NULL DEFAULT '',    -- the newest migration applied
    needs_schema_version TEXT NOT NULL DEFAULT '', -- the newest migration that the runner knows of
    scope_queue TEXT,                           -- NULL: everything; else one queue, a proof's own
    batch_rows INTEGER,                         -- NULL: as the setting says; smaller after a slow batch; 0: the runner stops
    batches INTEGER NOT NULL DEFAULT 0,         -- counted up by each batch; in the idle row, by each idle run
    reached_task_id INTEGER NOT NULL DEFAULT -9007199254740991, -- revalidation: judged up to here; at first, below every id
    started_at_ms INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)),
    heartbeat_at_ms INTEGER,                    -- when its latest batch began
    finished_at_ms INTEGER,
    outcome TEXT NOT NULL DEFAULT 'running',
    drained INTEGER NOT NULL DEFAULT 0,         -- 1: nothing was left over
    counts TEXT NOT NULL DEFAULT '{}',
    error TEXT,
    CONSTRAINT sweep_runs_sweep_is_known
        CHECK (sweep IN ('expire_leases', 'revalidate_parked_tasks', 'prune_events')),
    CONSTRAINT pending_migrations_run_make_migrate
        CHECK (schema_version >= needs_schema_version),
    CONSTRAINT sweep_runs_requested_mode_is_observe_or_enabled
        CHECK (requested_mode IN ('observe', 'enabled')),
    CONSTRAINT sweep_runs_mode_is_observe_or_enabled
        CHECK (mode IN ('observe', 'enabled')),
    CONSTRAINT sweep_runs_origin_is_known
        CHECK (origin IN ('timer', 'daemon', 'manual', 'proof')),
    CONSTRAINT sweep_runs_outcome_is_known
        CHECK (outcome IN ('running', 'ok', 'failed', 'abandoned')),
    CONSTRAINT sweep_runs_batch_rows_is_0_or_more_or_null
        CHECK (batch_rows >= 0),
    CONSTRAINT sweep_runs_counts_is_json
        CHECK (json_valid(counts)),
    CONSTRAINT sweep_runs_started_at_ms_is_milliseconds
        CHECK (started_at_ms BETWEEN 946684800000 AND 4133980799999),
    CONSTRAINT sweep_runs_heartbeat_at_ms_is_milliseconds
        CHECK (heartbeat_at_ms BETWEEN 946684800000 AND 4133980799999),
    CONSTRAINT sweep_runs_finished_at_ms_is_milliseconds
        CHECK (finished_at_ms BETWEEN 946684800000 AND 4133980799999)
) STRICT;
CREATE TRIGGER schema_migrations_tell_idle_runs
AFTER INSERT ON schema_migrations
BEGIN
    UPDATE sweep_runs SET schema_version = max(schema_version, NEW.version) WHERE id = 'expire_leases.idle';
END;
CREATE TRIGGER schema_migrations_tell_idle_runs_of_rollback
AFTER DELETE ON schema_migrations
BEGIN
    UPDATE sweep_runs SET schema_version = (SELECT max(version) FROM schema_migrations) WHERE id = 'expire_leases.idle';
END;
CREATE UNIQUE INDEX sweep_runs_one_running_idx ON sweep_runs (sweep, coalesce(scope_queue, '')) WHERE outcome = 'running';
CREATE INDEX sweep_runs_sweep_started_at_ms_idx ON sweep_runs (sweep, started_at_ms) WHERE id <> 'expire_leases.idle';
CREATE TABLE sweep_findings (
    run_id TEXT NOT NULL,
    task_id INTEGER NOT NULL,
    verdict TEXT NOT NULL,
    reason TEXT NOT NULL,
    evidence TEXT NOT NULL DEFAULT '[]',
    PRIMARY KEY (run_id, task_id),
    CONSTRAINT sweep_findings_verdict_is_release_or_stale
        CHECK (verdict IN ('release', 'stale')),
    CONSTRAINT sweep_findings_evidence_is_json
        CHECK (json_valid(evidence))
) STRICT;
CREATE TABLE sweep_batch (
    id INTEGER PRIMARY KEY DEFAULT 1 CHECK (id = 1),
    run_id TEXT,                                -- NULL: a claim, which expires leases but keeps no ledger
    acts INTEGER NOT NULL DEFAULT 0,            -- 0: observe
    scope_queue TEXT,
    row_limit INTEGER,
    last_event_id INTEGER NOT NULL DEFAULT 0,   -- what this batch logs has a higher id
    after_task_id INTEGER NOT NULL DEFAULT 0,   -- revalidation: this batch's tasks come after this one
    up_to_task_id INTEGER NOT NULL DEFAULT 0,   -- ... and go up to this one
    up_to_at_ms INTEGER NOT NULL DEFAULT 0,     -- pruning: this batch's events lie before this time,
    up_to_event_id INTEGER NOT NULL DEFAULT 0   -- ... or at it, up to this one
) STRICT;
CREATE VIEW open_batch AS
SELECT CASE WHEN (SELECT count(*) FROM sweep_batch) THEN (SELECT run_id FROM sweep_batch) END AS run_id,
       CASE WHEN (SELECT count(*) FROM sweep_batch) THEN (SELECT acts FROM sweep_batch) END AS acts,
       CASE WHEN (SELECT count(*) FROM sweep_batch) THEN coalesce((SELECT row_limit FROM sweep_batch WHERE acts), 0) ELSE 0 END AS act_limit,
       CASE WHEN (SELECT count(*) FROM sweep_batch) THEN (SELECT row_limit FROM sweep_batch) END AS row_limit,
       CASE WHEN (SELECT count(*) FROM sweep_batch) THEN (SELECT scope_queue FROM sweep_batch) END AS scope_queue,
       CASE WHEN (SELECT count(*) FROM sweep_batch) THEN (SELECT last_event_id FROM sweep_batch) END AS last_event_id,
       CASE WHEN (SELECT count(*) FROM sweep_batch) THEN (SELECT after_task_id FROM sweep_batch) END AS after_task_id,
       CASE WHEN (SELECT count(*) FROM sweep_batch) THEN (SELECT up_to_task_id FROM sweep_batch) END AS up_to_task_id,
       CASE WHEN (SELECT count(*) FROM sweep_batch) THEN (SELECT up_to_at_ms FROM sweep_batch) END AS up_to_at_ms,
       CASE WHEN (SELECT count(*) FROM sweep_batch) THEN (SELECT up_to_event_id FROM sweep_batch) END AS up_to_event_id
/* open_batch(run_id,acts,act_limit,row_limit,scope_queue,last_event_id,after_task_id,up_to_task_id,up_to_at_ms,up_to_event_id) */;
CREATE TRIGGER sweep_runs_refuse_foreign_id
BEFORE INSERT ON sweep_runs
WHEN EXISTS (SELECT 1
               FROM sweep_runs
              WHERE id = NEW.id
                AND (sweep <> NEW.sweep OR scope_queue IS NOT NEW.scope_queue OR requested_mode <> NEW.requested_mode))
BEGIN
    SELECT RAISE(ABORT, 'run id taken: it belongs to another sweep, scope or mode; give each run an id of its own');
END;
CREATE TRIGGER sweep_runs_keep_idle_row
BEFORE DELETE ON sweep_runs
WHEN OLD.id = 'expire_leases.idle'
BEGIN
    SELECT RAISE(IGNORE);
END;
CREATE TRIGGER sweep_runs_one_at_a_time
BEFORE INSERT ON sweep_runs
WHEN NEW.outcome = 'running'
BEGIN
    -- A run that its runner left behind: killed, or cut off. What it did is committed and stays; the rest is the next run's.
    UPDATE sweep_runs
       SET outcome = 'abandoned',
           finished_at_ms = (SELECT now_ms FROM clock),
           error = 'its runner was silent for longer than abandon_run_after_seconds'
     WHERE sweep = NEW.sweep
       AND scope_queue IS NEW.scope_queue
       AND outcome = 'running'
       AND id <> NEW.id
       -- Either way: after the clock was set back, a heartbeat may lie in the future.
       AND abs((SELECT now_ms FROM clock) - coalesce(heartbeat_at_ms, started_at_ms))
           >= (SELECT value FROM sweep_limits WHERE name = 'abandon_run_after_seconds') * 1000;
    SELECT RAISE(ABORT, 'sweep held: another run of this sweep is under way')
     WHERE EXISTS (
               SELECT 1
                 FROM sweep_runs
                WHERE sweep = NEW.sweep
                  AND scope_queue IS NEW.scope_queue
                  AND outcome = 'running'
                  AND id <> NEW.id
           );
    SELECT RAISE(ABORT, 'sweep_settings: a value is no whole number of 1 or more; see SELECT * FROM sweep_settings')
     WHERE EXISTS (
               SELECT 1
                 FROM sweep_settings
                WHERE name <> 'fake_now_ms'
                  AND name NOT IN (SELECT name FROM sweep_limits)
           );
END;
CREATE TRIGGER sweep_runs_open_first_batch
AFTER INSERT ON sweep_runs
WHEN NEW.outcome = 'running' AND NEW.batches = 1
BEGIN
    INSERT OR REPLACE INTO sweep_batch (run_id) VALUES (NEW.id);
END;
CREATE TRIGGER sweep_runs_open_next_batch
AFTER UPDATE OF batches ON sweep_runs
WHEN NEW.outcome = 'running'
BEGIN
    INSERT OR REPLACE INTO sweep_batch (run_id) VALUES (NEW.id);
END;
CREATE TRIGGER sweep_batch_follow_run
AFTER INSERT ON sweep_batch
WHEN NEW.run_id IS NOT NULL
BEGIN
    UPDATE sweep_runs SET heartbeat_at_ms = (SELECT now_ms FROM clock) WHERE id = NEW.run_id;
    UPDATE sweep_batch
       SET acts = run.mode = 'enabled',
           scope_queue = run.scope_queue,
           row_limit = coalesce(run.batch_rows,
                                CASE run.sweep
                                    WHEN 'expire_leases' THEN (SELECT value FROM sweep_limits WHERE name = 'expire_batch_rows')
                                    WHEN 'revalidate_parked_tasks' THEN (SELECT value FROM sweep_limits WHERE name = 'revalidate_batch_rows')
                                    ELSE (SELECT value FROM sweep_limits WHERE name = 'prune_batch_rows')
                                END),
           last_event_id = (SELECT coalesce(max(id), 0) FROM events),
           after_task_id = run.reached_task_id
      FROM sweep_runs AS run
     WHERE run.id = NEW.run_id;
END;
CREATE VIEW clock AS
SELECT coalesce((SELECT now_ms FROM fake_clock WHERE name = 'now'),
                CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)) AS now_ms
/* clock(now_ms) */;
CREATE VIEW batch_events AS
SELECT id, at_ms, +kind AS kind, subject, task_id, run_id, payload
  FROM events
 WHERE id > (SELECT last_event_id FROM open_batch)
/* batch_events(id,at_ms,kind,subject,task_id,run_id,payload) */;
CREATE VIEW expired_leases AS
SELECT leases.task_id,
       tasks.queue,
       leases.worker,
       leases.token,
       leases.acquired_at_ms,
       leases.expires_at_ms,
       tasks.attempts,
       tasks.max_attempts,
       CASE WHEN tasks.lease_token IS NOT leases.token THEN NULL
            WHEN tasks.attempts >= tasks.max_attempts THEN 'failed'
            ELSE 'queued' END AS next_state
  FROM leases
  LEFT JOIN tasks ON tasks.id = leases.task_id
 WHERE leases.expires_at_ms <= (SELECT now_ms FROM clock)
/* expired_leases(task_id,queue,worker,token,acquired_at_ms,expires_at_ms,attempts,max_attempts,next_state) */;
CREATE VIEW claimable_tasks AS
SELECT id AS task_id, queue, priority, created_at_ms
  FROM tasks
 WHERE state = 'queued'
   AND (not_before_ms IS NULL OR not_before_ms <= (SELECT now_ms FROM clock))
 UNION ALL
SELECT id, queue, priority, created_at_ms
  FROM tasks
 WHERE state = 'parked'
   AND ready_condition IS parsed_condition
   AND time_park_due_ms IS NOT NULL
   AND time_park_due_ms <= (SELECT now_ms FROM clock)
/* claimable_tasks(task_id,queue,priority,created_at_ms) */;
CREATE VIEW term_progress AS
SELECT ready_terms.task_id,
       ready_terms.branch,
       ready_terms.term,
       ready_terms.kind,
       CASE ready_terms.kind
           WHEN 'event_seen' THEN
               CASE WHEN (SELECT at_ms
                            FROM awaited_events
                           WHERE awaited_events.kind = ready_terms.event
                             AND awaited_events.subject IS ready_terms.subject) >= ready_terms.since_ms THEN 3
                    ELSE 1 END
           WHEN 'task_done' THEN
               CASE coalesce((SELECT state FROM tasks WHERE tasks.id = ready_terms.depends_on), 'missing')
                   WHEN 'done' THEN 3
                   WHEN 'failed' THEN 0
                   WHEN 'cancelled' THEN 0
                   WHEN 'missing' THEN 0
                   ELSE 1 END
           WHEN 'not_before' THEN
               CASE WHEN ready_terms.at_ms <= (SELECT now_ms FROM clock) THEN 3
                    ELSE 2 END
           ELSE 1
       END AS progress
  FROM ready_terms
/* term_progress(task_id,branch,term,kind,progress) */;
CREATE VIEW term_evidence AS
SELECT term_progress.task_id,
       term_progress.branch,
       term_progress.term,
       term_progress.kind,
       CASE term_progress.progress WHEN 3 THEN 'met'
                                   WHEN 0 THEN coalesce('dependency_' || (SELECT state FROM tasks WHERE tasks.id = ready_terms.depends_on),
                                                        'dependency_missing')
                                   ELSE 'waiting' END AS state,
       ready_terms.depends_on,
       ready_terms.at_ms,
       ready_terms.event,
       CASE WHEN term_progress.progress = 3 AND ready_terms.kind = 'event_seen'
            THEN (SELECT event_id
                    FROM awaited_events
                   WHERE awaited_events.kind = ready_terms.event
                     AND awaited_events.subject IS ready_terms.subject) END AS event_id
  FROM term_progress
  JOIN ready_terms ON ready_terms.task_id = term_progress.task_id
                  AND ready_terms.branch = term_progress.branch
                  AND ready_terms.term = term_progress.term
/* term_evidence(task_id,branch,term,kind,state,depends_on,at_ms,event,event_id) */;
CREATE VIEW parked_verdicts AS
SELECT task_id,
       queue,
       CASE reason WHEN 'condition_met' THEN 'release'
                   WHEN 'time_park' THEN 'confirmed'
                   WHEN 'waiting' THEN 'confirmed'
                   ELSE 'stale' END AS verdict,
       reason,
       parked_at_ms,
       park_reason,
       (SELECT json_group_array(json_object('branch', branch, 'term', term, 'kind', kind, 'state', state,
                                            'event', event, 'event_id', event_id, 'task', depends_on, 'at_ms', at_ms))
          FROM term_evidence
         WHERE term_evidence.task_id = judged.task_id) AS evidence
  FROM (SELECT id AS task_id,
               queue,
               parked_at_ms,
               park_reason,
               CASE WHEN ready_condition IS NOT parsed_condition THEN 'unreadable_condition'
                    WHEN time_park_due_ms IS NOT NULL THEN 'time_park'
                    WHEN ready_condition IS NULL AND not_before_ms IS NOT NULL THEN 'time_park'
                    WHEN ready_condition IS NULL THEN 'no_condition'
                    ELSE CASE (SELECT max(branch_progress)
                                 FROM (SELECT min(progress) AS branch_progress
                                         FROM term_progress
                                        WHERE term_progress.task_id = tasks.id
                                        GROUP BY branch))
                             WHEN 3 THEN 'condition_met'
                             WHEN 2 THEN 'waiting'
                             WHEN 1 THEN CASE WHEN parked_at_ms
                                                   + (SELECT value FROM sweep_limits WHERE name = 'stale_after_days') * 86400000
                                                   < (SELECT now_ms FROM clock) THEN 'parked_too_long'
                                              ELSE 'waiting' END
                             WHEN 0 THEN (SELECT state
                                            FROM term_evidence
                                           WHERE term_evidence.task_id = tasks.id
                                             AND state NOT IN ('met', 'waiting')
                                           ORDER BY branch, term
                                           LIMIT 1)
                             ELSE 'unreadable_condition'
                         END
               END AS reason
          FROM tasks
         WHERE state = 'parked') AS judged
/* parked_verdicts(task_id,queue,verdict,reason,parked_at_ms,park_reason,evidence) */;
CREATE VIEW would_release_tasks AS
SELECT task_id, queue, reason, parked_at_ms, park_reason, evidence
  FROM parked_verdicts
 WHERE verdict = 'release'
/* would_release_tasks(task_id,queue,reason,parked_at_ms,park_reason,evidence) */;
CREATE VIEW events_cutoff AS
SELECT (SELECT now_ms FROM clock) - (SELECT value FROM sweep_limits WHERE name = 'events_retention_days') * 86400000 AS cutoff_ms
/* events_cutoff(cutoff_ms) */;
CREATE VIEW prunable_events AS
SELECT id, at_ms, kind, subject, task_id
  FROM events
 WHERE at_ms < (SELECT cutoff_ms FROM events_cutoff)
/* prunable_events(id,at_ms,kind,subject,task_id) */;
CREATE VIEW batch_prunable_events AS
SELECT id, at_ms
  FROM prunable_events
 WHERE (SELECT scope_queue FROM sweep_batch) IS NULL
 UNION ALL
SELECT id, at_ms
  FROM prunable_events
 WHERE id IN (SELECT id
                FROM events
               WHERE kind GLOB 'proof.*'
                 AND subject = (SELECT scope_queue FROM sweep_batch))
/* batch_prunable_events(id,at_ms) */;
CREATE VIEW sweep_evidence AS
SELECT ready_terms.task_id,
       ready_terms.branch,
       ready_terms.term,
       awaited_events.event_id,
       awaited_events.at_ms,
       awaited_events.kind,
       awaited_events.subject
  FROM ready_terms
  JOIN awaited_events ON awaited_events.kind = ready_terms.event
                     AND awaited_events.subject IS ready_terms.subject
                     AND awaited_events.at_ms >= ready_terms.since_ms
 WHERE ready_terms.kind = 'event_seen'
   AND NOT EXISTS (SELECT 1 FROM events WHERE events.id = awaited_events.event_id)
/* sweep_evidence(task_id,branch,term,event_id,at_ms,kind,subject) */;
CREATE VIEW forgettable_runs AS
SELECT id
  FROM sweep_runs
 WHERE outcome <> 'running'
   AND id <> 'expire_leases.idle'
   AND sweep IN ('expire_leases', 'revalidate_parked_tasks', 'prune_events')
   AND started_at_ms < (SELECT now_ms FROM clock) - (SELECT value FROM sweep_limits WHERE name = 'runs_retention_days') * 86400000
   AND id NOT IN (SELECT run_id FROM gate_runs)
/* forgettable_runs(id) */;
CREATE VIEW gate_runs AS
SELECT id AS run_id, scope_queue, sql_version, max(started_at_ms) AS started_at_ms
  FROM sweep_runs
 WHERE sweep = 'revalidate_parked_tasks'
   AND mode = 'observe'
   AND outcome = 'ok'
   AND drained
 GROUP BY scope_queue, sql_version
/* gate_runs(run_id,scope_queue,sql_version,started_at_ms) */;
CREATE VIEW clock_steps AS
SELECT run_id, sweep, at_ms, at_ms - (SELECT now_ms FROM clock) AS back_ms
  FROM (SELECT id AS run_id, sweep, finished_at_ms AS at_ms
          FROM sweep_runs
         WHERE id = 'expire_leases.idle'
         UNION ALL
        SELECT id, sweep, started_at_ms
          FROM sweep_runs
         WHERE id <> 'expire_leases.idle'
           AND sweep IN ('expire_leases', 'revalidate_parked_tasks', 'prune_events')
           AND started_at_ms > (SELECT now_ms FROM clock))
 WHERE at_ms > (SELECT now_ms FROM clock) + 1000
/* clock_steps(run_id,sweep,at_ms,back_ms) */;
CREATE VIEW sweep_reports AS
SELECT id AS run_id,
       sweep,
       mode,
       requested_mode,
       gate_reason IS NOT NULL AS gated,
       gate_reason,
       outcome,
       drained,
       coalesce(finished_at_ms, heartbeat_at_ms, started_at_ms) - started_at_ms AS duration_ms,
       schema_version,
       batches,
       counts,
       error
  FROM sweep_runs
/* sweep_reports(run_id,sweep,mode,requested_mode,gated,gate_reason,outcome,drained,duration_ms,schema_version,batches,counts,error) */;
CREATE VIEW sweep_status AS
SELECT sweeps.sweep,
       latest.id AS last_run_id,
       latest.outcome AS last_outcome,
       latest.mode AS last_mode,
       latest.drained AS last_drained,
       coalesce(latest.finished_at_ms, latest.started_at_ms) AS last_at_ms,
       latest.counts AS last_counts,
       latest.error AS last_error,
       (SELECT id FROM sweep_runs WHERE sweep_runs.sweep = sweeps.sweep AND scope_queue IS NULL AND outcome = 'running') AS running_run_id,
       CASE sweeps.sweep WHEN 'expire_leases' THEN (SELECT count(*) FROM expired_leases)
                         WHEN 'revalidate_parked_tasks' THEN (SELECT count(*) FROM would_release_tasks)
                         ELSE (SELECT count(*) FROM prunable_events) END AS waiting
  FROM (SELECT 'expire_leases' AS sweep UNION ALL SELECT 'revalidate_parked_tasks' UNION ALL SELECT 'prune_events') AS sweeps
  LEFT JOIN sweep_runs AS latest
    ON latest.id = (SELECT id
                      FROM sweep_runs
                     WHERE sweep_runs.sweep = sweeps.sweep
                       AND scope_queue IS NULL
                       AND outcome <> 'running'
                       AND batches > 0
                     ORDER BY coalesce(finished_at_ms, started_at_ms) DESC
                     LIMIT 1)
/* sweep_status(sweep,last_run_id,last_outcome,last_mode,last_drained,last_at_ms,last_counts,last_error,running_run_id,waiting) */;
CREATE VIEW last_runs AS
SELECT sweep,
       CASE WHEN idle_at_ms >= coalesce(done_started_at_ms, 0) THEN 'expire_leases.idle' ELSE done_run_id END AS done_run_id,
       max(coalesce(idle_at_ms, done_started_at_ms), coalesce(done_started_at_ms, idle_at_ms)) AS done_started_at_ms,
       CASE WHEN idle_at_ms >= coalesce(latest_started_at_ms, 0) THEN 'expire_leases.idle' ELSE latest_run_id END AS latest_run_id,
       max(coalesce(idle_at_ms, latest_started_at_ms), coalesce(latest_started_at_ms, idle_at_ms)) AS latest_started_at_ms,
       CASE WHEN idle_at_ms >= coalesce(latest_started_at_ms, 0) THEN idle_at_ms ELSE latest_at_ms END AS latest_at_ms,
       CASE WHEN idle_at_ms >= coalesce(latest_started_at_ms, 0) THEN 'ok' ELSE latest_outcome END AS latest_outcome,
       CASE WHEN idle_at_ms >= coalesce(latest_started_at_ms, 0) THEN NULL ELSE latest_error END AS latest_error,
       (SELECT count(*)
          FROM (SELECT 1
                  FROM sweep_runs
                 WHERE sweep_runs.sweep = ran.sweep
                   AND id <> 'expire_leases.idle'
                   AND started_at_ms > max(coalesce(ran.idle_at_ms, 0), coalesce(ran.done_started_at_ms, 0))
                   AND started_at_ms <= ran.horizon_ms
                   AND scope_queue IS NULL
                   AND outcome IN ('failed', 'abandoned')
                 LIMIT 100)) AS failures
  FROM (SELECT sweeps.sweep,
               sweeps.horizon_ms,
               idle.finished_at_ms AS idle_at_ms,
               done.id AS done_run_id,
               done.started_at_ms AS done_started_at_ms,
               latest.id AS latest_run_id,
               latest.started_at_ms AS latest_started_at_ms,
               coalesce(latest.finished_at_ms, latest.heartbeat_at_ms, latest.started_at_ms) AS latest_at_ms,
               latest.outcome AS latest_outcome,
               latest.error AS latest_error
          FROM (SELECT sweep, (SELECT now_ms FROM clock) + 60000 AS horizon_ms
                  FROM (SELECT 'expire_leases' AS sweep UNION ALL SELECT 'revalidate_parked_tasks' UNION ALL SELECT 'prune_events')) AS sweeps
          LEFT JOIN sweep_runs AS idle
            ON idle.id = CASE sweeps.sweep WHEN 'expire_leases' THEN 'expire_leases.idle' END
           AND idle.finished_at_ms <= sweeps.horizon_ms
          LEFT JOIN sweep_runs AS done
            ON done.id = (SELECT id
                            FROM sweep_runs
                           WHERE sweep_runs.sweep = sweeps.sweep
                             AND id <> 'expire_leases.idle'
                             AND started_at_ms <= sweeps.horizon_ms
                             AND scope_queue IS NULL
                             AND outcome = 'ok'
                             AND batch_rows IS NOT 0
                             AND (requested_mode = 'enabled' OR origin IN ('timer', 'daemon'))
                           ORDER BY started_at_ms DESC
                           LIMIT 1)
          LEFT JOIN sweep_runs AS latest
            ON latest.id = (SELECT id
                              FROM sweep_runs
                             WHERE sweep_runs.sweep = sweeps.sweep
                               AND id <> 'expire_leases.idle'
                               AND started_at_ms <= sweeps.horizon_ms
                               AND scope_queue IS NULL
                             ORDER BY started_at_ms DESC
                             LIMIT 1)
         LIMIT 3) AS ran
/* last_runs(sweep,done_run_id,done_started_at_ms,latest_run_id,latest_started_at_ms,latest_at_ms,latest_outcome,latest_error,failures) */;
-- Dbmate schema migrations
INSERT INTO "schema_migrations" (version) VALUES
  ('20261130000100'),
  ('20261130000200'),
  ('20261130000300'),
  ('20261130000400'),
  ('20261130000500');
