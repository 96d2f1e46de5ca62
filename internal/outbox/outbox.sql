-- name: OldestUnpublished :one
-- Locks nothing; served by the partial index of unpublished rows.
SELECT count(*) AS events, coalesce(extract(epoch FROM now() - min(created_at)), 0)::float8 AS oldest_seconds
FROM outbox_events WHERE published_at IS NULL;
