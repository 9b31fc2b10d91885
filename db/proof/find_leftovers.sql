-- find_leftovers: proofs that were killed before they could clean up.
--
-- Returns queue. A proof lasts minutes: one whose tasks have not changed for an hour is not at work any more.
-- A seek in the index of keys: only what the seeding wrote begins so.

-- name: find_leftovers
SELECT queue
  FROM tasks
 WHERE key GLOB 'proof-*'
   AND queue GLOB 'proof-*'
 GROUP BY queue
HAVING max(updated_at_ms) < (SELECT now_ms FROM clock) - 3600000;
