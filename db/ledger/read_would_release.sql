-- read_would_release: the parked tasks that an enabled revalidation would release, for people.
--
-- Returns task_id, queue, reason, parked_at_ms, park_reason and evidence (JSON), the longest parked first.

-- name: read_would_release
SELECT task_id, queue, reason, parked_at_ms, park_reason, evidence
  FROM would_release_tasks
 ORDER BY parked_at_ms, task_id;
