-- seed: what a proof sweeps, in a queue of its own.
--
-- Takes :queue, a name no other queue has. Writes tasks and events of that queue only, all or nothing. Each task's key is
-- the queue's name, a slash and what the task stands for: the cleaning finds them by that.
-- No time comes from outside: now is the database's, old is the view's that prunes.

-- name: seed_tasks
-- The one that will be leased comes first in a claim. The time park is due already: nothing but a claim may take it.
INSERT INTO tasks (key, queue, state, priority, ready_condition, not_before_ms, park_reason, created_at_ms, updated_at_ms)
SELECT :queue || '/' || fixture, :queue, state, priority, ready_condition, not_before_ms, park_reason, now_ms, now_ms
  FROM (SELECT 'lease' AS fixture, 'queued' AS state, 1 AS priority,
               NULL AS ready_condition, NULL AS not_before_ms, NULL AS park_reason, now_ms
          FROM clock
         UNION ALL
        SELECT 'ready', 'parked', 0,
               json_object('kind', 'event_seen', 'event', 'proof.awaited', 'subject', :queue), NULL, 'proof', now_ms
          FROM clock
         UNION ALL
        SELECT 'unmet', 'parked', 0,
               json_object('kind', 'event_seen', 'event', 'proof.never_seen', 'subject', :queue), NULL, 'proof', now_ms
          FROM clock
         UNION ALL
        SELECT 'time_park', 'parked', 0, NULL, now_ms, 'proof', now_ms
          FROM clock);

-- name: seed_awaited_event
-- Not before the park, or it would not count.
INSERT INTO events (at_ms, kind, subject, task_id)
SELECT parked_at_ms, 'proof.awaited', queue, id
  FROM tasks
 WHERE key = :queue || '/ready';

-- name: seed_old_events
-- A day beyond the retention, and a day within it.
INSERT INTO events (at_ms, kind, subject)
SELECT cutoff_ms - 86400000, 'proof.past_retention', :queue FROM events_cutoff
 UNION ALL
SELECT cutoff_ms + 86400000, 'proof.within_retention', :queue FROM events_cutoff;
