-- What an application does by SQL in its own transactions (R46), who waits for its jobs (R41),
-- and the roles.

-- +goose Up

-- Until when some replica has polls parked for a queue, so that a transaction that enqueues
-- notifies only where somebody waits (R41). The time is near, so that a replica that died does
-- not make others notify for ever. Apart from queues: a change of that row would end every
-- REPEATABLE READ transaction that enqueues.
CREATE TABLE leasehold.queue_waits (
    queue_id     integer PRIMARY KEY,
    waited_until timestamptz NOT NULL
) WITH (fillfactor = 50);

-- Which rows of other tables `leasehold import` has taken over, so that none is taken twice.
CREATE TABLE leasehold.imported_jobs (
    import     text NOT NULL CHECK (octet_length(import) BETWEEN 1 AND 128),
    source_key text NOT NULL,
    job_id     bigint NOT NULL,
    PRIMARY KEY (import, source_key)
);

-- Functions that only the functions of this file can call inherit the fixed search_path of those.

-- refuse raises the error of a reason. Clients tell the reason by its SQLSTATE or by DETAIL,
-- which is the word of the API; COLUMN is the field of INVALID_REQUEST and TOO_LARGE.
-- +goose StatementBegin
CREATE FUNCTION leasehold.refuse(reason text, message text, field text DEFAULT '', item integer DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = CASE reason
            WHEN 'INVALID_REQUEST' THEN 'LH001' WHEN 'TOO_LARGE' THEN 'LH002' WHEN 'QUEUE_NOT_FOUND' THEN 'LH003'
            WHEN 'JOB_NOT_FOUND' THEN 'LH004' WHEN 'IDEMPOTENCY_KEY_REUSED' THEN 'LH005' WHEN 'LEASE_SUPERSEDED' THEN 'LH006'
            WHEN 'LEASE_EXPIRED' THEN 'LH007' WHEN 'LEASE_ENDED' THEN 'LH008' WHEN 'RESULT_CONFLICT' THEN 'LH009'
            WHEN 'JOB_BUSY' THEN 'LH010' END,
        MESSAGE = CASE WHEN item IS NULL THEN '' ELSE 'item ' || item || ': ' END
            || CASE field WHEN '' THEN '' ELSE field || ' ' END || message,
        DETAIL = reason, SCHEMA = 'leasehold', COLUMN = coalesce(field, '');
END $$;
-- +goose StatementEnd

-- What enqueue stores, as store.NewJob. content and is_json are the payload.
CREATE TYPE leasehold.new_job AS (
    queue text, content bytea, is_json boolean, content_type text, headers jsonb, subject text, priority integer,
    run_at timestamptz, delay interval, idempotency_key text, max_attempts integer, max_expirations integer,
    backoff_initial interval, backoff_factor double precision, backoff_cap interval, backoff_jitter double precision,
    lease_duration interval, max_runtime interval, stall_timeout interval, cancel_grace interval, idempotency_retention interval);

-- content_of turns JSON as text, or bytes, into what is stored. JSON is kept byte for byte. It
-- is checked here: what a worker cannot parse would fail far away from who can mend it.
-- +goose StatementBegin
CREATE FUNCTION leasehold.content_of(field text, json_text text, data bytea, OUT content bytea, OUT is_json boolean)
LANGUAGE plpgsql AS $$
BEGIN
    IF json_text IS NOT NULL AND data IS NOT NULL THEN
        PERFORM leasehold.refuse('INVALID_REQUEST', 'and data must not both be set', field);
    END IF;
    is_json := json_text IS NOT NULL;
    content := coalesce(data, convert_to(json_text, 'UTF8'), '');
    IF octet_length(content) > 1048576 THEN
        PERFORM leasehold.refuse('TOO_LARGE', 'must be at most 1048576 bytes, got ' || octet_length(content), field);
    END IF;
    IF is_json THEN
        BEGIN
            PERFORM json_text::json;
        EXCEPTION WHEN data_exception OR statement_too_complex THEN
            PERFORM leasehold.refuse('INVALID_REQUEST', 'must be one JSON value: ' || SQLERRM, field);
        END;
    END IF;
END $$;
-- +goose StatementEnd

-- content_digest tells equal contents, as the service does: the digest of a key is all of it,
-- that of a Complete the first 16 bytes.
-- +goose StatementBegin
CREATE FUNCTION leasehold.content_digest(content bytea, is_json boolean, content_type text) RETURNS bytea
LANGUAGE sql STABLE AS $$
    SELECT sha256(int8send(octet_length(content)) || CASE WHEN is_json THEN '\x01'::bytea ELSE '\x00'::bytea END
                  || content || convert_to(content_type, 'UTF8'))
$$;
-- +goose StatementEnd

-- exact makes hours of an interval's days and months, so that neither time zones nor the
-- lengths of months change what a number of days is. A month counts 30 days.
-- +goose StatementBegin
CREATE FUNCTION leasehold.exact(i interval) RETURNS interval LANGUAGE sql IMMUTABLE AS
$$ SELECT make_interval(secs => extract(epoch FROM i)::double precision) $$;
-- +goose StatementEnd

-- check_job refuses what the API refuses, with the same bounds.
-- +goose StatementBegin
CREATE FUNCTION leasehold.check_job(job leasehold.new_job, item integer) RETURNS leasehold.new_job
LANGUAGE plpgsql AS $$
DECLARE
    bound record;
BEGIN
    IF (job.queue ~ '^[a-z0-9][a-z0-9._-]{0,127}$') IS NOT TRUE THEN
        PERFORM leasehold.refuse('INVALID_REQUEST', 'must match [a-z0-9][a-z0-9._-]{0,127}', 'queue', item);
    ELSIF octet_length(job.content) > 1048576 THEN
        PERFORM leasehold.refuse('TOO_LARGE', 'must be at most 1048576 bytes, got ' || octet_length(job.content), 'payload', item);
    ELSIF octet_length(job.content_type) > 256 THEN
        PERFORM leasehold.refuse('INVALID_REQUEST', 'must be at most 256 bytes', 'content_type', item);
    ELSIF octet_length(job.subject) NOT BETWEEN 1 AND 256 THEN
        PERFORM leasehold.refuse('INVALID_REQUEST', 'must be 1..256 bytes', 'subject', item);
    ELSIF octet_length(job.idempotency_key) NOT BETWEEN 1 AND 256 THEN
        PERFORM leasehold.refuse('INVALID_REQUEST', 'must be 1..256 bytes', 'idempotency_key', item);
    ELSIF job.priority NOT BETWEEN 1 AND 9 THEN
        PERFORM leasehold.refuse('INVALID_REQUEST', 'must be 1..9', 'priority', item);
    ELSIF job.run_at IS NOT NULL AND job.delay IS NOT NULL THEN
        PERFORM leasehold.refuse('INVALID_REQUEST', 'and delay must not both be set', 'run_at', item);
    END IF;
    IF job.headers IS NOT NULL THEN
        PERFORM leasehold.check_headers(job.headers, item);
        job.headers := nullif(job.headers, '{}');
    END IF;
    job.content_type := coalesce(job.content_type, '');
    IF num_nonnulls(job.delay, job.max_attempts, job.max_expirations, job.backoff_initial, job.backoff_factor, job.backoff_cap, job.backoff_jitter,
                    job.lease_duration, job.max_runtime, job.stall_timeout, job.cancel_grace, job.idempotency_retention) = 0 THEN
        RETURN job;
    END IF;
    FOR bound IN SELECT b.field, b.value, b.least, b.most, b.says FROM (VALUES
        ('delay', extract(epoch FROM job.delay)::double precision, 0, 157852800, '0..5 years (1,827 days)'),
        ('max_attempts', job.max_attempts, 1, 1000, '1..1000'),
        ('max_expirations', job.max_expirations, 1, 1000, '1..1000'),
        ('backoff_initial', extract(epoch FROM job.backoff_initial)::double precision, 0, 86400, '0..1 day'),
        ('backoff_factor', job.backoff_factor, 1, 10, '1..10'),
        ('backoff_cap', extract(epoch FROM job.backoff_cap)::double precision, 0, 2592000, '0..30 days'),
        ('backoff_jitter', job.backoff_jitter, 0, 1, '0..1'),
        ('lease_duration', extract(epoch FROM job.lease_duration)::double precision, 1, 43200, '1 second..12 hours'),
        ('max_runtime', extract(epoch FROM job.max_runtime)::double precision, 1, 2592000, '1 second..30 days'),
        ('stall_timeout', extract(epoch FROM job.stall_timeout)::double precision, 1, 2592000, '1 second..30 days'),
        ('cancel_grace', extract(epoch FROM job.cancel_grace)::double precision, 0, 86400, '0..1 day'),
        ('idempotency_retention', extract(epoch FROM job.idempotency_retention)::double precision, 0, 31622400, '0..366 days')
        ) AS b(field, value, least, most, says)
        WHERE b.value NOT BETWEEN b.least AND b.most
    LOOP
        PERFORM leasehold.refuse('INVALID_REQUEST', 'must be ' || bound.says, bound.field, item);
    END LOOP;
    job.delay := leasehold.exact(job.delay);
    job.backoff_initial := leasehold.exact(job.backoff_initial);
    job.backoff_cap := leasehold.exact(job.backoff_cap);
    job.lease_duration := leasehold.exact(job.lease_duration);
    job.max_runtime := leasehold.exact(job.max_runtime);
    job.stall_timeout := leasehold.exact(job.stall_timeout);
    job.cancel_grace := leasehold.exact(job.cancel_grace);
    job.idempotency_retention := leasehold.exact(job.idempotency_retention);
    RETURN job;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION leasehold.check_headers(headers jsonb, item integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    found record;
BEGIN
    IF jsonb_typeof(headers) <> 'object' THEN
        PERFORM leasehold.refuse('INVALID_REQUEST', 'must be an object of strings', 'headers', item);
    END IF;
    SELECT count(*) AS entries, coalesce(sum(octet_length(h.key) + octet_length(h.value)), 0) AS bytes,
           bool_and(h.key ~ '^[a-z0-9._-]{1,64}$') AS named, bool_and(jsonb_typeof(headers -> h.key) = 'string') AS strings
    INTO found FROM jsonb_each_text(headers) AS h(key, value);
    IF found.entries > 64 THEN
        PERFORM leasehold.refuse('INVALID_REQUEST', 'must have at most 64 entries', 'headers', item);
    ELSIF NOT found.named THEN
        PERFORM leasehold.refuse('INVALID_REQUEST', 'must have keys that match [a-z0-9._-]{1,64}', 'headers', item);
    ELSIF NOT found.strings THEN
        PERFORM leasehold.refuse('INVALID_REQUEST', 'must be an object of strings', 'headers', item);
    ELSIF found.bytes > 16384 THEN
        PERFORM leasehold.refuse('TOO_LARGE', 'must have at most 16384 bytes in all, got ' || found.bytes, 'headers', item);
    END IF;
END $$;
-- +goose StatementEnd

-- lock_key takes the advisory lock of an idempotency key, as the service does, and looks again
-- for a second where another transaction holds it: most commit meanwhile. A wait in the lock
-- itself could deadlock, and would last for as long as the other hangs.
-- +goose StatementBegin
CREATE FUNCTION leasehold.lock_key(queue_id integer, key text, item integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    FOR try IN 1..100 LOOP
        IF pg_try_advisory_xact_lock(hashtextextended(key, queue_id)) THEN
            RETURN;
        END IF;
        PERFORM pg_sleep(0.01);
    END LOOP;
    PERFORM leasehold.refuse('JOB_BUSY', 'is held by an open transaction: roll back and repeat', 'idempotency_key', item);
END $$;
-- +goose StatementEnd

-- store_job stores one checked job. The queue's row is held against deletion until the commit.
-- The clock is read when the transaction has its xid: no mark of a claim is beyond it then,
-- however late the commit comes (R48). Indexes: queues_name, idempotency_keys_pkey, the primary
-- keys of jobs, finished_jobs and queue_waits.
-- +goose StatementBegin
CREATE FUNCTION leasehold.store_job(job leasehold.new_job, item integer, OUT job_id bigint, OUT created boolean)
LANGUAGE plpgsql AS $$
DECLARE
    q         record;
    old       record;
    read_at   timestamptz;
    due_at    timestamptz;
    digested  bytea;
BEGIN
    FOR try IN 1..101 LOOP
        SELECT w.id, w.paused_at, w.max_attempts, w.max_expirations, w.backoff_initial, w.backoff_factor, w.backoff_cap, w.backoff_jitter,
               w.lease_duration, w.max_runtime, w.stall_timeout, w.cancel_grace, w.idempotency_retention
        INTO q FROM leasehold.queues w WHERE w.name = job.queue AND w.deleted_at IS NULL FOR KEY SHARE SKIP LOCKED;
        EXIT WHEN FOUND;
        IF NOT EXISTS (SELECT FROM leasehold.queues w WHERE w.name = job.queue AND w.deleted_at IS NULL) THEN
            PERFORM leasehold.refuse('QUEUE_NOT_FOUND', 'queue ' || job.queue || ' does not exist', '', item);
        ELSIF try > 100 THEN
            PERFORM leasehold.refuse('JOB_BUSY', 'queue ' || job.queue || ' is held by an open transaction: roll back and repeat', '', item);
        END IF;
        PERFORM pg_sleep(0.01);
    END LOOP;
    IF job.idempotency_key IS NOT NULL THEN
        PERFORM leasehold.lock_key(q.id, job.idempotency_key, item);
        digested := leasehold.content_digest(job.content, job.is_json, job.content_type);
    END IF;

    PERFORM pg_current_xact_id();
    read_at := clock_timestamp();
    due_at := CASE WHEN job.delay IS NOT NULL THEN read_at + job.delay ELSE greatest(job.run_at, read_at) END;
    IF due_at > read_at + interval '43848 hours 1 minute' THEN
        PERFORM leasehold.refuse('INVALID_REQUEST', 'must be at most 5 years (1,827 days) ahead', 'run_at', item);
    END IF;

    created := true;
    IF job.idempotency_key IS NULL THEN
        job_id := nextval('leasehold.job_id_seq');
    ELSE
        SELECT k.job_id, k.digest = digested AS same,
               EXISTS (SELECT FROM leasehold.jobs j WHERE j.id = k.job_id)
               OR EXISTS (SELECT FROM leasehold.finished_jobs f WHERE f.id = k.job_id
                          AND f.finished_at + coalesce(f.idempotency_retention, interval '7 days') > read_at) AS held
        INTO old FROM leasehold.idempotency_keys k WHERE k.queue_id = q.id AND k.key = job.idempotency_key;
        IF old.held AND NOT old.same THEN
            PERFORM leasehold.refuse('IDEMPOTENCY_KEY_REUSED', 'belongs to job ' || old.job_id || ' with another payload', 'idempotency_key', item);
        ELSIF old.held THEN
            job_id := old.job_id;
            created := false;
            RETURN;
        END IF;
        job_id := nextval('leasehold.job_id_seq');
        IF old.job_id IS NOT NULL THEN
            UPDATE leasehold.idempotency_keys k SET job_id = store_job.job_id, digest = digested
            WHERE k.queue_id = q.id AND k.key = job.idempotency_key AND k.job_id = old.job_id;
        ELSE
            INSERT INTO leasehold.idempotency_keys (queue_id, key, job_id, digest)
            VALUES (q.id, job.idempotency_key, store_job.job_id, digested) ON CONFLICT DO NOTHING;
        END IF;
        IF NOT FOUND THEN
            PERFORM leasehold.refuse('JOB_BUSY', 'changed hands meanwhile: roll back and repeat', 'idempotency_key', item);
        END IF;
    END IF;

    INSERT INTO leasehold.jobs (id, queue_id, state, priority, run_at, created_at, bytes, subject,
           max_attempts, max_expirations, backoff_initial, backoff_factor, backoff_cap, backoff_jitter,
           lease_duration, max_runtime, stall_timeout, cancel_grace, idempotency_retention)
    VALUES (store_job.job_id, q.id, 1, coalesce(job.priority, 5), due_at, read_at,
           least(octet_length(job.content) + coalesce(octet_length(job.headers::text), 0), 1100000), job.subject,
           coalesce(job.max_attempts, q.max_attempts), coalesce(job.max_expirations, q.max_expirations),
           coalesce(job.backoff_initial, q.backoff_initial), coalesce(job.backoff_factor, q.backoff_factor),
           coalesce(job.backoff_cap, q.backoff_cap), coalesce(job.backoff_jitter, q.backoff_jitter),
           coalesce(job.lease_duration, q.lease_duration), coalesce(job.max_runtime, q.max_runtime),
           coalesce(job.stall_timeout, q.stall_timeout), coalesce(job.cancel_grace, q.cancel_grace),
           coalesce(job.idempotency_retention, q.idempotency_retention));
    INSERT INTO leasehold.job_data (job_id, payload, is_json, content_type, headers)
    VALUES (store_job.job_id, job.content, job.is_json, job.content_type, job.headers);

    -- Only where somebody waits: a commit with a notification takes a lock of the whole server (R41).
    IF due_at <= read_at AND q.paused_at IS NULL AND EXISTS (
        SELECT FROM leasehold.queue_waits w
        WHERE w.queue_id = q.id AND w.waited_until BETWEEN read_at AND read_at + interval '10 seconds') THEN
        PERFORM pg_notify('leasehold_hint', job.queue);
    END IF;
END $$;
-- +goose StatementEnd

-- enqueue stores one job in the caller's transaction: workers see it after the commit, and
-- never after a rollback. Everything but the queue is optional, by name; NULL is unset.
-- +goose StatementBegin
CREATE FUNCTION leasehold.enqueue(
    queue text, payload text DEFAULT NULL, data bytea DEFAULT NULL, content_type text DEFAULT NULL, headers jsonb DEFAULT NULL,
    subject text DEFAULT NULL, priority integer DEFAULT NULL, run_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL,
    idempotency_key text DEFAULT NULL, max_attempts integer DEFAULT NULL, max_expirations integer DEFAULT NULL,
    backoff_initial interval DEFAULT NULL, backoff_factor double precision DEFAULT NULL, backoff_cap interval DEFAULT NULL,
    backoff_jitter double precision DEFAULT NULL, lease_duration interval DEFAULT NULL, max_runtime interval DEFAULT NULL,
    stall_timeout interval DEFAULT NULL, cancel_grace interval DEFAULT NULL, idempotency_retention interval DEFAULT NULL,
    OUT job_id bigint, OUT created boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    content record;
    job     leasehold.new_job;
BEGIN
    content := leasehold.content_of('payload', payload, data);
    job := ROW(queue, content.content, content.is_json, content_type, headers, subject, priority, run_at, delay, idempotency_key,
               max_attempts, max_expirations, backoff_initial, backoff_factor, backoff_cap, backoff_jitter, lease_duration, max_runtime,
               stall_timeout, cancel_grace, idempotency_retention);
    SELECT s.job_id, s.created INTO job_id, created FROM leasehold.store_job(leasehold.check_job(job, NULL), NULL) s;
END $$;
-- +goose StatementEnd

-- job_of_item reads one item of enqueue_many. The text of a JSON payload is kept as it is.
-- +goose StatementBegin
CREATE FUNCTION leasehold.job_of_item(queue text, item json, n integer) RETURNS leasehold.new_job
LANGUAGE plpgsql AS $$
DECLARE
    unknown text;
    job     leasehold.new_job;
BEGIN
    IF item IS NULL OR json_typeof(item) <> 'object' THEN
        PERFORM leasehold.refuse('INVALID_REQUEST', 'must be a JSON object', 'items', n);
    END IF;
    SELECT k.name INTO unknown FROM json_object_keys(item) AS k(name)
    WHERE k.name <> ALL (ARRAY['queue', 'payload', 'data', 'content_type', 'headers', 'subject', 'priority', 'run_at', 'delay',
        'idempotency_key', 'max_attempts', 'max_expirations', 'backoff_initial', 'backoff_factor', 'backoff_cap', 'backoff_jitter',
        'lease_duration', 'max_runtime', 'stall_timeout', 'cancel_grace', 'idempotency_retention']) LIMIT 1;
    IF FOUND THEN
        PERFORM leasehold.refuse('INVALID_REQUEST', 'has the unknown field ' || unknown, 'items', n);
    END IF;
    BEGIN
        job := json_populate_record(NULL::leasehold.new_job, item);
        job.is_json := item ->> 'payload' IS NOT NULL;
        job.content := convert_to((item -> 'payload')::text, 'UTF8');
        IF NOT job.is_json THEN
            job.content := coalesce(decode(item ->> 'data', 'base64'), '');
        ELSIF item ->> 'data' IS NOT NULL THEN
            PERFORM leasehold.refuse('INVALID_REQUEST', 'and data must not both be set', 'payload', n);
        END IF;
    EXCEPTION WHEN data_exception THEN
        PERFORM leasehold.refuse('INVALID_REQUEST', SQLERRM, '', n);
    END;
    job.queue := coalesce(job.queue, queue);
    job.headers := nullif(job.headers, 'null');
    RETURN leasehold.check_job(job, n);
END $$;
-- +goose StatementEnd

-- enqueue_many stores up to 1,000 jobs, all or none: each item is an object with the options of
-- enqueue by their names. One row per item, in their order. Keys are locked in order of keys,
-- so that two calls with the same keys do not each hold what the other wants.
-- +goose StatementBegin
CREATE FUNCTION leasehold.enqueue_many(queue text, items json[], OUT item integer, OUT job_id bigint, OUT created boolean) RETURNS SETOF record
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    parsed leasehold.new_job[];
    keyed  record;
BEGIN
    IF cardinality(items) > 1000 THEN
        PERFORM leasehold.refuse('INVALID_REQUEST', 'must be at most 1000, got ' || cardinality(items), 'items');
    END IF;
    SELECT array_agg(leasehold.job_of_item(enqueue_many.queue, i.item, i.n::integer) ORDER BY i.n) INTO parsed
    FROM unnest(items) WITH ORDINALITY AS i(item, n);
    FOR keyed IN
        SELECT DISTINCT q.id, p.idempotency_key AS key FROM unnest(parsed) AS p JOIN leasehold.queues q ON q.name = p.queue AND q.deleted_at IS NULL
        WHERE p.idempotency_key IS NOT NULL ORDER BY q.id, p.idempotency_key
    LOOP
        PERFORM leasehold.lock_key(keyed.id, keyed.key, NULL);
    END LOOP;
    FOR n IN 1..coalesce(cardinality(parsed), 0) LOOP
        SELECT n, s.job_id, s.created INTO item, job_id, created FROM leasehold.store_job(parsed[n], n) s;
        RETURN NEXT;
    END LOOP;
END $$;
-- +goose StatementEnd

-- judge_lease looks afresh at a lease that a statement could not lock, in both tables under one
-- snapshot (R31), and reads the table of R17. It returns COMPLETED, with what is to be compared,
-- DEAD where a Complete may still take it, LOCKED where the row was merely locked; else it raises.
-- +goose StatementBegin
CREATE FUNCTION leasehold.judge_lease(job_id bigint, lease_no bigint, completing boolean, OUT verdict text, OUT digest bytea, OUT late boolean)
LANGUAGE plpgsql AS $$
DECLARE
    named text := 'lease ' || lease_no || ' of job ' || job_id;
    l     record;
BEGIN
    SELECT coalesce(j.state, f.state) AS state, coalesce(j.lease_no, f.lease_no) AS latest, coalesce(j.end_kind, f.end_kind) AS end_kind,
           coalesce(j.sealed, f.sealed) AS sealed, f.digest
    INTO l FROM (SELECT judge_lease.job_id AS id) u
    LEFT JOIN leasehold.jobs j ON j.id = u.id
    LEFT JOIN leasehold.finished_jobs f ON f.id = u.id;
    IF l.state IS NULL THEN
        PERFORM leasehold.refuse('JOB_NOT_FOUND', 'job ' || coalesce(job_id::text, 'NULL') || ' does not exist');
    ELSIF l.latest > lease_no THEN
        PERFORM leasehold.refuse('LEASE_SUPERSEDED', named || ' was superseded by lease ' || l.latest);
    ELSIF l.latest = lease_no AND l.state = 2 THEN
        verdict := 'LOCKED';
        RETURN;
    ELSIF l.latest = lease_no AND completing AND l.end_kind IN (1, 2) THEN
        verdict := 'COMPLETED';
        digest := l.digest;
        late := l.end_kind = 2;
        RETURN;
    ELSIF l.latest = lease_no AND l.end_kind IN (5, 6, 7, 9) AND NOT l.sealed AND l.state IN (1, 3, 5) THEN
        IF NOT completing THEN
            PERFORM leasehold.refuse('LEASE_EXPIRED', named || ' has ended by its time');
        END IF;
        verdict := CASE l.state WHEN 5 THEN 'DEAD' ELSE 'LOCKED' END;
        RETURN;
    END IF;
    PERFORM leasehold.refuse('LEASE_ENDED', coalesce(named, 'lease NULL') || ' has ended'
        || CASE WHEN l.latest = lease_no THEN coalesce(' as ' || leasehold.end_word(l.end_kind), '') ELSE '' END
        || ', and the job is ' || leasehold.state_word(l.state));
END $$;
-- +goose StatementEnd

-- assert_lease raises unless the lease is its job's latest and live, and keeps it so until the
-- caller's transaction ends: FOR KEY SHARE lets the lease's own heartbeats pass and conflicts
-- with FOR UPDATE, which every end and every take-over takes first. Locked rows are skipped and
-- looked at again for a second, so that a transaction that hangs stops nobody. Index: jobs_pkey
-- (a lease that has not ended has lease_until; asked for the state, the planner would take
-- jobs_leased_ids, which is full of dead entries).
-- +goose StatementBegin
CREATE FUNCTION leasehold.assert_lease(job_id bigint, lease_no bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    until timestamptz;
BEGIN
    FOR try IN 1..100 LOOP
        PERFORM FROM leasehold.jobs j
        WHERE j.id = assert_lease.job_id AND j.lease_no = assert_lease.lease_no AND j.lease_until IS NOT NULL FOR KEY SHARE SKIP LOCKED;
        IF FOUND THEN
            -- Behind the lock, because a heartbeat that was committed meanwhile is in no older snapshot.
            SELECT j.lease_until INTO until FROM leasehold.jobs j WHERE j.id = assert_lease.job_id;
            IF until > clock_timestamp() THEN
                RETURN;
            ELSIF current_setting('transaction_isolation') <> 'read committed' AND until > transaction_timestamp() THEN
                RAISE EXCEPTION 'lease % of job % may have been renewed since this transaction began', lease_no, job_id
                    USING ERRCODE = 'serialization_failure', HINT = 'Repeat the transaction.';
            END IF;
            PERFORM leasehold.refuse('LEASE_EXPIRED', 'lease ' || lease_no || ' of job ' || job_id || ' ran out at ' || until);
        END IF;
        PERFORM leasehold.judge_lease(job_id, lease_no, false);
        PERFORM pg_sleep(0.01);
    END LOOP;
    PERFORM leasehold.refuse('JOB_BUSY', 'job ' || job_id || ' is held by an open transaction: roll back and repeat');
END $$;
-- +goose StatementEnd

-- complete ends a lease and its job in the caller's transaction, by the rules of the API's
-- Complete (R17). The row is locked before the clock is read, as in every end of a lease (R30,
-- R32). Indexes: jobs_pkey, checkpoints_pkey, the primary key of finished_jobs.
-- +goose StatementBegin
CREATE FUNCTION leasehold.complete(
    job_id bigint, lease_no bigint, result text DEFAULT NULL, data bytea DEFAULT NULL, content_type text DEFAULT NULL,
    OUT already_applied boolean, OUT late boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    given  record;
    empty  boolean;
    digest bytea;
    judged record;
BEGIN
    given := leasehold.content_of('result', result, data);
    content_type := coalesce(content_type, '');
    IF octet_length(content_type) > 256 THEN
        PERFORM leasehold.refuse('INVALID_REQUEST', 'must be at most 256 bytes', 'content_type');
    END IF;
    empty := given.content = '' AND content_type = '' AND NOT given.is_json;
    digest := CASE WHEN NOT empty THEN substring(leasehold.content_digest(given.content, given.is_json, content_type) FROM 1 FOR 16) END;
    already_applied := false;
    FOR try IN 1..100 LOOP
        SELECT j.state <> 2 INTO late FROM leasehold.jobs j
        WHERE j.id = complete.job_id AND j.lease_no = complete.lease_no AND (j.state = 2 OR (j.end_kind IN (5, 6, 7, 9) AND NOT j.sealed))
        FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            PERFORM leasehold.move_completed(complete.job_id, digest);
            IF NOT empty THEN
                INSERT INTO leasehold.job_results (job_id, result, is_json, content_type)
                VALUES (complete.job_id, given.content, given.is_json, complete.content_type);
            END IF;
            RETURN;
        END IF;
        judged := leasehold.judge_lease(complete.job_id, complete.lease_no, true);
        IF judged.verdict = 'COMPLETED' THEN
            IF judged.digest IS DISTINCT FROM digest THEN
                PERFORM leasehold.refuse('RESULT_CONFLICT', 'lease ' || lease_no || ' of job ' || job_id || ' was completed with another result');
            END IF;
            already_applied := true;
            late := judged.late;
            RETURN;
        ELSIF judged.verdict = 'DEAD' THEN
            IF leasehold.complete_dead(complete.job_id, complete.lease_no, digest) THEN
                IF NOT empty AND leasehold.has_partition('job_results', complete.job_id) THEN
                    INSERT INTO leasehold.job_results AS r (job_id, result, is_json, content_type)
                    VALUES (complete.job_id, given.content, given.is_json, complete.content_type)
                    ON CONFLICT ON CONSTRAINT job_results_pkey
                    DO UPDATE SET result = EXCLUDED.result, is_json = EXCLUDED.is_json, content_type = EXCLUDED.content_type;
                END IF;
                late := true;
                RETURN;
            END IF;
        END IF;
        PERFORM pg_sleep(0.01);
    END LOOP;
    PERFORM leasehold.refuse('JOB_BUSY', 'job ' || job_id || ' is held by an open transaction: roll back and repeat');
END $$;
-- +goose StatementEnd

-- move_completed moves a job whose row the caller has locked, as the service's Complete does.
-- +goose StatementBegin
CREATE FUNCTION leasehold.move_completed(job_id bigint, digest bytea) RETURNS void
LANGUAGE sql VOLATILE AS $$
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), moved AS (
    DELETE FROM leasehold.jobs j WHERE j.id = $1
    RETURNING j.id, j.queue_id, j.state, j.priority, j.run_at, j.created_at, j.bytes, j.attempts_used, j.expirations, j.lease_no,
        j.cancel_requested_at, j.last_owner, j.leased_at, j.lease_length, j.lease_until, j.last_until, j.beat_at, j.beats,
        j.largest_gap, j.changed_at, j.stage, j.stage_changes, j.progress, j.counted,
        j.max_attempts, j.max_expirations, j.backoff_initial, j.backoff_factor, j.backoff_cap, j.backoff_jitter,
        j.lease_duration, j.max_runtime, j.stall_timeout, j.cancel_grace, j.idempotency_retention, j.subject, j.parent_id
), finished AS (
    INSERT INTO leasehold.finished_jobs (id, queue_id, state, priority, run_at, created_at, finished_at, bytes, attempts_used, expirations, lease_no,
        cancel_requested_at, last_owner, leased_at, lease_length, last_until, beat_at, beats,
        largest_gap, changed_at, stage, stage_changes, progress, end_kind, ended_at, counted, sealed,
        follow_ups, digest, max_attempts, max_expirations, backoff_initial, backoff_factor, backoff_cap, backoff_jitter,
        lease_duration, max_runtime, stall_timeout, cancel_grace, idempotency_retention, subject, parent_id, state_reason)
    SELECT m.id, m.queue_id, 4, m.priority, m.run_at, m.created_at, c.now, m.bytes, m.attempts_used, m.expirations, m.lease_no,
        m.cancel_requested_at, m.last_owner, m.leased_at, m.lease_length, coalesce(m.lease_until, m.last_until), m.beat_at, m.beats,
        greatest(m.largest_gap, c.now - coalesce(m.beat_at, m.leased_at)), m.changed_at, m.stage, m.stage_changes, m.progress,
        CASE WHEN m.state = 2 THEN 1 ELSE 2 END, c.now, m.counted, false,
        NULL, $2, m.max_attempts, m.max_expirations, m.backoff_initial, m.backoff_factor, m.backoff_cap, m.backoff_jitter,
        m.lease_duration, m.max_runtime, m.stall_timeout, m.cancel_grace, m.idempotency_retention, m.subject, m.parent_id, ''
    FROM moved m, clock c
)
DELETE FROM leasehold.checkpoints c WHERE c.job_id = $1
$$;
-- +goose StatementEnd

-- complete_dead completes a job that is DEAD by the end of its last lease by time (R17).
-- +goose StatementBegin
CREATE FUNCTION leasehold.complete_dead(job_id bigint, lease_no bigint, digest bytea) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM leasehold.finished_jobs f WHERE f.id = complete_dead.job_id FOR UPDATE SKIP LOCKED;
    UPDATE leasehold.finished_jobs f SET state = 4, end_kind = 2, ended_at = clock_timestamp(), finished_at = clock_timestamp(),
        digest = complete_dead.digest, follow_ups = NULL, state_reason = ''
    WHERE FOUND AND f.id = complete_dead.job_id AND f.lease_no = complete_dead.lease_no AND f.state = 5 AND f.end_kind IN (5, 6, 7, 9) AND NOT f.sealed;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM leasehold.checkpoints c WHERE c.job_id = complete_dead.job_id;
    RETURN true;
END $$;
-- +goose StatementEnd

-- import_job takes over one row of another table, see docs/sql.md. It returns the state that the
-- job has now, or why there is none: KNOWN (taken over before), LEASED (another system works on
-- it), BAD (with the reason). With `dry` it says what it would do. Each row has a subtransaction
-- of its own, so that a bad one stops no other.
-- +goose StatementBegin
CREATE FUNCTION leasehold.import_job(
    import text, source_key text, dry boolean, expired text,
    queue text, payload text, data bytea, content_type text, headers jsonb, subject text, priority integer, run_at timestamptz,
    idempotency_key text, max_attempts integer, state text, attempts integer, created_at timestamptz, finished_at timestamptz,
    lease_owner text, lease_until timestamptz, result text, error text, OUT outcome text, OUT reason text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    content record;
    given   record;
    job     leasehold.new_job;
    stored  record;
BEGIN
    outcome := state;
    reason := '';
    IF state = 'PROCESSING' AND lease_until IS NULL THEN
        PERFORM leasehold.refuse('INVALID_REQUEST', 'must be set where state is PROCESSING', 'lease_until');
    ELSIF state = 'PROCESSING' AND lease_until > clock_timestamp() THEN
        outcome := 'LEASED';
        reason := 'by ' || coalesce(lease_owner, 'somebody') || ' until ' || lease_until;
        RETURN;
    ELSIF state = 'PROCESSING' THEN
        outcome := expired;
        reason := 'imported: its lease of ' || coalesce(lease_owner, 'somebody') || ' ran out at ' || lease_until;
    ELSIF state = 'STUCK' THEN
        reason := 'imported as stuck';
    END IF;
    IF attempts NOT BETWEEN 0 AND 1000 THEN
        PERFORM leasehold.refuse('INVALID_REQUEST', 'must be 0..1000', 'attempts');
    ELSIF least(created_at, finished_at) <= '1900-01-02' OR greatest(created_at, finished_at) >= '9998-12-31' THEN
        PERFORM leasehold.refuse('INVALID_REQUEST', 'must lie in the years 1900..9998', 'created_at and finished_at');
    END IF;
    content := leasehold.content_of('payload', payload, data);
    given := leasehold.content_of('result', result, NULL);
    job := ROW(queue, content.content, content.is_json, content_type, headers, subject, priority, run_at, NULL, idempotency_key,
               max_attempts, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
    IF outcome NOT IN ('PENDING', 'STUCK') THEN
        job.run_at := NULL;
    END IF;
    job := leasehold.check_job(job, NULL);
    IF NOT EXISTS (SELECT FROM leasehold.queues q WHERE q.name = job.queue AND q.deleted_at IS NULL) THEN
        PERFORM leasehold.refuse('QUEUE_NOT_FOUND', 'queue ' || job.queue || ' does not exist');
    ELSIF job.run_at > clock_timestamp() + interval '43848 hours' THEN
        PERFORM leasehold.refuse('INVALID_REQUEST', 'must be at most 5 years (1,827 days) ahead', 'run_at');
    ELSIF dry THEN
        RETURN;
    END IF;

    INSERT INTO leasehold.imported_jobs (import, source_key, job_id) VALUES (import_job.import, import_job.source_key, 0) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        outcome := 'KNOWN';
        RETURN;
    END IF;
    stored := leasehold.store_job(job, NULL);
    IF NOT stored.created THEN
        PERFORM leasehold.refuse('IDEMPOTENCY_KEY_REUSED', 'belongs to job ' || stored.job_id, 'idempotency_key');
    END IF;
    UPDATE leasehold.imported_jobs i SET job_id = stored.job_id WHERE i.import = import_job.import AND i.source_key = import_job.source_key;
    UPDATE leasehold.jobs j SET attempts_used = coalesce(attempts, 0), created_at = coalesce(import_job.created_at, j.created_at),
        state = CASE WHEN outcome = 'STUCK' THEN 3 ELSE 1 END, state_reason = CASE WHEN outcome = 'STUCK' THEN reason ELSE '' END
    WHERE j.id = stored.job_id;
    IF error IS NOT NULL THEN
        INSERT INTO leasehold.lease_errors (job_id, lease_no, at, code, message, details)
        VALUES (stored.job_id, 0, clock_timestamp(), 'imported', left(error, 4000), '');
    END IF;
    IF result IS NOT NULL THEN
        INSERT INTO leasehold.job_results (job_id, result, is_json) VALUES (stored.job_id, given.content, given.is_json);
    END IF;
    IF outcome IN ('COMPLETED', 'DEAD', 'CANCELLED') THEN
        PERFORM leasehold.move_imported(stored.job_id, array_position(ARRAY['COMPLETED', 'DEAD', 'CANCELLED'], outcome) + 3, finished_at);
    END IF;
EXCEPTION WHEN OTHERS THEN
    IF SQLSTATE NOT LIKE 'LH%' AND left(SQLSTATE, 2) NOT IN ('22', '23') OR SQLSTATE = 'LH010' THEN
        RAISE;
    END IF;
    outcome := 'BAD';
    reason := SQLERRM;
END $$;
-- +goose StatementEnd

-- move_imported moves a job that another system has finished, without a lease of ours.
-- +goose StatementBegin
CREATE FUNCTION leasehold.move_imported(job_id bigint, state integer, finished_at timestamptz) RETURNS void
LANGUAGE sql VOLATILE AS $$
WITH moved AS (
    DELETE FROM leasehold.jobs j WHERE j.id = $1
    RETURNING j.id, j.queue_id, j.priority, j.run_at, j.created_at, j.bytes, j.attempts_used, j.expirations, j.max_attempts, j.max_expirations,
        j.backoff_initial, j.backoff_factor, j.backoff_cap, j.backoff_jitter, j.lease_duration, j.max_runtime, j.stall_timeout, j.cancel_grace,
        j.idempotency_retention, j.subject
)
INSERT INTO leasehold.finished_jobs (id, queue_id, state, priority, run_at, created_at, finished_at, bytes, attempts_used, expirations, lease_no,
    beats, stage_changes, end_kind, counted, sealed, max_attempts, max_expirations, backoff_initial, backoff_factor, backoff_cap, backoff_jitter,
    lease_duration, max_runtime, stall_timeout, cancel_grace, idempotency_retention, subject, state_reason)
SELECT m.id, m.queue_id, $2::smallint, m.priority, m.run_at, m.created_at, coalesce($3, clock_timestamp()), m.bytes, m.attempts_used, m.expirations, 0,
    0, 0, 0, false, true, m.max_attempts, m.max_expirations, m.backoff_initial, m.backoff_factor, m.backoff_cap, m.backoff_jitter,
    m.lease_duration, m.max_runtime, m.stall_timeout, m.cancel_grace, m.idempotency_retention, m.subject, 'imported'
FROM moved m
$$;
-- +goose StatementEnd

-- grant_roles makes the roles where the caller may and they are not there, gives each exactly
-- the rights that it needs in this database, and returns the roles that are missing. Only the
-- owner can call it; it may be called again at any time. Roles belong to the whole server, so
-- another database may have made them, or be making them now.
-- +goose StatementBegin
CREATE FUNCTION leasehold.grant_roles() RETURNS text[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    role    text;
    given   text;
    missing text[] := '{}';
    rights  jsonb := jsonb_build_object(
        'leasehold_producer', ARRAY[
            'EXECUTE ON FUNCTION leasehold.enqueue, leasehold.enqueue_many'],
        'leasehold_worker', ARRAY[
            'EXECUTE ON FUNCTION leasehold.assert_lease, leasehold.complete'],
        'leasehold_reader', ARRAY[
            'SELECT ON leasehold.all_jobs, leasehold.all_leases, leasehold.stuck_jobs, leasehold.queue_stats'],
        'leasehold_service', ARRAY[
            'SELECT ON leasehold.secrets, leasehold.schema_versions',
            'SELECT, UPDATE ON leasehold.service',
            'SELECT, INSERT ON leasehold.attempts, leasehold.job_data, leasehold.lease_errors, leasehold.operator_acts',
            'SELECT, INSERT, UPDATE ON leasehold.queues, leasehold.job_results, leasehold.stages, leasehold.late_calls, leasehold.queue_waits',
            'SELECT, INSERT, UPDATE, DELETE ON leasehold.jobs, leasehold.finished_jobs, leasehold.checkpoints, leasehold.idempotency_keys, leasehold.acquire_requests',
            'USAGE ON SEQUENCE leasehold.job_id_seq',
            'EXECUTE ON FUNCTION leasehold.ensure_partitions, leasehold.partitions_ahead, leasehold.drop_partitions, leasehold.has_partition, leasehold.partition_width, leasehold.backoff, leasehold.may_blame']);
BEGIN
    PERFORM pg_advisory_xact_lock(7310868735420870003);
    FOR role IN SELECT jsonb_object_keys(rights) LOOP
        IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = role) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', role);
            EXCEPTION
                WHEN duplicate_object OR unique_violation THEN NULL;
                WHEN insufficient_privilege THEN
                    missing := missing || role;
                    CONTINUE;
            END;
        END IF;
        EXECUTE format('GRANT USAGE ON SCHEMA leasehold TO %I', role);
        FOR given IN SELECT jsonb_array_elements_text(rights -> role) LOOP
            EXECUTE format('GRANT %s TO %I', given, role);
        END LOOP;
    END LOOP;
    RETURN missing;
END $$;
-- +goose StatementEnd

COMMENT ON FUNCTION leasehold.enqueue IS 'Stores one job in this transaction. Options by name; NULL is the default. Errors: SQLSTATE LH001..LH010, the reason in DETAIL.';
COMMENT ON FUNCTION leasehold.enqueue_many IS 'Stores up to 1,000 jobs in this transaction, all or none: items are objects with the options of enqueue.';
COMMENT ON FUNCTION leasehold.assert_lease IS 'Raises unless the lease is its job''s latest and live, and keeps it so until this transaction ends.';
COMMENT ON FUNCTION leasehold.complete IS 'Ends a lease and its job in this transaction, as Complete of the API does.';

-- Every function is everybody's by default, of those who may use the schema: drop_partitions too.
-- Those that the views need stay so, for roles that were granted the views by hand.
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA leasehold FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.state_word, leasehold.end_word, leasehold.diagnosis_word, leasehold.bytes_as_text,
    leasehold.diagnosis, leasehold.diagnosed_since TO PUBLIC;

SELECT leasehold.grant_roles();

-- +goose Down
-- Forward only.
SELECT 1;
