-- The schema of Leasehold. States and ends are numbers here (store.State, store.End) and
-- words in the views. Policy columns are NULL where nobody chose: the default of
-- store.Policy holds, and the rows stay narrow.

-- +goose Up

-- The bounds of design and API. They are domains and not CHECKs of the tables, because a CHECK
-- is evaluated with every new version of a row, so with every claim and heartbeat, and a domain
-- only where its column is assigned (measured: a quarter of the claim's time).
CREATE DOMAIN leasehold.attempt_limit AS integer CHECK (VALUE BETWEEN 1 AND 1000);
CREATE DOMAIN leasehold.backoff_initial AS interval CHECK (VALUE BETWEEN '0' AND '1 day');
CREATE DOMAIN leasehold.backoff_factor AS double precision CHECK (VALUE BETWEEN 1 AND 10);
CREATE DOMAIN leasehold.backoff_cap AS interval CHECK (VALUE BETWEEN '0' AND '30 days');
CREATE DOMAIN leasehold.backoff_jitter AS double precision CHECK (VALUE BETWEEN 0 AND 1);
CREATE DOMAIN leasehold.lease_duration AS interval CHECK (VALUE BETWEEN '1 second' AND '12 hours');
CREATE DOMAIN leasehold.time_limit AS interval CHECK (VALUE BETWEEN '1 second' AND '30 days');
CREATE DOMAIN leasehold.cancel_grace AS interval CHECK (VALUE BETWEEN '0' AND '1 day');
CREATE DOMAIN leasehold.idempotency_retention AS interval CHECK (VALUE BETWEEN '0' AND '366 days');
CREATE DOMAIN leasehold.priority AS smallint CHECK (VALUE BETWEEN 1 AND 9);
CREATE DOMAIN leasehold.short_text AS text CHECK (octet_length(VALUE) BETWEEN 1 AND 256);
CREATE DOMAIN leasehold.delivered_bytes AS integer CHECK (VALUE BETWEEN 0 AND 1100000);
CREATE DOMAIN leasehold.stage AS text CHECK (octet_length(VALUE) <= 128);
CREATE DOMAIN leasehold.progress AS double precision CHECK (VALUE BETWEEN 0 AND 1);
CREATE DOMAIN leasehold.counter AS integer CHECK (VALUE BETWEEN 0 AND 1000);
CREATE DOMAIN leasehold.give_backs AS integer CHECK (VALUE BETWEEN 0 AND 100);

-- One row: what the replicas share about themselves.
CREATE TABLE leasehold.service (
    singleton      boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    -- Since when, and when last, some replica was able to write a heartbeat (R35).
    writable_since timestamptz NOT NULL DEFAULT clock_timestamp(),
    stamped_at     timestamptz NOT NULL DEFAULT 'epoch' CHECK (isfinite(stamped_at)),
    -- When any replica last finished a pass of the watcher.
    swept_at       timestamptz NOT NULL DEFAULT 'epoch' CHECK (isfinite(swept_at))
) WITH (fillfactor = 10);
INSERT INTO leasehold.service DEFAULT VALUES;

-- Apart from leasehold.service, so that reading that needs no right on the key.
CREATE TABLE leasehold.secrets (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    token_key bytea NOT NULL CHECK (octet_length(token_key) = 32)
);
-- Two random UUIDs hold 244 random bits of the server's strong generator, without an extension.
INSERT INTO leasehold.secrets (token_key)
VALUES (sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())));

CREATE TABLE leasehold.queues (
    id                    integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name                  text NOT NULL CHECK (name ~ '^[a-z0-9][a-z0-9._-]{0,127}$'),
    created_at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- A deleted queue keeps its row, because history names it.
    deleted_at            timestamptz,
    paused_at             timestamptz,
    paused_by             text NOT NULL DEFAULT '',
    pause_note            text NOT NULL DEFAULT '',
    on_expiry             smallint NOT NULL DEFAULT 0 CHECK (on_expiry IN (0, 1, 2)),
    stall_ends_lease      boolean NOT NULL DEFAULT false,
    max_attempts          leasehold.attempt_limit,
    max_expirations       leasehold.attempt_limit,
    backoff_initial       leasehold.backoff_initial,
    backoff_factor        leasehold.backoff_factor,
    backoff_cap           leasehold.backoff_cap,
    backoff_jitter        leasehold.backoff_jitter,
    lease_duration        leasehold.lease_duration,
    max_runtime           leasehold.time_limit,
    stall_timeout         leasehold.time_limit,
    cancel_grace          leasehold.cancel_grace,
    idempotency_retention leasehold.idempotency_retention
);
CREATE UNIQUE INDEX queues_name ON leasehold.queues (name) WHERE deleted_at IS NULL;

