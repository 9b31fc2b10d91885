-- Every pruning that finished says so in the log, once.

-- name: pruned_run_without_event
SELECT id AS run_id
  FROM sweep_runs
 WHERE sweep = 'prune_events'
   AND mode = 'enabled'
   AND outcome = 'ok'
   AND started_at_ms >= (SELECT cutoff_ms FROM events_cutoff)
   AND id NOT IN (SELECT run_id
                    FROM events
                   WHERE kind = 'events_pruned'
                     AND run_id IS NOT NULL
                   GROUP BY run_id
                  HAVING count(*) = 1);
