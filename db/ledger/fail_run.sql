-- fail_run: a run that broke off is written down as failed, so that it does not look like a quiet one.
--
-- Takes :run_id, :sweep, :mode, :origin, :runner, :sql_version, :scope_queue and :error. What its earlier batches did is
-- committed and counted; a run that broke in its first batch has no row yet and gets one here.

-- name: fail_run
INSERT INTO sweep_runs (id, sweep, requested_mode, mode, origin, runner, sql_version, scope_queue, started_at_ms, finished_at_ms,
                        outcome, error)
SELECT :run_id, :sweep, :mode, :mode, :origin, :runner, :sql_version || '/' || (SELECT max(version) FROM schema_migrations),
       :scope_queue, now_ms, now_ms, 'failed', :error
  FROM clock
 WHERE true
    ON CONFLICT (id) DO UPDATE
   SET outcome = 'failed',
       finished_at_ms = excluded.finished_at_ms,
       error = excluded.error
 WHERE sweep_runs.outcome = 'running';
