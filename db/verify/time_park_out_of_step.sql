-- time_park_due_ms is set exactly on parked tasks that wait for time alone, to the time they wait for: claim goes by it.
-- Remedy: UPDATE tasks SET ready_condition = ready_condition for the task.

-- name: time_park_out_of_step
SELECT tasks.id AS task_id, tasks.time_park_due_ms, time_parks.due_ms
  FROM tasks
  LEFT JOIN time_parks ON time_parks.task_id = tasks.id
 WHERE tasks.time_park_due_ms IS NOT time_parks.due_ms;