-- A job without its queue's row would be found by no sweep and no list: DeleteQueue keeps the
-- row, and nobody else may remove it. A foreign key would lock the row once per job enqueued.
-- +goose StatementBegin
CREATE FUNCTION leasehold.keep_queue() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of leasehold.queues are never deleted: use DeleteQueue' USING ERRCODE = 'restrict_violation';
END $$;
-- +goose StatementEnd
CREATE TRIGGER queues_are_kept BEFORE DELETE OR TRUNCATE ON leasehold.queues
    FOR EACH STATEMENT EXECUTE FUNCTION leasehold.keep_queue();

CREATE SEQUENCE leasehold.job_id_seq AS bigint CACHE 1;

-- Live jobs only. fillfactor and the choice of indexes keep heartbeats heap-only: no column
-- that a heartbeat writes may stand in an index or an index predicate (R45).
CREATE TABLE leasehold.jobs (
    id                    bigint PRIMARY KEY CHECK (id > 0),
    queue_id              integer NOT NULL,
    state                 smallint NOT NULL DEFAULT 1 CHECK (state IN (1, 2, 3)),
    priority              leasehold.priority NOT NULL DEFAULT 5,
    run_at                timestamptz NOT NULL,
    created_at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- What the answer of an acquire has to carry of payload and headers.
    bytes                 leasehold.delivered_bytes NOT NULL DEFAULT 0,

    attempts_used         leasehold.counter NOT NULL DEFAULT 0,
    -- In a row: leases that ended by time; leases given back at once (R28).
    expirations           leasehold.counter NOT NULL DEFAULT 0,
    free_ends             leasehold.give_backs NOT NULL DEFAULT 0,

    -- The live lease.
    lease_no              bigint NOT NULL DEFAULT 0 CHECK (lease_no >= 0),
    lease_owner           leasehold.short_text,
    lease_until           timestamptz,
    cancel_requested_at   timestamptz,

    -- The latest lease, live or ended, until the next one starts.
    last_owner            text,
    leased_at             timestamptz,
    lease_length          interval,
    last_until            timestamptz,
    beat_at               timestamptz,
    beats                 bigint NOT NULL DEFAULT 0 CHECK (beats >= 0),
    largest_gap           interval,
    changed_at            timestamptz, -- last change of stage, progress or checkpoint
    stage                 leasehold.stage,
    stage_changes         leasehold.counter NOT NULL DEFAULT 0,
    progress              leasehold.progress,
    end_kind              smallint NOT NULL DEFAULT 0 CHECK (end_kind BETWEEN 0 AND 9),
    ended_at              timestamptz,
    counted               boolean NOT NULL DEFAULT false,
    -- An operator acted since that end: its holder's late Complete is refused (R17).
    sealed                boolean NOT NULL DEFAULT false,
    follow_ups            bigint[],

    max_attempts          leasehold.attempt_limit,
    max_expirations       leasehold.attempt_limit,
    backoff_initial       leasehold.backoff_initial,
    backoff_factor        leasehold.backoff_factor,
    backoff_cap           leasehold.backoff_cap,
    backoff_jitter        leasehold.backoff_jitter,
    lease_duration        leasehold.lease_duration,
    max_runtime           leasehold.time_limit,
    stall_timeout         leasehold.time_limit,
    cancel_grace          leasehold.cancel_grace,
    idempotency_retention leasehold.idempotency_retention,

    subject               leasehold.short_text,
    parent_id             bigint,
    state_reason          text NOT NULL DEFAULT '',

    -- Every combination that no query selects is impossible (R24).
    CONSTRAINT jobs_leased CHECK ((lease_owner IS NOT NULL) = (state = 2)
                              AND (lease_until IS NOT NULL) = (state = 2)
                              AND (state <> 2 OR lease_no > 0)),
    CONSTRAINT jobs_lease_facts CHECK ((lease_no = 0) = (leased_at IS NULL)
                              AND (lease_no = 0) = (last_owner IS NULL)
                              AND (lease_no = 0) = (lease_length IS NULL)),
    CONSTRAINT jobs_lease_end CHECK ((end_kind = 0) = (ended_at IS NULL)
                              AND (end_kind <> 0) = (lease_no > 0 AND state <> 2)
                              AND end_kind NOT IN (1, 2)),
    CONSTRAINT jobs_cancel CHECK (cancel_requested_at IS NULL OR state = 2),
    -- Sums with an interval stay in range, and every time can be answered (year 9999).
    CONSTRAINT jobs_times CHECK (greatest(run_at, created_at, lease_until, cancel_requested_at, leased_at, last_until,
                                          beat_at, changed_at, ended_at) < '9999-01-01 00:00:00+00'
                             AND least(run_at, created_at, lease_until, cancel_requested_at, leased_at, last_until,
                                       beat_at, changed_at, ended_at) > '1900-01-01 00:00:00+00')
) WITH (fillfactor = 60,
        autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
        autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- The claim: equality on queue and priority, then (run_at, id) in order.
CREATE INDEX jobs_ready ON leasehold.jobs (queue_id, priority, run_at, id) WHERE state = 1;
-- The sweep: bounded by what is being worked on. Never used to find a lease that a call names.
CREATE INDEX jobs_leased_ids ON leasehold.jobs (id) WHERE state = 2;
CREATE INDEX jobs_stuck_ids ON leasehold.jobs (id) WHERE state = 3;
CREATE INDEX jobs_subject ON leasehold.jobs (subject) WHERE subject IS NOT NULL;
-- Rows that can never be leased again; always empty but for what the watcher buries (R39).
CREATE INDEX jobs_worn_out ON leasehold.jobs (id) WHERE lease_no >= 9223372036854000000;

-- Written once, never rewritten by a heartbeat, never moved.
CREATE TABLE leasehold.job_data (
    job_id       bigint PRIMARY KEY,
    payload      bytea NOT NULL CHECK (octet_length(payload) <= 1048576),
    is_json      boolean NOT NULL DEFAULT false,
    content_type text NOT NULL DEFAULT '' CHECK (octet_length(content_type) <= 256),
    headers      jsonb CHECK (jsonb_typeof(headers) = 'object')
) PARTITION BY RANGE (job_id);

CREATE TABLE leasehold.job_results (
    job_id       bigint PRIMARY KEY,
    result       bytea NOT NULL CHECK (octet_length(result) <= 1048576),
    is_json      boolean NOT NULL DEFAULT false,
    content_type text NOT NULL DEFAULT '' CHECK (octet_length(content_type) <= 256)
) PARTITION BY RANGE (job_id);

-- Where a job goes with its last lease's facts when it reaches a terminal state (R43).
CREATE TABLE leasehold.finished_jobs (
    id                    bigint PRIMARY KEY,
    queue_id              integer NOT NULL,
    state                 smallint NOT NULL CHECK (state IN (4, 5, 6)),
    priority              smallint NOT NULL,
    run_at                timestamptz NOT NULL,
    created_at            timestamptz NOT NULL,
    finished_at           timestamptz NOT NULL,
    bytes                 integer NOT NULL,
    attempts_used         integer NOT NULL,
    expirations           integer NOT NULL,
    lease_no              bigint NOT NULL,
    cancel_requested_at   timestamptz,
    last_owner            text,
    leased_at             timestamptz,
    lease_length          interval,
    last_until            timestamptz,
    beat_at               timestamptz,
    beats                 bigint NOT NULL,
    largest_gap           interval,
    changed_at            timestamptz,
    stage                 text,
    stage_changes         integer NOT NULL,
    progress              double precision,
    end_kind              smallint NOT NULL CHECK (end_kind BETWEEN 0 AND 9),
    ended_at              timestamptz,
    counted               boolean NOT NULL,
    sealed                boolean NOT NULL,
    follow_ups            bigint[],
    -- Of result and follow-up jobs: tells a retry of Complete from another Complete.
    digest                bytea,
    max_attempts          integer,
    max_expirations       integer,
    backoff_initial       interval,
    backoff_factor        double precision,
    backoff_cap           interval,
    backoff_jitter        double precision,
    lease_duration        interval,
    max_runtime           interval,
    stall_timeout         interval,
    cancel_grace          interval,
    idempotency_retention interval,
    subject               text,
    parent_id             bigint,
    state_reason          text NOT NULL,
    CONSTRAINT finished_jobs_lease CHECK ((end_kind <> 0) = (lease_no > 0)
                              AND (end_kind = 0) = (ended_at IS NULL))
) PARTITION BY RANGE (id);
CREATE INDEX finished_jobs_not_completed ON leasehold.finished_jobs (queue_id, state, id) WHERE state <> 4;
CREATE INDEX finished_jobs_subject ON leasehold.finished_jobs (subject) WHERE subject IS NOT NULL;

-- A former lease, written when the next one starts (R43).
CREATE TABLE leasehold.attempts (
    job_id       bigint NOT NULL,
    lease_no     bigint NOT NULL,
    owner        text NOT NULL,
    leased_at    timestamptz NOT NULL,
    lease_length interval NOT NULL,
    last_until   timestamptz,
    ended_at     timestamptz NOT NULL,
    end_kind     smallint NOT NULL CHECK (end_kind BETWEEN 3 AND 9),
    counted      boolean NOT NULL,
    beats        bigint NOT NULL,
    beat_at      timestamptz,
    largest_gap  interval,
    stage        text,
    progress     double precision,
    follow_ups   bigint[],
    PRIMARY KEY (job_id, lease_no)
) PARTITION BY RANGE (job_id);

-- The timeline of stages, appended on change.
CREATE TABLE leasehold.stages (
    job_id   bigint NOT NULL,
    lease_no bigint NOT NULL,
    n        integer NOT NULL,
    at       timestamptz NOT NULL,
    stage    text NOT NULL,
    PRIMARY KEY (job_id, lease_no, n)
) PARTITION BY RANGE (job_id);

-- What workers reported, apart from the job's row, which every heartbeat rewrites.
CREATE TABLE leasehold.lease_errors (
    job_id   bigint NOT NULL,
    lease_no bigint NOT NULL,
    at       timestamptz NOT NULL,
    code     text NOT NULL,
    message  text NOT NULL,
    details  text NOT NULL,
    PRIMARY KEY (job_id, lease_no)
) PARTITION BY RANGE (job_id);

CREATE TABLE leasehold.checkpoints (
    job_id bigint PRIMARY KEY,
    data   bytea NOT NULL CHECK (octet_length(data) <= 65536)
) WITH (fillfactor = 70);

-- Alive while the job lives and idempotency_retention after its end; that is read from the
-- job, so that finishing a job writes nothing here (R33).
CREATE TABLE leasehold.idempotency_keys (
    queue_id integer NOT NULL,
    key      text NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 256),
    job_id   bigint NOT NULL,
    digest   bytea NOT NULL, -- of payload and content type
    PRIMARY KEY (queue_id, key)
);
CREATE UNIQUE INDEX idempotency_keys_job ON leasehold.idempotency_keys (job_id);

