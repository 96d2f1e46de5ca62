-- Which messages a consumer has handled, and which it could not handle.

-- +goose Up
CREATE TABLE consumer_inbox (
    tenant_id     text        NOT NULL,
    consumer_name text        NOT NULL,
    message_id    text        NOT NULL,
    processed_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, consumer_name, message_id)
);
CREATE INDEX consumer_inbox_processed ON consumer_inbox (processed_at);

CREATE TABLE dead_letters (
    tenant_id     text        NOT NULL, -- '' when it could not be read
    consumer_name text        NOT NULL,
    message_id    text        NOT NULL, -- when that could not be read, made from the message's bytes
    aggregate_id  text        NOT NULL, -- '' when it could not be read
    sequence      int         NOT NULL,
    reference     text        NOT NULL, -- where the broker keeps the message, if it still does
    reason        text        NOT NULL, -- a word to count by
    error         text        NOT NULL, -- a sentence of ours: never a part of the message
    behind        text,                 -- the dead letter of the same aggregate that this one waits for
    payload       bytea,                -- NULL when it was too large to keep
    attempts      int         NOT NULL, -- how often it failed
    first_at      timestamptz NOT NULL DEFAULT now(),
    last_at       timestamptz NOT NULL DEFAULT now(),
    -- Given up by a person. The row stays, so that the message is not handled after all when it comes again.
    discarded_at  timestamptz,
    discarded_by  text,
    discarded_why text,
    PRIMARY KEY (tenant_id, consumer_name, message_id),
    CONSTRAINT waiting_says_for_what CHECK ((reason = 'behind') = (behind IS NOT NULL)),
    CONSTRAINT discarded_says_by_whom_and_why CHECK ((discarded_at IS NULL) = (discarded_by IS NULL) AND (discarded_at IS NULL) = (discarded_why IS NULL))
);
-- Serves the question whether an aggregate is stopped; nearly always empty.
CREATE INDEX dead_letters_waiting ON dead_letters (tenant_id, consumer_name, aggregate_id, sequence) WHERE discarded_at IS NULL;

-- +goose Down
DROP TABLE dead_letters;
DROP TABLE consumer_inbox;
