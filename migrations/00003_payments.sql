-- What a payment is, and every move it made. A refund is a payment in the other direction, with a parent.

-- +goose Up
CREATE TABLE payments (
    tenant_id          text   NOT NULL,
    payment_id         text   NOT NULL,
    -- The key that owns this payment: how recovery finds the lease, and the answer's place.
    operation_name     text   NOT NULL,
    idempotency_key    text   NOT NULL,

    kind               text   NOT NULL,
    parent_id          text,            -- of a refund: the payment that is given back
    account_id         text   NOT NULL,
    merchant_reference text   NOT NULL,
    amount_minor       bigint NOT NULL,
    currency           text   NOT NULL,
    channel            text   NOT NULL,
    description        text,
    -- Reserved by refunds that are pending or settled. A refund that is refused gives its part back.
    refunded_minor     bigint NOT NULL DEFAULT 0,

    state              text   NOT NULL,
    -- True until a payment is declined or canceled: its business key is free again then. Never true of a refund. A column of its own, because
    -- an index predicate over state would make every move rewrite the index.
    holds_reference    boolean NOT NULL,
    version            int    NOT NULL DEFAULT 1,  -- moves so far; the number of the last row in payment_moves
    events             int    NOT NULL DEFAULT 1,  -- events so far; the sequence of the last one

    -- The provider's side. The request is stored before it is sent for the first time and sent again unchanged.
    provider_request   bytea  NOT NULL,
    provider_sends     int    NOT NULL DEFAULT 0,  -- recorded attempts; one POST each
    first_sent_at      timestamptz,                -- the provider's key window starts here
    last_sent_at       timestamptz,                -- the provider's lookup lag starts here
    provider_charge_id text,
    decline_code       text,
    last_reason        text   NOT NULL DEFAULT '', -- why the outcome is what it is: a word of ours, never provider text

    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),

    PRIMARY KEY (tenant_id, payment_id),
    CONSTRAINT state_is_known CHECK (state IN ('LOCAL_PAYMENT_CREATED', 'PROVIDER_REQUEST_SENT', 'UNKNOWN_REQUIRES_RECOVERY',
        'PROVIDER_CONFIRMED', 'COMPLETED', 'DECLINED', 'CANCELED')),
    CONSTRAINT amount_is_positive CHECK (amount_minor BETWEEN 1 AND 999999999999),
    CONSTRAINT currency_is_a_code CHECK (currency ~ '^[A-Z]{3}$'),
    CONSTRAINT reference_has_1_to_255_characters CHECK (char_length(merchant_reference) BETWEEN 1 AND 255),

    CONSTRAINT confirmed_has_charge CHECK ((state IN ('PROVIDER_CONFIRMED', 'COMPLETED')) = (provider_charge_id IS NOT NULL)),
    CONSTRAINT declined_has_code CHECK ((state = 'DECLINED') = (decline_code IS NOT NULL)),
    CONSTRAINT kind_is_known CHECK (kind IN ('PAYMENT', 'REFUND')),
    CONSTRAINT refund_has_parent CHECK ((kind = 'REFUND') = (parent_id IS NOT NULL)),
    CONSTRAINT refunds_stay_within_payment CHECK (refunded_minor BETWEEN 0 AND amount_minor),
    CONSTRAINT only_settled_is_refunded CHECK (refunded_minor = 0 OR (kind = 'PAYMENT' AND state = 'COMPLETED')),
    CONSTRAINT reference_is_held_by_live_payments CHECK (holds_reference = (kind = 'PAYMENT' AND state NOT IN ('DECLINED', 'CANCELED'))),
    -- A payment that may have reached the provider says since when; one that provably has not, does not.
    CONSTRAINT sent_has_times CHECK ((state IN ('LOCAL_PAYMENT_CREATED', 'CANCELED')) = (first_sent_at IS NULL)),
    CONSTRAINT sent_times_go_together CHECK ((first_sent_at IS NULL) = (last_sent_at IS NULL))
);

-- The business key: what still holds when a client retries with a new idempotency key.
CREATE UNIQUE INDEX payments_business_key ON payments (tenant_id, account_id, merchant_reference) WHERE holds_reference;

CREATE INDEX payments_of_parent ON payments (tenant_id, parent_id, payment_id) WHERE parent_id IS NOT NULL;

CREATE TABLE payment_moves (
    tenant_id   text        NOT NULL,
    payment_id  text        NOT NULL,
    version     int         NOT NULL,
    from_state  text        NOT NULL,
    to_state    text        NOT NULL,
    reason      text        NOT NULL,
    lease_epoch bigint      NOT NULL,
    moved_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, payment_id, version)
);

-- +goose Down
DROP TABLE payment_moves;
DROP TABLE payments;
