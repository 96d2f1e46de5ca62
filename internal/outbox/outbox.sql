-- name: InsertEvent :exec
-- Locks nothing but its own row.
INSERT INTO outbox_events (tenant_id, event_id, aggregate_id, sequence, event_type, payload, trace_parent)
VALUES (@tenant_id, @event_id, @aggregate_id, @sequence, @event_type, @payload, nullif(@trace_parent::text, ''));

-- name: HoldShards :many
-- One statement says that this relay is alive, renews its leases, and, when it may rebalance, lets go what is over its fair
-- share and acquires what nobody holds up to it. It returns what the relay holds now. Locks the rows of shards; skips those
-- that somebody else is about to acquire, which the relay has lost then, and those that a mark locks.
WITH me AS (
    INSERT INTO outbox_relays AS r (relay_id, alive_until) VALUES (@relay_id, now() + @lease_for::interval)
    ON CONFLICT (relay_id) DO UPDATE SET alive_until = excluded.alive_until
    RETURNING r.relay_id
), gone AS (
    DELETE FROM outbox_relays WHERE alive_until < now() - interval '1 h' AND relay_id <> @relay_id
), alive AS (
    SELECT relay_id FROM me UNION SELECT relay_id FROM outbox_relays WHERE alive_until > now()
), share AS MATERIALIZED (
    -- What is left over after division goes to the first relays by name, one shard each.
    SELECT s.total / a.relays + (a.before < s.total % a.relays)::int AS shards
    FROM (SELECT count(*) AS total FROM outbox_shards) s,
         (SELECT count(*) AS relays, count(*) FILTER (WHERE relay_id < @relay_id) AS before FROM alive) a
), mine AS MATERIALIZED (
    SELECT shard, row_number() OVER (ORDER BY shard) <= (SELECT shards FROM share) OR NOT @may_rebalance::boolean AS is_kept
    FROM (SELECT shard FROM outbox_shards WHERE relay_id = @relay_id FOR UPDATE SKIP LOCKED) m
), free AS MATERIALIZED (
    SELECT shard FROM outbox_shards
    WHERE (relay_id IS NULL OR relay_id <> @relay_id AND leased_until <= now()) AND @may_rebalance::boolean
    ORDER BY shard
    LIMIT greatest((SELECT shards FROM share) - (SELECT count(*) FROM mine), 0)
    FOR UPDATE SKIP LOCKED
), changed AS (
    UPDATE outbox_shards s SET relay_id = CASE WHEN c.is_kept THEN @relay_id END,
        leased_until = CASE WHEN c.is_kept THEN now() + @lease_for::interval END,
        epoch = s.epoch + c.grown
    FROM (SELECT shard, is_kept, 0 AS grown FROM mine UNION ALL SELECT shard, true, 1 FROM free) c
    WHERE s.shard = c.shard
    RETURNING s.shard, s.epoch, s.relay_id
)
SELECT shard, epoch FROM changed WHERE relay_id IS NOT NULL;

-- name: LetShardsGo :exec
-- Locks the rows of the relay's shards.
WITH gone AS (DELETE FROM outbox_relays WHERE relay_id = @relay_id)
UPDATE outbox_shards SET relay_id = NULL, leased_until = NULL WHERE relay_id = @relay_id::text;

-- name: DueEvents :many
-- What is to be published next, oldest first, of each shard at most shard_max. What is held back, and what comes behind it in
-- its aggregate, is passed over. Locks nothing: who may send is decided by the leases. OFFSET 0 keeps the inner queries looks
-- into an index for each row; as joins they may be planned as a sort or a hash of the whole backlog. The transaction around it
-- sees to it that the outer one walks its index.
-- A reading that does not begin at the beginning may see an event without the one before it, which it says: that the event
-- before it is published is what allows an event to be sent, and sequences have no gaps.
SELECT e.tenant_id, e.event_id, e.position::bigint AS position, e.aggregate_id, e.sequence, e.event_type, e.payload,
       coalesce(e.trace_parent, '')::text AS trace_parent, e.attempts, e.shard,
       (@from_position::bigint > 0 AND EXISTS (
           SELECT FROM outbox_events b WHERE b.tenant_id = e.tenant_id AND b.aggregate_id = e.aggregate_id AND b.sequence = e.sequence - 1
           AND b.published_at IS NULL AND b.position < @from_position OFFSET 0))::boolean AS is_behind
