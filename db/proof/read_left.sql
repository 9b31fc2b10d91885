-- read_left: what a proof has left behind, after its cleaning. Every count should be 0.
--
-- Takes :queue, which is also the name of the proof's worker. awaited is what the triggers had to delete.

-- name: read_left
SELECT (SELECT count(*) FROM tasks WHERE key >= :queue || '/' AND key < :queue || '0') AS tasks,
       (SELECT count(*) FROM leases WHERE worker = :queue) AS leases,
       (SELECT count(*) FROM events WHERE kind GLOB 'proof.*' AND subject = :queue) AS events,
       (SELECT count(*) FROM awaited_events WHERE subject = :queue) AS awaited,
       (SELECT count(*) FROM sweep_runs WHERE scope_queue = :queue) AS runs;
