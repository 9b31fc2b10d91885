-- enqueue: a new task, or the one already there under the same key.
--
-- Takes :queue, and at will (NULL otherwise) :key, :priority, :payload, :not_before_ms, :max_attempts.
-- Returns task_id. Enqueueing again under the same key changes nothing and returns the first task's id.

-- name: insert_task
INSERT INTO tasks (key, queue, priority, payload, not_before_ms, max_attempts, created_at_ms, updated_at_ms)
SELECT :key, :queue, coalesce(:priority, 0), coalesce(:payload, '{}'), :not_before_ms, :max_attempts, now_ms, now_ms
  FROM clock
 WHERE true
    ON CONFLICT (key) DO UPDATE
   SET key = excluded.key
RETURNING id AS task_id;
