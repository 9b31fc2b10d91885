-- revalidate_parked_tasks: judges every parked task - release, confirmed or stale - and releases those that are ready.
--
-- Runs daily. Reads parked_verdicts in id order, a batch at a time; writes sweep_findings and its row in sweep_runs, and
-- when enabled also tasks and events. It never touches a time park: claim takes those when they are due.
-- Unless asked to, it only observes; and asked to, it still only observes until the ledger holds a finished observation
-- of everything by this very version of the SQL: somebody has had the chance to read what it would do.
-- By hand: sqlite3 -bail FILE "BEGIN IMMEDIATE" ".read db/sweeps/revalidate_parked_tasks.sql" "COMMIT"
-- schedule: 17 5 * * *

-- name: open_run
INSERT INTO sweep_runs (id, sweep, requested_mode, mode, gate_reason, origin, runner, sql_version, schema_version,
                        needs_schema_version, scope_queue, batch_rows, batches, started_at_ms, counts)
SELECT run_id, 'revalidate_parked_tasks', requested_mode,
       CASE WHEN gate_is_open THEN requested_mode ELSE 'observe' END,
       CASE WHEN requested_mode = 'enabled' AND NOT gate_is_open
            THEN 'no finished observe run of this version over everything in the ledger yet' END,
       origin, runner, sql_version, schema_version, needs_schema_version, scope_queue, batch_rows, 1, now_ms,
       '{"checked":0,"would_release":0,"released":0,"confirmed":0,"stale":0}'
  FROM (SELECT asked.*,
               EXISTS (SELECT 1
                         FROM gate_runs
                        WHERE gate_runs.sql_version = asked.sql_version
                          AND gate_runs.scope_queue IS asked.scope_queue) AS gate_is_open
          FROM (SELECT coalesce(:run_id, lower(hex(randomblob(16)))) AS run_id,
                       coalesce(:mode, 'observe') AS requested_mode,
                       coalesce(:origin, 'manual') AS origin,
                       coalesce(:runner, 'SQL shell') AS runner,
                       coalesce(:sql_version, 'SQL shell') || '/' || max(version) AS sql_version,
                       max(version) AS schema_version,
                       coalesce(:needs_schema_version, '') AS needs_schema_version,
                       :scope_queue AS scope_queue,
                       :batch_rows AS batch_rows,
                       (SELECT now_ms FROM clock) AS now_ms
                  FROM schema_migrations) AS asked)
 WHERE true
    ON CONFLICT (id) DO UPDATE
   SET batches = batches + 1,
       batch_rows = excluded.batch_rows
 WHERE sweep_runs.outcome = 'running';

-- name: choose_tasks
-- The next parked tasks in id order; a task parked behind this point meanwhile is the next run's.
UPDATE sweep_batch
   SET up_to_task_id = coalesce((SELECT max(id)
                                   FROM (SELECT id
                                           FROM tasks
                                          WHERE state = 'parked'
                                            AND id > sweep_batch.after_task_id
                                            AND (sweep_batch.scope_queue IS NULL OR queue = sweep_batch.scope_queue)
                                          ORDER BY id
                                          LIMIT (SELECT row_limit FROM open_batch))),
                                after_task_id);

-- name: judge_tasks
-- Confirmed tasks are only counted, further down.
INSERT INTO sweep_findings (run_id, task_id, verdict, reason, evidence)
SELECT (SELECT run_id FROM open_batch), task_id, verdict, reason, evidence
  FROM parked_verdicts
 WHERE task_id > (SELECT after_task_id FROM open_batch)
   AND task_id <= (SELECT up_to_task_id FROM open_batch)
   AND ((SELECT scope_queue FROM open_batch) IS NULL OR queue = (SELECT scope_queue FROM open_batch))
   AND verdict <> 'confirmed';

