-- A task is leased, but no lease row of its token is there: no expiry will ever find it.
-- Remedy: look whether its worker lives; if not, UPDATE tasks SET state = 'queued', claimed_by = NULL, lease_token = NULL for it.

-- name: binding_without_lease
SELECT tasks.id AS task_id, tasks.claimed_by
  FROM tasks
 WHERE tasks.state = 'leased'
   AND NOT EXISTS (SELECT 1
                     FROM leases
                    WHERE leases.task_id = tasks.id
                      AND leases.token = tasks.lease_token);
