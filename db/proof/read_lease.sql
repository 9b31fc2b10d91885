-- read_lease: what has become of the task that was claimed.
--
-- Takes :queue. Returns state, attempts, left_ms (of its lease, by the database's clock; NULL: there is no lease row),
-- and of the event that says that this attempt's lease ran out: expired (0 or 1), run_id (NULL: a claim did it, which
-- keeps no ledger), and that run's origin and runner.

-- include: ../ledger/ask_primary.sql ask_primary

-- name: read_lease
SELECT tasks.state,
       tasks.attempts,
       leases.expires_at_ms - (SELECT now_ms FROM clock) AS left_ms,
       expiry.id IS NOT NULL AS expired,
       expiry.run_id,
       sweep_runs.origin,
       sweep_runs.runner
  FROM tasks
  LEFT JOIN leases ON leases.task_id = tasks.id
  LEFT JOIN events AS expiry
    ON expiry.kind = 'lease_expired'
   AND expiry.subject = tasks.queue
   AND expiry.task_id = tasks.id
   AND expiry.payload ->> '$.attempts' = tasks.attempts
  LEFT JOIN sweep_runs ON sweep_runs.id = expiry.run_id
 WHERE tasks.key = :queue || '/lease';
