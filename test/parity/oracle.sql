-- oracle.sql - the task queue and its three background jobs as they stand on PostgreSQL.
--
-- What it is: the other side of a differential test. The product runs the same queue on SQLite and libSQL, where there
-- are no stored procedures; here it is written the way it is written on PostgreSQL - timestamptz and intervals, jsonb
-- conditions judged as they lie, data-modifying CTEs, PL/pgSQL - so that the two have no code, no data model and no trick
-- in common, and agree only where both do what the words say.
--
-- From which words: sections 2, 3 and 4 of the design (data contract, ready conditions, what each sweep guarantees) and
-- docs/semantics.md. Nothing under db/ was read for it, and nothing there may be copied into it.
--
-- What it leaves out: batches, the ledger of runs, findings, the mode gate and the guards of hand-written rows. They change how
-- a sweep is run, not what it decides. Where semantics.md lists a deviation from PostgreSQL that does change what is decided
-- (max_attempts, kept evidence, strict members), the oracle follows the deviation.
--
-- Where the words can be read in two ways, a comment beginning "Reading:" says which one was taken.
--
-- Runs on PostgreSQL 16 or newer (IS JSON), in an empty schema.

-- An interval of days is 24-hour days only where no day is longer or shorter; the contract counts milliseconds.
SET TIME ZONE 'UTC';


-- Settings and time ------------------------------------------------------------------------------------------------------

CREATE TABLE queue_settings (
    only_row             boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    fake_now             timestamptz,
    events_retention     interval NOT NULL DEFAULT interval '30 days',
    stale_after          interval NOT NULL DEFAULT interval '14 days',
    max_releases_per_run integer  NOT NULL DEFAULT 1000 CHECK (max_releases_per_run > 0)
);

INSERT INTO queue_settings DEFAULT VALUES;

-- Not to_timestamp(ms / 1000.0): that goes through a double of seconds and loses the millisecond.
CREATE FUNCTION ms_to_time(ms bigint) RETURNS timestamptz
LANGUAGE sql IMMUTABLE STRICT
RETURN timestamptz 'epoch' + ms * interval '1 millisecond';

