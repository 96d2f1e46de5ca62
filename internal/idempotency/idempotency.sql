-- What a key is found by, when its owner does not come back: a key that is IN_PROGRESS by its row in idempotency_in_progress, and
-- whatever has a next_attempt_at by the index of that. The second are the keys whose outcome is unknown, and those that an older
-- build has in progress. Lock order: the key row, then its row in idempotency_in_progress.

-- name: TakeOverKey :one
-- Locks the key row. Compare-and-set on the epoch that was read: of many who saw the same abandoned key, one gets it. The
-- predicate says again what made the key free to take, because the row may have changed since it was read.
-- recovery_attempts stays: a client that asks often must not stretch the worker's pauses.
WITH taken AS (
    UPDATE idempotency_requests k SET
        lease_epoch       = k.lease_epoch + 1,
        status            = CASE k.status WHEN 'FAILED_RETRYABLE' THEN 'IN_PROGRESS' ELSE k.status END,
        locked_until      = now() + @lease_for::interval,
        next_attempt_at   = CASE k.status WHEN 'UNKNOWN_REQUIRES_RECOVERY' THEN now() + @lease_for::interval END,
        updated_at        = now()
    WHERE k.tenant_id = @tenant_id AND k.operation_name = @operation_name AND k.idempotency_key = @idempotency_key
      AND k.lease_epoch = @seen_epoch
      AND (k.status IN ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY') OR k.status = 'FAILED_RETRYABLE' AND sqlc.arg(is_client)::boolean)
      AND (k.locked_until IS NULL OR k.locked_until <= now())
    RETURNING k.tenant_id, k.operation_name, k.idempotency_key, k.status, k.lease_epoch, k.resource_id, k.response_schema_version, k.recovery_attempts
), begun AS (
    INSERT INTO idempotency_in_progress (tenant_id, operation_name, idempotency_key)
    SELECT tenant_id, operation_name, idempotency_key FROM taken WHERE status = 'IN_PROGRESS'
    ON CONFLICT DO NOTHING
)
SELECT lease_epoch, resource_id, response_schema_version, recovery_attempts FROM taken;

-- name: AcquireAbandonedKey :one
-- Locks one key row that is in progress and whose lease is over, skipping those that somebody else is just taking. It goes
-- over the keys in progress, of which there are as many as requests under way, until it meets one. The lock in the inner query
-- is what makes the plan a look at one key row after the other, however large that table is and whatever is known about it.
WITH abandoned AS MATERIALIZED (
    SELECT k.tenant_id, k.operation_name, k.idempotency_key
    FROM idempotency_in_progress i, LATERAL (
        SELECT d.tenant_id, d.operation_name, d.idempotency_key FROM idempotency_requests d
        WHERE d.tenant_id = i.tenant_id AND d.operation_name = i.operation_name AND d.idempotency_key = i.idempotency_key
          AND d.status = 'IN_PROGRESS' AND d.locked_until <= now()
        FOR UPDATE SKIP LOCKED
    ) k
    LIMIT 1
)
UPDATE idempotency_requests k SET
    lease_epoch       = k.lease_epoch + 1,
    locked_until      = now() + @lease_for::interval,
    recovery_attempts = k.recovery_attempts + 1,
    updated_at        = now()
FROM abandoned
WHERE k.tenant_id = abandoned.tenant_id AND k.operation_name = abandoned.operation_name AND k.idempotency_key = abandoned.idempotency_key
  AND k.status = 'IN_PROGRESS' AND k.locked_until <= now()
RETURNING k.tenant_id, k.operation_name, k.idempotency_key, k.lease_epoch, k.resource_id, k.response_schema_version, k.recovery_attempts;

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
), taken AS (
    UPDATE idempotency_requests k SET
        lease_epoch       = k.lease_epoch + 1,
        locked_until      = now() + @lease_for::interval,
        next_attempt_at   = CASE k.status WHEN 'UNKNOWN_REQUIRES_RECOVERY' THEN now() + @lease_for::interval END,
        recovery_attempts = k.recovery_attempts + 1,
        updated_at        = now()
    FROM due
    WHERE k.tenant_id = due.tenant_id AND k.operation_name = due.operation_name AND k.idempotency_key = due.idempotency_key
      AND k.status IN ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY')
      AND k.next_attempt_at <= now() AND (k.locked_until IS NULL OR k.locked_until <= now())
    RETURNING k.tenant_id, k.operation_name, k.idempotency_key, k.status, k.lease_epoch, k.resource_id, k.response_schema_version, k.recovery_attempts
), begun AS (
    INSERT INTO idempotency_in_progress (tenant_id, operation_name, idempotency_key)
    SELECT tenant_id, operation_name, idempotency_key FROM taken WHERE status = 'IN_PROGRESS'
    ON CONFLICT DO NOTHING
)
SELECT tenant_id, operation_name, idempotency_key, lease_epoch, resource_id, response_schema_version, recovery_attempts FROM taken;

