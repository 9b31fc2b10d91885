-- The helper views: every question a sweep asks has its one answer here, readable on its own at any time.
--
-- Selecting from a view is the dry run of its sweep: expired_leases, would_release_tasks, prunable_events.
-- "Expired", "ready", "stale" and "old" are written down here and nowhere else.

-- migrate:up

-- The one place that reads the time.
CREATE VIEW clock AS
SELECT coalesce((SELECT now_ms FROM fake_clock WHERE name = 'now'),
                CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)) AS now_ms;

-- What the batch in hand has logged so far; nothing where none is open. The plus sign keeps the search to the ids: by kind it
-- would go through the whole log.
CREATE VIEW batch_events AS
SELECT id, at_ms, +kind AS kind, subject, task_id, run_id, payload
  FROM events
 WHERE id > (SELECT last_event_id FROM open_batch);

-- A lease is over at the very millisecond it names. next_state says what becomes of its task: `failed` where the attempts
-- are used up, and NULL where the task is not bound by this lease, which then only goes itself.
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
 WHERE leases.expires_at_ms <= (SELECT now_ms FROM clock);

-- What a claim may take: what is queued, and time parks that have come due.
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
   AND time_park_due_ms <= (SELECT now_ms FROM clock);

-- How far each term has come: 3 met, 2 waits for time alone, 1 waits for something else, 0 can never be met.
-- The numbers are in that order so that min() makes a branch of its terms, and max() a task of its branches.
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
  FROM ready_terms;

-- What a person is told of each term: the state it is in and what it is about.
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
                  AND ready_terms.term = term_progress.term;

-- Every parked task's verdict, and the vocabulary of reasons. The first that holds:
--   unreadable_condition  stale       a condition that was not taken apart: written past the guards, by an older tool
--   time_park             confirmed   comes back through claim when its time is reached
--   no_condition          stale       neither condition nor time: nothing will ever bring it back
--   condition_met         release     some branch has every term met
--   dependency_failed, dependency_cancelled, dependency_missing
--                         stale       no branch can be met any more; the first hopeless term says why
--   parked_too_long       stale       has waited for something other than time for longer than stale_after_days
--   waiting               confirmed   everything else
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
         WHERE state = 'parked') AS judged;

-- The parked tasks that an enabled run would release, and why: each term with its state.
CREATE VIEW would_release_tasks AS
SELECT task_id, queue, reason, parked_at_ms, park_reason, evidence
  FROM parked_verdicts
 WHERE verdict = 'release';

-- Events before this are old; exactly as old as the retention is not.
CREATE VIEW events_cutoff AS
SELECT (SELECT now_ms FROM clock) - (SELECT value FROM sweep_limits WHERE name = 'events_retention_days') * 86400000 AS cutoff_ms;

CREATE VIEW prunable_events AS
SELECT id, at_ms, kind, subject, task_id
  FROM events
 WHERE at_ms < (SELECT cutoff_ms FROM events_cutoff);

-- Those that the pruning in hand may take: all, or, for a proof, nothing but its own: kinds that begin `proof.`, with its
-- queue as their subject. The proof's are found by kind, so that a backlog of other people's old events costs it nothing.
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
                 AND subject = (SELECT scope_queue FROM sweep_batch));

-- Events that a parked task still rests on although pruning has deleted them.
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
   AND NOT EXISTS (SELECT 1 FROM events WHERE events.id = awaited_events.event_id);

-- Finished runs that are past the retention. The newest observation of each version stays, whatever its age: it is what
-- holds the gate open.
CREATE VIEW forgettable_runs AS
SELECT id
  FROM sweep_runs
 WHERE outcome <> 'running'
   AND id <> 'expire_leases.idle'
   AND sweep IN ('expire_leases', 'revalidate_parked_tasks', 'prune_events')
   AND started_at_ms < (SELECT now_ms FROM clock) - (SELECT value FROM sweep_limits WHERE name = 'runs_retention_days') * 86400000
   AND id NOT IN (SELECT run_id FROM gate_runs);

-- The observations that open the gate: finished, over the whole queue (or a proof's own), one for each version.
CREATE VIEW gate_runs AS
SELECT id AS run_id, scope_queue, sql_version, max(started_at_ms) AS started_at_ms
  FROM sweep_runs
 WHERE sweep = 'revalidate_parked_tasks'
   AND mode = 'observe'
   AND outcome = 'ok'
   AND drained
 GROUP BY scope_queue, sql_version;

-- Runs that began or ended later than it is now: the clock was set back since, by so much at least. What it was set back over
-- comes once more: nothing is done before its time, and what was done stays done. Hosts differ by a second or so; that is no step.
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
 WHERE at_ms > (SELECT now_ms FROM clock) + 1000;

-- A run as it is reported: to the shell, to stdout, to whoever reads it back.
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
  FROM sweep_runs;

-- Each sweep's latest run over everything, what is under way, and how much waits for it.
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
                     LIMIT 1);

-- What a schedule goes by: of each sweep the last run that counts as done, the latest run whatever became of it, and how
-- often it has failed in a row. Once a poll: a handful of rows by index, and nothing of tasks or events is looked at.
--   Done is a run over everything that ended ok - a proof's, confined to its own queue, is none - and that did what the
--   schedule would have done: it was asked to act (also where the gate let it only observe), or the schedule itself asked for
--   an observation. Somebody who observes by hand meanwhile has not done the schedule's work, and a runner that was told to
--   stop (batch_rows 0) has not finished it. What the bounds of a run leave over is the next run's.
--   An idle expiry is a run as well, begun and ended when its shared row says.
--   A run from the future - the clock was set back since - says nothing; a replica's clock may lag by some seconds.
--   More than 100 failures in a row count as 100.
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
         LIMIT 3) AS ran; -- three sweeps; and so limited, each is looked up once, not at each mention

-- migrate:down
DROP VIEW last_runs;
DROP VIEW sweep_status;
DROP VIEW sweep_reports;
DROP VIEW clock_steps;
DROP VIEW forgettable_runs;
DROP VIEW gate_runs;
DROP VIEW sweep_evidence;
DROP VIEW batch_prunable_events;
DROP VIEW prunable_events;
DROP VIEW events_cutoff;
DROP VIEW would_release_tasks;
DROP VIEW parked_verdicts;
DROP VIEW term_evidence;
DROP VIEW term_progress;
DROP VIEW claimable_tasks;
DROP VIEW expired_leases;
DROP VIEW batch_events;
DROP VIEW clock;
