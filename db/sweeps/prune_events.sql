-- prune_events: events past the retention go, every newer row stays, and the log says so itself.
--
-- Runs daily, after revalidation. Reads prunable_events, oldest first, a batch at a time; writes events and its own row
-- in sweep_runs, and forgets runs and findings past their own retention. What a parked task waits for is kept in
-- awaited_events from the moment it is seen, so that no evidence goes with the event.
-- By hand: sqlite3 -bail FILE "BEGIN IMMEDIATE" ".read db/sweeps/prune_events.sql" "COMMIT"
-- schedule: 17 5 * * *

-- name: open_run
INSERT INTO sweep_runs (id, sweep, requested_mode, mode, origin, runner, sql_version, schema_version, needs_schema_version,
                        scope_queue, batch_rows, batches, started_at_ms, counts)
SELECT coalesce(:run_id, lower(hex(randomblob(16)))),
       'prune_events',
       coalesce(:mode, 'enabled'),
       coalesce(:mode, 'enabled'),
       coalesce(:origin, 'manual'),
       coalesce(:runner, 'SQL shell'),
       coalesce(:sql_version, 'SQL shell') || '/' || schema_version,
       schema_version,
       coalesce(:needs_schema_version, ''),
       :scope_queue,
       :batch_rows,
       1,
       (SELECT now_ms FROM clock),
       '{"events_pruned":0}'
  FROM (SELECT max(version) AS schema_version FROM schema_migrations)
 WHERE true
    ON CONFLICT (id) DO UPDATE
   SET batches = batches + 1,
       batch_rows = excluded.batch_rows
 WHERE sweep_runs.outcome = 'running';

-- name: choose_events
-- The bounds first, as values: the next step rests on them, not on a clock that has moved on.
UPDATE sweep_batch
   SET up_to_at_ms = chosen.at_ms,
       up_to_event_id = chosen.id
  FROM (SELECT at_ms, id
          FROM (SELECT at_ms, id
                  FROM batch_prunable_events
                 ORDER BY at_ms, id
                 LIMIT (SELECT act_limit FROM open_batch))
         ORDER BY at_ms DESC, id DESC
         LIMIT 1) AS chosen;

-- name: delete_events
DELETE FROM events
 WHERE id IN (SELECT id
                FROM batch_prunable_events
               WHERE at_ms <= (SELECT up_to_at_ms FROM open_batch)
                 AND (at_ms < (SELECT up_to_at_ms FROM open_batch) OR id <= (SELECT up_to_event_id FROM open_batch)));

-- name: count_batch
-- changes() is the number of events the step before deleted; an observing run counts what it would have pruned.
UPDATE sweep_runs
   SET counts = json_object('events_pruned',
                            counts ->> '$.events_pruned'
                            + CASE WHEN batch.acts THEN changes() ELSE batch.left_over END),
       drained = NOT batch.acts OR NOT batch.left_over
  FROM (SELECT sweep_batch.*,
               CASE WHEN acts THEN EXISTS (SELECT 1 FROM batch_prunable_events)
                    ELSE (SELECT count(*) FROM batch_prunable_events) END AS left_over
          FROM sweep_batch) AS batch
 WHERE sweep_runs.id = batch.run_id;

-- name: finish_run
UPDATE sweep_runs
   SET outcome = 'ok',
       finished_at_ms = (SELECT now_ms FROM clock)
 WHERE id = (SELECT run_id FROM open_batch)
   AND (drained
        OR runner = 'SQL shell' -- by hand it is one batch, and nobody comes back for the rest
        OR batch_rows = 0 -- its runner was told to stop: this batch does nothing but end the run
        OR started_at_ms + (SELECT value FROM sweep_limits WHERE name = 'daily_max_run_seconds') * 1000 <= (SELECT now_ms FROM clock));

-- name: log_run
-- Once a run, after its last batch, with the total, zero included.
INSERT INTO events (at_ms, kind, subject, run_id, payload)
SELECT finished_at_ms,
       'events_pruned',
       scope_queue,
       id,
       json_object('events_pruned', counts -> '$.events_pruned',
                   'cutoff_ms', (SELECT cutoff_ms FROM events_cutoff),
                   'drained', drained)
  FROM sweep_runs
 WHERE id = (SELECT CASE WHEN acts THEN run_id END FROM open_batch)
   AND outcome = 'ok';

-- name: forget_findings
-- Once a run over everything, at its end, and as many rows as one batch may take; the rest is tomorrow's.
DELETE FROM sweep_findings
 WHERE rowid IN (SELECT sweep_findings.rowid
                   FROM forgettable_runs
                   JOIN sweep_findings ON sweep_findings.run_id = forgettable_runs.id
                  WHERE EXISTS (SELECT 1 FROM batch_events WHERE kind = 'events_pruned' AND subject IS NULL)
                  LIMIT (SELECT act_limit FROM open_batch));

-- name: forget_runs
DELETE FROM sweep_runs
 WHERE id IN (SELECT id
                FROM forgettable_runs
               WHERE EXISTS (SELECT 1 FROM batch_events WHERE kind = 'events_pruned' AND subject IS NULL)
                 AND NOT EXISTS (SELECT 1 FROM sweep_findings WHERE sweep_findings.run_id = forgettable_runs.id)
               LIMIT (SELECT act_limit FROM open_batch));

-- name: report
SELECT sweep_reports.*, (SELECT row_limit FROM open_batch) AS row_limit, (SELECT max(back_ms) FROM clock_steps) AS clock_back_ms
  FROM sweep_reports
 WHERE run_id = (SELECT run_id FROM open_batch);

-- name: close_batch
DELETE FROM sweep_batch;
