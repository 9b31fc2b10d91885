-- release: a person brings a parked task back, whatever it waits for.
--
-- Takes :task_id and :reason (NULL: released_by_hand). Returns task_id and at_ms, or no row where the task is not parked.

-- name: log_release
-- First, while the task can still be seen to be parked.
INSERT INTO events (at_ms, kind, subject, task_id, payload)
SELECT (SELECT now_ms FROM clock), 'park_released', queue, id,
       json_object('reason', coalesce(:reason, 'released_by_hand'), 'parked_at_ms', parked_at_ms)
  FROM tasks
 WHERE id = :task_id
   AND state = 'parked'
RETURNING task_id, at_ms;

-- name: release_task
UPDATE tasks
   SET state = 'queued',
       not_before_ms = NULL,
       ready_condition = NULL,
       park_reason = NULL,
       parked_at_ms = NULL,
       updated_at_ms = (SELECT now_ms FROM clock)
 WHERE id = :task_id
   AND state = 'parked';
