-- name: OpenPayments :many
-- The one transaction, for a set of requests: key row (and its row among those in progress), payment row and outbox event, or
-- none of them. The history begins with the payment row itself.
--
-- It is one statement, and so one round trip and one commit. Data flows down: only what claimed opens, only what opened is
-- announced. Locks, in this order: key rows (sorted), their rows among those in progress, payment rows, outbox rows.
--
-- A request that a rule refuses does not claim, so it burns no key; but what its key already means is read all the same,
-- because a stricter rule must not hide a stored answer. Of two requests with one business key that never saw each other,
-- the second breaks payments_business_key, which undoes the whole statement; it is then asked again, and sees the first. So it
-- is with two refunds that together are too much: the second breaks refunds_stay_within_payment.
WITH asked AS (
    SELECT unnest(@ordinals::int[])            AS ordinal,
           unnest(@tenant_ids::text[])         AS tenant_id,
           unnest(@operation_names::text[])    AS operation_name,
           unnest(@idempotency_keys::text[])   AS idempotency_key,
           unnest(@request_hashes::text[])     AS request_hash,
           unnest(@schema_versions::text[])    AS schema_version,
           unnest(@payment_ids::text[])        AS payment_id,
           unnest(@kinds::text[])              AS kind,
           unnest(@parent_ids::text[])         AS parent_id,
           unnest(@account_ids::text[])        AS account_id,
           unnest(@merchant_references::text[]) AS merchant_reference,
           unnest(@amounts_minor::bigint[])    AS amount_minor,
           unnest(@currencies::text[])         AS currency,
           unnest(@channels::text[])           AS channel,
           unnest(@descriptions::text[])       AS description,
           unnest(@provider_requests::bytea[]) AS provider_request,
           unnest(@event_ids::text[])          AS event_id,
           unnest(@event_types::text[])        AS event_type,
           unnest(@event_payloads::text[])     AS event_payload,
           unnest(@trace_parents::text[])      AS trace_parent
), judged AS (
    SELECT asked.*, account.status AS account_status, holder.payment_id AS holder_id,
           CASE WHEN asked.kind = 'PAYMENT' THEN NULL
                WHEN parent.kind IS DISTINCT FROM 'PAYMENT' THEN 'NOT_FOUND'
                WHEN parent.state <> 'COMPLETED' THEN 'NOT_SETTLED'
                WHEN parent.currency <> asked.currency THEN 'OTHER_CURRENCY'
                WHEN parent.refunded_minor + asked.amount_minor > parent.amount_minor THEN 'TOO_MUCH' END AS parent_refuses
    FROM asked
    LEFT JOIN accounts account ON account.tenant_id = asked.tenant_id AND account.account_id = asked.account_id
    LEFT JOIN payments holder  ON holder.tenant_id = asked.tenant_id AND holder.account_id = asked.account_id
                              AND holder.merchant_reference = asked.merchant_reference AND holder.holds_reference
                              AND asked.kind = 'PAYMENT'
    LEFT JOIN payments parent  ON parent.tenant_id = asked.tenant_id AND parent.payment_id = asked.parent_id
), claimed AS (
    INSERT INTO idempotency_requests AS k (tenant_id, operation_name, idempotency_key, request_hash, status, resource_type,
        resource_id, response_schema_version, locked_until, expires_at, cleanup_at)
    SELECT tenant_id, operation_name, idempotency_key, request_hash, 'IN_PROGRESS', lower(kind),
        payment_id, schema_version, now() + @lease_for::interval,
        now() + @key_window::interval, now() + @key_window::interval
    FROM judged
    WHERE (account_status = 'OPEN' OR kind = 'REFUND') AND holder_id IS NULL AND parent_refuses IS NULL
    ORDER BY tenant_id, operation_name, idempotency_key
    ON CONFLICT DO NOTHING
    RETURNING k.tenant_id, k.operation_name, k.idempotency_key, k.resource_id, k.expires_at
), begun AS (
    INSERT INTO idempotency_in_progress (tenant_id, operation_name, idempotency_key)
    SELECT tenant_id, operation_name, idempotency_key FROM claimed
), reserved AS (
    UPDATE payments parent SET refunded_minor = parent.refunded_minor + refund.amount_minor, updated_at = now()
    FROM (SELECT j.tenant_id, j.parent_id, sum(j.amount_minor)::bigint AS amount_minor
          FROM judged j JOIN claimed ON claimed.tenant_id = j.tenant_id AND claimed.resource_id = j.payment_id
          WHERE j.kind = 'REFUND' GROUP BY j.tenant_id, j.parent_id) refund
    WHERE parent.tenant_id = refund.tenant_id AND parent.payment_id = refund.parent_id
), opened AS (
    INSERT INTO payments AS p (tenant_id, payment_id, operation_name, idempotency_key, kind, parent_id, account_id,
        merchant_reference, amount_minor, currency, channel, description, state, holds_reference, provider_request)
    SELECT j.tenant_id, j.payment_id, j.operation_name, j.idempotency_key, j.kind, nullif(j.parent_id, ''), j.account_id,
        j.merchant_reference, j.amount_minor, j.currency, j.channel, nullif(j.description, ''), 'LOCAL_PAYMENT_CREATED', j.kind = 'PAYMENT',
        j.provider_request
    FROM judged j JOIN claimed ON claimed.tenant_id = j.tenant_id AND claimed.resource_id = j.payment_id
    RETURNING p.tenant_id, p.payment_id, p.created_at
), announced AS (
    INSERT INTO outbox_events (tenant_id, event_id, aggregate_id, sequence, event_type, payload, trace_parent)
    SELECT j.tenant_id, j.event_id, j.payment_id, 1, j.event_type, j.event_payload::json, nullif(j.trace_parent, '')
    FROM judged j JOIN opened ON opened.tenant_id = j.tenant_id AND opened.payment_id = j.payment_id
)
SELECT j.ordinal::int AS ordinal,
       (claimed.resource_id IS NOT NULL)::boolean         AS is_claimed,
       coalesce(claimed.expires_at, k.expires_at, now())::timestamptz AS expires_at,
       coalesce(opened.created_at, k.created_at, now())::timestamptz AS opened_at,
       j.account_status, j.holder_id, coalesce(j.parent_refuses, '')::text AS parent_refuses,
       k.request_hash, k.status, k.lease_epoch, k.resource_id, k.response_schema_version, k.recovery_attempts,
       coalesce(k.locked_until > now(), false)::boolean AS is_held,
       coalesce(extract(epoch FROM now() - k.expires_at), 0)::float8 AS expired_for_seconds,
       coalesce(extract(epoch FROM k.locked_until - now()), 0)::float8 AS held_for_seconds,
       k.response_status, k.response_content_type, k.response_headers, k.response_body
