-- An observing run writes nothing but sweep_* rows: no event carries its id.

-- name: observation_that_released
SELECT sweep_runs.id AS run_id, events.id AS event_id, events.kind
  FROM sweep_runs
  JOIN events ON events.run_id = sweep_runs.id
             AND events.kind IN ('lease_expired', 'attempts_exhausted', 'park_released', 'events_pruned')
 WHERE sweep_runs.mode = 'observe';
