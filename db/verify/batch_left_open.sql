-- sweep_batch has a row only while a batch runs. One that stayed was left by a file run by hand without a transaction.
-- Remedy: DELETE FROM sweep_batch.

-- name: batch_left_open
SELECT run_id
  FROM sweep_batch;