CREATE FUNCTION time_to_ms(moment timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT
RETURN (extract(epoch FROM moment) * 1000)::bigint;

-- now() and not clock_timestamp(): a job that reads the time twice must read the same time.
CREATE FUNCTION queue_now() RETURNS timestamptz
LANGUAGE sql STABLE
RETURN coalesce((SELECT fake_now FROM queue_settings), date_trunc('milliseconds', now()));


-- Tables -----------------------------------------------------------------------------------------------------------------

CREATE TYPE task_state AS ENUM ('queued', 'leased', 'parked', 'done', 'failed', 'cancelled');

CREATE TABLE tasks (
    id              bigint PRIMARY KEY,
    queue           text        NOT NULL,
    state           task_state  NOT NULL DEFAULT 'queued',
    priority        integer     NOT NULL DEFAULT 0,
    not_before      timestamptz,
    ready_condition jsonb,
    park_reason     text,
    parked_at       timestamptz,
    claimed_by      text,
    lease_token     text,
    attempts        integer     NOT NULL DEFAULT 0,
    max_attempts    integer,
    created_at      timestamptz NOT NULL DEFAULT queue_now(),
    updated_at      timestamptz NOT NULL DEFAULT queue_now(),
    CONSTRAINT bound_exactly_while_leased CHECK (
        (claimed_by IS NOT NULL) = (state = 'leased') AND (lease_token IS NOT NULL) = (state = 'leased'))
);

CREATE TABLE leases (
    task_id     bigint PRIMARY KEY REFERENCES tasks,
    worker      text        NOT NULL,
    token       text        NOT NULL,
    acquired_at timestamptz NOT NULL DEFAULT queue_now(),
    expires_at  timestamptz NOT NULL
);

-- No foreign key to tasks: the log outlives the task.
CREATE TABLE events (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz NOT NULL DEFAULT queue_now(),
    kind    text        NOT NULL,
    subject text,
    task_id bigint
);

-- The newest pruned event of what some parked task waits for. One row for each kind and subject *as awaited*:
-- the row without a subject stands for "any event of this kind", hence NULLS NOT DISTINCT.
CREATE TABLE sweep_evidence (
    kind    text        NOT NULL,
    subject text,
    at      timestamptz NOT NULL,
    UNIQUE NULLS NOT DISTINCT (kind, subject)
);


-- Ready conditions: the grammar ------------------------------------------------------------------------------------------

-- The grammar of a term as data: which members a kind takes, and of what type each is.
CREATE TABLE term_grammar (
    kind     text    NOT NULL,
    member   text    NOT NULL,
    takes    text    NOT NULL CHECK (takes IN ('text', 'time', 'id')),
    required boolean NOT NULL,
    PRIMARY KEY (kind, member)
);

INSERT INTO term_grammar (kind, member, takes, required) VALUES
    ('event_seen', 'kind',     'text', true),
    ('event_seen', 'event',    'text', true),
    ('event_seen', 'subject',  'text', false),
    ('event_seen', 'since_ms', 'time', false),
    ('task_done',  'kind',     'text', true),
    ('task_done',  'task',     'id',   true),
    ('not_before', 'kind',     'text', true),
    ('not_before', 'at_ms',    'time', true),
    ('manual',     'kind',     'text', true);

-- json and not jsonb throughout the grammar: jsonb has already forgotten a member given twice, and that 1e3 was no integer.
--
-- Reading: an integer is an integer as written; 42.0 and 1.796e12 are of a wrong type. So is an id beyond 64 bits.
-- Reading: "years 2000..2100" holds the whole of the year 2100.
CREATE FUNCTION value_fault(value json, takes text) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN CASE
    WHEN takes = 'text' AND json_typeof(value) = 'string' THEN NULL
    WHEN takes = 'text' OR json_typeof(value) <> 'number' OR value::text !~ '^\s*-?[0-9]+\s*$' THEN 'a wrong type'
    WHEN takes = 'id' AND value::text::numeric BETWEEN -9223372036854775808 AND 9223372036854775807 THEN NULL
    WHEN takes = 'id' THEN 'a wrong type'
    WHEN value::text::numeric <  time_to_ms('2000-01-01T00:00:00Z')
      OR value::text::numeric >= time_to_ms('2101-01-01T00:00:00Z') THEN 'a time outside 2000..2100'
END;

-- What is wrong with a term; NULL where nothing is.
CREATE FUNCTION term_fault(term json) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    term_kind text;
    fault     text;
BEGIN
    IF json_typeof(term) <> 'object' THEN
        RETURN 'an element that is no term';
    END IF;
    IF json_typeof(term -> 'kind') IS DISTINCT FROM 'string' THEN
        RETURN 'a term without a kind';
    END IF;

    term_kind := term ->> 'kind';
    IF NOT EXISTS (SELECT FROM term_grammar g WHERE g.kind = term_kind) THEN
        RETURN 'an unknown kind';
    END IF;

    SELECT min(f.fault)
      INTO fault
      FROM (SELECT * FROM term_grammar WHERE kind = term_kind) AS g
      FULL JOIN json_object_keys(term) AS m (member) USING (member)
     CROSS JOIN LATERAL (
               SELECT CASE
                          WHEN g.member IS NULL                   THEN 'a member the kind does not take'
                          WHEN m.member IS NULL AND g.required    THEN 'a member missing'
                          WHEN m.member IS NULL                   THEN NULL
                          -- An optional member given as JSON null counts as not given.
                          WHEN json_typeof(term -> m.member) = 'null' AND NOT g.required THEN NULL
                          ELSE value_fault(term -> m.member, g.takes)
                      END) AS f (fault);

    RETURN fault;
END $$;

-- What is wrong with a list of terms, or of terms and branches where branches_too.
CREATE FUNCTION list_fault(list json, branches_too boolean) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    element json;
    fault   text;
BEGIN
    IF json_typeof(list) <> 'array' THEN
        RETURN 'a list that is none';
    END IF;
    IF json_array_length(list) = 0 THEN
        RETURN 'an empty list';
    END IF;

    FOR element IN SELECT e FROM json_array_elements(list) AS e LOOP
        IF json_typeof(element) = 'object' AND (element -> 'all' IS NOT NULL OR element -> 'any' IS NOT NULL) THEN
            IF NOT branches_too OR element -> 'any' IS NOT NULL THEN
                RETURN 'nested too deep';
            END IF;
            IF (SELECT count(*) FROM json_object_keys(element)) > 1 THEN
                RETURN 'any or all beside other members';
            END IF;
            fault := list_fault(element -> 'all', false);
        ELSE
            fault := term_fault(element);
        END IF;
        IF fault IS NOT NULL THEN
            RETURN fault;
        END IF;
    END LOOP;

    RETURN NULL;
END $$;

-- What is wrong with a whole condition; NULL where it can be read.
CREATE FUNCTION condition_fault(condition text) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    c json;
BEGIN
    IF condition IS NOT JSON THEN
        RETURN 'not JSON';
    END IF;
    IF condition IS NOT JSON OBJECT THEN
        RETURN 'not an object';
    END IF;
    IF condition IS NOT JSON WITH UNIQUE KEYS THEN
        RETURN 'a member given twice';
    END IF;

    c := condition::json;
    IF c -> 'any' IS NULL AND c -> 'all' IS NULL THEN
        RETURN term_fault(c);
    END IF;
    IF (SELECT count(*) FROM json_object_keys(c)) > 1 THEN
        RETURN 'any or all beside other members';
    END IF;
    RETURN list_fault(coalesce(c -> 'any', c -> 'all'), branches_too => c -> 'any' IS NOT NULL);
END $$;

CREATE FUNCTION validate_condition(condition text) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
DECLARE
    fault text := condition_fault(condition);
BEGIN
    IF fault IS NOT NULL THEN
        RAISE EXCEPTION 'ready_condition refused: %', fault USING ERRCODE = 'check_violation';
    END IF;
    RETURN condition::jsonb;
END $$;


-- Ready conditions: the judgement ----------------------------------------------------------------------------------------

-- Every condition is a list of branches and every branch a list of terms; a lone term is one of one. STRICT: no condition, no rows.
CREATE FUNCTION condition_terms(condition jsonb) RETURNS TABLE (branch bigint, place bigint, term jsonb)
LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT b.branch, t.place, t.term
      FROM jsonb_array_elements(coalesce(condition -> 'any', jsonb_build_array(condition)))
           WITH ORDINALITY AS b (body, branch)
     CROSS JOIN LATERAL jsonb_array_elements(coalesce(b.body -> 'all', jsonb_build_array(b.body)))
           WITH ORDINALITY AS t (term, place)
$$;

-- The condition where it can be read, NULL where it cannot or there is none: one unreadable row must not stop the others.
CREATE FUNCTION readable_condition(t tasks) RETURNS jsonb
LANGUAGE sql STABLE
RETURN CASE WHEN condition_fault(t.ready_condition::text) IS NULL THEN t.ready_condition END;

-- Every event that some parked task waits for. A term that is already met is waited for as well: its branch may still need it.
CREATE VIEW awaited_events AS
SELECT t.id                                                             AS task_id,
       c.term ->> 'event'                                               AS kind,
       c.term ->> 'subject'                                             AS subject,
       coalesce(ms_to_time((c.term ->> 'since_ms')::bigint), t.parked_at) AS since
  FROM tasks AS t
 CROSS JOIN LATERAL condition_terms(readable_condition(t)) AS c
 WHERE t.state = 'parked'
   AND c.term ->> 'kind' = 'event_seen';

-- Every parked task's verdict now: the first that holds.
CREATE VIEW parked_verdicts AS
SELECT t.id AS task_id,
       CASE
           WHEN f.reason = 'condition_met'           THEN 'release'
           WHEN f.reason IN ('time_park', 'waiting') THEN 'confirmed'
           ELSE 'stale'
       END AS verdict,
       f.reason
  FROM tasks AS t
 CROSS JOIN queue_settings AS s
       -- OFFSET 0: read once for each task, not once for each place that names it.
 CROSS JOIN LATERAL (SELECT readable_condition(t) AS condition OFFSET 0) AS r
 CROSS JOIN LATERAL (
           WITH terms AS (
               SELECT c.branch,
                      c.place,
                      c.term ->> 'kind' = 'not_before' AS is_time,
                      CASE c.term ->> 'kind'
                          WHEN 'event_seen' THEN
                              -- In the log, or in what was kept when the log was pruned. The millisecond of since counts.
                              EXISTS (SELECT
                                        FROM events AS e
                                       WHERE e.kind = c.term ->> 'event'
                                         AND (c.term ->> 'subject' IS NULL OR e.subject = c.term ->> 'subject')
                                         AND e.at >= coalesce(ms_to_time((c.term ->> 'since_ms')::bigint), t.parked_at))
                              OR
                              EXISTS (SELECT
                                        FROM sweep_evidence AS e
                                       WHERE e.kind = c.term ->> 'event'
                                         AND e.subject IS NOT DISTINCT FROM c.term ->> 'subject'
                                         AND e.at >= coalesce(ms_to_time((c.term ->> 'since_ms')::bigint), t.parked_at))
                          WHEN 'task_done'  THEN d.state IS NOT DISTINCT FROM 'done'
                          WHEN 'not_before' THEN ms_to_time((c.term ->> 'at_ms')::bigint) <= queue_now()
                          ELSE false
                      END AS met,
                      CASE
                          WHEN c.term ->> 'kind' <> 'task_done' THEN NULL
                          WHEN d.id IS NULL                     THEN 'dependency_missing'
                          WHEN d.state = 'failed'               THEN 'dependency_failed'
                          WHEN d.state = 'cancelled'            THEN 'dependency_cancelled'
                      END AS hopeless
                 FROM condition_terms(r.condition) AS c
                 LEFT JOIN tasks AS d ON d.id = CASE c.term ->> 'kind' WHEN 'task_done' THEN (c.term ->> 'task')::bigint END
           ),
           branches AS (
               SELECT branch,
                      bool_and(is_time)                                       AS only_time,
                      bool_and(met)                                           AS met,
                      bool_or(hopeless IS NOT NULL)                           AS hopeless,
                      bool_and(met OR is_time) AND bool_and(hopeless IS NULL) AS waits_for_time_alone
                 FROM terms
                GROUP BY branch
           )
           SELECT CASE
                      WHEN t.ready_condition IS NULL AND t.not_before IS NOT NULL THEN 'time_park'
                      WHEN t.ready_condition IS NULL                              THEN 'no_condition'
                      WHEN r.condition IS NULL                                    THEN 'unreadable_condition'
                      WHEN bool_and(b.only_time)                                  THEN 'time_park'
                      WHEN bool_or(b.met)                                         THEN 'condition_met'
                      WHEN bool_and(b.hopeless) THEN
                          (SELECT hopeless FROM terms WHERE hopeless IS NOT NULL ORDER BY branch, place LIMIT 1)
                      WHEN NOT bool_or(b.waits_for_time_alone) AND t.parked_at + s.stale_after < queue_now() THEN 'parked_too_long'
                      ELSE 'waiting'
                  END
             FROM branches AS b
       ) AS f (reason)
 WHERE t.state = 'parked';

-- A time park comes back through claim once its time is reached: the latest term of its earliest branch, and not_before as well.
CREATE FUNCTION is_due_time_park(t tasks) RETURNS boolean
LANGUAGE sql STABLE
RETURN CASE
    WHEN t.state <> 'parked' OR t.not_before > queue_now() THEN false
    WHEN t.ready_condition IS NULL THEN t.not_before IS NOT NULL
    ELSE coalesce(
        (SELECT bool_and(b.only_time) AND min(b.due) <= queue_now()
           FROM (SELECT bool_and(term ->> 'kind' = 'not_before')        AS only_time,
                        max(ms_to_time((term ->> 'at_ms')::bigint))     AS due
                   FROM condition_terms(readable_condition(t))
                  GROUP BY branch) AS b),
        false)
END;


-- The queue's verbs ------------------------------------------------------------------------------------------------------

CREATE FUNCTION enqueue(p_id bigint, p_queue text, p_priority integer, p_not_before timestamptz, p_max_attempts integer)
RETURNS void
LANGUAGE sql AS $$
    INSERT INTO tasks (id, queue, priority, not_before, max_attempts)
    VALUES (p_id, p_queue, p_priority, p_not_before, p_max_attempts)
$$;

-- Reading: an observing expiry counts under the same name what an enabled one would expire.
CREATE FUNCTION expire_leases(mode text DEFAULT 'enabled') RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    expired_leases bigint;
BEGIN
    IF mode = 'observe' THEN
        RETURN (SELECT count(*) FROM leases WHERE expires_at <= queue_now());
    END IF;

    WITH ended AS (
        DELETE FROM leases
         WHERE expires_at <= queue_now()
        RETURNING task_id, token
    ),
    -- A lease that binds nothing goes as well, but its task stays as it is.
    freed AS (
        UPDATE tasks AS t
           SET state       = CASE WHEN t.attempts >= t.max_attempts THEN 'failed' ELSE 'queued' END::task_state,
               claimed_by  = NULL,
               lease_token = NULL,
               updated_at  = queue_now()
          FROM ended
         WHERE t.id = ended.task_id
           AND t.state = 'leased'
           AND t.lease_token = ended.token
        RETURNING t.id, t.state, t.queue
    ),
    logged AS (
        INSERT INTO events (kind, subject, task_id)
        SELECT 'lease_expired', t.queue, ended.task_id FROM ended LEFT JOIN tasks AS t ON t.id = ended.task_id
        UNION ALL
        SELECT 'attempts_exhausted', queue, id FROM freed WHERE state = 'failed'
    )
    SELECT count(*) INTO expired_leases FROM ended;

    RETURN expired_leases;
END $$;

CREATE FUNCTION claim_repo_task(p_queue text, p_worker text, p_token text, p_lease_ms bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    claimed bigint;
BEGIN
    -- A statement of its own, so that the claim below sees what it freed.
    PERFORM expire_leases();

    WITH next AS (
        SELECT t.id
          FROM tasks AS t
         WHERE t.queue = p_queue
           AND ((t.state = 'queued' AND (t.not_before IS NULL OR t.not_before <= queue_now()))
                OR is_due_time_park(t))
         ORDER BY t.priority DESC, t.created_at, t.id
         LIMIT 1
           FOR UPDATE SKIP LOCKED
    ),
    taken AS (
        UPDATE tasks AS t
           SET state           = 'leased',
               claimed_by      = p_worker,
               lease_token     = p_token,
               attempts        = t.attempts + 1,
               not_before      = NULL,
               ready_condition = NULL,
               park_reason     = NULL,
               parked_at       = NULL,
               updated_at      = queue_now()
          FROM next
         WHERE t.id = next.id
        RETURNING t.id
    )
    INSERT INTO leases (task_id, worker, token, expires_at)
    SELECT id, p_worker, p_token, queue_now() + p_lease_ms * interval '1 millisecond' FROM taken
    RETURNING task_id INTO claimed;

    RETURN claimed;
END $$;

-- Does this lease bind this task? Its end is not looked at: until something expires it, nobody else holds the task.
CREATE FUNCTION require_lease(p_task_id bigint, p_token text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM
       FROM tasks AS t
       JOIN leases AS l ON l.task_id = t.id AND l.token = t.lease_token
      WHERE t.id = p_task_id
        AND t.state = 'leased'
        AND l.token = p_token
        FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'lease lost' USING ERRCODE = 'lock_not_available';
    END IF;
END $$;

CREATE FUNCTION renew(p_task_id bigint, p_token text, p_lease_ms bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM require_lease(p_task_id, p_token);

    UPDATE leases
       SET expires_at = queue_now() + p_lease_ms * interval '1 millisecond'
     WHERE task_id = p_task_id
       AND expires_at > queue_now();
    IF NOT FOUND THEN
        RAISE EXCEPTION 'lease lost' USING ERRCODE = 'lock_not_available';
    END IF;
END $$;

-- The end that complete and fail share: the lease goes, the binding is cleared, nothing is logged.
CREATE FUNCTION finish(p_task_id bigint, p_token text, p_state task_state) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM require_lease(p_task_id, p_token);

    WITH given_back AS (
        DELETE FROM leases WHERE task_id = p_task_id
    )
    UPDATE tasks
       SET state = p_state, claimed_by = NULL, lease_token = NULL, updated_at = queue_now()
     WHERE id = p_task_id;
END $$;

CREATE FUNCTION complete(p_task_id bigint, p_token text) RETURNS void
LANGUAGE sql AS $$ SELECT finish(p_task_id, p_token, 'done') $$;

CREATE FUNCTION fail(p_task_id bigint, p_token text) RETURNS void
LANGUAGE sql AS $$ SELECT finish(p_task_id, p_token, 'failed') $$;

-- Reading: the token is the fence, so it is looked at before the condition is: who lost the lease is told that, whatever
-- the condition.
CREATE FUNCTION park(p_task_id bigint, p_token text, p_condition text, p_not_before timestamptz, p_reason text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM require_lease(p_task_id, p_token);

    WITH given_back AS (
        DELETE FROM leases WHERE task_id = p_task_id
    ),
    parked AS (
        UPDATE tasks
           SET state           = 'parked',
               claimed_by      = NULL,
               lease_token     = NULL,
               ready_condition = CASE WHEN p_condition IS NOT NULL THEN validate_condition(p_condition) END,
               not_before      = p_not_before,
               park_reason     = p_reason,
               parked_at       = queue_now(),
               updated_at      = queue_now()
         WHERE id = p_task_id
        RETURNING id, queue
    )
    INSERT INTO events (kind, subject, task_id) SELECT 'parked', queue, id FROM parked;
END $$;

CREATE FUNCTION release_by_hand(p_task_id bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    WITH released AS (
        UPDATE tasks
           SET state           = 'queued',
               ready_condition = NULL,
               park_reason     = NULL,
               parked_at       = NULL,
               not_before      = NULL,
               updated_at      = queue_now()
         WHERE id = p_task_id
           AND state = 'parked'
        RETURNING id, queue
    )
    INSERT INTO events (kind, subject, task_id) SELECT 'park_released', queue, id FROM released;
    RETURN FOUND;
END $$;


-- The sweeps -------------------------------------------------------------------------------------------------------------

-- Judges every parked task, in the order of their ids, all of them before the first is released: hence one query, whose
-- snapshot the loop goes through.
--
-- Reading: only a release uses up max_releases_per_run. An observing run releases nothing and so judges everything; were it cut
-- short, a queue with more to release than one run may could never be observed as a whole, and never be enabled.
CREATE FUNCTION revalidate_parked_tasks(mode text) RETURNS TABLE (task_id bigint, verdict text, reason text)
LANGUAGE plpgsql AS $$
DECLARE
    releases_left integer := (SELECT max_releases_per_run FROM queue_settings);
BEGIN
    FOR task_id, verdict, reason IN SELECT v.task_id, v.verdict, v.reason FROM parked_verdicts AS v ORDER BY v.task_id LOOP
        RETURN NEXT;

        IF mode = 'enabled' AND verdict = 'release' THEN
            WITH released AS (
                UPDATE tasks AS t
                   SET state           = 'queued',
                       ready_condition = NULL,
                       park_reason     = NULL,
                       parked_at       = NULL,
                       updated_at      = queue_now()
                 WHERE t.id = revalidate_parked_tasks.task_id
                RETURNING t.id, t.queue
            )
            INSERT INTO events (kind, subject, task_id) SELECT 'park_released', r.queue, r.id FROM released AS r;

            releases_left := releases_left - 1;
            EXIT WHEN releases_left = 0;
        END IF;
    END LOOP;
END $$;

-- The counts of a run. Asking for them is running it.
CREATE FUNCTION revalidation_counts(mode text)
RETURNS TABLE (checked bigint, would_release bigint, released bigint, confirmed bigint, stale bigint)
LANGUAGE sql AS $$
    SELECT count(*),
           count(*) FILTER (WHERE v.verdict = 'release' AND mode <> 'enabled'),
           count(*) FILTER (WHERE v.verdict = 'release' AND mode = 'enabled'),
           count(*) FILTER (WHERE v.verdict = 'confirmed'),
           count(*) FILTER (WHERE v.verdict = 'stale')
      FROM revalidate_parked_tasks(mode) AS v
$$;

-- What is kept is the newest event of each kind and subject awaited, whether or not it met anybody's since. What was kept for
-- "any subject" says nothing to a term that names one, nor the other way round.
CREATE FUNCTION prune_events(mode text DEFAULT 'enabled') RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    keep_from     timestamptz := (SELECT queue_now() - events_retention FROM queue_settings);
    events_pruned bigint;
BEGIN
    IF mode = 'observe' THEN
        RETURN (SELECT count(*) FROM events WHERE at < keep_from);
    END IF;

    WITH old AS (
        DELETE FROM events WHERE at < keep_from
        RETURNING kind, subject, at
    ),
    kept AS (
        INSERT INTO sweep_evidence AS s (kind, subject, at)
        SELECT a.kind, a.subject, max(old.at)
          FROM awaited_events AS a
          JOIN old ON old.kind = a.kind
                  AND (a.subject IS NULL OR old.subject = a.subject)
         GROUP BY a.kind, a.subject
        ON CONFLICT (kind, subject) DO UPDATE SET at = greatest(s.at, excluded.at)
    )
    SELECT count(*) INTO events_pruned FROM old;

    INSERT INTO events (kind) VALUES ('events_pruned');
    RETURN events_pruned;
END $$;

-- Evidence stays "for as long as some task waits for that kind and subject".
-- Reading: and no longer, so it goes with the last task that waits, not with the next prune.
CREATE FUNCTION drop_evidence_nobody_awaits() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM sweep_evidence) THEN
        DELETE FROM sweep_evidence AS s
         WHERE NOT EXISTS (
                   SELECT FROM awaited_events AS a
                    WHERE a.kind = s.kind AND a.subject IS NOT DISTINCT FROM s.subject);
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER drop_evidence_nobody_awaits
AFTER UPDATE ON tasks
FOR EACH STATEMENT EXECUTE FUNCTION drop_evidence_nobody_awaits();


-- What the test reads ----------------------------------------------------------------------------------------------------

-- PL/pgSQL keeps the view's plan from one call to the next; planning it takes longer than running it.
CREATE FUNCTION verdicts() RETURNS SETOF parked_verdicts
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT * FROM parked_verdicts ORDER BY task_id;
END $$;

-- Everything the two sides are compared by, in an order that does not depend on the order of insertion.
CREATE FUNCTION snapshot() RETURNS jsonb
LANGUAGE sql STABLE
RETURN jsonb_build_object(
    'tasks', (
        SELECT coalesce(jsonb_agg(jsonb_build_object(
                   'id', id, 'queue', queue, 'state', state, 'priority', priority, 'claimed_by', claimed_by,
                   'lease_token', lease_token, 'attempts', attempts, 'not_before_ms', time_to_ms(not_before),
                   'parked_at_ms', time_to_ms(parked_at), 'park_reason', park_reason) ORDER BY id), '[]')
          FROM tasks),
    'leases', (
        SELECT coalesce(jsonb_agg(jsonb_build_object(
                   'task_id', task_id, 'worker', worker, 'token', token, 'expires_at_ms', time_to_ms(expires_at))
                   ORDER BY task_id), '[]')
          FROM leases),
    'events', (
        SELECT coalesce(jsonb_agg(jsonb_build_object(
                   'at_ms', time_to_ms(at), 'kind', kind, 'subject', subject, 'task_id', task_id)
                   ORDER BY at, kind COLLATE "C", subject COLLATE "C" NULLS FIRST, task_id NULLS FIRST), '[]')
          FROM events));
