-- name: OldestUnpublished :one
-- Locks nothing; served by the partial index of unpublished rows.
SELECT count(*) AS events, coalesce(extract(epoch FROM now() - min(created_at)), 0)::float8 AS oldest_seconds
FROM outbox_events WHERE published_at IS NULL;

-- name: DeletePublished :one
-- One small batch of events that were published long enough ago, skipping those that somebody holds. "after" is where the
-- last batch ended. The commit does not wait for the disk: what a crash takes back is deleted again.
WITH old AS (
    SELECT tenant_id, event_id, published_at FROM outbox_events
    WHERE published_at >= @after::timestamptz AND published_at <= now() - @keep_for::interval
    ORDER BY published_at
    LIMIT @rows_max
    FOR UPDATE SKIP LOCKED
), deleted AS (
    DELETE FROM outbox_events e USING old WHERE e.tenant_id = old.tenant_id AND e.event_id = old.event_id RETURNING 1
)
SELECT (SELECT count(*) FROM deleted) AS deleted,
       coalesce((SELECT max(published_at) FROM old), @after::timestamptz)::timestamptz AS until
FROM set_config('synchronous_commit', 'off', true);

-- name: InsertEvent :exec
-- Locks nothing but its own row.
INSERT INTO outbox_events (tenant_id, event_id, aggregate_id, sequence, event_type, payload)
VALUES (@tenant_id, @event_id, @aggregate_id, @sequence, @event_type, @payload);
