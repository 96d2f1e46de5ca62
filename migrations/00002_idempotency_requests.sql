-- What a key meant, who may act on it, and what its answer was.

-- +goose Up
CREATE TABLE idempotency_requests (
    tenant_id       text        NOT NULL,
    operation_name  text        NOT NULL,
    idempotency_key text        NOT NULL,

    -- What the first command meant: rule version and digest, "v1:<hex>". Written by the claiming INSERT, changed never.
    request_hash    text        NOT NULL,
    status          text        NOT NULL,
    -- What the key is about. The claim names the payment before the payment exists.
    resource_type   text        NOT NULL,
    resource_id     text        NOT NULL,

    -- The answer to replay. The body is bytea: jsonb would reorder members and rewrite numbers, and a replay is the same
    -- bytes. response_headers holds an allow-list only (Location, ETag).
    response_schema_version text NOT NULL,
    response_status         int,
    response_content_type   text,
    response_headers        jsonb,
    response_body           bytea,
    error_code              text,

    -- Who may act: the epoch grows at every acquisition and fences every write; locked_until is judged by now() of this
    -- database alone. next_attempt_at is when recovery looks again.
    lease_epoch       bigint NOT NULL DEFAULT 1,
    locked_until      timestamptz,
    next_attempt_at   timestamptz,
    recovery_attempts int    NOT NULL DEFAULT 0,

    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    -- When cleanup looks at the row: at expiry, to scrub it; then at the tombstone's end, to delete it. One index serves
    -- both, and finishing a key does not touch it.
    cleanup_at timestamptz NOT NULL,

    PRIMARY KEY (tenant_id, operation_name, idempotency_key),
    CONSTRAINT status_is_known CHECK (status IN
        ('IN_PROGRESS', 'COMPLETED', 'FAILED_REPLAYABLE', 'FAILED_RETRYABLE', 'UNKNOWN_REQUIRES_RECOVERY', 'EXPIRED')),
    CONSTRAINT key_has_1_to_255_bytes CHECK (octet_length(idempotency_key) BETWEEN 1 AND 255),
    CONSTRAINT request_hash_names_its_rule CHECK (request_hash ~ '^v[0-9]+:[0-9a-f]{64}$'),

    -- A finished key has the whole answer, and only a finished key has one.
    CONSTRAINT finished_has_answer CHECK (status NOT IN ('COMPLETED', 'FAILED_REPLAYABLE') OR
        (response_status IS NOT NULL AND response_content_type IS NOT NULL AND response_headers IS NOT NULL AND response_body IS NOT NULL)),
    CONSTRAINT unfinished_has_no_answer CHECK (status IN ('COMPLETED', 'FAILED_REPLAYABLE', 'EXPIRED') OR
        (response_status IS NULL AND response_body IS NULL AND error_code IS NULL)),
    CONSTRAINT expired_has_no_body CHECK (status <> 'EXPIRED' OR response_body IS NULL),
    CONSTRAINT refusal_names_its_error CHECK ((status = 'FAILED_REPLAYABLE') <= (error_code IS NOT NULL)),

    -- Somebody owns what is in progress, and recovery will look at everything that is unresolved and at nothing else.
    CONSTRAINT in_progress_has_lease CHECK (status <> 'IN_PROGRESS' OR locked_until IS NOT NULL),
    CONSTRAINT only_unresolved_is_leased CHECK (status IN ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY') OR locked_until IS NULL),
    CONSTRAINT unresolved_is_looked_at_again CHECK
        ((status IN ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY')) = (next_attempt_at IS NOT NULL))
);

-- Serves the recovery scan; finished keys are not in it.
CREATE INDEX idempotency_requests_due ON idempotency_requests (next_attempt_at)
    WHERE status IN ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY');


CREATE INDEX idempotency_requests_cleanup ON idempotency_requests (cleanup_at);

-- +goose Down
DROP TABLE idempotency_requests;
