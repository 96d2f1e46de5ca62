package inbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/paymentsd/paymentsd/internal/inbox/internal/inboxsql"
)

// A dead letter is a message that had no effect and does not come again by itself. It has what is needed to handle it later, and
// nothing of it is in its error. As long as it waits, later messages of its aggregate become dead letters too and wait
// behind it: whoever sees one of them has seen all before it.

// letter is a dead letter on its way into the table.
type letter struct {
	Key
	aggregateID string
	sequence    int
	reference   string
	reason      string
	err         string
	behind      string
	payload     []byte // nil when it is not kept
	attempts    int
	traceParent string
}

func letterOf[E any](r Received[E], reason, text, behind string, attempts int) letter {
	return letter{
		Key: Key{r.TenantID, r.MessageID}, aggregateID: r.AggregateID, sequence: r.Sequence, reference: r.message.Reference, reason: reason, err: text, behind: behind,
		payload: kept(r.message.Body), attempts: attempts, traceParent: r.TraceParent,
	}
}

// unreadableLetter is a letter without a tenant. Its id is made from its bytes: whatever it calls itself could be another's name.
func unreadableLetter(m Message, err error) letter {
	sum := sha256.Sum256(m.Body)
	reason, text := describe(err)
	return letter{Key: Key{"", "sha256:" + hex.EncodeToString(sum[:16])}, reference: m.Reference, reason: reason, err: text, payload: kept(m.Body), attempts: 1}
}

func kept(body []byte) []byte {
	if len(body) > bodyBytesMax {
		return nil
	}
	return append([]byte{}, body...) // not nil, also when it is empty
}

// lettersAtOnce bounds a statement: together they are a few megabytes at most.
const lettersAtOnce = 16

// bury makes messages dead letters, in a transaction of their own. Its errors are outages, whatever they are: a message for which
// not even that works must not be acknowledged.
func (c *Consumer[E]) bury(ctx context.Context, letters []letter) error {
	detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), transactionFor)
	defer cancel()
	for part := range slices.Chunk(letters, lettersAtOnce) {
		if err := c.insertLetters(detached, c.DB, part); err != nil {
			return &outage{err}
		}
	}
	countHandled(ctx, len(letters), c.Name, resultDead, "")
	c.announce(ctx, letters)
	return nil
}

func (c *Consumer[E]) insertLetters(ctx context.Context, db inboxsql.DBTX, letters []letter) error {
	if len(letters) == 0 {
		return nil
	}
	p := inboxsql.InsertDeadLettersParams{ConsumerName: c.Name}
	for _, l := range letters {
		p.TenantIds = append(p.TenantIds, l.TenantID)
		p.MessageIds = append(p.MessageIds, l.MessageID)
		p.AggregateIds = append(p.AggregateIds, l.aggregateID)
		p.Sequences = append(p.Sequences, int32(l.sequence))
		p.Refs = append(p.Refs, storable(l.reference, textBytesMax))
		p.Reasons = append(p.Reasons, l.reason)
		p.Errors = append(p.Errors, l.err)
		p.Behinds = append(p.Behinds, l.behind)
		p.Payloads = append(p.Payloads, l.payload)
		p.Attempts = append(p.Attempts, int32(l.attempts))
	}
	if _, err := c.sql.InsertDeadLetters(ctx, db, p); err != nil {
		return fmt.Errorf("write dead letters: %w", err)
	}
	return nil
}

// announce tells operators of dead letters that are durable now.
func (c *Consumer[E]) announce(ctx context.Context, letters []letter) {
	for _, l := range letters {
		countBuried(ctx, c.Name, l.reason)
		c.Log.ErrorContext(ctx, "dead letter", "consumer", c.Name, "tenant", l.TenantID, "message", l.MessageID, "aggregate", l.aggregateID,
			"reference", storable(l.reference, textBytesMax), "reason", l.reason, "behind", l.behind, "error", l.err, "traceparent", l.traceParent)
	}
}

// Letter is a dead letter as operators see it. Its payload is not shown: it may hold what is nobody's business here.
type Letter struct {
	Consumer    string
	TenantID    string // "" when it could not be read
	MessageID   string
	AggregateID string // "" when it could not be read
	Sequence    int
	Reference   string // where the broker keeps it, if it still does
	Reason      string // malformed, unknown_version, oversized, behind, poison, or what the consumer's Apply gave
	Error       string
	Behind      string // the letter that this one waits for
	Kept        bool   // false: too large, so it cannot be handled again from here
	Attempts    int
	FirstAt     time.Time
	LastAt      time.Time
	Discarded   *Discarding // nil while it waits
}

// Discarding is a person's decision to give a dead letter up.
type Discarding struct {
	At  time.Time
	By  string
	Why string
}

// Query chooses dead letters.
type Query struct {
	Consumer      string // "" is all
	WithDiscarded bool
	After         Letter // the last one of the page before
	Max           int
}

// ListDeadLetters lists dead letters by tenant, consumer and message, a page at a time.
func ListDeadLetters(ctx context.Context, db inboxsql.DBTX, q Query) ([]Letter, error) {
	rows, err := inboxsql.New().ListDeadLetters(ctx, db, inboxsql.ListDeadLettersParams{
		AfterTenantID: q.After.TenantID, AfterConsumerName: q.After.Consumer, AfterMessageID: q.After.MessageID,
		ConsumerName: q.Consumer, WithDiscarded: q.WithDiscarded, RowsMax: int32(q.Max)})
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	letters := make([]Letter, len(rows))
	for i, row := range rows {
		l := Letter{
			Consumer: row.ConsumerName, TenantID: row.TenantID, MessageID: row.MessageID, AggregateID: row.AggregateID, Sequence: int(row.Sequence),
			Reference: row.Reference, Reason: row.Reason, Error: row.Error, Kept: row.IsKept, Attempts: int(row.Attempts), FirstAt: row.FirstAt, LastAt: row.LastAt,
		}
		if row.Behind != nil {
			l.Behind = *row.Behind
		}
		if row.DiscardedAt != nil && row.DiscardedBy != nil && row.DiscardedWhy != nil {
			l.Discarded = &Discarding{*row.DiscardedAt, *row.DiscardedBy, *row.DiscardedWhy}
		}
		letters[i] = l
	}
	return letters, nil
}

// Discard gives a dead letter up: it no longer stops its aggregate, and is not handled even when it comes again. The row stays, with
// who did it and why. It returns ErrNoLetter when there is none that waits.
func Discard(ctx context.Context, db inboxsql.DBTX, consumer string, message Key, by, why string) error {
	if by == "" || why == "" {
		return errors.New("discard dead letter: say who and why")
	}
	rows, err := inboxsql.New().DiscardDeadLetter(ctx, db, inboxsql.DiscardDeadLetterParams{
		DiscardedBy: by, DiscardedWhy: why, TenantID: message.TenantID, ConsumerName: consumer, MessageID: message.MessageID})
	if err != nil {
		return fmt.Errorf("discard dead letter: %w", err)
	}
	if rows == 0 {
		return ErrNoLetter
	}
	return nil
}

// Waiting is what a person has to look at.
type Waiting struct {
	Letters int64
	Oldest  time.Duration
}

// CountDeadLetters measures the dead letters that wait, of all consumers.
func CountDeadLetters(ctx context.Context, db inboxsql.DBTX) (Waiting, error) {
	row, err := inboxsql.New().CountDeadLetters(ctx, db)
	if err != nil {
		return Waiting{}, fmt.Errorf("count dead letters: %w", err)
	}
	return Waiting{row.Letters, time.Duration(row.OldestSeconds * float64(time.Second))}, nil
}
