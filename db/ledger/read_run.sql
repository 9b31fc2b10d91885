-- read_run: the ledger's word on one run, for a runner whose batch found the run already finished.
--
-- Takes :run_id. Returns its row of sweep_reports, or none.

-- include: ask_primary.sql ask_primary

-- name: read_run
SELECT sweep_reports.*, NULL AS row_limit
  FROM sweep_reports
 WHERE run_id = :run_id;
