package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/paymentsd/paymentsd/internal/outbox/internal/outboxsql"
)

// What can go wrong between a committed event and the broker, and what keeps it harmless.
//
// A relay can die, stall, or lose the database or the broker between any two instructions. What it leaves behind is one of:
//
//	not sent             The row says unpublished. Whoever holds its shard next sends it.
//	sent, not stored     The same. Nobody asks whether it was sent; only an acknowledgement counts.
//	stored, not marked   The same, so it is sent again: under the same id, as the same bytes. The broker drops it inside its
//	                     window, and consumers drop it after that.
//	marked               The mark names the shard's epoch. It is the only thing that ends the duty to publish.
//
// Several relays share the work by shards of the outbox, each leased to one of them. A relay that stalls past its lease and
// wakes may still send what it had read, so an event may be sent twice, and late. It can mark nothing: its epoch is gone.
//
// The order of an aggregate holds through all of this because of one rule: an event is sent only after the broker acknowledged
// the one before it. Nothing weaker would do. Of two messages that are on their way together, a broken connection can lose the
// first and deliver the second, and a relay that was overtaken can deliver its first when the other has long sent the second.
// With the rule, whatever comes out of order is a repetition of what had come in order before. So a batch is sent in waves, no
// two events of one aggregate in a wave.
//
// What is read is every row that is not published, never "what came after the last one": positions are given out before
// commits, and a transaction that commits late commits a low position.
//
// A broker that cannot be reached and an event that the broker does not take look alike from one event's point of view. They
// are told apart by the others. As long as nothing of a wave is acknowledged, nobody knows anything about any event in it: no
// attempts are counted, and the relay tries for ever. When others are acknowledged, an event that is not has failed by itself:
// it is held back, for growing pauses and then until somebody re-drives it, and the later events of its aggregate wait with
// it. Everybody else's go on.

const (
	// rowsMax is how many events are read at a time. More share a reading, a mark and a commit of the broker; a thousand is
	// where that no longer shows.
	rowsMax = 1000
	// rowsMin is where the halving of readings ends that a slow broker causes.
	rowsMin = 8
	// shardShare is how much more than its even share of a reading one shard may have, so that uneven shards do not make
	// readings small.
	shardShare = 4
	// publishFor is how long a wave may take to be acknowledged. It takes milliseconds, or the broker hangs.
	publishFor = 5 * time.Second
	// statementFor is how long one statement may take: they take milliseconds, or the database hangs.
	statementFor = 5 * time.Second
	// readFor is longer: a reading may have to pass many rows that an old snapshot keeps in the index.
	readFor = 30 * time.Second
	// pauseFirst and pauseMax are how long to leave a broker or a database alone that does not answer. The pause doubles.
	pauseFirst = 100 * time.Millisecond
	pauseMax   = 5 * time.Second
)

// beginReading makes a reading walk the index and stop when it has enough. The planner's statistics are from a time when next
// to nothing was unpublished, as on every good day, and after an outage they make it collect and sort the whole backlog for
// every thousand events of it.
const beginReading = `BEGIN READ ONLY; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_seqscan = off`

// RelayConfig is how a relay works.
type RelayConfig struct {
	Interval time.Duration // how often to look for events although nobody woke it
	LeaseFor time.Duration // how long a share of the outbox stays with a relay that does not renew it
	Log      *slog.Logger
}

// Relay publishes what is in the outbox. Any number of them may run, in any number of processes.
type Relay struct {
	db  *pgxpool.Pool
	sql *outboxsql.Queries
	to  Publisher
	cfg RelayConfig

	leases   *leases
	horizon  horizon
	rows     int       // how many to read at a time
	unmarked delivered // what is known of events that were sent and is not in the database yet
}

// NewRelay makes a relay from the database to the broker.
func NewRelay(db *pgxpool.Pool, to Publisher, cfg RelayConfig) *Relay {
	return &Relay{db: db, sql: outboxsql.New(), to: to, cfg: cfg, rows: rowsMax, leases: newLeases(db, cfg), horizon: newHorizon(cfg.Interval)}
}

