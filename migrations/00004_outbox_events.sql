-- Events that were decided together with what they announce, waiting to be published.

-- +goose Up
CREATE TABLE outbox_events (
    tenant_id    text        NOT NULL,
    event_id     text        NOT NULL,
    position     bigint      GENERATED ALWAYS AS IDENTITY, -- a reading order, not a high-water mark: commits overtake each other
    aggregate_id text        NOT NULL,
    sequence     int         NOT NULL,
    event_type   text        NOT NULL,
    payload      json        NOT NULL, -- json, not jsonb: a repeated delivery has the same bytes
    created_at   timestamptz NOT NULL DEFAULT now(),
    published_at timestamptz,
    PRIMARY KEY (tenant_id, event_id),
    CONSTRAINT one_event_a_transition UNIQUE (tenant_id, aggregate_id, sequence)
);
CREATE INDEX outbox_events_unpublished ON outbox_events (position) WHERE published_at IS NULL;

CREATE INDEX outbox_events_published ON outbox_events (published_at) WHERE published_at IS NOT NULL;

-- +goose Down
DROP TABLE outbox_events;
