-- read_last_runs: what a schedule needs to know, for the daemon and for the status: who ran when, by the database's own clock.
--
-- Returns now_ms and the columns of last_runs, one row a sweep. A handful of rows, whatever the queue's size.

-- name: read_last_runs
SELECT (SELECT now_ms FROM clock) AS now_ms, last_runs.*
  FROM last_runs;
