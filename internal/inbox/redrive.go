package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/paymentsd/paymentsd/internal/inbox/internal/inboxsql"
)

// A dead letter is handled again by taking it out of its table and treating its message like any that arrives: through the same
// Read, the same inbox and the same Apply, all in one transaction. So it has at most one effect, however often and by however
// many it is handled again, and whatever the broker sends meanwhile. What fails again stays where it is, with one attempt more.

// lettersMax is how many letters of one aggregate are looked at together; an aggregate has far fewer.
const lettersMax = 100

// Redrive handles a dead letter again, and with it all that wait of the same aggregate, in their order, until one fails. It says
// how many of them are gone. It returns ErrNoLetter, ErrDiscarded, ErrNotKept, or why the message failed again.
func (c *Consumer[E]) Redrive(ctx context.Context, message Key) (gone int, err error) {
	found, err := c.sql.FindDeadLetter(ctx, c.DB, inboxsql.FindDeadLetterParams{TenantID: message.TenantID, ConsumerName: c.Name, MessageID: message.MessageID})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, ErrNoLetter
	case err != nil:
		return 0, fmt.Errorf("find dead letter: %w", err)
	case found.DiscardedAt != nil:
		return 0, ErrDiscarded
	case found.AggregateID == "":
		return c.reopenAll(ctx, message.TenantID, []string{message.MessageID})
	}
	for {
		ids, err := c.sql.ListAggregateLetters(ctx, c.DB, inboxsql.ListAggregateLettersParams{
			TenantID: message.TenantID, ConsumerName: c.Name, AggregateID: found.AggregateID, RowsMax: lettersMax})
		if err != nil {
			return gone, fmt.Errorf("list dead letters: %w", err)
		}
		if len(ids) == 0 {
			return gone, nil
		}
		n, err := c.reopenAll(ctx, message.TenantID, ids)
		if gone += n; err != nil {
			return gone, err
		}
	}
}

// reopenAll handles letters again, one after the other. One that somebody else has handled meanwhile is no failure.
func (c *Consumer[E]) reopenAll(ctx context.Context, tenantID string, messageIDs []string) (gone int, err error) {
	for _, id := range messageIDs {
		switch err := c.reopen(ctx, Key{tenantID, id}); {
		case err == nil:
			gone++
		case !errors.Is(err, ErrNoLetter):
			return gone, err
		}
	}
	return gone, nil
}

// reopen handles one letter again.
func (c *Consumer[E]) reopen(ctx context.Context, key Key) error {
	var did became
	err := c.transaction(ctx, func(ctx context.Context, tx pgx.Tx) error {
		row, err := c.sql.OpenDeadLetter(ctx, tx, inboxsql.OpenDeadLetterParams{TenantID: key.TenantID, ConsumerName: c.Name, MessageID: key.MessageID})
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return ErrNoLetter
		case err != nil:
			return fmt.Errorf("open dead letter: %w", err)
		case row.Payload == nil:
			return ErrNotKept
		}
		r, err := c.read(Message{ID: key.MessageID, Reference: row.Reference, Body: row.Payload})
		if err != nil || r.Skip != "" {
			return err
		}
		if did, err = c.settle(ctx, tx, []Received[E]{r}); err == nil && len(did.stopped) > 0 {
			return ErrStillBehind
		}
		return err
	})
	switch {
	case err == nil:
		c.report(ctx, did)
		c.Log.InfoContext(ctx, "dead letter handled", "consumer", c.Name, "tenant", key.TenantID, "message", key.MessageID, "applied", did.applied)
		return nil
	case isOutage(err), errors.Is(err, ErrNoLetter), errors.Is(err, ErrNotKept), errors.Is(err, ErrStillBehind):
		return err
	}
	reason, text := describe(err)
	if err := c.recordFailure(ctx, key, reason, text); err != nil {
		return err
	}
	return &Refusal{reason, text}
}

func (c *Consumer[E]) recordFailure(ctx context.Context, key Key, reason, text string) error {
	err := c.sql.RecordFailure(ctx, c.DB, inboxsql.RecordFailureParams{
		TenantID: key.TenantID, ConsumerName: c.Name, MessageID: key.MessageID, Reason: reason, Error: text})
	if err != nil {
		return fmt.Errorf("record failure of dead letter: %w", err)
	}
	return nil
}

// RedriveAll handles every waiting dead letter of the consumer again. Of an aggregate it stops at the first that fails. It says how
// many are gone and how many failed, and returns an error only when an outage ended it.
func (c *Consumer[E]) RedriveAll(ctx context.Context) (gone, failed int, err error) {
	type aggregate struct{ tenantID, id string }
	seen := map[aggregate]bool{}
	page := Query{Consumer: c.Name, Max: lettersMax}
	for {
		letters, err := ListDeadLetters(ctx, c.DB, page)
		if err != nil || len(letters) == 0 {
			return gone, failed, err
		}
		for _, l := range letters {
			about := aggregate{l.TenantID, l.AggregateID}
			if seen[about] {
				continue
			}
			seen[about] = l.AggregateID != ""
			n, err := c.Redrive(ctx, Key{l.TenantID, l.MessageID})
			gone += n
			switch {
			case err == nil, errors.Is(err, ErrNoLetter), errors.Is(err, ErrDiscarded): // gone, or given up, since it was listed
			case isOutage(err):
				return gone, failed, err
			default:
				failed++
			}
		}
		page.After = letters[len(letters)-1]
	}
}