-- name: ReadKey :one
-- Locks nothing. What is decided on it is decided again by whatever writes.
SELECT request_hash, status, lease_epoch, resource_type, resource_id, response_schema_version, recovery_attempts, created_at, expires_at,
       coalesce(locked_until > now(), false)::boolean AS is_held,
       extract(epoch FROM now() - expires_at)::float8 AS expired_for_seconds,
       coalesce(extract(epoch FROM locked_until - now()), 0)::float8 AS held_for_seconds,
       response_status, response_content_type, response_headers, response_body, error_code
FROM idempotency_requests
WHERE tenant_id = @tenant_id AND operation_name = @operation_name AND idempotency_key = @idempotency_key;

-- name: ForgetExpiredKey :exec
-- Locks the key row. Compare-and-set on what the key was about: of many late retries that saw one expired key, one forgets
-- it, and none can forget what a quicker one has made of it since. What an older build has left among the keys in progress, when
-- it finished this one, goes too.
WITH forgotten AS (
    DELETE FROM idempotency_requests k
    WHERE k.tenant_id = @tenant_id AND k.operation_name = @operation_name AND k.idempotency_key = @idempotency_key
      AND k.resource_id = @resource_id AND k.lease_epoch = @seen_epoch
      AND k.status IN ('COMPLETED', 'FAILED_REPLAYABLE', 'EXPIRED') AND k.expires_at <= now()
    RETURNING k.tenant_id, k.operation_name, k.idempotency_key
)
DELETE FROM idempotency_in_progress i USING forgotten
WHERE i.tenant_id = forgotten.tenant_id AND i.operation_name = forgotten.operation_name AND i.idempotency_key = forgotten.idempotency_key;

-- name: AcquireExpiredRetryableKey :one
-- Locks one key row whose client had a retry left and did not use it within the window.
WITH due AS MATERIALIZED (
    SELECT d.tenant_id, d.operation_name, d.idempotency_key
    FROM idempotency_requests d
    WHERE d.cleanup_at <= now() AND d.status = 'FAILED_RETRYABLE'
    ORDER BY d.cleanup_at
    LIMIT 1
    FOR UPDATE SKIP LOCKED
), taken AS (
    UPDATE idempotency_requests k SET
        lease_epoch  = k.lease_epoch + 1,
        status       = 'IN_PROGRESS',
        locked_until = now() + @lease_for::interval,
        updated_at   = now()
    FROM due
    WHERE k.tenant_id = due.tenant_id AND k.operation_name = due.operation_name AND k.idempotency_key = due.idempotency_key
      AND k.cleanup_at <= now() AND k.status = 'FAILED_RETRYABLE'
    RETURNING k.tenant_id, k.operation_name, k.idempotency_key, k.lease_epoch, k.resource_id, k.response_schema_version, k.recovery_attempts
), begun AS (
    INSERT INTO idempotency_in_progress (tenant_id, operation_name, idempotency_key)
    SELECT tenant_id, operation_name, idempotency_key FROM taken
    ON CONFLICT DO NOTHING
)
SELECT tenant_id, operation_name, idempotency_key, lease_epoch, resource_id, response_schema_version, recovery_attempts FROM taken;

-- name: CleanKeys :one
-- One small batch of rows that are due, in the order in which they became due, skipping those that somebody is using. A
-- finished key loses its answer and becomes a tombstone; a tombstone whose time is over is deleted; an unresolved key is
-- left alone and looked at again in an hour. "after" is where the last batch ended: without it every batch would walk over
-- the dead rows of all batches before it, for as long as an old snapshot keeps them. The commit does not wait for the disk:
-- what a crash takes back is due again, and payments that commit at the same time do not wait behind it. "ended" deletes what an
-- older build, which does not know the table, has left there when it finished a key.
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
    RETURNING k.tenant_id, k.operation_name, k.idempotency_key
), ended AS (
    DELETE FROM idempotency_in_progress i USING scrubbed
    WHERE i.tenant_id = scrubbed.tenant_id AND i.operation_name = scrubbed.operation_name AND i.idempotency_key = scrubbed.idempotency_key
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
-- Locks nothing; served by what recovery looks at. An older build's keys in progress have a next_attempt_at.
SELECT count(*) FILTER (WHERE status = 'UNKNOWN_REQUIRES_RECOVERY') AS unknown,
       coalesce(extract(epoch FROM now() - min(created_at) FILTER (WHERE status = 'IN_PROGRESS')), 0)::float8 AS in_progress_oldest_seconds,
       coalesce(extract(epoch FROM now() - min(created_at) FILTER (WHERE status = 'UNKNOWN_REQUIRES_RECOVERY')), 0)::float8 AS unknown_oldest_seconds
FROM (SELECT status, created_at FROM idempotency_requests WHERE next_attempt_at IS NOT NULL
      UNION ALL
      SELECT k.status, k.created_at FROM idempotency_in_progress i, LATERAL (
          SELECT d.status, d.created_at FROM idempotency_requests d
          WHERE d.tenant_id = i.tenant_id AND d.operation_name = i.operation_name AND d.idempotency_key = i.idempotency_key
            AND d.status = 'IN_PROGRESS' AND d.next_attempt_at IS NULL OFFSET 0) k) unresolved;
