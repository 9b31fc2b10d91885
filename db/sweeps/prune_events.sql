-- prune_events: events past the retention go, every newer row stays, and the log says so itself.
--
-- Runs daily, after revalidation. Reads prunable_events, oldest first, a batch at a time; writes events and its own row
-- in sweep_runs, and forgets runs and findings past their own retention. What a parked task waits for is kept in
-- awaited_events from the moment it is seen, so that no evidence goes with the event.
-- By hand: sqlite3 -bail FILE "BEGIN IMMEDIATE" ".read db/sweeps/prune_events.sql" "COMMIT"
-- schedule: 17 5 * * *

-- name: open_run
INSERT INTO sweep_runs (id, sweep, requested_mode, mode, origin, runner, sql_version, schema_version, scope_queue, batch_rows, batches,
                        started_at_ms, counts)
SELECT coalesce(:run_id, lower(hex(randomblob(16)))),
       'prune_events',
       coalesce(:mode, 'enabled'),
       coalesce(:mode, 'enabled'),
       coalesce(:origin, 'manual'),
       coalesce(:runner, 'SQL shell'),
       coalesce(:sql_version, 'SQL shell') || '/' || (SELECT max(version) FROM schema_migrations),
       coalesce(:schema_version, ''),
       :scope_queue,
       :batch_rows,
       1,
       now_ms,
       '{"events_pruned":0}'
  FROM clock
 WHERE true
    ON CONFLICT (id) DO UPDATE
   SET batches = batches + 1,
       batch_rows = excluded.batch_rows
 WHERE sweep_runs.outcome = 'running';

-- name: choose_events
-- The bounds first, as values: the steps after this one rest on them, not on a clock that has moved on.
-- A proof prunes nothing but its own events: kinds that begin `proof.`, with its queue as their subject.
UPDATE sweep_batch
   SET up_to_at_ms = oldest.at_ms,
       up_to_event_id = oldest.id
  FROM (SELECT at_ms, id
          FROM (SELECT prunable_events.at_ms, prunable_events.id
                  FROM sweep_batch AS batch
                  JOIN prunable_events
                 WHERE batch.acts
                   AND (batch.scope_queue IS NULL
                        OR prunable_events.kind GLOB 'proof.*' AND prunable_events.subject = batch.scope_queue)
                 ORDER BY prunable_events.at_ms, prunable_events.id
                 LIMIT (SELECT coalesce(max(row_limit), 0) FROM sweep_batch))
         ORDER BY at_ms DESC, id DESC
         LIMIT 1) AS oldest;

-- name: delete_events
DELETE FROM events
 WHERE id IN (SELECT prunable_events.id
                FROM sweep_batch AS batch
                JOIN prunable_events
                  ON prunable_events.at_ms <= batch.up_to_at_ms
                 AND (prunable_events.at_ms < batch.up_to_at_ms OR prunable_events.id <= batch.up_to_event_id)
               WHERE batch.scope_queue IS NULL
                  OR prunable_events.kind GLOB 'proof.*' AND prunable_events.subject = batch.scope_queue);

-- name: count_batch
-- changes() is the number of events the step before deleted; an observing run counts what it would have pruned.
UPDATE sweep_runs
   SET counts = json_object('events_pruned',
                            counts ->> '$.events_pruned'
                            + CASE WHEN batch.acts THEN changes() ELSE batch.left_over END),
       drained = NOT batch.acts OR NOT batch.left_over
  FROM (SELECT sweep_batch.*,
               CASE WHEN acts
                    THEN EXISTS (SELECT 1
                                   FROM prunable_events
                                  WHERE scope_queue IS NULL OR kind GLOB 'proof.*' AND subject = scope_queue)
                    ELSE (SELECT count(*)
                            FROM prunable_events
                           WHERE scope_queue IS NULL OR kind GLOB 'proof.*' AND subject = scope_queue) END AS left_over
          FROM sweep_batch) AS batch
 WHERE sweep_runs.id = batch.run_id;

-- name: finish_run
UPDATE sweep_runs
   SET outcome = 'ok',
       finished_at_ms = (SELECT now_ms FROM clock)
 WHERE id = (SELECT run_id FROM sweep_batch)
   AND (drained OR started_at_ms + (SELECT daily_max_run_seconds FROM sweep_limits) * 1000 <= (SELECT now_ms FROM clock));

-- name: log_run
-- Once a run, after its last batch, with the total, zero included.
INSERT INTO events (at_ms, kind, subject, run_id, payload)
SELECT sweep_runs.finished_at_ms,
       'events_pruned',
       sweep_runs.scope_queue,
       sweep_runs.id,
       json_object('events_pruned', sweep_runs.counts -> '$.events_pruned',
                   'cutoff_ms', (SELECT cutoff_ms FROM events_cutoff),
                   'drained', sweep_runs.drained)
  FROM sweep_batch
  JOIN sweep_runs ON sweep_runs.id = sweep_batch.run_id
 WHERE sweep_batch.acts
   AND sweep_runs.outcome = 'ok';

-- name: forget_findings
-- At the end of a run over everything, as many rows as one batch may take; the rest is tomorrow's.
DELETE FROM sweep_findings
 WHERE rowid IN (SELECT sweep_findings.rowid
                   FROM sweep_batch
                   JOIN sweep_runs ON sweep_runs.id = sweep_batch.run_id AND sweep_runs.outcome = 'ok'
                   JOIN forgettable_runs
                   JOIN sweep_findings ON sweep_findings.run_id = forgettable_runs.id
                  WHERE sweep_batch.acts
                    AND sweep_batch.scope_queue IS NULL
                  LIMIT (SELECT coalesce(max(row_limit), 0) FROM sweep_batch));

-- name: forget_runs
DELETE FROM sweep_runs
 WHERE id IN (SELECT forgettable_runs.id
                FROM sweep_batch
                JOIN sweep_runs AS this_run ON this_run.id = sweep_batch.run_id AND this_run.outcome = 'ok'
                JOIN forgettable_runs
               WHERE sweep_batch.acts
                 AND sweep_batch.scope_queue IS NULL
                 AND NOT EXISTS (SELECT 1 FROM sweep_findings WHERE sweep_findings.run_id = forgettable_runs.id)
               LIMIT (SELECT coalesce(max(row_limit), 0) FROM sweep_batch));

-- name: report
SELECT sweep_reports.*, (SELECT row_limit FROM sweep_batch) AS row_limit
  FROM sweep_reports
 WHERE run_id = (SELECT run_id FROM sweep_batch);

-- name: close_batch
DELETE FROM sweep_batch;