FROM unnest(@shards::smallint[]) AS own (shard), LATERAL (
    SELECT * FROM outbox_events d
    WHERE d.shard = own.shard AND d.position >= @from_position::bigint AND d.published_at IS NULL AND d.refused_at IS NULL
      AND NOT EXISTS (SELECT FROM outbox_events h WHERE h.tenant_id = d.tenant_id AND h.aggregate_id = d.aggregate_id
                      AND h.sequence <= d.sequence AND h.published_at IS NULL AND h.held_until > now() OFFSET 0)
    ORDER BY d.position
    LIMIT @shard_max
) e
ORDER BY e.position
LIMIT @rows_max;

-- name: MarkPublished :one
-- Marks what the broker has acknowledged, as far as the relay still holds its shard in the same epoch; returns the shards that
-- it does. Locks the shards, so that whoever acquires one sees either all marks or none, then the events. The commit does not
-- wait for the disk: what a crash takes back is published again, with the same id and bytes.
WITH held AS MATERIALIZED (
    SELECT s.shard FROM outbox_shards s
    JOIN (SELECT unnest(@shards::smallint[]) AS shard, unnest(@epochs::bigint[]) AS epoch) o ON o.shard = s.shard AND o.epoch = s.epoch
    WHERE s.relay_id = @relay_id::text
    FOR SHARE OF s
), marked AS (
    UPDATE outbox_events e SET published_at = now()
    FROM (SELECT unnest(@tenant_ids::text[]) AS tenant_id, unnest(@aggregate_ids::text[]) AS aggregate_id, unnest(@sequences::int[]) AS sequence) acked
    WHERE e.tenant_id = acked.tenant_id AND e.aggregate_id = acked.aggregate_id AND e.sequence = acked.sequence AND e.published_at IS NULL
      AND e.shard IN (SELECT shard FROM held)
    RETURNING 1
)
SELECT (SELECT count(*) FROM marked) AS marked, (SELECT coalesce(array_agg(shard), '{}') FROM held)::smallint[] AS held
FROM set_config('synchronous_commit', 'off', true);

-- name: HoldEventsBack :one
-- Counts a failed attempt and holds the events back, for a pause or, with a refusal, until somebody re-drives them. Fenced and
-- locking like MarkPublished.
WITH held AS MATERIALIZED (
    SELECT s.shard FROM outbox_shards s
    JOIN (SELECT unnest(@shards::smallint[]) AS shard, unnest(@epochs::bigint[]) AS epoch) o ON o.shard = s.shard AND o.epoch = s.epoch
    WHERE s.relay_id = @relay_id::text
    FOR SHARE OF s
), held_back AS (
    UPDATE outbox_events e SET attempts = e.attempts + 1,
        held_until = CASE WHEN f.refusal = '' THEN now() + f.pause ELSE 'infinity' END,
        refused_at = CASE WHEN f.refusal <> '' THEN now() END,
        refusal = nullif(f.refusal, '')
    FROM (SELECT unnest(@tenant_ids::text[]) AS tenant_id, unnest(@aggregate_ids::text[]) AS aggregate_id, unnest(@sequences::int[]) AS sequence,
                 unnest(@pauses::interval[]) AS pause, unnest(@refusals::text[]) AS refusal) f
    WHERE e.tenant_id = f.tenant_id AND e.aggregate_id = f.aggregate_id AND e.sequence = f.sequence AND e.published_at IS NULL AND e.refused_at IS NULL
      AND e.shard IN (SELECT shard FROM held)
    RETURNING 1
)
SELECT (SELECT count(*) FROM held_back) AS held_back, (SELECT coalesce(array_agg(shard), '{}') FROM held)::smallint[] AS held;

