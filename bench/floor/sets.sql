-- Fifty payments: the two transactions of single.sql, each for all of them. Run with -D base=<a number new at every run>.
\set n :n + 100
\set id :base * 1000000000 + :n * 10000 + :client_id * 100
\set key random(1, 8000000000000000000)
\set tenant random(0, 19)
\set account random(1, 10000)
WITH claimed AS (
    INSERT INTO idempotency_requests (tenant_id, operation_name, idempotency_key, request_hash, status, expires_at, locked_until)
    SELECT ('tenant_' || :tenant), 'create_payment', ('019ae000-5c1e-4' || (:key::bigint + g)),
        '9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08', 'IN_PROGRESS',
        now() + interval '24 hours', now() + interval '30 seconds'
    FROM generate_series(1, 50) g
    ON CONFLICT DO NOTHING
    RETURNING 1
), opened AS (
    INSERT INTO payments (payment_id, tenant_id, account_id, merchant_reference, amount_minor, currency, channel, status)
    SELECT ('pay_019ae0005c1e7000' || (:id::bigint + g)), ('tenant_' || :tenant), ('acc_' || :account), ('invoice-' || (:id::bigint + g)),
        1000, 'EUR', 'web', 'CREATED'
    FROM generate_series(1, 50) g
    RETURNING payment_id
)
INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload)
SELECT 'payment', ('pay_019ae0005c1e7000' || (:id::bigint + g)), 'payment.created',
    ('{"paymentId":"pay_019ae0005c1e7000' || (:id::bigint + g) || '","accountId":"acc_' || :account || '","amount":"10.00","currency":"EUR","merchantReference":"invoice-' || (:id::bigint + g) || '","status":"CREATED"}')::jsonb
FROM generate_series(1, 50) g;
WITH moved AS (
    UPDATE payments SET status = 'PROVIDER_CONFIRMED', provider_reference = ('prv_' || g), version = version + 1, updated_at = now()
    FROM generate_series(1, 50) g
    WHERE payment_id = ('pay_019ae0005c1e7000' || (:id::bigint + g)) AND status = 'CREATED'
    RETURNING payment_id
), kept AS (
    UPDATE idempotency_requests SET status = 'COMPLETED', response_status = 201,
        response_body = ('{"paymentId":"pay_019ae0005c1e7000' || (:id::bigint + g) || '","accountId":"acc_' || :account || '","amount":"10.00","currency":"EUR","merchantReference":"invoice-' || (:id::bigint + g) || '","status":"PROVIDER_CONFIRMED","providerReference":"prv_' || (:id::bigint + g) || '"}')::jsonb,
        resource_type = 'payment', resource_id = ('pay_019ae0005c1e7000' || (:id::bigint + g)), updated_at = now(), locked_until = NULL
    FROM generate_series(1, 50) g
    WHERE tenant_id = ('tenant_' || :tenant) AND operation_name = 'create_payment'
        AND idempotency_key = ('019ae000-5c1e-4' || (:key::bigint + g)) AND owner_token = 1
    RETURNING 1
)
INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload)
SELECT 'payment', ('pay_019ae0005c1e7000' || (:id::bigint + g)), 'payment.confirmed',
    ('{"paymentId":"pay_019ae0005c1e7000' || (:id::bigint + g) || '","accountId":"acc_' || :account || '","amount":"10.00","currency":"EUR","merchantReference":"invoice-' || (:id::bigint + g) || '","status":"PROVIDER_CONFIRMED","providerReference":"prv_' || (:id::bigint + g) || '"}')::jsonb
FROM generate_series(1, 50) g;
