-- One run releases a task once.

-- name: release_logged_twice
SELECT task_id, run_id, count(*) AS events
  FROM events
 WHERE kind = 'park_released'
   AND run_id IS NOT NULL
 GROUP BY task_id, run_id
HAVING count(*) > 1;
