-- Every pruning that finished says so in the log, once.

-- name: pruned_run_without_event
SELECT sweep_runs.id AS run_id, count(events.id) AS events
  FROM sweep_runs
  LEFT JOIN events ON events.kind = 'events_pruned'
                  AND events.run_id = sweep_runs.id
 WHERE sweep_runs.sweep = 'prune_events'
   AND sweep_runs.mode = 'enabled'
   AND sweep_runs.outcome = 'ok'
   AND sweep_runs.started_at_ms >= (SELECT cutoff_ms FROM events_cutoff)
 GROUP BY sweep_runs.id
HAVING count(events.id) <> 1;
