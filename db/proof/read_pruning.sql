-- read_pruning: what a pruning left of the two events that stand on either side of the retention, and what it logged.
--
-- Takes :queue and :run_id, a pruning. Returns one row: past and within (1: still there, 0: gone), logged (how many
-- events_pruned events that run wrote) and pruned, the number that it names.

-- include: ../ledger/ask_primary.sql ask_primary

-- name: read_pruning
SELECT (SELECT count(*) FROM events WHERE kind = 'proof.past_retention' AND subject = :queue) AS past,
       (SELECT count(*) FROM events WHERE kind = 'proof.within_retention' AND subject = :queue) AS within,
       count(*) AS logged,
       max(payload ->> '$.events_pruned') AS pruned
  FROM events
 WHERE kind = 'events_pruned'
   AND subject = :queue
   AND run_id = :run_id;