FROM judged j
LEFT JOIN claimed ON claimed.tenant_id = j.tenant_id AND claimed.resource_id = j.payment_id
LEFT JOIN opened  ON opened.tenant_id = j.tenant_id AND opened.payment_id = j.payment_id
LEFT JOIN idempotency_requests k ON k.tenant_id = j.tenant_id AND k.operation_name = j.operation_name
                                AND k.idempotency_key = j.idempotency_key
ORDER BY j.ordinal;

-- name: MovePayments :many
-- The one writer, for a set of moves: nothing else writes payments.state.
--
-- Data flows down through two guards. "held": the lease is still this owner's (the epoch; locks the key row, in key
-- order). "moved": the payment is where this owner believes it is. What fails a guard writes nothing at all; the row
-- returned for it says which guard it was. Locks, in this order: key rows, payment rows, outbox rows, rows of keys in progress.
--
-- A step that only goes on with a lease writes the key no more than it must: while "lease_left" of the lease is left, the key
-- is locked and left as it is.
--
-- The window of a key that its first owner did not finish at once begins when it is finished, because its client has been
-- told to come back until then. An ordinary payment leaves these times alone, and with them their index; so does one that is
-- canceled because its window has passed.
WITH asked AS (
    SELECT unnest(@ordinals::int[])             AS ordinal,
           unnest(@tenant_ids::text[])          AS tenant_id,
           unnest(@operation_names::text[])     AS operation_name,
           unnest(@idempotency_keys::text[])    AS idempotency_key,
           unnest(@lease_epochs::bigint[])      AS lease_epoch,
           unnest(@payment_ids::text[])         AS payment_id,
           unnest(@from_states::text[])         AS from_state,
           unnest(@via_states::text[])          AS via_state,
           unnest(@to_states::text[])           AS to_state,
           unnest(@from_versions::int[])        AS from_version,
           unnest(@versions::int[])             AS version,
           unnest(@event_counts::int[])         AS event_count,
           unnest(@sends::int[])                AS sends,
           unnest(@charge_ids::text[])          AS charge_id,
           unnest(@decline_codes::text[])       AS decline_code,
           unnest(@reasons::text[])             AS reason,
           unnest(@key_statuses::text[])        AS key_status,
           unnest(@hold_for::interval[])        AS hold_for,
           unnest(@next_attempt_in::interval[]) AS next_attempt_in,
           unnest(@response_statuses::int[])    AS response_status,
           unnest(@content_types::text[])       AS content_type,
           unnest(@response_headers::text[])    AS response_headers,
           unnest(@response_bodies::bytea[])    AS response_body,
           unnest(@error_codes::text[])         AS error_code
), held AS (
    SELECT k.tenant_id, k.operation_name, k.idempotency_key, k.lease_epoch, k.expires_at,
           asked.key_status <> k.status OR asked.hold_for = interval '0' OR k.locked_until IS NULL
               OR k.locked_until < now() + sqlc.arg(lease_left)::interval AS is_to_keep,
           asked.to_state IN ('COMPLETED', 'DECLINED') AND (k.lease_epoch > 1 OR k.expires_at < now() + sqlc.arg(key_window)::interval / 2) AS is_late_finish
    FROM idempotency_requests k
    JOIN asked ON asked.tenant_id = k.tenant_id AND asked.operation_name = k.operation_name
              AND asked.idempotency_key = k.idempotency_key AND asked.lease_epoch = k.lease_epoch
    WHERE k.status IN ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY')
    ORDER BY k.tenant_id, k.operation_name, k.idempotency_key
    FOR UPDATE OF k
), moved AS (
    UPDATE payments p SET
        state              = asked.to_state,
        version            = asked.version,
        events             = asked.event_count,
        holds_reference    = p.kind = 'PAYMENT' AND asked.to_state NOT IN ('DECLINED', 'CANCELED'),
        provider_sends     = asked.sends,
        first_sent_at      = CASE WHEN asked.to_state = 'LOCAL_PAYMENT_CREATED' THEN NULL
                                  WHEN asked.sends > p.provider_sends THEN coalesce(p.first_sent_at, now())
                                  ELSE p.first_sent_at END,
        last_sent_at       = CASE WHEN asked.to_state = 'LOCAL_PAYMENT_CREATED' THEN NULL
                                  WHEN asked.sends > p.provider_sends THEN now()
                                  ELSE p.last_sent_at END,
        provider_charge_id = nullif(asked.charge_id, ''),
        decline_code       = nullif(asked.decline_code, ''),
        last_reason        = asked.reason,
        updated_at         = now()
    FROM asked
    JOIN held ON held.tenant_id = asked.tenant_id AND held.operation_name = asked.operation_name
             AND held.idempotency_key = asked.idempotency_key AND held.lease_epoch = asked.lease_epoch
    WHERE p.tenant_id = asked.tenant_id AND p.payment_id = asked.payment_id
      AND p.state = asked.from_state AND p.version = asked.from_version
    RETURNING p.tenant_id, p.payment_id, p.parent_id, p.amount_minor, p.state
), given_back AS (
    UPDATE payments parent SET refunded_minor = parent.refunded_minor - refused.amount_minor, updated_at = now()
    FROM (SELECT tenant_id, parent_id, sum(amount_minor)::bigint AS amount_minor FROM moved
          WHERE parent_id IS NOT NULL AND state IN ('DECLINED', 'CANCELED') GROUP BY tenant_id, parent_id) refused
    WHERE parent.tenant_id = refused.tenant_id AND parent.payment_id = refused.parent_id
), remembered AS (
    INSERT INTO payment_moves (tenant_id, payment_id, version, from_state, via_state, to_state, reason, lease_epoch)
    SELECT moved.tenant_id, moved.payment_id, asked.version, asked.from_state, nullif(asked.via_state, ''), asked.to_state, asked.reason, asked.lease_epoch
    FROM asked JOIN moved ON moved.tenant_id = asked.tenant_id AND moved.payment_id = asked.payment_id
), announced AS (
    INSERT INTO outbox_events (tenant_id, event_id, aggregate_id, sequence, event_type, payload, trace_parent)
    SELECT moved.tenant_id, event.event_id, moved.payment_id, event.sequence, event.event_type, event.payload::json, nullif(event.trace_parent, '')
    FROM (SELECT unnest(@event_payment_ids::text[]) AS payment_id,
                 unnest(@event_ids::text[])         AS event_id,
                 unnest(@event_sequences::int[])    AS sequence,
                 unnest(@event_types::text[])       AS event_type,
                 unnest(@event_payloads::text[])    AS payload,
                 unnest(@event_trace_parents::text[]) AS trace_parent) event
    JOIN moved ON moved.payment_id = event.payment_id
), kept AS (
    UPDATE idempotency_requests k SET
        status                = asked.key_status,
        locked_until          = CASE WHEN asked.hold_for > interval '0' THEN now() + asked.hold_for END,
        next_attempt_at       = CASE WHEN asked.key_status = 'UNKNOWN_REQUIRES_RECOVERY' THEN now() + asked.next_attempt_in END,
        response_status       = nullif(asked.response_status, 0),
        response_content_type = nullif(asked.content_type, ''),
        response_headers      = nullif(asked.response_headers, '')::jsonb,
        response_body         = CASE WHEN asked.response_status > 0 THEN asked.response_body END,
        error_code            = nullif(asked.error_code, ''),
        expires_at            = CASE WHEN held.is_late_finish THEN now() + @key_window::interval ELSE k.expires_at END,
        cleanup_at            = CASE WHEN held.is_late_finish THEN now() + @key_window::interval ELSE k.cleanup_at END,
        updated_at            = now()
    FROM asked JOIN moved ON moved.tenant_id = asked.tenant_id AND moved.payment_id = asked.payment_id
    JOIN held ON held.tenant_id = asked.tenant_id AND held.operation_name = asked.operation_name AND held.idempotency_key = asked.idempotency_key
             AND held.lease_epoch = asked.lease_epoch
    WHERE k.tenant_id = asked.tenant_id AND k.operation_name = asked.operation_name AND k.idempotency_key = asked.idempotency_key
      AND held.is_to_keep
    RETURNING k.tenant_id, k.operation_name, k.idempotency_key, k.status, k.resource_id, k.expires_at
), ended AS (
    DELETE FROM idempotency_in_progress i USING kept
    WHERE i.tenant_id = kept.tenant_id AND i.operation_name = kept.operation_name AND i.idempotency_key = kept.idempotency_key
      AND kept.status <> 'IN_PROGRESS'
)
SELECT asked.ordinal::int AS ordinal,
       (held.tenant_id IS NOT NULL)::boolean  AS is_held,
       (moved.tenant_id IS NOT NULL)::boolean AS is_moved,
       coalesce(kept.expires_at, held.expires_at, now())::timestamptz AS expires_at