-- name: RefusedEvents :many
-- The longest refused first, each with the number of later events that wait for it. Locks nothing.
SELECT e.tenant_id, e.event_id, e.aggregate_id, e.sequence, e.event_type, e.created_at,
       coalesce(e.refused_at, now())::timestamptz AS refused_at, coalesce(e.refusal, '')::text AS refusal, e.attempts,
       (SELECT count(*) FROM outbox_events w WHERE w.tenant_id = e.tenant_id AND w.aggregate_id = e.aggregate_id
        AND w.sequence > e.sequence AND w.published_at IS NULL) AS waiting
FROM outbox_events e
WHERE e.published_at IS NULL AND e.held_until = 'infinity'
ORDER BY e.refused_at, e.position
LIMIT @rows_max;

-- name: RedriveEvents :one
-- Takes refusals back: one, or all of them with an empty event id; served by the index of what is held back. Locks the events, and wakes the relays.
WITH redriven AS (
    UPDATE outbox_events SET held_until = NULL, refused_at = NULL, refusal = NULL, attempts = 0
    WHERE published_at IS NULL AND held_until = 'infinity'
      AND (@event_id::text = '' OR tenant_id = @tenant_id AND event_id = @event_id)
    RETURNING 1
)
SELECT (SELECT count(*) FROM redriven) AS redriven FROM pg_notify('outbox_events', '');

-- name: RepublishEvents :one
-- Makes one small batch of published events unpublished, of those published between two times. Locks them. Sending an event
-- again is harmless. "until" stands still, so that what a relay publishes meanwhile is not taken again.
WITH again AS MATERIALIZED (
    SELECT tenant_id, aggregate_id, sequence, published_at FROM outbox_events
    WHERE published_at >= @since::timestamptz AND published_at < @until::timestamptz
    ORDER BY published_at
    LIMIT @rows_max
    FOR UPDATE
), unpublished AS (
    UPDATE outbox_events e SET published_at = NULL FROM again
    WHERE e.tenant_id = again.tenant_id AND e.aggregate_id = again.aggregate_id AND e.sequence = again.sequence
    RETURNING 1
)
SELECT (SELECT count(*) FROM unpublished) AS events FROM pg_notify('outbox_events', '');

-- name: Span :one
-- A span of time that ends now, by the clock that published_at is written with.
SELECT (now() - @ago::interval)::timestamptz AS since, now()::timestamptz AS until;

-- name: RingBell :exec
-- Wakes the relays. In a transaction of its own: commits that notify wait for each other, and a payment must not. The commit
-- does not wait for the disk.
SELECT pg_notify('outbox_events', '') FROM set_config('synchronous_commit', 'off', true);

-- name: MeasureBacklog :one
-- Locks nothing; served by the partial indexes.
SELECT count(*) AS events, coalesce(extract(epoch FROM now() - min(created_at)), 0)::float8 AS oldest_seconds,
       count(*) FILTER (WHERE is_refused) AS refused
FROM (SELECT created_at, false AS is_refused FROM outbox_events WHERE published_at IS NULL AND refused_at IS NULL
      UNION ALL
      SELECT created_at, true FROM outbox_events WHERE published_at IS NULL AND held_until = 'infinity') unpublished;

-- name: DeletePublished :one
-- One small batch of events that were published long enough ago, skipping those that somebody holds. "after" is where the
-- last batch ended. The commit does not wait for the disk: what a crash takes back is deleted again.
WITH old AS (
    SELECT tenant_id, aggregate_id, sequence, published_at FROM outbox_events
    WHERE published_at >= @after::timestamptz AND published_at <= now() - @keep_for::interval
    ORDER BY published_at
    LIMIT @rows_max
    FOR UPDATE SKIP LOCKED
), deleted AS (
    DELETE FROM outbox_events e USING old
    WHERE e.tenant_id = old.tenant_id AND e.aggregate_id = old.aggregate_id AND e.sequence = old.sequence RETURNING 1
)
SELECT (SELECT count(*) FROM deleted) AS deleted,
       coalesce((SELECT max(published_at) FROM old), @after::timestamptz)::timestamptz AS until
FROM set_config('synchronous_commit', 'off', true);
