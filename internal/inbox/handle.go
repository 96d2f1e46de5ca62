package inbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/paymentsd/paymentsd/internal/inbox/internal/inboxsql"
)

// What can happen to a message:
//
//	skipped     it does not concern the consumer: acknowledged, counted, no row
//	unreadable  a dead letter at once: reading it again would say the same
//	stopped     it is a dead letter already, or an earlier message of its aggregate is: it becomes one too, and waits
//	duplicate   its row in the inbox is there: acknowledged
//	applied     its row and its effect commit together
//	poison      it failed alone, while the database was well: a dead letter after a few tries
//	outage      it failed together with everything else: nothing is counted, nothing is given up, it comes again
//
// All messages of a batch that are applied share one transaction. When that fails and it is no outage, they are applied one by one,
// so that the one that is to blame is found and spoils nothing for the others.

const (
	// triesMax is how often a message may fail alone. What fails three times in a second, while others succeed, fails always.
	triesMax = 3
	// triesPause lets pass what passes by itself, such as a row that is being written.
	triesPause = 100 * time.Millisecond
	// idBytesMax is far above any id, and far below what an index takes.
	idBytesMax = 255
	// bodyBytesMax is the largest message that is read, or kept in a dead letter: some hundred times the largest of ours.
	bodyBytesMax = 256 << 10
)

// take gives messages their effects. When it returns nil, everything that has to be durable is; otherwise it is an outage, or ctx is
// done, and the messages must come again.
func (c *Consumer[E]) take(ctx context.Context, messages []Message) error {
	set, letters := c.readAll(ctx, messages)
	if err := c.bury(ctx, letters); err != nil {
		return err
	}
	err := c.applySet(ctx, set)
	if err == nil || isOutage(err) {
		return err
	}
	return c.applyOneByOne(ctx, set)
}

// readAll reads messages, and sorts out those that do not concern the consumer and those that cannot be read.
func (c *Consumer[E]) readAll(ctx context.Context, messages []Message) (set []Received[E], unreadable []letter) {
	skipped := map[string]int{}
	for _, m := range messages {
		r, err := c.read(m)
		switch {
		case err != nil:
			unreadable = append(unreadable, unreadableLetter(m, err))
		case r.Skip != "":
			skipped[storable(r.Skip, reasonBytesMax)]++
		default:
			set = append(set, r)
		}
	}
	for reason, n := range skipped {
		countHandled(ctx, n, c.Name, resultSkipped, reason)
	}
	return set, unreadable
}

var (
	errOversized = &Refusal{reasonOversized, fmt.Sprintf("the message is larger than %d bytes", bodyBytesMax)}
	errBadHead   = &Refusal{reasonMalformed, "tenant, id, aggregate or sequence of the message cannot be stored"}
)

func (c *Consumer[E]) read(m Message) (r Received[E], err error) {
	if len(m.Body) > bodyBytesMax {
		return r, errOversized
	}
	defer recovered(&err)
	head, event, err := c.Read(m)
	if err != nil {
		reason := reasonMalformed
		if errors.Is(err, c.UnknownVersion) {
			reason = reasonUnknownVersion
		}
		return r, &Refusal{reason, err.Error()}
	}
	if head.Skip == "" && !head.isStorable() {
		return r, errBadHead
	}
	return Received[E]{head, event, m}, nil
}

func (h Head) isStorable() bool {
	return isID(h.TenantID) && isID(h.MessageID) && (h.AggregateID == "" || isID(h.AggregateID)) && h.Sequence >= 0 && h.Sequence <= math.MaxInt32
}

// isID reports whether PostgreSQL can keep the text in a key.
func isID(text string) bool {
	return text != "" && len(text) <= idBytesMax && utf8.ValidString(text) && !slices.Contains([]byte(text), 0)
}

// applySet gives a set of messages their effects in one transaction.
func (c *Consumer[E]) applySet(ctx context.Context, set []Received[E]) error {
	if len(set) == 0 {
		return nil
	}
	var did became
	err := c.transaction(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		did, err = c.settle(ctx, tx, set)
		return err
	})
	if err == nil {
		c.report(ctx, did)
	}
	return err
}

// became is what became of a set of messages.
type became struct {
	applied, duplicate, dead int
	stopped                  []letter
}

func (c *Consumer[E]) report(ctx context.Context, did became) {
	countHandled(ctx, did.applied, c.Name, resultApplied, "")
	countHandled(ctx, did.duplicate, c.Name, resultDuplicate, "")
	countHandled(ctx, did.dead+len(did.stopped), c.Name, resultDead, "")
	c.announce(ctx, did.stopped)
}

