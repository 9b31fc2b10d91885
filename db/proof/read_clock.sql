-- read_clock: what a proof needs to know before it begins.
--
-- Returns fake_now_ms (not NULL: time does not move, no lease can run out) and retention_days, by the view that prunes.

-- name: read_clock
SELECT (SELECT value FROM sweep_settings WHERE name = 'fake_now_ms') AS fake_now_ms,
       (now_ms - (SELECT cutoff_ms FROM events_cutoff)) / 86400000 AS retention_days
  FROM clock;
