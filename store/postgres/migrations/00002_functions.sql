-- Partitions, made and dropped by functions of the owner, so that the service itself needs no
-- owner's rights; and the two expressions that several statements share.

-- +goose Up

-- The tables that are partitioned alike, by ranges of job id.
-- +goose StatementBegin
CREATE FUNCTION leasehold.partitioned_tables() RETURNS text[] LANGUAGE sql IMMUTABLE AS
$$ SELECT ARRAY['finished_jobs', 'attempts', 'stages', 'lease_errors', 'job_data', 'job_results'] $$;
-- +goose StatementEnd

-- Job ids per partition.
-- +goose StatementBegin
CREATE FUNCTION leasehold.partition_width() RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$ SELECT 1000000::bigint $$;
-- +goose StatementEnd

-- ensure_partitions makes what is missing of the partition that the next job id falls into
-- and of the `ahead` after it. LIKE and ATTACH take no lock that stops readers or writers of
-- the parent. One caller at a time works, others return at once.
-- +goose StatementBegin
CREATE FUNCTION leasehold.ensure_partitions(ahead integer DEFAULT 8) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    width bigint := leasehold.partition_width();
    first bigint;
    lo    bigint;
    tbl   text;
    part  text;
    col   text;
    made  integer := 0;
BEGIN
    IF NOT pg_try_advisory_xact_lock(7310868735420870001) THEN
        RETURN 0;
    END IF;
    SELECT last_value / width INTO first FROM leasehold.job_id_seq;
    FOR i IN 0..ahead LOOP
        EXIT WHEN first + i > 9223372036854775807 / width - 1;
        lo := (first + i) * width;
        FOREACH tbl IN ARRAY leasehold.partitioned_tables() LOOP
            part := tbl || '_' || lo;
            CONTINUE WHEN to_regclass('leasehold.' || quote_ident(part)) IS NOT NULL;
            col := CASE tbl WHEN 'finished_jobs' THEN 'id' ELSE 'job_id' END;
            EXECUTE format('CREATE TABLE leasehold.%I (LIKE leasehold.%I INCLUDING ALL)', part, tbl);
            EXECUTE format('ALTER TABLE leasehold.%I ATTACH PARTITION leasehold.%I FOR VALUES FROM (%s) TO (%s)',
                           tbl, part, lo, lo + width);
            made := made + 1;
        END LOOP;
    END LOOP;
    RETURN made;
END $$;
-- +goose StatementEnd

-- partitions_ahead counts, for the worst of the tables, the whole partitions that lie ahead
-- of the next job id.
-- +goose StatementBegin
CREATE FUNCTION leasehold.partitions_ahead() RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT min(n)::integer FROM (
        SELECT (SELECT count(*) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
                WHERE i.inhparent = ('leasehold.' || t.tbl)::regclass
                  AND c.relname ~ ('^' || t.tbl || '_[0-9]+$')
                  AND substr(c.relname, length(t.tbl) + 2)::numeric
                      > (SELECT last_value FROM leasehold.job_id_seq)) AS n
        FROM unnest(leasehold.partitioned_tables()) AS t(tbl)) AS s
$$;
-- +goose StatementEnd

-- has_partition tells whether rows of a job can still be stored in a partitioned table:
-- retention may have dropped the partition of its results before the job itself.
-- +goose StatementBegin
CREATE FUNCTION leasehold.has_partition(tbl text, job_id bigint) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT to_regclass('leasehold.' || quote_ident(tbl || '_'
        || job_id / leasehold.partition_width() * leasehold.partition_width())) IS NOT NULL
$$;
-- +goose StatementEnd

-- partition_in_use tells whether anything in the partition from `lo` on must be kept: a live
-- job, an end at or after `cutoff`, and where facts are dropped a living idempotency key.
-- +goose StatementBegin
CREATE FUNCTION leasehold.partition_in_use(lo bigint, cutoff timestamptz, tables text[]) RETURNS boolean
LANGUAGE sql VOLATILE AS $$
    SELECT EXISTS (SELECT FROM leasehold.jobs j WHERE j.id >= lo AND j.id < lo + leasehold.partition_width())
        OR EXISTS (SELECT FROM leasehold.finished_jobs f
                   WHERE f.id >= lo AND f.id < lo + leasehold.partition_width() AND f.finished_at >= cutoff)
        OR ('finished_jobs' = ANY (tables) AND EXISTS (
               SELECT FROM leasehold.idempotency_keys k JOIN leasehold.finished_jobs f ON f.id = k.job_id
               WHERE k.job_id >= lo AND k.job_id < lo + leasehold.partition_width()
                 AND f.finished_at + coalesce(f.idempotency_retention, interval '7 days') > clock_timestamp()))
