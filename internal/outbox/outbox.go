// Package outbox promises that an event is recorded together with what it announces or not at all, and that everything
// recorded is published: at least once, and in order for each aggregate.
//
// An event row is appended by the transaction that decides it: with Append, or, where everything has to be one statement, by
// the statements that open and move payments, which end in an INSERT of the same row. A Relay publishes the rows (relay.go
// says what can go wrong), a Bell wakes it, events that the broker does not take are set aside until somebody re-drives them,
// and those that were published long ago are deleted.
package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/propagation"

	"github.com/paymentsd/paymentsd/internal/outbox/internal/outboxsql"
)

// Event is one row of the outbox. The relay sends Payload as it is, under the same ID however often it has to.
type Event struct {
	ID          string
	AggregateID string // what the event is about; events of one aggregate keep their order
	Sequence    int    // 1, 2, 3 … within the aggregate
	Type        string
	Payload     []byte
}

// Recorded is an event as its row has it.
type Recorded struct {
	Event
	TenantID    string
	TraceParent string // W3C Trace Context of the request that caused it; "" when there was none
}

// Publisher sends events to a broker.
type Publisher interface {
	// Publish sends a wave of events, no two of one aggregate, and returns one error for each: nil when the broker has
	// acknowledged that it stored the event, one that wraps ErrRefused when the broker can be reached and will never take
	// this event, and any other when nobody can say, as in an outage. Sending an event again is harmless: it has the same id
	// and the same bytes.
	Publish(ctx context.Context, wave []Recorded) []error
}

// ErrRefused: the broker can be reached and will never take this event, because it is too large for it, for example.
var ErrRefused = errors.New("the broker refuses this event")

// Append records an event with whatever tx commits, or not at all.
func Append(ctx context.Context, tx pgx.Tx, tenantID string, e Event) error {
	err := outboxsql.New().InsertEvent(ctx, tx, outboxsql.InsertEventParams{
		TenantID: tenantID, EventID: e.ID, AggregateID: e.AggregateID, Sequence: int32(e.Sequence), EventType: e.Type, Payload: e.Payload,
		TraceParent: TraceParent(ctx)})
	if err != nil {
		return fmt.Errorf("append event: %w", err)
	}
	return nil
}

// TraceParent is the W3C Trace Context that ctx carries, as the row of an event that it causes has it; "" when there is none.
func TraceParent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier.Get("traceparent")
}

// DeletePublished deletes events that were published at least keepFor ago, in batches of at most batchMax rows, each in a
// short transaction of its own, and rests in between. What is not published is never deleted. Any number of instances may do
// it at once.
func DeletePublished(ctx context.Context, db outboxsql.DBTX, keepFor time.Duration, batchMax int, rest func(context.Context)) (deleted int64, err error) {
	after := time.Time{}
	for {
		batch, err := outboxsql.New().DeletePublished(ctx, db, outboxsql.DeletePublishedParams{After: after, KeepFor: keepFor, RowsMax: int32(batchMax)})
		if err != nil {
			return deleted, fmt.Errorf("delete published events: %w", err)
		}
		deleted += batch.Deleted
		if batch.Deleted < int64(batchMax) {
			return deleted, nil
		}
		after = batch.Until
		if rest(ctx); ctx.Err() != nil {
			return deleted, nil // what is left is deleted the next time
		}
	}
}

// Backlog is what is not published yet.
type Backlog struct {
	Events  int64
	Oldest  time.Duration
	Refused int64 // those of them that were set aside, until somebody re-drives them
}

// Unpublished measures the backlog.
func Unpublished(ctx context.Context, db outboxsql.DBTX) (Backlog, error) {
	row, err := outboxsql.New().MeasureBacklog(ctx, db)
	if err != nil {
		return Backlog{}, fmt.Errorf("measure outbox backlog: %w", err)
	}
	return Backlog{row.Events, time.Duration(row.OldestSeconds * float64(time.Second)), row.Refused}, nil
}
