-- What the provider said on its own account, by webhooks, about the outcome of payments.

-- +goose Up
CREATE TABLE provider_callbacks (
    -- Tenant and payment as the webhook names them: there need not be such a tenant or payment, or not yet.
    tenant_id    text        NOT NULL,
    webhook_id   text        NOT NULL, -- the same however often the webhook comes
    payment_id   text        NOT NULL,

    -- What it claims. It is believed only if all of it fits the payment.
    kind         text        NOT NULL,
    outcome      text        NOT NULL,
    provider_key text        NOT NULL,
    charge_id    text        NOT NULL, -- the provider's id of the charge, the refund, or the refused attempt
    amount_minor bigint      NOT NULL,
    currency     text        NOT NULL,
    decline_code text,

    -- What became of it: a word of ours. WAITING is for whoever drives the payment next.
    verdict      text        NOT NULL,
    received_at  timestamptz NOT NULL DEFAULT now(),
    judged_at    timestamptz NOT NULL DEFAULT now(),

    PRIMARY KEY (tenant_id, webhook_id),
    CONSTRAINT callback_kind_is_known CHECK (kind IN ('PAYMENT', 'REFUND')),
    CONSTRAINT callback_outcome_is_definite CHECK (outcome IN ('CONFIRMED', 'DECLINED')),
    CONSTRAINT callback_verdict_is_known CHECK (verdict IN ('WAITING', 'APPLIED', 'NO_EFFECT', 'UNMATCHED', 'CONTRADICTS')),
    CONSTRAINT refusal_has_code CHECK ((outcome = 'DECLINED') = (decline_code IS NOT NULL))
);

-- Serves whoever drives a payment whose outcome is not known.
CREATE INDEX provider_callbacks_of_payment ON provider_callbacks (tenant_id, payment_id);

-- +goose Down
DROP TABLE provider_callbacks;
