// Package outbox promises that an event is recorded together with what it announces or not at all, and that everything
// recorded is published.
//
// An event row is appended by the transaction that decides it: with Append, or, where everything has to be one statement, by
// the statements that open and move payments, which end in an INSERT of the same row. This package says what such a row
// holds, watches over those that nobody has published yet, and deletes those that were published long ago.
package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

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

// Append records an event with whatever tx commits, or not at all.
func Append(ctx context.Context, tx pgx.Tx, tenantID string, e Event) error {
	err := outboxsql.New().InsertEvent(ctx, tx, outboxsql.InsertEventParams{
		TenantID: tenantID, EventID: e.ID, AggregateID: e.AggregateID, Sequence: int32(e.Sequence), EventType: e.Type, Payload: e.Payload})
	if err != nil {
		return fmt.Errorf("append event: %w", err)
	}
	return nil
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

// Backlog is what waits to be published.
type Backlog struct {
	Events int64
	Oldest time.Duration
}

// Unpublished measures the backlog.
func Unpublished(ctx context.Context, db outboxsql.DBTX) (Backlog, error) {
	row, err := outboxsql.New().OldestUnpublished(ctx, db)
	if err != nil {
		return Backlog{}, fmt.Errorf("measure outbox backlog: %w", err)
	}
	return Backlog{row.Events, time.Duration(row.OldestSeconds * float64(time.Second))}, nil
}
