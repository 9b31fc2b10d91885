-- expire_leases: a task whose worker went silent goes back to its queue.
--
-- Runs every minute, and the steps that expire run inside every claim too. Reads leases by the time they end; writes
-- events, tasks, leases and its own row in sweep_runs. A lease is over at the very millisecond it names.
-- A minute with nothing to do leaves no row of its own: it is counted in the row `expire_leases.idle`.
-- By hand: sqlite3 -bail FILE "BEGIN IMMEDIATE" ".read db/sweeps/expire_leases.sql" "COMMIT"
-- schedule: * * * * *

-- name: open_run
-- Idle is: nothing has run out, no other run to take over, and this run has not begun. Observing is never idle, so that
-- what was seen stays in the ledger.
INSERT INTO sweep_runs (id, sweep, requested_mode, mode, origin, runner, sql_version, schema_version, scope_queue, batch_rows, batches,
                        started_at_ms, finished_at_ms, outcome, drained, counts)
SELECT CASE WHEN idle THEN 'expire_leases.idle' ELSE run_id END,
       'expire_leases', mode, mode, origin, runner, sql_version, schema_version, scope_queue, batch_rows, 1,
       now_ms,
       CASE WHEN idle THEN now_ms END,
       CASE WHEN idle THEN 'ok' ELSE 'running' END,
       idle,
       '{"expired_leases":0}'
  FROM (SELECT coalesce(:run_id, lower(hex(randomblob(16)))) AS run_id,
               coalesce(:mode, 'enabled') AS mode,
               coalesce(:origin, 'manual') AS origin,
               coalesce(:runner, 'SQL shell') AS runner,
               coalesce(:sql_version, 'SQL shell') || '/' || (SELECT max(version) FROM schema_migrations) AS sql_version,
               coalesce(:schema_version, '') AS schema_version,
               :scope_queue AS scope_queue,
               :batch_rows AS batch_rows,
               now_ms,
               coalesce(:mode, 'enabled') = 'enabled'
               AND :scope_queue IS NULL
               AND NOT EXISTS (SELECT 1 FROM expired_leases)
               AND NOT EXISTS (SELECT 1 FROM sweep_runs WHERE sweep = 'expire_leases' AND outcome = 'running')
               AND NOT EXISTS (SELECT 1 FROM sweep_runs WHERE id = :run_id) AS idle
          FROM clock)
 WHERE true
    ON CONFLICT (id) DO UPDATE
   SET batches = batches + 1,
       batch_rows = excluded.batch_rows,
       runner = excluded.runner,
       sql_version = excluded.sql_version,
       origin = excluded.origin,
       finished_at_ms = excluded.finished_at_ms,
       started_at_ms = CASE WHEN sweep_runs.outcome = 'running' THEN sweep_runs.started_at_ms ELSE excluded.started_at_ms END
 WHERE sweep_runs.outcome = 'running' OR sweep_runs.id = 'expire_leases.idle';

-- name: log_expiries
-- First, so that the steps after it rest on what this one chose. A task that has used up its attempts gets a second event.
INSERT INTO events (at_ms, kind, subject, task_id, run_id, payload)
SELECT (SELECT now_ms FROM clock),
       written.kind,
       ended.queue,
       ended.task_id,
       (SELECT run_id FROM sweep_batch),
       json_object('worker', ended.worker, 'expires_at_ms', ended.expires_at_ms, 'attempts', ended.attempts,
                   'max_attempts', ended.max_attempts, 'next_state', ended.next_state)
  FROM (SELECT *
          FROM expired_leases
         WHERE (SELECT scope_queue FROM sweep_batch) IS NULL
            OR queue = (SELECT scope_queue FROM sweep_batch)
         ORDER BY expires_at_ms, task_id
         LIMIT (SELECT coalesce(max(row_limit), 0) FROM sweep_batch WHERE acts)) AS ended
  JOIN (SELECT 'lease_expired' AS kind UNION ALL SELECT 'attempts_exhausted') AS written
    ON written.kind = 'lease_expired' OR ended.next_state = 'failed';

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
                            + CASE WHEN batch.acts THEN changes()
                                   ELSE (SELECT count(*) FROM expired_leases WHERE batch.scope_queue IS NULL OR queue = batch.scope_queue) END),
       drained = NOT batch.acts
                 OR NOT EXISTS (SELECT 1 FROM expired_leases WHERE batch.scope_queue IS NULL OR queue = batch.scope_queue)
  FROM sweep_batch AS batch
 WHERE sweep_runs.id = batch.run_id;

-- name: finish_run
UPDATE sweep_runs
   SET outcome = 'ok',
       finished_at_ms = (SELECT now_ms FROM clock)
 WHERE id = (SELECT run_id FROM sweep_batch)
   AND (drained OR started_at_ms + (SELECT value FROM sweep_limits WHERE name = 'expire_max_run_seconds') * 1000 <= (SELECT now_ms FROM clock));

-- name: report
SELECT sweep_reports.*, (SELECT row_limit FROM sweep_batch) AS row_limit
  FROM sweep_reports
 WHERE run_id = coalesce((SELECT run_id FROM sweep_batch), 'expire_leases.idle');

-- name: close_batch
DELETE FROM sweep_batch;
