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
  AND status IN ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY', 'FAILED_RETRYABLE')
  AND (locked_until IS NULL OR locked_until <= now())
RETURNING lease_epoch, resource_id, response_schema_version, recovery_attempts;

-- name: AcquireDueKey :one
-- Locks one key row that nobody holds and that is due, skipping those that somebody else is just taking.
UPDATE idempotency_requests k SET
    lease_epoch       = k.lease_epoch + 1,
    locked_until      = now() + @lease_for::interval,
    next_attempt_at   = now() + @lease_for::interval,
    recovery_attempts = k.recovery_attempts + 1,
    updated_at        = now()
FROM (
    SELECT d.tenant_id, d.operation_name, d.idempotency_key
    FROM idempotency_requests d
    WHERE d.status IN ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY')
      AND d.next_attempt_at <= now() AND (d.locked_until IS NULL OR d.locked_until <= now())
    ORDER BY d.next_attempt_at
    LIMIT 1
    FOR UPDATE SKIP LOCKED
) due
WHERE k.tenant_id = due.tenant_id AND k.operation_name = due.operation_name AND k.idempotency_key = due.idempotency_key
  AND k.status IN ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY')
  AND k.next_attempt_at <= now() AND (k.locked_until IS NULL OR k.locked_until <= now())
RETURNING k.tenant_id, k.operation_name, k.idempotency_key, k.lease_epoch, k.resource_id, k.response_schema_version, k.recovery_attempts;

-- name: CountUnresolvedKeys :one
-- Locks nothing; served by the index of unresolved keys.
SELECT count(*) FILTER (WHERE status = 'UNKNOWN_REQUIRES_RECOVERY') AS unknown,
       coalesce(extract(epoch FROM now() - min(created_at) FILTER (WHERE status = 'IN_PROGRESS')), 0)::float8 AS in_progress_oldest_seconds,
       coalesce(extract(epoch FROM now() - min(created_at) FILTER (WHERE status = 'UNKNOWN_REQUIRES_RECOVERY')), 0)::float8 AS unknown_oldest_seconds
FROM idempotency_requests WHERE status IN ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY');
