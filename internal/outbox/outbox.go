// Package outbox promises that an event is recorded together with what it announces or not at all, and that everything
// recorded is published.
//
// An event row is appended by the transaction that decides it: the statements that open and move payments end in an INSERT
// into outbox_events, because they must be one statement with the rows the event is about. This package says what such a
// row holds, and watches over those that nobody has published yet.
package outbox

import (
	"context"
	"fmt"
	"time"

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
