package inbox

import (
	"context"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

var (
	meter = otel.Meter("github.com/paymentsd/paymentsd/internal/inbox")

	handled = counter("inbox.message.count", "messages acknowledged, by consumer and what became of them")
	buried  = counter("inbox.dead_letter.count", "messages that became dead letters, by consumer and reason")
	outages = counter("inbox.outage.count", "times that a consumer had to wait for the broker or the database")
)

func counter(name, what string) metric.Int64Counter {
	c, err := meter.Int64Counter(name, metric.WithDescription(what))
	if err != nil {
		panic(err) // a malformed name: found by the first test that runs
	}
	return c
}

func count(ctx context.Context, c metric.Int64Counter, n int, consumer string, more ...attribute.KeyValue) {
	if n > 0 {
		c.Add(ctx, int64(n), metric.WithAttributes(append(more, attribute.String("consumer", consumer))...))
	}
}

// Results of messages, for the metric.
const (
	resultApplied   = "applied"
	resultDuplicate = "duplicate" // its effect was there already
	resultSkipped   = "skipped"   // it does not concern the consumer
	resultDead      = "dead"      // it is a dead letter, now or before
)

func countHandled(ctx context.Context, n int, consumer, result, reason string) {
	count(ctx, handled, n, consumer, attribute.String("result", result), attribute.String("reason", reason))
}

func countBuried(ctx context.Context, consumer, reason string) {
	count(ctx, buried, 1, consumer, attribute.String("reason", reason))
}
