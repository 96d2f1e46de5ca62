-- name: TakeOverKey :one
-- Locks the key row. Compare-and-set on the epoch that was read: of many who saw the same abandoned key, one gets it. The
-- predicate says again what made the key free to take, because the row may have changed since it was read.
-- recovery_attempts stays: a client that asks often must not stretch the worker's pauses.
UPDATE idempotency_requests SET
    lease_epoch       = lease_epoch + 1,
    status            = CASE status WHEN 'FAILED_RETRYABLE' THEN 'IN_PROGRESS' ELSE status END,
    locked_until      = now() + @lease_for::interval,
    next_attempt_at   = now() + @lease_for::interval,
    updated_at        = now()
WHERE tenant_id = @tenant_id AND operation_name = @operation_name AND idempotency_key = @idempotency_key
  AND lease_epoch = @seen_epoch
  AND (status IN ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY') OR status = 'FAILED_RETRYABLE' AND sqlc.arg(is_client)::boolean)
  AND (locked_until IS NULL OR locked_until <= now())
RETURNING lease_epoch, resource_id, response_schema_version, recovery_attempts;

-- name: AcquireDueKey :one
-- Locks one key row that nobody holds and that is due, skipping those that somebody else is just taking. MATERIALIZED is what
-- makes it one: a subquery in FROM may be run again for every row it is joined with, and then LIMIT 1 locks another one each time.
WITH due AS MATERIALIZED (
    SELECT d.tenant_id, d.operation_name, d.idempotency_key
    FROM idempotency_requests d
    WHERE d.status IN ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY')
      AND d.next_attempt_at <= now() AND (d.locked_until IS NULL OR d.locked_until <= now())
    ORDER BY d.next_attempt_at
    LIMIT 1
    FOR UPDATE SKIP LOCKED
)
UPDATE idempotency_requests k SET
    lease_epoch       = k.lease_epoch + 1,
    locked_until      = now() + @lease_for::interval,
    next_attempt_at   = now() + @lease_for::interval,
    recovery_attempts = k.recovery_attempts + 1,
    updated_at        = now()
FROM due
WHERE k.tenant_id = due.tenant_id AND k.operation_name = due.operation_name AND k.idempotency_key = due.idempotency_key
  AND k.status IN ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY')
  AND k.next_attempt_at <= now() AND (k.locked_until IS NULL OR k.locked_until <= now())
RETURNING k.tenant_id, k.operation_name, k.idempotency_key, k.lease_epoch, k.resource_id, k.response_schema_version, k.recovery_attempts;

-- name: ReadKey :one
-- Locks nothing. What is decided on it is decided again by whatever writes.
SELECT request_hash, status, lease_epoch, resource_type, resource_id, response_schema_version, recovery_attempts, created_at, expires_at,
       coalesce(locked_until > now(), false)::boolean AS is_held,
       extract(epoch FROM now() - expires_at)::float8 AS expired_for_seconds,
       coalesce(extract(epoch FROM locked_until - now()), 0)::float8 AS held_for_seconds,
       response_status, response_content_type, response_headers, response_body, error_code
FROM idempotency_requests
WHERE tenant_id = @tenant_id AND operation_name = @operation_name AND idempotency_key = @idempotency_key;

-- name: ForgetExpiredKey :execrows
-- Locks the key row. Compare-and-set on what the key was about: of many late retries that saw one expired key, one forgets
-- it, and none can forget what a quicker one has made of it since.
DELETE FROM idempotency_requests
WHERE tenant_id = @tenant_id AND operation_name = @operation_name AND idempotency_key = @idempotency_key
  AND resource_id = @resource_id AND lease_epoch = @seen_epoch
  AND status IN ('COMPLETED', 'FAILED_REPLAYABLE', 'EXPIRED') AND expires_at <= now();

-- name: AcquireExpiredRetryableKey :one
-- Locks one key row whose client had a retry left and did not use it within the window.
WITH due AS MATERIALIZED (
    SELECT d.tenant_id, d.operation_name, d.idempotency_key
    FROM idempotency_requests d
    WHERE d.cleanup_at <= now() AND d.status = 'FAILED_RETRYABLE'
    ORDER BY d.cleanup_at
    LIMIT 1
    FOR UPDATE SKIP LOCKED
)
UPDATE idempotency_requests k SET
    lease_epoch     = k.lease_epoch + 1,
    status          = 'IN_PROGRESS',
    locked_until    = now() + @lease_for::interval,
    next_attempt_at = now() + @lease_for::interval,
    updated_at      = now()
FROM due
WHERE k.tenant_id = due.tenant_id AND k.operation_name = due.operation_name AND k.idempotency_key = due.idempotency_key
  AND k.cleanup_at <= now() AND k.status = 'FAILED_RETRYABLE'
RETURNING k.tenant_id, k.operation_name, k.idempotency_key, k.lease_epoch, k.resource_id, k.response_schema_version, k.recovery_attempts;

-- name: CleanKeys :one
-- One small batch of rows that are due, in the order in which they became due, skipping those that somebody is using. A
-- finished key loses its answer and becomes a tombstone; a tombstone whose time is over is deleted; an unresolved key is
-- left alone and looked at again in an hour. "after" is where the last batch ended: without it every batch would walk over
-- the dead rows of all batches before it, for as long as an old snapshot keeps them. The commit does not wait for the disk:
-- what a crash takes back is due again, and payments that commit at the same time do not wait behind it.
WITH due AS (
    SELECT tenant_id, operation_name, idempotency_key, status, cleanup_at
    FROM idempotency_requests
    WHERE cleanup_at >= @after::timestamptz AND cleanup_at <= now() AND status <> 'FAILED_RETRYABLE'
    ORDER BY cleanup_at
    LIMIT @rows_max
    FOR UPDATE SKIP LOCKED
), scrubbed AS (
    UPDATE idempotency_requests k SET
        status = 'EXPIRED', response_status = NULL, response_content_type = NULL, response_headers = NULL, response_body = NULL,
        error_code = NULL, cleanup_at = k.expires_at + @keep_tombstone_for::interval, updated_at = now()
    FROM due
    WHERE due.status IN ('COMPLETED', 'FAILED_REPLAYABLE')
      AND k.tenant_id = due.tenant_id AND k.operation_name = due.operation_name AND k.idempotency_key = due.idempotency_key
    RETURNING 1
), deleted AS (
    DELETE FROM idempotency_requests k USING due
    WHERE due.status = 'EXPIRED'
      AND k.tenant_id = due.tenant_id AND k.operation_name = due.operation_name AND k.idempotency_key = due.idempotency_key
    RETURNING 1
), postponed AS (
    UPDATE idempotency_requests k SET cleanup_at = now() + interval '1 hour'
    FROM due
    WHERE due.status IN ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY')
      AND k.tenant_id = due.tenant_id AND k.operation_name = due.operation_name AND k.idempotency_key = due.idempotency_key
    RETURNING 1
)
SELECT (SELECT count(*) FROM due) AS seen, (SELECT count(*) FROM scrubbed) AS scrubbed, (SELECT count(*) FROM deleted) AS deleted,
       (SELECT count(*) FROM postponed) AS postponed,
       coalesce((SELECT max(cleanup_at) FROM due), @after::timestamptz)::timestamptz AS until
FROM set_config('synchronous_commit', 'off', true);

-- name: CountUnresolvedKeys :one
-- Locks nothing; served by the index of unresolved keys.
SELECT count(*) FILTER (WHERE status = 'UNKNOWN_REQUIRES_RECOVERY') AS unknown,
       coalesce(extract(epoch FROM now() - min(created_at) FILTER (WHERE status = 'IN_PROGRESS')), 0)::float8 AS in_progress_oldest_seconds,
       coalesce(extract(epoch FROM now() - min(created_at) FILTER (WHERE status = 'UNKNOWN_REQUIRES_RECOVERY')), 0)::float8 AS unknown_oldest_seconds
FROM idempotency_requests WHERE status IN ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY');
