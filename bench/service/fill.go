package main

import (
	"context"
	"fmt"
	"time"
)

// fillChunk keeps a transaction of filling at about a second.
const fillChunk = 50_000

// The rows of one finished payment, as the service leaves them: key, payment, history and both events, published. Keys are
// spread evenly over the space that random keys come from, in order: what is inserted later falls between them everywhere, as it
// would if they had come at random, and filling does not take a day. Every statement takes the same parameters: the first and
// the last payment, and the distance of keys.
var fillStatements = []string{
	`INSERT INTO idempotency_requests (tenant_id, operation_name, idempotency_key, request_hash, status, resource_type, resource_id,
		response_schema_version, response_status, response_content_type, response_headers, response_body, created_at, updated_at, expires_at, cleanup_at)
	SELECT 'bench_0', 'create_payment', lpad(to_hex(n * $3), 8, '0') || '-0000-4000-8000-' || lpad(to_hex(n), 12, '0'),
		'v2:' || encode(sha256(int8send(n)), 'hex'), 'COMPLETED', 'payment', 'pay_0' || lpad(to_hex(n), 31, '0'),
		'2026-05-01', 201, 'application/json', jsonb_build_object('Location', '/payments/pay_0' || lpad(to_hex(n), 31, '0')),
		convert_to(format('{"paymentId":"pay_0%s","status":"SETTLED","accountId":"acc_%s","amount":"10.00","currency":"EUR","merchantReference":"old-%s","channel":"web"}' || E'\n',
			lpad(to_hex(n), 31, '0'), n % 100, n), 'UTF8'),
		now() - interval '1 h', now() - interval '1 h', now() + interval '23 h', now() + interval '23 h'
	FROM generate_series($1::bigint, $2::bigint) n`,

	`INSERT INTO payments (tenant_id, payment_id, operation_name, idempotency_key, kind, account_id, merchant_reference, amount_minor, currency,
		channel, state, holds_reference, version, events, provider_request, provider_sends, first_sent_at, last_sent_at, provider_charge_id,
		last_reason, created_at, updated_at)
	SELECT 'bench_0', 'pay_0' || lpad(to_hex(n), 31, '0'), 'create_payment',
		lpad(to_hex(n * $3), 8, '0') || '-0000-4000-8000-' || lpad(to_hex(n), 12, '0'), 'PAYMENT', 'acc_' || n % 100, 'old-' || n, 1000, 'EUR',
		'web', 'COMPLETED', true, 4, 2,
		convert_to(format('{"account":"acc_%s","amountMinor":1000,"currency":"EUR","paymentId":"pay_0%s","reference":"old-%s"}', n % 100, lpad(to_hex(n), 31, '0'), n), 'UTF8'),
		1, now() - interval '1 h', now() - interval '1 h', 'ch_' || n, 'settled', now() - interval '1 h', now() - interval '1 h'
	FROM generate_series($1::bigint, $2::bigint) n WHERE $3::bigint > 0`,

	`INSERT INTO payment_moves (tenant_id, payment_id, version, from_state, via_state, to_state, reason, lease_epoch, moved_at)
	SELECT 'bench_0', 'pay_0' || lpad(to_hex(n), 31, '0'), step.version, step.from_state, step.via_state, step.to_state, step.reason, 1, now() - interval '1 h'
	FROM generate_series($1::bigint, $2::bigint) n, (VALUES (2, 'LOCAL_PAYMENT_CREATED', NULL, 'PROVIDER_REQUEST_SENT', 'first_send'),
		(4, 'PROVIDER_REQUEST_SENT', 'PROVIDER_CONFIRMED', 'COMPLETED', 'settled')) step (version, from_state, via_state, to_state, reason) WHERE $3::bigint > 0`,

	`INSERT INTO outbox_events (tenant_id, event_id, aggregate_id, sequence, event_type, payload, created_at, published_at)
	SELECT 'bench_0', 'evt_0' || lpad(to_hex(n), 31, '0') || '_' || e.sequence, 'pay_0' || lpad(to_hex(n), 31, '0'), e.sequence, e.event_type,
		format('{"paymentId":"pay_0%s","accountId":"acc_%s","amount":"10.00","currency":"EUR","merchantReference":"old-%s","status":"%s"}',
			lpad(to_hex(n), 31, '0'), n % 100, n, e.event_type)::json, now() - interval '1 h', now() - interval '1 h'
	FROM generate_series($1::bigint, $2::bigint) n, (VALUES (1, 'PaymentCreated'), (2, 'PaymentSettled')) e (sequence, event_type) WHERE $3::bigint > 0`,
}

// Pages get as full of finished rows as the service leaves them: it puts new rows on a page up to the fill factor, and they grow
// there until they are finished. A payment hardly grows.
const (
	fillAsFinished = "ALTER TABLE idempotency_requests SET (fillfactor = 50)"
	fillAsBefore   = "ALTER TABLE idempotency_requests SET (fillfactor = 35)" // what the schema says
)

// keySpace is how many keys differ in their first eight digits.
const keySpace = 1 << 32

// fill makes rows that a busy service leaves behind in a day: n finished payments of the first tenant.
func (b *bench) fill(ctx context.Context, db *database, n int) error {
	began := time.Now()
	if err := db.execAll(ctx, fillAsFinished); err != nil {
		return err
	}
	for from := 1; from <= n; from += fillChunk {
		to := min(from+fillChunk-1, n)
		for _, sql := range fillStatements {
			if _, err := db.pool.Exec(ctx, sql, int64(from), int64(to), int64(keySpace/(n+1))); err != nil {
				return fmt.Errorf("fill tables: %w", err)
			}
		}
		if done := to / fillChunk; done%10 == 0 || to == n {
			b.say("filling: %d of %d payments, %.0f/s", to, n, float64(to)/time.Since(began).Seconds())
		}
	}
	b.say("filling: VACUUM ANALYZE and CHECKPOINT")
	if err := db.execAll(ctx, fillAsBefore, "VACUUM ANALYZE", "CHECKPOINT"); err != nil {
		return err
	}
	var size string
	if err := db.pool.QueryRow(ctx, "SELECT pg_size_pretty(pg_database_size(current_database()))").Scan(&size); err != nil {
		return fmt.Errorf("fill tables: %w", err)
	}
	b.say("filled: %s", size)
	b.settled[db.name] += n
	b.uncharged += n
	return nil
}

func (d *database) execAll(ctx context.Context, statements ...string) error {
	for _, sql := range statements {
		if _, err := d.pool.Exec(ctx, sql); err != nil {
			return fmt.Errorf("fill tables: %w", err)
		}
	}
	return nil
}