$$;
-- +goose StatementEnd

-- drop_partitions removes the oldest partition of the tables given that is wholly behind the
-- next job id, whose newest end lies before `cutoff`, in which no live job lies and which no
-- living idempotency key needs; and returns its lower bound, or NULL where there is none.
-- +goose StatementBegin
CREATE FUNCTION leasehold.drop_partitions(cutoff timestamptz, tables text[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms' AS $$
DECLARE
    width bigint := leasehold.partition_width();
    lo    bigint;
    tbl   text;
BEGIN
    IF cutoff IS NULL OR cutoff > clock_timestamp() - interval '1 day' + interval '1 minute'
       OR NOT tables <@ leasehold.partitioned_tables() THEN
        RAISE EXCEPTION 'retention must be at least one day, of tables that are partitioned';
    END IF;
    FOR lo IN
        SELECT DISTINCT substr(c.relname, length(t.tbl) + 2)::bigint
        FROM unnest(tables) AS t(tbl)
        JOIN pg_inherits i ON i.inhparent = ('leasehold.' || t.tbl)::regclass
        JOIN pg_class c ON c.oid = i.inhrelid AND c.relname ~ ('^' || t.tbl || '_[0-9]+$')
        WHERE substr(c.relname, length(t.tbl) + 2)::numeric + width
              <= (SELECT last_value FROM leasehold.job_id_seq)
        ORDER BY 1
    LOOP
        CONTINUE WHEN leasehold.partition_in_use(lo, cutoff, tables);
        -- Looked at again behind the locks: a RetryJobs of a job in it may have been about to
        -- commit, and would have been left without its payload.
        FOREACH tbl IN ARRAY tables LOOP
            IF to_regclass('leasehold.' || quote_ident(tbl || '_' || lo)) IS NOT NULL THEN
                EXECUTE format('LOCK TABLE leasehold.%I IN ACCESS EXCLUSIVE MODE', tbl || '_' || lo);
            END IF;
        END LOOP;
        CONTINUE WHEN leasehold.partition_in_use(lo, cutoff, tables);
        FOREACH tbl IN ARRAY tables LOOP
            IF to_regclass('leasehold.' || quote_ident(tbl || '_' || lo)) IS NOT NULL THEN
                EXECUTE format('ALTER TABLE leasehold.%I DETACH PARTITION leasehold.%I', tbl, tbl || '_' || lo);
                EXECUTE format('DROP TABLE leasehold.%I', tbl || '_' || lo);
            END IF;
        END LOOP;
        IF 'finished_jobs' = ANY (tables) THEN
            DELETE FROM leasehold.checkpoints WHERE job_id >= lo AND job_id < lo + width;
            DELETE FROM leasehold.late_calls WHERE job_id >= lo AND job_id < lo + width;
            DELETE FROM leasehold.operator_acts WHERE job_id >= lo AND job_id < lo + width;
            DELETE FROM leasehold.idempotency_keys WHERE job_id >= lo AND job_id < lo + width;
        END IF;
        RETURN lo;
    END LOOP;
    RETURN NULL;
END $$;
-- +goose StatementEnd

SELECT leasehold.ensure_partitions();

-- backoff is the wait after the n-th end in a row: initial * factor^(n-1), at most cap,
-- shortened by up to the share jitter. The exponent is bounded before it can overflow: at
-- factor 10 or below, 10^40 seconds are above every cap.
-- +goose StatementBegin
CREATE FUNCTION leasehold.backoff(initial interval, factor double precision, cap interval,
                                  jitter double precision, n integer) RETURNS interval
LANGUAGE sql VOLATILE AS $$
    SELECT make_interval(secs =>
        least(extract(epoch FROM coalesce(cap, interval '1 hour'))::double precision,
              extract(epoch FROM coalesce(initial, interval '1 second'))::double precision
              * power(coalesce(factor, 2), least(greatest(n - 1, 0), 40)))
        * (1 - coalesce(jitter, 0.2) * random()))
$$;
-- +goose StatementEnd

-- may_blame tells whether the service has been able to take heartbeats for long enough to
-- blame silence on the holder of a lease of this length (R35).
-- +goose StatementBegin
CREATE FUNCTION leasehold.may_blame(lease_length interval) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT s.stamped_at > statement_timestamp() - interval '3 seconds'
       AND s.writable_since <= statement_timestamp() - greatest(interval '5 seconds', lease_length / 2)
    FROM leasehold.service s
$$;
-- +goose StatementEnd

-- +goose Down
-- Forward only.
SELECT 1;
