-- renew: the worker that holds a task holds it longer.
--
-- Takes :task_id, :token and :lease_ms, counted from now. Returns expires_at_ms. Refused with "lease lost" where the
-- token does not hold the task, or where the lease has run out, swept or not.

-- name: check_fence
INSERT INTO lease_fence (task_id, token, renewing) VALUES (:task_id, :token, 1);

-- name: extend_lease
UPDATE leases
   SET expires_at_ms = (SELECT now_ms FROM clock) + :lease_ms
 WHERE task_id = :task_id
   AND token = :token
RETURNING task_id, expires_at_ms;
