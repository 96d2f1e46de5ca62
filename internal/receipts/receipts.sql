-- name: InsertReceipts :execrows
-- Locks the rows it inserts, in key order. A receipt that is there already stays as it is.
INSERT INTO receipts (tenant_id, receipt_id, payment_id, account_id, amount_minor, currency, merchant_reference, occurred_at, message_id)
SELECT tenant_id, receipt_id, payment_id, account_id, amount_minor, currency, merchant_reference, occurred_at, message_id
FROM (SELECT unnest(@tenant_ids::text[])          AS tenant_id,
             unnest(@receipt_ids::text[])         AS receipt_id,
             unnest(@payment_ids::text[])         AS payment_id,
             unnest(@account_ids::text[])         AS account_id,
             unnest(@amounts_minor::bigint[])     AS amount_minor,
             unnest(@currencies::text[])          AS currency,
             unnest(@merchant_references::text[]) AS merchant_reference,
             unnest(@occurred_at::timestamptz[])  AS occurred_at,
             unnest(@message_ids::text[])         AS message_id) asked
ORDER BY tenant_id, receipt_id
ON CONFLICT DO NOTHING;

-- name: FindContradictions :many
-- Locks nothing. Receipts that are written and say something else than what is asked for.
SELECT r.receipt_id
FROM (SELECT unnest(@tenant_ids::text[])          AS tenant_id,
             unnest(@receipt_ids::text[])         AS receipt_id,
             unnest(@account_ids::text[])         AS account_id,
             unnest(@amounts_minor::bigint[])     AS amount_minor,
             unnest(@currencies::text[])          AS currency,
             unnest(@merchant_references::text[]) AS merchant_reference) asked
JOIN receipts r ON r.tenant_id = asked.tenant_id AND r.receipt_id = asked.receipt_id
WHERE (r.account_id, r.amount_minor, r.currency, r.merchant_reference)
      IS DISTINCT FROM (asked.account_id, asked.amount_minor, asked.currency, asked.merchant_reference)
LIMIT 1;

-- name: AcquireDueReceipt :one
-- The intent, committed before a word is said to the mail server. Locks the row it takes and skips those that others take.
WITH due AS MATERIALIZED (
    SELECT tenant_id, receipt_id FROM receipts
    WHERE status = 'PENDING' AND next_attempt_at <= now()
    ORDER BY next_attempt_at LIMIT 1
    FOR UPDATE SKIP LOCKED
)
UPDATE receipts r SET status = 'SENDING', attempts = r.attempts + 1, next_attempt_at = NULL, lease_epoch = r.lease_epoch + 1,
    locked_until = now() + @lease_for::interval, sender_id = @sender_id::text, updated_at = now()
FROM due WHERE r.tenant_id = due.tenant_id AND r.receipt_id = due.receipt_id
RETURNING r.tenant_id, r.receipt_id, r.payment_id, r.account_id, r.amount_minor, r.currency, r.merchant_reference, r.occurred_at,
    r.message_id, r.attempts, r.lease_epoch;

-- name: RecordOutcome :execrows
-- Only by whoever acquired the receipt last. A sender that is late still knows what happened, so it may end the doubt that was
-- recorded in its absence, as long as nobody has decided otherwise.
UPDATE receipts SET status = @status, last_error = nullif(@last_error::text, ''), locked_until = NULL,
    sent_at = CASE WHEN @status = 'SENT' THEN now() END,
    next_attempt_at = CASE WHEN @status = 'PENDING' THEN now() + @next_attempt_in::interval END,
    updated_at = now()
WHERE tenant_id = @tenant_id AND receipt_id = @receipt_id AND lease_epoch = @lease_epoch AND status IN ('SENDING', 'UNKNOWN');

-- name: ReleaseUnbegun :execrows
-- What was acquired under a name whose owner was never told: the mail was provably not begun, also when others doubt it by now.
-- Locks the rows it changes.
UPDATE receipts SET status = 'PENDING', next_attempt_at = now(), attempts = attempts - 1, locked_until = NULL, updated_at = now()
WHERE status IN ('SENDING', 'UNKNOWN') AND sender_id = @sender_id::text;

-- name: DoubtAbandoned :execrows
-- A sender whose lease is over may have sent the mail or not. Locks the rows it changes and skips those that are held.
WITH abandoned AS MATERIALIZED (
    SELECT tenant_id, receipt_id FROM receipts
    WHERE status = 'SENDING' AND locked_until < now()
    ORDER BY locked_until LIMIT @rows_max
    FOR UPDATE SKIP LOCKED
)
UPDATE receipts r SET status = 'UNKNOWN', last_error = 'sender_gone', locked_until = NULL, updated_at = now()
FROM abandoned WHERE r.tenant_id = abandoned.tenant_id AND r.receipt_id = abandoned.receipt_id;

-- name: DecideReceipt :execrows
-- An operator's decision about a receipt that nobody sends at the moment. Locks its row.
UPDATE receipts SET status = @status, next_attempt_at = CASE WHEN @status = 'PENDING' THEN now() END,
    sent_at = CASE WHEN @status = 'SENT' THEN now() END, last_error = @last_error, updated_at = now()
WHERE tenant_id = @tenant_id AND receipt_id = @receipt_id AND status = ANY (@from_statuses::text[]);

-- name: GetReceipt :one
-- Locks nothing.
SELECT sqlc.embed(r) FROM receipts r WHERE tenant_id = @tenant_id AND receipt_id = @receipt_id;

-- name: ListReceipts :many
-- Locks nothing. One page in key order.
SELECT sqlc.embed(r) FROM receipts r
WHERE status = @status AND (tenant_id, receipt_id) > (@after_tenant_id::text, @after_receipt_id::text)
ORDER BY tenant_id, receipt_id LIMIT @rows_max;

-- name: CountOpen :one
-- Locks nothing; served by the partial indexes. Receipts that were sent are not counted: they only grow.
SELECT (SELECT count(*) FROM receipts WHERE status = 'PENDING') AS pending,
       (SELECT count(*) FROM receipts WHERE status = 'SENDING') AS sending,
       (SELECT count(*) FROM receipts WHERE status = 'UNKNOWN') AS unknown,
       (SELECT count(*) FROM receipts WHERE status = 'FAILED')  AS failed,
       coalesce((SELECT extract(epoch FROM now() - min(created_at)) FROM receipts WHERE status = 'PENDING'), 0)::float8 AS oldest_pending_seconds;
