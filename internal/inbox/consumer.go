package inbox

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/paymentsd/paymentsd/internal/inbox/internal/inboxsql"
)

// Head is what a consumer has to know of a message to handle it once, and in order.
type Head struct {
	TenantID    string
	MessageID   string // unique within the tenant, and the same in every repetition
	AggregateID string // what the message is about; "" is nothing that has an order
	Sequence    int    // 1, 2, 3 … within the aggregate
	TraceParent string // W3C Trace Context of what caused it; "" when unknown
	Skip        string // why it does not concern this consumer, a word to count by; "" when it does
}

// Received is a message that could be read: its head, and what its consumer made of it.
type Received[E any] struct {
	Head
	Event E

	message Message
}

// Parts is what makes a consumer.
type Parts[E any] struct {
	Name   string // of the consumer: instances of one name share its messages and its inbox
	DB     Database
	Source Source // nil when the consumer only handles dead letters again
	// Read reads a message, without any effect. Its error says why not, in words that may be stored and logged: nothing of the
	// message. One that wraps UnknownVersion means that a newer build can read it.
	Read           func(Message) (Head, E, error)
	UnknownVersion error
	// Apply gives messages their effect, all of them in tx or none. It gets only those that are new, in the order in which they came.
	// A Refusal says why a message cannot have one.
	Apply func(ctx context.Context, tx pgx.Tx, fresh []Received[E]) error
	Log   *slog.Logger
}

// Database is a pool of connections.
type Database interface {
	inboxsql.DBTX
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Consumer handles the messages of one consumer. Any number of instances may run, in one process or many.
type Consumer[E any] struct {
	Parts[E]
	sql *inboxsql.Queries
}

// New makes a consumer.
func New[E any](p Parts[E]) *Consumer[E] { return &Consumer[E]{p, inboxsql.New()} }

const (
	// batchMax is how many messages share a transaction: the commit is what costs, and beyond this many it is no longer felt.
	batchMax = 256
	// emptyRest keeps a source that has nothing, and does not wait either, from being asked in a hot loop.
	emptyRest = 20 * time.Millisecond
	// outagePauseMin and outagePauseMax bound the pauses of an outage: long enough not to add to it, short enough that nobody waits
	// for us when it ends.
	outagePauseMin = 100 * time.Millisecond
	outagePauseMax = 5 * time.Second
	// transactionFor bounds one transaction, above the time-outs of its statements and below what brokers wait for an
	// acknowledgement.
	transactionFor = 20 * time.Second
	// answerFor bounds what is said to the broker after the work.
	answerFor = 5 * time.Second
)

// Run handles messages until ctx is done, and ends what it has begun. It returns nil: no message and no outage ends it.
func (c *Consumer[E]) Run(ctx context.Context) error {
	failures := 0
	for ctx.Err() == nil {
		batch, err := c.Source.Fetch(ctx, batchMax)
		switch {
		case err == nil && len(batch.Messages) == 0:
			failures = 0
			sleep(ctx, emptyRest)
			continue
		case err == nil:
			err = c.handle(ctx, batch, outagePause(failures+1))
		}
		if err == nil {
			failures = 0
			continue
		}
		if ctx.Err() != nil {
			break // not an outage: we were told to end
		}
		failures++
		count(ctx, outages, 1, c.Name)
		c.Log.WarnContext(ctx, "consumer waits", "consumer", c.Name, "failures", failures, "error", err)
		sleep(ctx, outagePause(failures))
	}
	return nil
}

// handle gives a batch its effects and acknowledges it, or gives it back.
func (c *Consumer[E]) handle(ctx context.Context, batch Batch, pause time.Duration) error {
	err := c.take(ctx, batch.Messages)
	answer, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerFor)
	defer cancel()
	if err == nil {
		return batch.Done(answer)
	}
	if ctx.Err() != nil {
		pause = 0 // it is only this instance that ends
	}
	if failed := batch.Again(answer, pause); failed != nil {
		c.Log.WarnContext(ctx, "messages could not be given back: they come again when the broker misses us", "consumer", c.Name, "error", failed)
	}
	return err
}

// outagePause doubles with every failure in a row, and differs between instances.
func outagePause(failures int) time.Duration {
	pause := outagePauseMax
	if failures < 16 { // beyond that the shift says nothing any more
		pause = min(pause, outagePauseMin<<(failures-1))
	}
	return pause/2 + rand.N(pause/2)
}

// sleep waits, or until ctx is done.
func sleep(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
