-- fleet: a small task queue as it looks some days after the move: workers that died, tasks parked for every kind of reason,
-- and a log that was never pruned. For `make demo`, in a fresh database of its own.
--
-- Writes tasks, leases and events, all placed relative to the database's clock. The key of a task says what is with it.

-- name: queued_and_finished
INSERT INTO tasks (id, key, queue, state, priority)
VALUES (1, 'index repo-a', 'index', 'queued', 0),
       (2, 'index repo-b', 'index', 'done', 0),
       (3, 'build release-7', 'build', 'cancelled', 5);

-- name: leased
INSERT INTO tasks (id, key, queue, state, claimed_by, lease_token, attempts, max_attempts)
VALUES (11, 'index repo-c: its worker is alive', 'index', 'leased', 'worker-1', 'token-11', 1, 3),
       (12, 'index repo-d: its worker died', 'index', 'leased', 'worker-2', 'token-12', 1, 3),
       (13, 'index repo-e: killed its third worker', 'index', 'leased', 'worker-3', 'token-13', 3, 3);

-- name: leases
INSERT INTO leases (task_id, worker, token, acquired_at_ms, expires_at_ms)
SELECT tasks.id, tasks.claimed_by, tasks.lease_token, now_ms - 600000,
       CASE tasks.id WHEN 11 THEN now_ms + 300000 ELSE now_ms - 60000 END
  FROM tasks, clock
 WHERE tasks.state = 'leased';

-- name: parked
INSERT INTO tasks (id, key, queue, state, park_reason, ready_condition, not_before_ms, parked_at_ms)
SELECT column1, column2, 'fleet', 'parked', column3, column4, now_ms + column5, now_ms - column6 * 86400000
  FROM clock,
       (VALUES (21, 'waits for a snapshot that came', 'snapshot', '{"kind":"event_seen","event":"snapshot_refresh","subject":"repo-a"}', NULL, 3),
               (22, 'waits for a snapshot that has not come', 'snapshot', '{"kind":"event_seen","event":"snapshot_refresh","subject":"repo-z"}', NULL, 3),
               (23, 'waits for a task that is done', 'dependency', '{"kind":"task_done","task":2}', NULL, 1),
               (24, 'waits for a task that was cancelled', 'dependency', '{"kind":"task_done","task":3}', NULL, 1),
               (25, 'waits for either of two, one came', 'any', '{"any":[{"kind":"manual"},{"all":[{"kind":"task_done","task":2},{"kind":"event_seen","event":"snapshot_refresh"}]}]}', NULL, 3),
               (26, 'waits for a person', 'manual', '{"kind":"manual"}', NULL, 2),
               (27, 'waits for a person, for 20 days now', 'manual', '{"kind":"manual"}', NULL, 20),
               (28, 'waits for tomorrow', 'back-off', NULL, 86400000, 0),
               (29, 'waits for nothing at all', 'forgotten', NULL, NULL, 5));

-- name: events
INSERT INTO events (at_ms, kind, subject)
SELECT now_ms - column1 * 86400000, column2, column3
  FROM clock,
       (VALUES (45, 'snapshot_refresh', 'repo-z'), (31, 'deploy', 'release-6'), (30, 'deploy', 'release-6'),
               (29, 'deploy', 'release-7'), (2, 'snapshot_refresh', 'repo-a'), (0, 'deploy', 'release-8'));

-- name: old_noise
INSERT INTO events (at_ms, kind, subject)
SELECT now_ms - 40 * 86400000 + numbers.key, 'heartbeat', 'worker-' || numbers.key % 7
  FROM clock,
       json_each('[' || replace(hex(zeroblob(250)), '00', '0,') || '0]') AS numbers;
