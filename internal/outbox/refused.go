package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/paymentsd/paymentsd/internal/outbox/internal/outboxsql"
)

// Refused is an event that was set aside. It is not sent again until somebody re-drives it, and neither are the later events
// of its aggregate.
type Refused struct {
	TenantID    string
	EventID     string
	AggregateID string
	Sequence    int
	Type        string
	Refusal     string // why; never anything of the payload
	Attempts    int
	Waiting     int // later events of the aggregate
	CreatedAt   time.Time
	RefusedAt   time.Time
}

// ErrNotRefused: there is no such event among those that were set aside.
var ErrNotRefused = errors.New("no such event is set aside")

// ListRefused lists the events that were set aside, the longest first.
func ListRefused(ctx context.Context, db outboxsql.DBTX, rowsMax int) ([]Refused, error) {
	rows, err := outboxsql.New().RefusedEvents(ctx, db, int32(rowsMax))
	if err != nil {
		return nil, fmt.Errorf("list refused events: %w", err)
	}
	list := make([]Refused, len(rows))
	for i, r := range rows {
		list[i] = Refused{TenantID: r.TenantID, EventID: r.EventID, AggregateID: r.AggregateID, Sequence: int(r.Sequence), Type: r.EventType,
			Refusal: r.Refusal, Attempts: int(r.Attempts), Waiting: int(r.Waiting), CreatedAt: r.CreatedAt, RefusedAt: r.RefusedAt}
	}
	return list, nil
}

// Redrive takes a refusal back: the event is sent again, and then those that waited for it. It returns ErrNotRefused when the
// event is not set aside.
func Redrive(ctx context.Context, db outboxsql.DBTX, tenantID, eventID string) error {
	if eventID == "" {
		return ErrNotRefused
	}
	redriven, err := outboxsql.New().RedriveEvents(ctx, db, outboxsql.RedriveEventsParams{TenantID: tenantID, EventID: eventID})
	if err != nil {
		return fmt.Errorf("re-drive event: %w", err)
	}
	if redriven == 0 {
		return ErrNotRefused
	}
	return nil
}

// RedriveAll takes every refusal back and returns how many there were.
func RedriveAll(ctx context.Context, db outboxsql.DBTX) (int64, error) {
	redriven, err := outboxsql.New().RedriveEvents(ctx, db, outboxsql.RedriveEventsParams{})
	if err != nil {
		return 0, fmt.Errorf("re-drive events: %w", err)
	}
	return redriven, nil
}
