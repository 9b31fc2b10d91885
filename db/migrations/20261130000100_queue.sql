-- The queue itself: tasks, and the lease a worker holds on each one it has claimed.
--
-- What can never be is refused here rather than found later: a binding on a task that is not leased, a time in
-- seconds, JSON that is none. Each constraint is named for what it demands, because that name is the error message.
-- All times are epoch milliseconds, UTC. The range 2000..2100 is there to catch seconds and microseconds.
-- The defaults read the engine's own clock, because a column default cannot read the view `clock`; everything
-- this package writes takes its time from that view.

-- migrate:up
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

-- Serves claim: one queue's tasks in the order in which they are due to be claimed.
CREATE INDEX tasks_queued_idx ON tasks (queue, priority DESC, created_at_ms, id) WHERE state = 'queued';

-- Serves claim: one queue's time parks, the earliest due first.
CREATE INDEX tasks_time_park_due_ms_idx ON tasks (queue, time_park_due_ms) WHERE time_park_due_ms IS NOT NULL;

-- Serves revalidation, which walks the parked tasks in id order, a batch at a time.
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

-- Serves expiry: the leases that end first.
CREATE INDEX leases_expires_at_ms_idx ON leases (expires_at_ms);

-- A worker that lost its lease is told so by the database, whatever language it is written in: complete, fail, park
-- and renew begin by inserting here what they believe they hold. The table never keeps a row.
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

-- migrate:down
DROP TABLE lease_fence;
DROP TABLE leases;
DROP TABLE tasks;
