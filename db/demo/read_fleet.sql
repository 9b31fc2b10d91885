-- read_fleet: the demo's queue in a few words, for its before/after table.
--
-- Returns id, what and state.

-- name: read_fleet
SELECT id, 'task ' || id || ': ' || key AS what, state || coalesce(' by ' || claimed_by, '') AS state
  FROM tasks
 UNION ALL
SELECT 1001, 'events older than 30 days', count(*) FROM prunable_events
 UNION ALL
SELECT 1002, 'younger events', count(*) FROM events WHERE id NOT IN (SELECT id FROM prunable_events) AND run_id IS NULL
 UNION ALL
SELECT 1003, 'events the sweeps logged', count(*) FROM events WHERE run_id IS NOT NULL
 ORDER BY 1;
