-- Every task checked has one verdict: checked = would_release + released + confirmed + stale.

-- name: run_counts_do_not_add_up
SELECT id AS run_id, counts
  FROM sweep_runs
 WHERE sweep = 'revalidate_parked_tasks'
   AND outcome IN ('running', 'ok', 'abandoned')
   AND counts ->> '$.checked' <> counts ->> '$.would_release' + counts ->> '$.released'
                                 + counts ->> '$.confirmed' + counts ->> '$.stale';
