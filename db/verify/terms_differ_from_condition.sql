-- A parked task's terms are what its condition says, no more and no less. A condition that cannot be read - written past
-- the guards - shows up here too; revalidation judges it stale.
-- Remedy: park the task anew, or UPDATE tasks SET ready_condition = ready_condition for it, which takes it apart again.

-- name: terms_differ_from_condition
SELECT task_id, branch, term, 'not taken apart' AS fault
  FROM (SELECT task_id, branch, term, kind, event, subject, since_ms, depends_on, at_ms FROM condition_terms
        EXCEPT
        SELECT task_id, branch, term, kind, event, subject, since_ms, depends_on, at_ms FROM ready_terms)
 UNION ALL
SELECT task_id, branch, term, 'left over'
  FROM (SELECT task_id, branch, term, kind, event, subject, since_ms, depends_on, at_ms FROM ready_terms
        EXCEPT
        SELECT task_id, branch, term, kind, event, subject, since_ms, depends_on, at_ms FROM condition_terms);