// Run publishes until ctx is done. Then it ends the wave it is in and lets its shards go, so that another relay goes on at once.
func (r *Relay) Run(ctx context.Context) {
	woken := make(chan struct{}, 1)
	var listener sync.WaitGroup
	listener.Go(func() { listen(ctx, r.db, r.cfg.Log, woken) })
	defer listener.Wait()
	defer r.leave()

	tick := time.NewTicker(r.cfg.Interval)
	defer tick.Stop()
	var trouble spell
	for ctx.Err() == nil {
		began := time.Now()
		more, err := r.pass(ctx)
		if trouble.note(ctx, r.cfg.Log, err); err != nil {
			sleep(ctx, min(trouble.pause(), r.cfg.LeaseFor/3))
			continue
		}
		if more {
			continue
		}
		select {
		case <-woken:
			sleep(ctx, ringEvery-time.Since(began)) // many bells ring: what they ring for shares a pass
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// pass publishes one reading and reports whether there may be more. It returns an error when the database or the broker does
// not answer; what was published until then is marked.
func (r *Relay) pass(ctx context.Context) (more bool, err error) {
	if err := r.record(ctx); err != nil {
		return false, err // nothing is let go while another relay would publish it again
	}
	if err := r.leases.keep(ctx); err != nil {
		return false, err
	}
	batch, more, err := r.read(ctx)
	if err != nil {
		return false, err
	}
	outage := r.send(ctx, batch)
	if err := r.record(ctx); err != nil {
		return false, err
	}
	return more, outage
}

// read returns due events of the shards that are held, and whether there are more.
func (r *Relay) read(ctx context.Context) (batch []due, more bool, err error) {
	shards := r.leases.shards()
	if len(shards) == 0 {
		return nil, false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, readFor)
	defer cancel()
	began := time.Now()
	from := r.horizon.from(began)
	shardMax := min(r.rows, shardShare*r.rows/len(shards)+1)
	var rows []outboxsql.DueEventsRow
	err = pgx.BeginTxFunc(ctx, r.db, pgx.TxOptions{BeginQuery: beginReading}, func(tx pgx.Tx) (err error) {
		rows, err = r.sql.DueEvents(ctx, tx, outboxsql.DueEventsParams{
			Shards: shards, FromPosition: from, ShardMax: int32(shardMax), RowsMax: int32(r.rows)})
		return err
	})
	if err != nil {
		return nil, false, fmt.Errorf("read outbox: %w", err)
	}
	last, next := ends(rows, shardMax, r.rows)
	r.horizon.read(time.Now(), time.Since(began), from, last, next)
	return r.sendable(rows), next != 0, nil
}

// sendable leaves out events that are read without the one before them. They are found together with it.
func (r *Relay) sendable(rows []outboxsql.DueEventsRow) []due {
	batch, behind := make([]due, 0, len(rows)), map[aggregate]bool{}
	for _, row := range rows {
		e := due{
			Recorded: Recorded{Event{row.EventID, row.AggregateID, int(row.Sequence), row.EventType, row.Payload}, row.TenantID, row.TraceParent},
			shard:    row.Shard, epoch: r.leases.epochs[row.Shard], attempts: int(row.Attempts)}
		if row.IsBehind {
			behind[e.aggregate()] = true
		}
		if !behind[e.aggregate()] {
			batch = append(batch, e)
		}
	}
	return batch
}

// send sends a batch in waves and notes what became of each event. It returns an error when the broker does not answer. It
// stops, leaving the rest as it is, when the leases are over or ctx is done.
func (r *Relay) send(ctx context.Context, batch []due) error {
	stopped := map[aggregate]bool{} // an event of it was not acknowledged, so later ones have to wait
	for _, wave := range waves(batch) {
		if ctx.Err() != nil {
			return nil
		}
		if err := r.leases.renew(ctx); err != nil && !r.leases.valid() {
			return err
		}
		wave = keepIf(wave, func(e due) bool {
			if !r.leases.holds(e) {
				stopped[e.aggregate()] = true // also when the shard comes back before the next wave
			}
			return !stopped[e.aggregate()]
		})
		if len(wave) == 0 {
			continue
		}
		errs := r.publish(ctx, wave)
		for i, e := range wave {
			if errs[i] != nil {
				stopped[e.aggregate()] = true
			}
		}
		congested, outage := r.unmarked.judge(wave, errs)
		count(ctx, len(wave), errs, outage)
		if congested {
			r.rows = max(r.rows/2, rowsMin)
		} else {
			r.rows = min(r.rows*2, rowsMax)
		}
		if outage != nil {
			return fmt.Errorf("publish events: %w", outage)
		}
	}
	return nil
}

// publish sends one wave, within the time that the leases are surely ours. A wave that is on its way when ctx is done is
// waited for.
func (r *Relay) publish(ctx context.Context, wave []due) (errs []error) {
	sending, cancel := context.WithDeadline(context.WithoutCancel(ctx), earlier(time.Now().Add(publishFor), r.leases.until))
	defer cancel()
	// An event that makes this build panic must not stop the others: it is looked for, and refused.
	defer func() {
		if recover() == nil {
			return
		}
		if errs = nil; len(wave) == 1 {
			r.cfg.Log.ErrorContext(ctx, "publisher panics", "event", wave[0].ID, "stack", string(debug.Stack()))
			errs = []error{fmt.Errorf("%w: it makes the publisher panic", ErrRefused)}
			return
		}
		for i := range wave {
			errs = append(errs, r.publish(ctx, wave[i:i+1])...)
		}
	}()
	recorded := make([]Recorded, len(wave))
	for i, e := range wave {
		recorded[i] = e.Recorded
	}
	if errs = r.to.Publish(sending, recorded); len(errs) != len(wave) {
		panic("a publisher answers for every event")
	}
	return errs
}

// record writes down what became of the events that were sent. What it cannot write it keeps, for the next time.
func (r *Relay) record(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statementFor)
	defer cancel()
	if acked := r.unmarked.acked; len(acked) > 0 {
		tenants, aggregates, sequences, shards, epochs := columns(acked)
		row, err := r.sql.MarkPublished(ctx, r.db, outboxsql.MarkPublishedParams{
			Shards: shards, Epochs: epochs, RelayID: r.leases.relayID,
			TenantIds: tenants, AggregateIds: aggregates, Sequences: sequences})
		if err != nil {
			return fmt.Errorf("mark events as published: %w", err)
		}
		r.unmarked.acked = nil
		r.noteFenced(ctx, acked, row.Held)
	}
	if failed := r.unmarked.failed; len(failed) > 0 {
		tenants, aggregates, sequences, shards, epochs := columns(failed)
		p := outboxsql.HoldEventsBackParams{Shards: shards, Epochs: epochs, RelayID: r.leases.relayID,
			TenantIds: tenants, AggregateIds: aggregates, Sequences: sequences}
		for _, e := range failed {
			p.Pauses, p.Refusals = append(p.Pauses, e.pause), append(p.Refusals, e.refusal)
		}
		row, err := r.sql.HoldEventsBack(ctx, r.db, p)
		if err != nil {
			return fmt.Errorf("hold events back: %w", err)
		}
		r.unmarked.failed = nil
		r.noteHeldBack(ctx, failed)
		r.noteFenced(ctx, failed, row.Held)
	}
	return nil
}

// leave is the end of Run: whoever takes over finds everything recorded and the shards free.
func (r *Relay) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), statementFor)
	defer cancel()
	if err := errors.Join(r.record(ctx), r.leases.letGo(ctx)); err != nil {
		r.cfg.Log.WarnContext(ctx, "relay could not let its shards go; they are free when its leases are over", "error", err)
	}
}

// spell is a time in which every pass fails.
type spell struct {
	passes      int
	began, said time.Time
}

// sayEvery is how often a relay that cannot go on says so: often enough to be found, too seldom to fill a disk.
const sayEvery = time.Minute

// note logs the beginning and the end of a spell, and now and then that it is not over.
func (s *spell) note(ctx context.Context, log *slog.Logger, err error) {
	if s.passes == 0 {
		s.began, s.said = time.Now(), time.Time{}
	}
	switch {
	case err != nil && ctx.Err() != nil: // told to end
	case err != nil && time.Since(s.said) > sayEvery:
		s.said = time.Now()
		log.WarnContext(ctx, "relay cannot go on and tries until it can", "error", err, "since", s.began)
	case err == nil && s.passes > 0:
		log.InfoContext(ctx, "relay goes on", "after", time.Since(s.began).Round(time.Millisecond))
	}
	if s.passes++; err == nil {
		s.passes = 0
	}
}

// pause is how long to wait before the next pass: doubled for every failed one, with jitter, so that relays do not come back
// all at once.
func (s *spell) pause() time.Duration {
	return jittered(min(pauseFirst<<min(s.passes-1, 10), pauseMax))
}

func jittered(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
