// Package inbox promises that a message takes effect once for each consumer, however often it comes, and that no message
// stops the others.
//
// What makes it once is one row, written in the transaction of the effect (Once). Consumer is the life around that: it takes
// messages from a broker in batches, hands those that are new to its owner's Apply together with a transaction, and
// acknowledges after the commit. A message that fails while others succeed becomes a dead letter (letters.go), to be handled
// again when its cause is repaired (redrive.go); what fails because of an outage is tried again for as long as that takes.
//
// An inbox is shorter than a redelivery can be: its rows are forgotten after a while. So an effect also needs a business key
// of its own that decides; the inbox saves the work.
//
// This package does not know what a message says.
package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/paymentsd/paymentsd/internal/inbox/internal/inboxsql"
)

// Key names a message. Its id is unique within the tenant.
type Key struct{ TenantID, MessageID string }

// Once records that the consumer handles these messages, with whatever tx commits, and says of each whether it is new. Of a
// message that is asked for twice the first is. When somebody else handles one of them at this moment, it waits for the
// outcome: who commits has it, and who rolls back leaves it.
func Once(ctx context.Context, tx pgx.Tx, consumer string, messages []Key) (isNew []bool, err error) {
	params := inboxsql.InsertMessagesParams{ConsumerName: consumer}
	for _, m := range messages {
		params.TenantIds = append(params.TenantIds, m.TenantID)
		params.MessageIds = append(params.MessageIds, m.MessageID)
	}
	rows, err := inboxsql.New().InsertMessages(ctx, tx, params)
	if err != nil {
		return nil, fmt.Errorf("record messages: %w", err)
	}
	inserted := map[Key]bool{}
	for _, row := range rows {
		inserted[Key(row)] = true
	}
	isNew = make([]bool, len(messages))
	for i, m := range messages {
		isNew[i] = inserted[m]
		delete(inserted, m)
	}
	return isNew, nil
}

// Forget deletes the record of messages that were handled at least keepFor ago, in batches of at most batchMax rows, each in
// a short transaction of its own, and rests in between. Any number of instances may do it at once.
func Forget(ctx context.Context, db inboxsql.DBTX, keepFor time.Duration, batchMax int, rest func(context.Context)) (forgotten int64, err error) {
	after := time.Time{}
	for {
		batch, err := inboxsql.New().DeleteHandled(ctx, db, inboxsql.DeleteHandledParams{After: after, KeepFor: keepFor, RowsMax: int32(batchMax)})
		if err != nil {
			return forgotten, fmt.Errorf("forget handled messages: %w", err)
		}
		forgotten += batch.Deleted
		if batch.Deleted < int64(batchMax) {
			return forgotten, nil
		}
		after = batch.Until
		if rest(ctx); ctx.Err() != nil {
			return forgotten, nil // what is left is forgotten the next time
		}
	}
}