-- What an AcquireLease with a request_id answered; written by the claiming statement (R12).
CREATE TABLE leasehold.acquire_requests (
    request_id text PRIMARY KEY CHECK (octet_length(request_id) BETWEEN 1 AND 256),
    digest     bytea NOT NULL, -- of the other arguments
    job_ids    bigint[] NOT NULL,
    lease_nos  bigint[] NOT NULL,
    created_at timestamptz NOT NULL,
    replays    bigint NOT NULL DEFAULT 0
);
CREATE INDEX acquire_requests_created ON leasehold.acquire_requests (created_at);

-- One row per lease whose holder came back after it was superseded (R18).
CREATE TABLE leasehold.late_calls (
    job_id    bigint NOT NULL,
    lease_no  bigint NOT NULL,
    count     bigint NOT NULL,
    first_at  timestamptz NOT NULL,
    last_at   timestamptz NOT NULL,
    last_call text NOT NULL,
    late_by   interval NOT NULL,
    PRIMARY KEY (job_id, lease_no)
);

CREATE TABLE leasehold.operator_acts (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id bigint NOT NULL,
    at     timestamptz NOT NULL,
    act    text NOT NULL,
    actor  text NOT NULL,
    note   text NOT NULL
);
CREATE INDEX operator_acts_job ON leasehold.operator_acts (job_id, id);

-- The migration library's own table. Last, because a replica that races reads it.
ALTER TABLE leasehold.schema_versions ALTER COLUMN tstamp TYPE timestamptz;

-- +goose Down
-- Forward only.
SELECT 1;
