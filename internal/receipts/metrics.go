package receipts

import (
	"context"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

var (
	meter    = otel.Meter("github.com/paymentsd/paymentsd/internal/receipts")
	attempts = counter("receipts.send.count", "attempts to send a receipt, by outcome and reason")
)

func counter(name, what string) metric.Int64Counter {
	c, err := meter.Int64Counter(name, metric.WithDescription(what))
	if err != nil {
		panic(err) // a malformed name: found by the first test that runs
	}
	return c
}

func countResult(ctx context.Context, n int, r Result) {
	attempts.Add(ctx, int64(n), metric.WithAttributes(attribute.String("outcome", r.Outcome.String()), attribute.String("reason", r.Reason)))
}
