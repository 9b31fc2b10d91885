-- A lease row whose task it does not bind: not leased, leased by another token, or gone.
-- Remedy: none needed; expire_leases deletes it when it ends.

-- name: lease_without_binding
SELECT leases.task_id, leases.worker, tasks.state
  FROM leases
  LEFT JOIN tasks ON tasks.id = leases.task_id
 WHERE tasks.lease_token IS NOT leases.token;
