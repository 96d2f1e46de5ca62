package payments

import (
	"context"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/provider"
)

var (
	meter = otel.Meter("github.com/paymentsd/paymentsd/internal/payments")

	replays        = counter("idempotency.replay.count", "keys answered with their stored answer")
	conflicts      = counter("idempotency.conflict.different_request.count", "keys refused because they belong to a different command")
	expiredRetries = counter("idempotency.expired_retry.count", "retries that came after their key expired")
	lostLeases     = counter("idempotency.lease.lost.count", "writes refused because their owner had been overtaken")
	recoveries     = counter("payments.recovery.attempt.count", "payments acquired by the recovery worker")
	outcomes       = counter("payments.provider.outcome.count", "what the provider told us, by call and outcome")
)

func counter(name, what string) metric.Int64Counter {
	c, err := meter.Int64Counter(name, metric.WithDescription(what))
	if err != nil {
		panic(err) // a malformed name: found by the first test that runs
	}
	return c
}

func count(ctx context.Context, v idempotency.Verdict) {
	switch v {
	case idempotency.Replay:
		replays.Add(ctx, 1)
	case idempotency.Mismatch:
		conflicts.Add(ctx, 1)
	case idempotency.Lapsed:
		expiredRetries.Add(ctx, 1)
	}
}

func countLostLease(ctx context.Context) { lostLeases.Add(ctx, 1) }
func countRecovery(ctx context.Context)  { recoveries.Add(ctx, 1) }

func countOutcome(ctx context.Context, call string, r provider.Result) {
	outcomes.Add(ctx, 1, metric.WithAttributes(attribute.String("call", call), attribute.String("outcome", r.Outcome.String())))
}
