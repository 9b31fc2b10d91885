-- claim: the first task of one queue, by priority and then age, becomes this worker's for a while.
--
-- Takes :queue, :worker, :token (new and unguessable for each claim) and :lease_ms (how long). Returns the task, or no
-- row where there is none. As on PostgreSQL a claim expires what has run out before it looks, by the very steps of the
-- sweep; and it takes time parks that have come due.

-- name: open_batch
-- Only where something has run out: the steps of the sweep do nothing without an open batch.
INSERT OR REPLACE INTO sweep_batch (acts, row_limit, last_event_id)
SELECT 1, (SELECT value FROM sweep_limits WHERE name = 'expire_batch_rows'), (SELECT coalesce(max(id), 0) FROM events)
 WHERE EXISTS (SELECT 1 FROM expired_leases);

-- include: ../sweeps/expire_leases.sql log_expiries
-- include: ../sweeps/expire_leases.sql return_tasks
-- include: ../sweeps/expire_leases.sql delete_leases
-- include: ../sweeps/expire_leases.sql close_batch

-- name: take_lease
-- A lease row that somebody left behind on a claimable task binds nothing: it makes way, or it would block the queue.
INSERT OR REPLACE INTO leases (task_id, worker, token, acquired_at_ms, expires_at_ms)
SELECT task_id, :worker, :token, (SELECT now_ms FROM clock), (SELECT now_ms FROM clock) + :lease_ms
  FROM (SELECT task_id, priority, created_at_ms
          FROM claimable_tasks
         WHERE queue = :queue
         ORDER BY priority DESC, created_at_ms, task_id -- all of them selected, or the whole queue is sorted for one task
         LIMIT 1);

-- name: bind_task
-- last_insert_rowid() is the task of the lease just taken, if changes() says that one was; the token proves whose it is.
UPDATE tasks
   SET state = 'leased',
       claimed_by = :worker,
       lease_token = :token,
       attempts = attempts + 1,
       not_before_ms = NULL,
       ready_condition = NULL,
       park_reason = NULL,
       parked_at_ms = NULL,
       updated_at_ms = (SELECT acquired_at_ms FROM leases WHERE task_id = tasks.id)
 WHERE changes() > 0
   AND id = last_insert_rowid()
   AND :token = (SELECT token FROM leases WHERE task_id = tasks.id)
RETURNING id AS task_id, key, queue, priority, payload, attempts, max_attempts,
          (SELECT expires_at_ms FROM leases WHERE task_id = tasks.id) AS expires_at_ms;
