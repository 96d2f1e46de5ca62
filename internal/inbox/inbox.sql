-- name: InsertMessages :many
-- Says which messages are new. Locks the rows it inserts, in key order; waits for whoever handles one of them at this moment,
-- and takes it when that one rolls back.
INSERT INTO consumer_inbox (tenant_id, consumer_name, message_id)
SELECT tenant_id, @consumer_name::text, message_id
FROM (SELECT unnest(@tenant_ids::text[]) AS tenant_id, unnest(@message_ids::text[]) AS message_id) asked
ORDER BY tenant_id, message_id
ON CONFLICT DO NOTHING
RETURNING tenant_id, message_id;

-- name: FindStopped :many
-- Locks nothing. Messages that are dead letters already, and messages whose aggregate has an earlier one that is waiting; not
-- those that were handled before that one came.
SELECT asked.ordinal::int AS ordinal, (own.tenant_id IS NOT NULL)::boolean AS is_dead, coalesce(earlier.message_id, '')::text AS behind
FROM (SELECT unnest(@ordinals::int[])       AS ordinal,
             unnest(@tenant_ids::text[])    AS tenant_id,
             unnest(@message_ids::text[])   AS message_id,
             unnest(@aggregate_ids::text[]) AS aggregate_id,
             unnest(@sequences::int[])      AS sequence) asked
LEFT JOIN dead_letters own ON own.tenant_id = asked.tenant_id AND own.consumer_name = @consumer_name AND own.message_id = asked.message_id
LEFT JOIN LATERAL (
    SELECT l.message_id FROM dead_letters l
    WHERE l.tenant_id = asked.tenant_id AND l.consumer_name = @consumer_name AND l.aggregate_id = asked.aggregate_id
      AND l.sequence < asked.sequence AND l.discarded_at IS NULL
    ORDER BY l.sequence, l.message_id LIMIT 1) earlier ON true
WHERE own.tenant_id IS NOT NULL
   OR earlier.message_id IS NOT NULL AND NOT EXISTS (
        SELECT FROM consumer_inbox i
        WHERE i.tenant_id = asked.tenant_id AND i.consumer_name = @consumer_name AND i.message_id = asked.message_id);

-- name: InsertDeadLetters :execrows
-- Locks the rows it inserts, in key order. A letter that is there already stays as it is.
INSERT INTO dead_letters (tenant_id, consumer_name, message_id, aggregate_id, sequence, reference, reason, error, behind, payload, attempts)
SELECT tenant_id, @consumer_name::text, message_id, aggregate_id, sequence, reference, reason, error, nullif(behind, ''), payload, attempts
FROM (SELECT unnest(@tenant_ids::text[])    AS tenant_id,
             unnest(@message_ids::text[])   AS message_id,
             unnest(@aggregate_ids::text[]) AS aggregate_id,
             unnest(@sequences::int[])      AS sequence,
             unnest(sqlc.arg(refs)::text[]) AS reference,
             unnest(@reasons::text[])       AS reason,
             unnest(@errors::text[])        AS error,
             unnest(@behinds::text[])       AS behind,
             unnest(@payloads::bytea[])     AS payload,
             unnest(@attempts::int[])       AS attempts) letter
ORDER BY tenant_id, message_id
ON CONFLICT DO NOTHING;

-- name: ListDeadLetters :many
-- Locks nothing. One page in key order; an empty consumer is all of them.
SELECT tenant_id, consumer_name, message_id, aggregate_id, sequence, reference, reason, error, behind, (payload IS NOT NULL)::boolean AS is_kept,
       attempts, first_at, last_at, discarded_at, discarded_by, discarded_why
FROM dead_letters
WHERE (tenant_id, consumer_name, message_id) > (@after_tenant_id::text, @after_consumer_name::text, @after_message_id::text)
  AND (@consumer_name::text = '' OR consumer_name = @consumer_name)
  AND (@with_discarded::boolean OR discarded_at IS NULL)
ORDER BY tenant_id, consumer_name, message_id LIMIT @rows_max;

-- name: ListAggregateLetters :many
-- Locks nothing. What waits of an aggregate, in the order in which it has to be handled.
SELECT message_id FROM dead_letters
WHERE tenant_id = @tenant_id AND consumer_name = @consumer_name AND aggregate_id = @aggregate_id AND discarded_at IS NULL
ORDER BY sequence, message_id LIMIT @rows_max;

-- name: FindDeadLetter :one
-- Locks nothing.
SELECT aggregate_id, discarded_at FROM dead_letters
WHERE tenant_id = @tenant_id AND consumer_name = @consumer_name AND message_id = @message_id;

-- name: OpenDeadLetter :one
-- Takes a letter out, to be handled like any other message by the same transaction. Locks its row: of all who open it at once
-- one has it, and the others find nothing when that one commits.
DELETE FROM dead_letters
WHERE tenant_id = @tenant_id AND consumer_name = @consumer_name AND message_id = @message_id AND discarded_at IS NULL
RETURNING reference, payload;

-- name: RecordFailure :exec
-- Locks the letter's row.
UPDATE dead_letters SET attempts = attempts + 1, last_at = now(), reason = @reason, error = @error, behind = NULL
WHERE tenant_id = @tenant_id AND consumer_name = @consumer_name AND message_id = @message_id AND discarded_at IS NULL;

-- name: DiscardDeadLetter :execrows
-- Locks the letter's row.
UPDATE dead_letters SET discarded_at = now(), discarded_by = @discarded_by::text, discarded_why = @discarded_why::text
WHERE tenant_id = @tenant_id AND consumer_name = @consumer_name AND message_id = @message_id AND discarded_at IS NULL;

-- name: CountDeadLetters :one
-- Locks nothing; served by the partial index of waiting letters.
SELECT count(*) AS letters, coalesce(extract(epoch FROM now() - min(first_at)), 0)::float8 AS oldest_seconds
FROM dead_letters WHERE discarded_at IS NULL;

-- name: DeleteHandled :one
-- One small batch of messages that were handled long enough ago, skipping those that somebody holds. "after" is where the
-- last batch ended. The commit does not wait for the disk: what a crash takes back is deleted again.
WITH old AS MATERIALIZED (
    SELECT tenant_id, consumer_name, message_id, processed_at FROM consumer_inbox
    WHERE processed_at >= @after::timestamptz AND processed_at <= now() - @keep_for::interval
    ORDER BY processed_at
    LIMIT @rows_max
    FOR UPDATE SKIP LOCKED
), deleted AS (
    DELETE FROM consumer_inbox i USING old
    WHERE i.tenant_id = old.tenant_id AND i.consumer_name = old.consumer_name AND i.message_id = old.message_id RETURNING 1
)
SELECT (SELECT count(*) FROM deleted) AS deleted,
       coalesce((SELECT max(processed_at) FROM old), @after::timestamptz)::timestamptz AS until
FROM set_config('synchronous_commit', 'off', true);
