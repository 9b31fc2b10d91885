-- An observing run writes nothing but sweep_* rows: no event carries its id.

-- name: observation_that_released
SELECT run_id, id AS event_id, kind
  FROM events
 WHERE kind IN ('lease_expired', 'attempts_exhausted', 'park_released', 'events_pruned')
   AND run_id IN (SELECT id FROM sweep_runs WHERE mode = 'observe');
