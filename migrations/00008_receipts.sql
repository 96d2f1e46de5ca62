-- Receipts to send, and what is known about each.

-- +goose Up
CREATE TABLE receipts (
    tenant_id          text        NOT NULL,
    receipt_id         text        NOT NULL, -- 'receipt_payment_<payment id>' or 'receipt_refund_<refund id>'
    payment_id         text        NOT NULL, -- the payment or refund
    account_id         text        NOT NULL,
    amount_minor       bigint      NOT NULL,
    currency           text        NOT NULL,
    merchant_reference text        NOT NULL,
    occurred_at        timestamptz NOT NULL,
    message_id         text        NOT NULL, -- of the mail, whenever it is sent; without the angle brackets

    status          text        NOT NULL DEFAULT 'PENDING',
    attempts        int         NOT NULL DEFAULT 0,
    next_attempt_at timestamptz DEFAULT now(),
    -- Who may act: the epoch grows at every acquisition and fences every write; judged by now() of this database alone.
    lease_epoch     bigint      NOT NULL DEFAULT 0,
    locked_until    timestamptz,
    sender_id       text,                    -- who acquired it last: a sender knows what it has not begun
    last_error      text,                    -- a word of ours, never the mail server's text
    sent_at         timestamptz,
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),

    PRIMARY KEY (tenant_id, receipt_id),
    CONSTRAINT receipt_status_is_known CHECK (status IN ('PENDING', 'SENDING', 'SENT', 'UNKNOWN', 'FAILED')),
    CONSTRAINT receipt_amount_is_positive CHECK (amount_minor > 0),
    CONSTRAINT receipt_is_named_after_its_payment CHECK (receipt_id IN ('receipt_payment_' || payment_id, 'receipt_refund_' || payment_id)),
    CONSTRAINT only_pending_is_tried_again CHECK ((status = 'PENDING') = (next_attempt_at IS NOT NULL)),
    CONSTRAINT only_sending_is_leased CHECK ((status = 'SENDING') = (locked_until IS NOT NULL) AND (status <> 'SENDING' OR sender_id IS NOT NULL)),
    CONSTRAINT only_sent_was_sent CHECK ((status = 'SENT') = (sent_at IS NOT NULL)),
    CONSTRAINT doubt_and_failure_say_why CHECK (status NOT IN ('UNKNOWN', 'FAILED') OR last_error IS NOT NULL)
);
CREATE INDEX receipts_due ON receipts (next_attempt_at) WHERE status = 'PENDING';
CREATE INDEX receipts_leased ON receipts (locked_until) WHERE status = 'SENDING';
CREATE INDEX receipts_for_operators ON receipts (status, tenant_id, receipt_id) WHERE status IN ('UNKNOWN', 'FAILED');

-- +goose Down
DROP TABLE receipts;
