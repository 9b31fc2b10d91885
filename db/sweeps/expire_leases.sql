-- expire_leases: a task whose worker went silent goes back to its queue.
--
-- Runs every minute, and the steps that expire run inside every claim too. Reads leases by the time they end; writes
-- events, tasks, leases and its own row in sweep_runs. A lease is over at the very millisecond it names.
-- A minute with nothing to do leaves no row of its own: it is counted in the row `expire_leases.idle`.
-- By hand: sqlite3 -bail FILE "BEGIN IMMEDIATE" ".read db/sweeps/expire_leases.sql" "COMMIT"
-- schedule: * * * * *

-- name: open_run
-- Not where the minute is idle: nothing has run out, and no run is under way to go on with, to respect or to take over.
-- Observing always leaves a row, so that what was seen stays in the ledger.
INSERT INTO sweep_runs (id, sweep, requested_mode, mode, origin, runner, sql_version, schema_version, needs_schema_version,
                        scope_queue, batch_rows, batches, started_at_ms, counts)
SELECT coalesce(:run_id, lower(hex(randomblob(16)))),
       'expire_leases',
       coalesce(:mode, 'enabled'),
       coalesce(:mode, 'enabled'),
       coalesce(:origin, 'manual'),
       coalesce(:runner, 'SQL shell'),
       coalesce(:sql_version, 'SQL shell') || '/' || (SELECT max(version) FROM schema_migrations),
       (SELECT max(version) FROM schema_migrations),
       coalesce(:needs_schema_version, ''),
       :scope_queue,
       :batch_rows,
       1,
       (SELECT now_ms FROM clock),
       '{"expired_leases":0}'
 WHERE :mode = 'observe'
    OR :scope_queue IS NOT NULL
    OR EXISTS (SELECT 1 FROM expired_leases)
    OR EXISTS (SELECT 1 FROM sweep_runs WHERE sweep = 'expire_leases' AND outcome = 'running')
    ON CONFLICT (id) DO UPDATE
   SET batches = batches + 1,
       batch_rows = excluded.batch_rows,
       schema_version = excluded.schema_version
 WHERE sweep_runs.outcome = 'running';

-- name: note_idle
UPDATE sweep_runs
   SET batches = batches + 1,
       finished_at_ms = (SELECT now_ms FROM clock)
 WHERE id = CASE WHEN (SELECT count(*) FROM sweep_batch) = 0 THEN 'expire_leases.idle' END;

-- name: log_expiries
-- First, and the longest expired first, so that the steps after it rest on what this one chose. A task that has used up its
-- attempts gets a second event.
INSERT INTO events (at_ms, kind, subject, task_id, run_id, payload)
SELECT (SELECT now_ms FROM clock),
       written.kind,
       ended.queue,
       ended.task_id,
       (SELECT run_id FROM open_batch),
       json_object('worker', ended.worker, 'expires_at_ms', ended.expires_at_ms, 'attempts', ended.attempts,
                   'max_attempts', ended.max_attempts, 'next_state', ended.next_state)
  FROM (SELECT *
          FROM expired_leases
         WHERE (SELECT scope_queue FROM open_batch) IS NULL
            OR queue = (SELECT scope_queue FROM open_batch)
         ORDER BY expires_at_ms, task_id
         LIMIT (SELECT act_limit FROM open_batch)) AS ended
 CROSS JOIN (SELECT 'lease_expired' AS kind UNION ALL SELECT 'attempts_exhausted') AS written
 WHERE written.kind = 'lease_expired'
    OR ended.next_state = 'failed';

-- name: return_tasks
-- The binding goes with the state, so that a late worker's token fits nothing any more.
UPDATE tasks
   SET state = expiry.next_state,
       claimed_by = NULL,
       lease_token = NULL,
       updated_at_ms = expiry.at_ms
  FROM (SELECT task_id, at_ms, payload ->> '$.next_state' AS next_state
          FROM batch_events
         WHERE kind = 'lease_expired') AS expiry
 WHERE tasks.id = expiry.task_id
   AND expiry.next_state IS NOT NULL;

-- name: delete_leases
DELETE FROM leases
 WHERE task_id IN (SELECT task_id FROM batch_events WHERE kind = 'lease_expired');

-- name: count_batch
-- changes() is the number of leases the step before deleted; an observing run counts what it would have expired.
UPDATE sweep_runs
   SET counts = json_object('expired_leases',
                            counts ->> '$.expired_leases'
                            + CASE WHEN mode = 'enabled' THEN changes()
                                   ELSE (SELECT count(*) FROM expired_leases WHERE scope_queue IS NULL OR queue = scope_queue) END),
       drained = mode = 'observe'
                 OR NOT EXISTS (SELECT 1 FROM expired_leases WHERE scope_queue IS NULL OR queue = scope_queue)
 WHERE id = (SELECT run_id FROM open_batch);

-- name: finish_run
UPDATE sweep_runs
   SET outcome = 'ok',
       finished_at_ms = (SELECT now_ms FROM clock)
 WHERE id = (SELECT run_id FROM open_batch)
   AND (drained
        OR runner = 'SQL shell' -- by hand it is one batch, and nobody comes back for the rest
        OR batch_rows = 0 -- its runner was told to stop: this batch does nothing but end the run
        OR started_at_ms + (SELECT value FROM sweep_limits WHERE name = 'expire_max_run_seconds') * 1000 <= (SELECT now_ms FROM clock));

-- name: report
-- Only a run of its own looks whether the clock was set back: an idle minute reads no more than it must.
SELECT sweep_reports.*, (SELECT row_limit FROM open_batch) AS row_limit,
       (SELECT CASE WHEN run_id IS NOT NULL THEN (SELECT max(back_ms) FROM clock_steps) END FROM open_batch) AS clock_back_ms
  FROM sweep_reports
 WHERE run_id = coalesce((SELECT run_id FROM open_batch), 'expire_leases.idle');

-- name: close_batch
DELETE FROM sweep_batch;