-- name: stop_at_most_releases
-- The run ends at the task that used up max_releases_per_run; what lies behind it counts as not looked at.
UPDATE sweep_batch
   SET up_to_task_id = coalesce((SELECT task_id
                                   FROM sweep_findings
                                  WHERE run_id = sweep_batch.run_id
                                    AND task_id > sweep_batch.after_task_id
                                    AND verdict = 'release'
                                  ORDER BY task_id
                                  LIMIT 1
                                 OFFSET max(0, (SELECT value FROM sweep_limits WHERE name = 'max_releases_per_run') - 1
                                               - (SELECT counts ->> '$.released'
                                                    FROM sweep_runs
                                                   WHERE id = (SELECT run_id FROM open_batch)))),
                                up_to_task_id)
 WHERE acts;

-- name: drop_findings_beyond
DELETE FROM sweep_findings
 WHERE run_id = (SELECT CASE WHEN acts THEN run_id END FROM open_batch)
   AND task_id > (SELECT up_to_task_id FROM open_batch);

-- name: log_releases
INSERT INTO events (at_ms, kind, subject, task_id, run_id, payload)
SELECT (SELECT now_ms FROM clock),
       'park_released',
       tasks.queue,
       found.task_id,
       found.run_id,
       json_object('reason', found.reason, 'parked_at_ms', tasks.parked_at_ms, 'evidence', json(found.evidence))
  FROM sweep_findings AS found
  JOIN tasks ON tasks.id = found.task_id
 WHERE found.run_id = (SELECT CASE WHEN acts THEN run_id END FROM open_batch)
   AND found.task_id > (SELECT after_task_id FROM open_batch)
   AND found.verdict = 'release';

-- name: release_tasks
-- Rests on the events just logged: no release without its event. not_before_ms stays, and claim minds it.
UPDATE tasks
   SET state = 'queued',
       ready_condition = NULL,
       park_reason = NULL,
       parked_at_ms = NULL,
       updated_at_ms = released.at_ms
  FROM (SELECT task_id, at_ms FROM batch_events WHERE kind = 'park_released') AS released
 WHERE tasks.id = released.task_id;

-- name: count_batch
-- What is parked still in the batch's span of ids, and what was just released from it, is what was checked.
UPDATE sweep_runs
   SET counts = json_object('checked', counts ->> '$.checked' + batch.parked + batch.released,
                            'would_release', counts ->> '$.would_release' + batch.ready - batch.released,
                            'released', counts ->> '$.released' + batch.released,
                            'confirmed', counts ->> '$.confirmed' + batch.parked + batch.released - batch.ready - batch.stale,
                            'stale', counts ->> '$.stale' + batch.stale),
       reached_task_id = batch.up_to_task_id,
       drained = NOT EXISTS (SELECT 1
                               FROM tasks
                              WHERE state = 'parked'
                                AND id > batch.up_to_task_id
                                AND (batch.scope_queue IS NULL OR queue = batch.scope_queue))
  FROM (SELECT sweep_batch.*,
               (SELECT count(*)
                  FROM tasks
                 WHERE state = 'parked'
                   AND id > sweep_batch.after_task_id
                   AND id <= sweep_batch.up_to_task_id
                   AND (sweep_batch.scope_queue IS NULL OR queue = sweep_batch.scope_queue)) AS parked,
               (SELECT count(*)
                  FROM batch_events
                 WHERE kind = 'park_released') AS released,
               (SELECT count(*)
                  FROM sweep_findings
                 WHERE run_id = sweep_batch.run_id
                   AND task_id > sweep_batch.after_task_id
                   AND verdict = 'release') AS ready,
               (SELECT count(*)
                  FROM sweep_findings
                 WHERE run_id = sweep_batch.run_id
                   AND task_id > sweep_batch.after_task_id
                   AND verdict = 'stale') AS stale
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
        OR counts ->> '$.released' >= (SELECT value FROM sweep_limits WHERE name = 'max_releases_per_run')
        OR started_at_ms + (SELECT value FROM sweep_limits WHERE name = 'daily_max_run_seconds') * 1000 <= (SELECT now_ms FROM clock));

-- name: report
SELECT sweep_reports.*, (SELECT row_limit FROM open_batch) AS row_limit, (SELECT max(back_ms) FROM clock_steps) AS clock_back_ms
  FROM sweep_reports
 WHERE run_id = (SELECT run_id FROM open_batch);

-- name: close_batch
DELETE FROM sweep_batch;