// settle is what happens to messages inside a transaction: those that are stopped become dead letters, and those that are new
// are applied. Locks: the inbox's rows in key order, then dead letters in key order, then whatever Apply locks.
func (c *Consumer[E]) settle(ctx context.Context, tx pgx.Tx, set []Received[E]) (did became, err error) {
	clear, did, err := c.sortOutStopped(ctx, tx, set)
	if err != nil {
		return did, err
	}
	keys := make([]Key, len(clear))
	for i, r := range clear {
		keys[i] = Key{r.TenantID, r.MessageID}
	}
	isNew, err := Once(ctx, tx, c.Name, keys)
	if err != nil {
		return did, err
	}
	if err := c.insertLetters(ctx, tx, did.stopped); err != nil {
		return did, err
	}
	var fresh []Received[E]
	for i, r := range clear {
		if isNew[i] {
			fresh = append(fresh, r)
		}
	}
	did.applied, did.duplicate = len(fresh), len(clear)-len(fresh)
	if len(fresh) == 0 {
		return did, nil
	}
	return did, c.apply(ctx, tx, fresh)
}

func (c *Consumer[E]) apply(ctx context.Context, tx pgx.Tx, fresh []Received[E]) (err error) {
	defer recovered(&err)
	return c.Apply(ctx, tx, fresh)
}

// sortOutStopped finds the messages that are dead letters already, and those that have to wait for one.
func (c *Consumer[E]) sortOutStopped(ctx context.Context, tx pgx.Tx, set []Received[E]) (clear []Received[E], did became, err error) {
	params := inboxsql.FindStoppedParams{ConsumerName: c.Name}
	for i, r := range set {
		params.Ordinals = append(params.Ordinals, int32(i))
		params.TenantIds = append(params.TenantIds, r.TenantID)
		params.MessageIds = append(params.MessageIds, r.MessageID)
		params.AggregateIds = append(params.AggregateIds, r.AggregateID)
		params.Sequences = append(params.Sequences, int32(r.Sequence))
	}
	rows, err := c.sql.FindStopped(ctx, tx, params)
	if err != nil {
		return nil, did, fmt.Errorf("look for dead letters: %w", err)
	}
	if len(rows) == 0 {
		return set, did, nil
	}
	isStopped := map[int32]bool{}
	for _, row := range rows {
		isStopped[row.Ordinal] = true
		if row.IsDead {
			did.dead++
			continue
		}
		did.stopped = append(did.stopped, letterOf(set[row.Ordinal], reasonBehind, "it waits for an earlier message of the same aggregate", row.Behind, 0))
	}
	for i, r := range set {
		if !isStopped[int32(i)] {
			clear = append(clear, r)
		}
	}
	return clear, did, nil
}

// attempt is a message that is applied alone.
type attempt[E any] struct {
	Received[E]
	tries int
}

// applyOneByOne gives messages their effects each in a transaction of its own. Those that fail are tried again after a pause that
// they share; what comes after one of them in the same aggregate waits for it.
func (c *Consumer[E]) applyOneByOne(ctx context.Context, set []Received[E]) error {
	left := make([]attempt[E], len(set))
	for i, r := range set {
		left[i].Received = r
	}
	for pause := triesPause; ; pause *= 4 {
		failed, err := c.round(ctx, left)
		if err != nil || len(failed) == 0 {
			return err
		}
		left = failed
		sleep(ctx, pause)
	}
}

// round tries every message once, and returns those that have to be tried again.
func (c *Consumer[E]) round(ctx context.Context, set []attempt[E]) (again []attempt[E], err error) {
	type aggregate struct{ tenantID, id string }
	waits := map[aggregate]bool{}
	for _, a := range set {
		if ctx.Err() != nil {
			return nil, ctx.Err() // what is done is done, and the rest comes again
		}
		about := aggregate{a.TenantID, a.AggregateID}
		if waits[about] {
			again = append(again, a)
			continue
		}
		err := c.applySet(ctx, []Received[E]{a.Received})
		if err == nil {
			continue
		}
		if isOutage(err) {
			return nil, err
		}
		var refusal *Refusal
		if a.tries++; a.tries < triesMax && !errors.As(err, &refusal) { // a refusal is a judgement: asking again does not change it
			again = append(again, a)
			waits[about] = a.AggregateID != ""
			continue
		}
		reason, text := describe(err)
		if err := c.bury(ctx, []letter{letterOf(a.Received, reason, text, "", a.tries)}); err != nil {
			return nil, err
		}
	}
	return again, nil
}

var errNotBegun = errors.New("transaction has not begun")

// transaction runs f in a transaction that a shutdown does not cut. Whatever fails around f, and not because of what f did, is an
// outage.
func (c *Consumer[E]) transaction(ctx context.Context, f func(context.Context, pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), transactionFor)
	defer cancel()
	inside := errNotBegun
	err := pgx.BeginFunc(ctx, c.DB, func(tx pgx.Tx) error {
		if inside = f(ctx, tx); inside != nil && tx.Conn().IsClosed() {
			inside = &outage{inside} // whatever f made of it
		}
		return inside
	})
	var refused *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case inside == errNotBegun:
		return &outage{fmt.Errorf("begin: %w", err)}
	case inside != nil:
		return inside
	case errors.As(err, &refused), errors.Is(err, pgx.ErrTxCommitRollback):
		return fmt.Errorf("commit: %w", err)
	default:
		return &outage{fmt.Errorf("commit: %w", err)}
	}
}
