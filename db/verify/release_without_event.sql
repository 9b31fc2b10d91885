-- An enabled revalidation found a task ready, but the log has no park_released of that run for it.
-- Younger runs only: the event itself is pruned in time.

-- name: release_without_event
SELECT sweep_findings.run_id, sweep_findings.task_id
  FROM sweep_findings
  JOIN sweep_runs ON sweep_runs.id = sweep_findings.run_id
 WHERE sweep_findings.verdict = 'release'
   AND sweep_runs.mode = 'enabled'
   AND sweep_runs.started_at_ms >= (SELECT cutoff_ms FROM events_cutoff)
   AND (sweep_findings.run_id, sweep_findings.task_id) NOT IN (SELECT run_id, task_id
                                                                 FROM events
                                                                WHERE kind = 'park_released'
                                                                  AND run_id IS NOT NULL);
