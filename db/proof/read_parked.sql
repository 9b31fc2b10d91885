-- read_parked: what has become of the tasks that were parked.
--
-- Takes :queue and :run_id, a revalidation. Returns one row: the state of each; listed, what that run found ready (its
-- findings, by fixture); releases, how many park_released events there are; and released_by and origin, the run behind the
-- ready task's.

-- include: ../ledger/ask_primary.sql ask_primary

-- name: read_parked
SELECT ready.state AS ready,
       unmet.state AS unmet,
       time_park.state AS time_park,
       coalesce((SELECT group_concat(substr(tasks.key, length(:queue) + 2) || ': ' || sweep_findings.reason, ', ')
                   FROM sweep_findings
                   JOIN tasks ON tasks.id = sweep_findings.task_id
                  WHERE sweep_findings.run_id = :run_id
                    AND sweep_findings.verdict = 'release'), 'none') AS listed,
       (SELECT count(*) FROM events WHERE kind = 'park_released' AND subject = :queue) AS releases,
       release.run_id AS released_by,
       sweep_runs.origin
  FROM tasks AS ready
  JOIN tasks AS unmet ON unmet.key = :queue || '/unmet'
  JOIN tasks AS time_park ON time_park.key = :queue || '/time_park'
  LEFT JOIN events AS release
    ON release.kind = 'park_released'
   AND release.subject = :queue
   AND release.task_id = ready.id
  LEFT JOIN sweep_runs ON sweep_runs.id = release.run_id
 WHERE ready.key = :queue || '/ready';
