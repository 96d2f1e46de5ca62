-- One replay: the stored answer, by primary key.
\set n random(1, 100000)
SELECT request_hash, status, response_status, response_body FROM idempotency_requests
WHERE tenant_id = ('tenant_' || :n % 20) AND operation_name = 'create_payment' AND idempotency_key = ('replay-' || :n);