FROM asked
LEFT JOIN held  ON held.tenant_id = asked.tenant_id AND held.operation_name = asked.operation_name
               AND held.idempotency_key = asked.idempotency_key AND held.lease_epoch = asked.lease_epoch
LEFT JOIN moved ON moved.tenant_id = asked.tenant_id AND moved.payment_id = asked.payment_id
LEFT JOIN kept  ON kept.tenant_id = asked.tenant_id AND kept.resource_id = asked.payment_id
ORDER BY asked.ordinal;

-- name: LoadPayment :one
-- Locks nothing: whoever writes after reading is stopped by the guards. Ages are judged by the database's clock.
SELECT sqlc.embed(p), k.expires_at AS key_expires_at, k.lease_epoch AS key_epoch,
       coalesce(k.expires_at <= now(), true)::boolean AS is_key_expired,
       coalesce(extract(epoch FROM now() - p.first_sent_at), 0)::float8 AS first_sent_age_seconds,
       coalesce(extract(epoch FROM now() - p.last_sent_at), 0)::float8  AS last_sent_age_seconds
FROM payments p
LEFT JOIN idempotency_requests k ON k.tenant_id = p.tenant_id AND k.operation_name = p.operation_name
                                AND k.idempotency_key = p.idempotency_key
WHERE p.tenant_id = @tenant_id AND p.payment_id = @payment_id;

