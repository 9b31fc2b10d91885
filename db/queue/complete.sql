-- complete: the work is done.
--
-- Takes :task_id and :token. Returns task_id and state. Refused with "lease lost" where the token does not hold the task.

-- name: check_fence
INSERT INTO lease_fence (task_id, token) VALUES (:task_id, :token);

-- name: complete_task
UPDATE tasks
   SET state = 'done',
       claimed_by = NULL,
       lease_token = NULL,
       updated_at_ms = (SELECT now_ms FROM clock)
 WHERE id = :task_id
   AND lease_token = :token
RETURNING id AS task_id, state;

-- name: delete_lease
DELETE FROM leases WHERE task_id = :task_id AND token = :token;
