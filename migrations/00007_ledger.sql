-- What was posted: for every payment and refund that took effect one debit and one credit.

-- +goose Up
CREATE TABLE ledger_entries (
    tenant_id         text        NOT NULL,
    ledger_entry_type text        NOT NULL,
    source_payment_id text        NOT NULL, -- the payment or refund
    account_id        text        NOT NULL, -- the payer's, or '@provider_clearing', which no client can name
    amount_minor      bigint      NOT NULL, -- debits are positive, credits negative
    currency          text        NOT NULL,
    occurred_at       timestamptz NOT NULL,
    posted_at         timestamptz NOT NULL DEFAULT clock_timestamp(), -- not now(): a transaction may wait for its turn
    -- The order of an account's entries. They are posted one transaction at a time, so it is also the order of their commits.
    position          bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,

    -- The business key: it decides whether something was posted, however often and by whatever message it is announced.
    PRIMARY KEY (tenant_id, ledger_entry_type, source_payment_id),
    CONSTRAINT ledger_entry_type_is_known CHECK (ledger_entry_type IN ('PAYMENT_DEBIT', 'PAYMENT_CREDIT', 'REFUND_DEBIT', 'REFUND_CREDIT')),
    CONSTRAINT debit_is_positive_and_credit_negative CHECK (amount_minor <> 0 AND (ledger_entry_type IN ('PAYMENT_DEBIT', 'REFUND_DEBIT')) = (amount_minor > 0)),
    CONSTRAINT other_side_is_the_providers CHECK ((ledger_entry_type IN ('PAYMENT_CREDIT', 'REFUND_DEBIT')) = (account_id = '@provider_clearing')),
    CONSTRAINT entry_currency_is_a_code CHECK (currency ~ '^[A-Z]{3}$')
);
-- Serves an account's pages and their balances from the index alone.
CREATE INDEX ledger_entries_of_account ON ledger_entries (tenant_id, account_id, position) INCLUDE (currency, amount_minor);

-- A statement posts whole pairs or nothing. Entries are never changed, so what balances when it is posted balances for ever.
-- +goose StatementBegin
CREATE FUNCTION ledger_pairs_balance() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT FROM posted GROUP BY tenant_id, source_payment_id
        HAVING count(*) <> 2 OR sum(amount_minor) <> 0 OR min(currency) <> max(currency) OR count(*) FILTER (WHERE account_id = '@provider_clearing') <> 1
    ) THEN
        RAISE EXCEPTION 'what is posted for a payment must be one debit and one credit of the same amount'
            USING ERRCODE = 'check_violation', TABLE = 'ledger_entries', CONSTRAINT = 'debit_and_credit_sum_to_zero';
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION ledger_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'ledger entries are never changed and never deleted'
        USING ERRCODE = 'restrict_violation', TABLE = 'ledger_entries', CONSTRAINT = 'ledger_is_append_only';
END $$;
-- +goose StatementEnd

CREATE TRIGGER debit_and_credit_sum_to_zero AFTER INSERT ON ledger_entries
    REFERENCING NEW TABLE AS posted FOR EACH STATEMENT EXECUTE FUNCTION ledger_pairs_balance();
CREATE TRIGGER ledger_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger_entries
    FOR EACH STATEMENT EXECUTE FUNCTION ledger_is_append_only();

-- +goose Down
DROP TABLE ledger_entries;
DROP FUNCTION ledger_is_append_only;
DROP FUNCTION ledger_pairs_balance;
