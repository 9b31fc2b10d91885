-- The sweeps' own books: settings, runs, findings, and the batch in hand.
--
-- A run is opened by the first step of a sweep file, which inserts its row in sweep_runs (or, for a further batch of
-- the same run, counts `batches` up). The triggers here see to the rest: the dead run is marked abandoned, a second
-- runner is refused, and sweep_batch says to the later steps what they may do. No sweep_batch row: they do nothing.

-- migrate:up
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

INSERT INTO sweep_settings (name, value, note)
VALUES ('events_retention_days', 30, 'events older than this are pruned; younger ones cannot be deleted'),
       ('runs_retention_days', 30, 'finished runs and their findings are forgotten after this'),
       ('stale_after_days', 14, 'a task parked on anything but time for longer is judged stale'),
       ('max_releases_per_run', 1000, 'a revalidation stops after this many releases'),
       ('expire_batch_rows', 1000, 'most leases expired in one transaction, claims included'),
       ('revalidate_batch_rows', 5000, 'most parked tasks judged in one transaction'),
       ('prune_batch_rows', 2000, 'most events pruned in one transaction'),
       ('expire_max_run_seconds', 50, 'expire_leases stops after this and reports drained: false'),
       ('daily_max_run_seconds', 600, 'revalidate_parked_tasks and prune_events, each, likewise'),
       ('abandon_run_after_seconds', 120, 'a run whose runner was silent for longer is taken over'),
       ('fake_now_ms', NULL, 'tests only: what the view `clock` says instead of the time');

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

-- The fake time once more, where the view `clock` looks for it: an empty table is asked for nothing, and the time is read in
-- every idle minute.
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

-- The settings that can be used. A value that is no whole number of 1 or more - written by a tool with checks off - is not
-- among them, reads as NULL, and nothing is older, staler or fewer than NULL: a broken setting stops a sweep, it never
-- widens one.
CREATE VIEW sweep_limits AS
SELECT name, CAST(value AS INTEGER) AS value
  FROM sweep_settings
 WHERE CAST(value AS INTEGER) >= 1
   AND CAST(value AS INTEGER) = value;

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

-- The idle minutes of expire_leases share this row; its `batches` counts them.
INSERT INTO sweep_runs (id, sweep, outcome, drained, counts)
VALUES ('expire_leases.idle', 'expire_leases', 'ok', 1, '{"expired_leases":0}');

-- And it knows the newest migration, so that an idle minute need not look it up to refuse a schema that is too old.
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

-- Never two at once. A proof's runs, confined to a queue of their own, neither block the live ones nor are blocked.
CREATE UNIQUE INDEX sweep_runs_one_running_idx ON sweep_runs (sweep, coalesce(scope_queue, '')) WHERE outcome = 'running';

-- Serves the gate and sweep_status: the latest runs of a sweep. The idle row stays out: an idle minute writes one row.
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

-- The batch in hand. One row while a batch runs, none between transactions: what is not open does nothing.
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

-- How the steps look at it: always one row, NULLs and a limit of 0 where no batch is open. count(*) alone costs nothing on
-- an empty table, where looking for a row would be billed as reading one: so a step that has nothing to do reads nothing.
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
       CASE WHEN (SELECT count(*) FROM sweep_batch) THEN (SELECT up_to_event_id FROM sweep_batch) END AS up_to_event_id;

-- An id names one piece of work: sent again it is the same run, never another's.
CREATE TRIGGER sweep_runs_refuse_foreign_id
BEFORE INSERT ON sweep_runs
WHEN EXISTS (SELECT 1
               FROM sweep_runs
              WHERE id = NEW.id
                AND (sweep <> NEW.sweep OR scope_queue IS NOT NEW.scope_queue OR requested_mode <> NEW.requested_mode))
BEGIN
    SELECT RAISE(ABORT, 'run id taken: it belongs to another sweep, scope or mode; give each run an id of its own');
END;

-- Whoever empties the ledger leaves the idle minutes their row.
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

-- migrate:down
DROP TRIGGER schema_migrations_tell_idle_runs_of_rollback;
DROP TRIGGER schema_migrations_tell_idle_runs;
DROP VIEW open_batch;
DROP TABLE sweep_batch;
DROP TABLE sweep_findings;
DROP TABLE sweep_runs;
DROP VIEW sweep_limits;
DROP TABLE fake_clock;
DROP TABLE sweep_settings;
