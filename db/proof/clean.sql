-- clean: nothing of a proof stays but what the log may not lose.
--
-- Takes :queue, a proof's own. Deletes its tasks and leases (ready_terms and awaited_events follow by trigger), its
-- proof.* events, its runs and their findings. The events that the sweeps logged about it are the log's: they stay until
-- they are pruned, with the queue as their subject. Returns how many those are.
-- The keys say which tasks: from 'QUEUE/' up to 'QUEUE0', the character after the slash; a seek in their index, where the
-- queue's name would mean reading every task there is.

-- name: delete_leases
DELETE FROM leases
 WHERE task_id IN (SELECT id FROM tasks WHERE key >= :queue || '/' AND key < :queue || '0');

-- name: delete_tasks
DELETE FROM tasks
 WHERE key >= :queue || '/'
   AND key < :queue || '0';

-- name: delete_events
DELETE FROM events
 WHERE kind GLOB 'proof.*'
   AND subject = :queue;

-- name: delete_findings
DELETE FROM sweep_findings
 WHERE run_id IN (SELECT id FROM sweep_runs WHERE scope_queue = :queue);

-- name: delete_runs
DELETE FROM sweep_runs
 WHERE scope_queue = :queue;

-- name: count_kept
SELECT count(*) AS kept
  FROM events
 WHERE kind IN ('lease_expired', 'park_released', 'events_pruned')
   AND subject = :queue;
