-- Which relay publishes which events, and which events have to wait.

-- +goose Up
ALTER TABLE outbox_events
    -- Events of one aggregate are in one shard, and a shard has one relay at a time: so they keep their order.
    ADD COLUMN shard smallint NOT NULL GENERATED ALWAYS AS ((hashtext(aggregate_id) & 15)::smallint) STORED,
    ADD COLUMN trace_parent text, -- W3C Trace Context of the request that caused it
    ADD COLUMN attempts int NOT NULL DEFAULT 0, -- failures while the broker took other events; outages do not count
    ADD COLUMN held_until timestamptz, -- neither this event nor a later one of its aggregate is sent before
    ADD COLUMN refused_at timestamptz,
    ADD COLUMN refusal text,
    ADD CONSTRAINT refused_says_why CHECK ((refused_at IS NULL) = (refusal IS NULL)),
    ADD CONSTRAINT refused_is_held_for_ever CHECK ((refused_at IS NULL) = (coalesce(held_until, '-infinity') <> 'infinity'));

DROP INDEX outbox_events_unpublished;
CREATE INDEX outbox_events_unpublished ON outbox_events (shard, position) WHERE published_at IS NULL AND refused_at IS NULL;
CREATE INDEX outbox_events_held ON outbox_events (tenant_id, aggregate_id, sequence) WHERE published_at IS NULL AND held_until IS NOT NULL;

-- Relays that are alive, by their own report: they share the shards evenly.
CREATE TABLE outbox_relays (
    relay_id    text        PRIMARY KEY,
    alive_until timestamptz NOT NULL
);

-- The leases. The epoch grows at every acquisition and fences every write of the relay.
CREATE TABLE outbox_shards (
    shard        smallint PRIMARY KEY,
    relay_id     text,
    epoch        bigint NOT NULL DEFAULT 0,
    leased_until timestamptz,
    CONSTRAINT leased_has_a_relay CHECK ((leased_until IS NULL) = (relay_id IS NULL))
);
INSERT INTO outbox_shards (shard) SELECT generate_series(0, 15);

-- +goose Down
DROP TABLE outbox_shards;
DROP TABLE outbox_relays;
DROP INDEX outbox_events_held;
DROP INDEX outbox_events_unpublished;
ALTER TABLE outbox_events DROP COLUMN shard, DROP COLUMN trace_parent, DROP COLUMN attempts, DROP COLUMN held_until,
    DROP COLUMN refused_at, DROP COLUMN refusal;
CREATE INDEX outbox_events_unpublished ON outbox_events (position) WHERE published_at IS NULL;
