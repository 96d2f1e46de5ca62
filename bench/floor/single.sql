-- One payment: two transactions of one statement each. Run with -D base=<a number new at every run>.
\set n :n + 1
\set id :base * 1000000000 + :n * 1000 + :client_id
\set key random(1, 9000000000000000000)
\set tenant random(0, 19)
\set account random(1, 10000)
WITH claimed AS (
    INSERT INTO idempotency_requests (tenant_id, operation_name, idempotency_key, request_hash, status, expires_at, locked_until)
    VALUES (('tenant_' || :tenant), 'create_payment', ('019ae000-5c1e-4' || :key),
        '9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08', 'IN_PROGRESS',
        now() + interval '24 hours', now() + interval '30 seconds')
    ON CONFLICT DO NOTHING
    RETURNING 1
), opened AS (
    INSERT INTO payments (payment_id, tenant_id, account_id, merchant_reference, amount_minor, currency, channel, status)
    SELECT ('pay_019ae0005c1e7000' || :id), ('tenant_' || :tenant), ('acc_' || :account), ('invoice-' || :id), 1000, 'EUR', 'web', 'CREATED'
    FROM claimed
    RETURNING payment_id
)
INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload)
SELECT 'payment', payment_id, 'payment.created',
    ('{"paymentId":"pay_019ae0005c1e7000' || :id || '","accountId":"acc_' || :account || '","amount":"10.00","currency":"EUR","merchantReference":"invoice-' || :id || '","status":"CREATED"}')::jsonb
FROM opened
RETURNING event_id;
WITH moved AS (
    UPDATE payments SET status = 'PROVIDER_CONFIRMED', provider_reference = ('prv_' || :id), version = version + 1, updated_at = now()
    WHERE payment_id = ('pay_019ae0005c1e7000' || :id) AND status = 'CREATED'
    RETURNING payment_id
), kept AS (
    UPDATE idempotency_requests SET status = 'COMPLETED', response_status = 201,
        response_body = ('{"paymentId":"pay_019ae0005c1e7000' || :id || '","accountId":"acc_' || :account || '","amount":"10.00","currency":"EUR","merchantReference":"invoice-' || :id || '","status":"PROVIDER_CONFIRMED","providerReference":"prv_' || :id || '"}')::jsonb,
        resource_type = 'payment', resource_id = ('pay_019ae0005c1e7000' || :id), updated_at = now(), locked_until = NULL
    WHERE tenant_id = ('tenant_' || :tenant) AND operation_name = 'create_payment' AND idempotency_key = ('019ae000-5c1e-4' || :key)
        AND owner_token = 1
    RETURNING 1
)
INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload)
SELECT 'payment', moved.payment_id, 'payment.confirmed',
    ('{"paymentId":"pay_019ae0005c1e7000' || :id || '","accountId":"acc_' || :account || '","amount":"10.00","currency":"EUR","merchantReference":"invoice-' || :id || '","status":"PROVIDER_CONFIRMED","providerReference":"prv_' || :id || '"}')::jsonb
FROM moved, kept
RETURNING event_id;
