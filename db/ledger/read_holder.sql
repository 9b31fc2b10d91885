-- read_holder: who runs this sweep now, for a runner that was refused because somebody does.
--
-- Takes :sweep and :scope_queue (NULL: everything). Returns run_id, runner, started_at_ms and silent_ms, or no row.

-- name: read_holder
SELECT id AS run_id,
       runner,
       started_at_ms,
       (SELECT now_ms FROM clock) - coalesce(heartbeat_at_ms, started_at_ms) AS silent_ms
  FROM sweep_runs
 WHERE sweep = :sweep
   AND scope_queue IS :scope_queue
   AND outcome = 'running';
