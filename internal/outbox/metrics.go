package outbox

import (
	"context"
	"slices"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
)

var (
	meter = otel.Meter("github.com/paymentsd/paymentsd/internal/outbox")

	published = counter("outbox.published.count", "events that the broker acknowledged")
	refusals  = counter("outbox.refused.count", "events that were set aside because the broker does not take them")
	heldBack  = counter("outbox.held_back.count", "events that failed while others were taken, and are tried again later")
	outages   = counter("outbox.outage.count", "waves of which the broker acknowledged nothing")
	fenced    = counter("outbox.mark.fenced.count", "marks that were refused because their relay had been overtaken")
	waveSizes = histogram("outbox.wave.size", "events sent together")
)

func counter(name, what string) metric.Int64Counter {
	c, err := meter.Int64Counter(name, metric.WithDescription(what))
	if err != nil {
		panic(err) // a malformed name: found by the first test that runs
	}
	return c
}

func histogram(name, what string) metric.Int64Histogram {
	h, err := meter.Int64Histogram(name, metric.WithDescription(what), metric.WithExplicitBucketBoundaries(1, 3, 10, 30, 100, 300, 1000))
	if err != nil {
		panic(err) // a malformed name: found by the first test that runs
	}
	return h
}

func count(ctx context.Context, size int, errs []error, outage error) {
	waveSizes.Record(ctx, int64(size))
	acked := 0
	for _, err := range errs {
		if err == nil {
			acked++
		}
	}
	published.Add(ctx, int64(acked))
	if outage != nil {
		outages.Add(ctx, 1)
	}
}

// noteHeldBack counts and logs what was set aside, and counts what will be tried again.
func (r *Relay) noteHeldBack(ctx context.Context, failed []due) {
	for _, e := range failed {
		if e.refusal == "" {
			heldBack.Add(ctx, 1)
			continue
		}
		refusals.Add(ctx, 1)
		r.cfg.Log.ErrorContext(ctx, "event is set aside", "event", e.ID, "aggregate", e.AggregateID, "type", e.Type, "refusal", e.refusal)
	}
}

// noteFenced counts and logs what could not be written because another relay has taken the shard over.
func (r *Relay) noteFenced(ctx context.Context, events []due, held []int16) {
	lost := 0
	for _, e := range events {
		if !slices.Contains(held, e.shard) {
			lost++
		}
	}
	if lost > 0 {
		fenced.Add(ctx, int64(lost))
		r.cfg.Log.WarnContext(ctx, "relay was overtaken; another publishes these events", "events", lost, "relay", r.leases.relayID)
	}
}
