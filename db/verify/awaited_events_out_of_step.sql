-- awaited_events has a row for exactly what the parked tasks wait to see, and knows of nothing older than the newest
-- such event in the log.

-- name: awaited_events_out_of_step
SELECT kind, subject, 'nobody waits for it' AS fault
  FROM awaited_events
 WHERE NOT EXISTS (SELECT 1
                     FROM ready_terms
                    WHERE ready_terms.kind = 'event_seen'
                      AND ready_terms.event = awaited_events.kind
                      AND ready_terms.subject IS awaited_events.subject)
 UNION ALL
SELECT event, subject, 'not looked out for'
  FROM ready_terms
 WHERE kind = 'event_seen'
   AND NOT EXISTS (SELECT 1
                     FROM awaited_events
                    WHERE awaited_events.kind = ready_terms.event
                      AND awaited_events.subject IS ready_terms.subject)
 UNION ALL
SELECT kind, subject, 'a newer event is in the log'
  FROM awaited_events
 WHERE subject IS NOT NULL
   AND at_ms < (SELECT max(at_ms) FROM events WHERE events.kind = awaited_events.kind AND events.subject = awaited_events.subject)
 UNION ALL
SELECT kind, subject, 'a newer event is in the log'
  FROM awaited_events
 WHERE subject IS NULL
   AND at_ms < (SELECT max(at_ms) FROM events WHERE events.kind = awaited_events.kind);
