package payments

import (
	"context"
	"time"

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
	callbacksTaken = counter("payments.callback.count", "what the provider told us unasked, by what became of it")
	setSizes       = histogram("payments.set.size", "1", "payments that shared a transaction", 1, 2, 4, 8, 16, 32, 64, 128)
	setWaits       = histogram("payments.set.wait", "s", "how long the first of a set waited for it to go", .0001, .0005, .001, .002, .005, .01, .02, .05, .1, .5)
	outcomes       = counter("payments.provider.outcome.count", "what the provider told us, by call and outcome")
)

func counter(name, what string) metric.Int64Counter {
	c, err := meter.Int64Counter(name, metric.WithDescription(what))
	if err != nil {
		panic(err) // a malformed name: found by the first test that runs
	}
	return c
}

func histogram(name, unit, what string, bounds ...float64) metric.Float64Histogram {
	h, err := meter.Float64Histogram(name, metric.WithUnit(unit), metric.WithDescription(what), metric.WithExplicitBucketBoundaries(bounds...))
	if err != nil {
		panic(err) // see counter
	}
	return h
}

// observeSet measures the sets of one kind of transaction.
func observeSet(kind string) func(context.Context, int, time.Duration) {
	which := metric.WithAttributeSet(attribute.NewSet(attribute.String("kind", kind)))
	return func(ctx context.Context, size int, waited time.Duration) {
		setSizes.Record(ctx, float64(size), which)
		setWaits.Record(ctx, waited.Seconds(), which)
	}
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

func countCallback(ctx context.Context, became string) {
	callbacksTaken.Add(ctx, 1, metric.WithAttributes(attribute.String("verdict", became)))
}

func countOutcome(ctx context.Context, call string, r provider.Result) {
	outcomes.Add(ctx, 1, metric.WithAttributes(attribute.String("call", call), attribute.String("outcome", r.Outcome.String())))
}
