-- The tables that the floor writes: what a payment needs at the least, with the same indexes for expiry, recovery and
-- publishing that every such service has. No history, no lease epochs, no checks.
DROP TABLE IF EXISTS idempotency_requests, payments, outbox_events;

CREATE TABLE idempotency_requests (
    tenant_id       text        NOT NULL,
    operation_name  text        NOT NULL,
    idempotency_key text        NOT NULL,
    request_hash    text        NOT NULL,
    hash_version    smallint    NOT NULL DEFAULT 1,
    status          text        NOT NULL,
    response_status int,
    response_body   jsonb,
    resource_type   text,
    resource_id     text,
    error_code      text,
    owner_token     bigint      NOT NULL DEFAULT 1,
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    expires_at      timestamptz NOT NULL,
    locked_until    timestamptz,
    PRIMARY KEY (tenant_id, operation_name, idempotency_key)
);
CREATE INDEX ON idempotency_requests (locked_until) WHERE status IN ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY');
CREATE INDEX ON idempotency_requests (expires_at);

CREATE TABLE payments (
    payment_id         text        PRIMARY KEY,
    tenant_id          text        NOT NULL,
    account_id         text        NOT NULL,
    merchant_reference text        NOT NULL,
    amount_minor       bigint      NOT NULL,
    currency           text        NOT NULL,
    channel            text        NOT NULL,
    status             text        NOT NULL,
    provider_reference text,
    version            int         NOT NULL DEFAULT 1,
    created_at         timestamptz NOT NULL DEFAULT now(),
    updated_at         timestamptz NOT NULL DEFAULT now(),
    UNIQUE (tenant_id, account_id, merchant_reference)
);
CREATE INDEX ON payments (updated_at) WHERE status IN ('CREATED', 'PROVIDER_PENDING', 'UNKNOWN');

CREATE TABLE outbox_events (
    event_id       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    aggregate_type text        NOT NULL,
    aggregate_id   text        NOT NULL,
    event_type     text        NOT NULL,
    payload        jsonb       NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT now(),
    published_at   timestamptz
);
CREATE INDEX ON outbox_events (event_id) WHERE published_at IS NULL;

-- What replay.sql reads.
INSERT INTO idempotency_requests (tenant_id, operation_name, idempotency_key, request_hash, status, response_status, response_body,
    resource_type, resource_id, expires_at)
SELECT 'tenant_' || n % 20, 'create_payment', 'replay-' || n, repeat(md5(n::text), 2), 'COMPLETED', 201,
    jsonb_build_object('paymentId', 'pay_' || md5(n::text), 'accountId', 'acc_1', 'amount', '10.00', 'currency', 'EUR',
        'merchantReference', 'invoice-' || n, 'status', 'PROVIDER_CONFIRMED', 'providerReference', 'prv_' || n),
    'payment', 'pay_' || md5(n::text), now() + interval '24 hours'
FROM generate_series(1, 100000) n;