-- name: InsertCallback :execrows
-- Locks its own row only; waits for a concurrent insert of the same webhook.
INSERT INTO provider_callbacks (tenant_id, webhook_id, payment_id, kind, outcome, provider_key, charge_id, amount_minor, currency,
    decline_code, verdict)
VALUES (@tenant_id, @webhook_id, @payment_id, @kind, @outcome, @provider_key, @charge_id, @amount_minor, @currency,
    nullif(@decline_code::text, ''), @verdict)
ON CONFLICT DO NOTHING;

-- name: ListCallbacks :many
-- Locks nothing; served by the index of payments. In the order in which they came, but first one of each that says something
-- else: however many there are, the first page holds all there is to contradict.
SELECT webhook_id, kind, outcome, provider_key, charge_id, amount_minor, currency, coalesce(decline_code, '')::text AS decline_code, verdict
FROM provider_callbacks WHERE tenant_id = @tenant_id AND payment_id = @payment_id
ORDER BY row_number() OVER (PARTITION BY kind, outcome, provider_key, charge_id, amount_minor, currency, decline_code
                            ORDER BY received_at, webhook_id), received_at, webhook_id
LIMIT @rows_max;

-- name: JudgeCallbacks :exec
-- Locks the rows of one payment's callbacks. A verdict that somebody else has changed since it was read is left alone.
UPDATE provider_callbacks c SET verdict = judged.verdict, judged_at = now()
FROM (SELECT unnest(@webhook_ids::text[]) AS webhook_id, unnest(@befores::text[]) AS before, unnest(@verdicts::text[]) AS verdict) judged
WHERE c.tenant_id = @tenant_id AND c.webhook_id = judged.webhook_id AND c.verdict = judged.before;

