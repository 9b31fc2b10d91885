-- park: the worker sets its task aside until a condition is met or a time is reached.
--
-- Takes :task_id, :token, and at will (NULL otherwise) :ready_condition (JSON), :not_before_ms, :park_reason.
-- Returns task_id and parked_at_ms. Refused with "lease lost" where the token does not hold the task, and with
-- "ready_condition refused" and the reason where the condition cannot be read.

-- name: check_fence
INSERT INTO lease_fence (task_id, token) VALUES (:task_id, :token);

-- name: park_task
UPDATE tasks
   SET state = 'parked',
       ready_condition = :ready_condition,
       not_before_ms = :not_before_ms,
       park_reason = :park_reason,
       parked_at_ms = (SELECT now_ms FROM clock),
       claimed_by = NULL,
       lease_token = NULL,
       updated_at_ms = (SELECT now_ms FROM clock)
 WHERE id = :task_id
   AND lease_token = :token
RETURNING id AS task_id, parked_at_ms;

-- name: delete_lease
DELETE FROM leases WHERE task_id = :task_id AND token = :token;

-- name: log_park
INSERT INTO events (at_ms, kind, subject, task_id, payload)
SELECT parked_at_ms, 'parked', queue, id, json_object('park_reason', park_reason, 'not_before_ms', not_before_ms,
                                                      'ready_condition', json(ready_condition))
  FROM tasks
 WHERE id = :task_id;
