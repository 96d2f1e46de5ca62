-- Who may call, and on whose behalf.
--
-- Every primary key and every unique constraint of this schema begins with tenant_id, and no transaction touches two
-- tenants: the tables can be split or distributed by tenant without a change.

-- +goose Up
CREATE TABLE tenants (
    tenant_id   text        NOT NULL,
    -- The version of the API that answers a request which names none. Moving it changes no answer that is stored.
    api_version text        NOT NULL DEFAULT '2026-05-01',
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id),
    CONSTRAINT tenant_id_is_a_short_word CHECK (tenant_id ~ '^[a-z0-9][a-z0-9_-]{0,62}$')
);

-- The secret itself is nowhere. SHA-256 without salt is enough for secrets that are random and 256 bits long, and it
-- is what makes them findable by an index.
CREATE TABLE api_keys (
    tenant_id   text        NOT NULL REFERENCES tenants,
    api_key_id  text        NOT NULL,
    secret_hash bytea       NOT NULL,
    scopes      text[]      NOT NULL DEFAULT '{read,pay,refund}',
    created_at  timestamptz NOT NULL DEFAULT now(),
    revoked_at  timestamptz,
    PRIMARY KEY (tenant_id, api_key_id),
    CONSTRAINT secret_hash_is_sha256 CHECK (octet_length(secret_hash) = 32),
    CONSTRAINT scopes_are_known CHECK (scopes <@ '{read,pay,refund}' AND cardinality(scopes) > 0)
);
CREATE INDEX api_keys_by_secret ON api_keys (secret_hash);

CREATE TABLE accounts (
    tenant_id        text        NOT NULL REFERENCES tenants,
    account_id       text        NOT NULL,
    status           text        NOT NULL DEFAULT 'OPEN',
    default_currency text,       -- for payments that name none
    version          int         NOT NULL DEFAULT 1, -- changes so far, the opening included; the sequence of the last event
    created_at       timestamptz NOT NULL DEFAULT now(),
    updated_at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, account_id),
    CONSTRAINT account_status_is_known CHECK (status IN ('OPEN', 'BLOCKED')),
    CONSTRAINT default_currency_is_a_code CHECK (default_currency ~ '^[A-Z]{3}$')
);

-- +goose Down
DROP TABLE accounts;
DROP TABLE api_keys;
DROP TABLE tenants;