-- name: ListMoves :many
-- Locks nothing. What was committed together is one row. The first move is the payment row; older builds wrote it down as well.
SELECT 1 AS version, 'RECEIVED'::text AS from_state, ''::text AS via_state, 'LOCAL_PAYMENT_CREATED'::text AS to_state,
       'claimed'::text AS reason, 1::bigint AS lease_epoch, p.created_at AS moved_at
FROM payments p WHERE p.tenant_id = @tenant_id AND p.payment_id = @payment_id
UNION ALL
SELECT m.version, m.from_state, coalesce(m.via_state, '')::text, m.to_state, m.reason, m.lease_epoch, m.moved_at
FROM payment_moves m WHERE m.tenant_id = @tenant_id AND m.payment_id = @payment_id AND m.version > 1
ORDER BY 1;

-- name: ReadAccount :one
-- Locks nothing.
SELECT status, coalesce(default_currency, '')::text AS default_currency FROM accounts
WHERE tenant_id = @tenant_id AND account_id = @account_id;

-- name: ListPayments :many
-- Locks nothing. One page, newest first: payment ids grow with time, so the primary key is the order. An empty filter is
-- none.
SELECT sqlc.embed(p) FROM payments p
WHERE tenant_id = @tenant_id AND kind = 'PAYMENT'
  AND (@before_id::text = '' OR payment_id < @before_id)
  AND (@account_id::text = '' OR account_id = @account_id)
  AND (@merchant_reference::text = '' OR merchant_reference = @merchant_reference)
  AND (cardinality(@states::text[]) = 0 OR state = ANY (@states))
ORDER BY payment_id DESC LIMIT @rows_max;

-- name: ListRefunds :many
-- Locks nothing; served by the index of parents.
SELECT sqlc.embed(p) FROM payments p WHERE tenant_id = @tenant_id AND parent_id = @parent_id ORDER BY payment_id LIMIT @rows_max;

-- name: ListUnknown :many
-- Locks nothing; served by the index of keys that are looked at again. For operators: the evidence, no body and no secret.
SELECT p.tenant_id, p.payment_id, p.account_id, p.amount_minor, p.currency, p.last_reason, p.provider_sends,
       p.first_sent_at, p.last_sent_at, k.recovery_attempts, k.next_attempt_at,
       extract(epoch FROM now() - p.created_at)::float8 AS age_seconds,
       coalesce(extract(epoch FROM now() - p.first_sent_at), 0)::float8 AS first_sent_age_seconds
FROM idempotency_requests k
JOIN payments p ON p.tenant_id = k.tenant_id AND p.payment_id = k.resource_id
WHERE k.status = 'UNKNOWN_REQUIRES_RECOVERY' AND k.next_attempt_at IS NOT NULL
ORDER BY p.created_at LIMIT @rows_max;
