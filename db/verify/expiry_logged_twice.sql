-- One lease, one expiry, one event: the same task cannot run out twice in the same attempt at the same time.

-- name: expiry_logged_twice
SELECT task_id,
       payload ->> '$.attempts' AS attempts,
       payload ->> '$.expires_at_ms' AS expires_at_ms,
       count(*) AS events
  FROM events
 WHERE kind = 'lease_expired'
 GROUP BY task_id, attempts, expires_at_ms, payload ->> '$.worker'
HAVING count(*) > 1;
