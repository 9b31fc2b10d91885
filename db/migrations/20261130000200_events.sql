-- The events: an append-only log that outlives the tasks it speaks of.
--
-- Two guards make it evidence: no row is ever changed, and no row younger than the retention is ever deleted, whoever
-- asks. Rows whose kind begins `proof.` may be deleted at any age, so that a proof on the live database can clean up.
-- task_id has no foreign key on purpose: a task may go, what happened to it stays.

-- migrate:up
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

-- Serves pruning, which finds old rows exactly, late arrivals with an old time included.
CREATE INDEX events_at_ms_idx ON events (at_ms);

-- Serves parking: the newest event of a kind and subject that a task begins to wait for. One seek.
CREATE INDEX events_kind_subject_at_ms_idx ON events (kind, subject, at_ms);

CREATE TRIGGER events_refuse_update
BEFORE UPDATE ON events
BEGIN
    SELECT RAISE(ABORT, 'events are append-only: write a new event instead of changing an old one');
END;

-- INSERT OR REPLACE would change a row without an UPDATE, and delete it without a DELETE.
CREATE TRIGGER events_refuse_replace
BEFORE INSERT ON events
WHEN EXISTS (SELECT 1 FROM events WHERE id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'events are append-only: there is an event of this id already; leave the id out');
END;

-- "Old" has one home, the view prunable_events; what it does not list stays.
CREATE TRIGGER events_refuse_young_delete
BEFORE DELETE ON events
WHEN OLD.kind NOT GLOB 'proof.*'
BEGIN
    SELECT RAISE(ABORT, 'events younger than events_retention_days cannot be deleted: leave them to prune_events')
     WHERE NOT EXISTS (SELECT 1 FROM prunable_events WHERE id = OLD.id);
END;

-- migrate:down
DROP TABLE events;
