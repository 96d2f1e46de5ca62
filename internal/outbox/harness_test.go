package outbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/outbox"
)

// patience is how long a test waits for what must come. Nothing is measured by it.
const patience = 20 * time.Second

// house is a database with an outbox, a broker made of memory, and relays.
type house struct {
	t    *testing.T
	pool *pgxpool.Pool
	log  *logbook
	tape *tape
}

func newHouse(t *testing.T, pool *pgxpool.Pool) *house {
	return &house{t: t, pool: pool, log: &logbook{}, tape: &tape{}}
}

// append commits events of an aggregate, one transaction each.
func (h *house) append(aggregate string, sequences ...int) {
	h.t.Helper()
	for _, n := range sequences {
		require.NoError(h.t, pgx.BeginFunc(h.t.Context(), h.pool, func(tx pgx.Tx) error { return appendEvent(h.t.Context(), tx, aggregate, n) }))
	}
}

func appendEvent(ctx context.Context, tx pgx.Tx, aggregate string, n int) error {
	return outbox.Append(ctx, tx, "acme", outbox.Event{ID: id(aggregate, n), AggregateID: aggregate, Sequence: n, Type: "PaymentCreated",
		Payload: []byte(`{"b":1,  "a":1.0}`)})
}

// fill commits the n-th event of many aggregates at once.
func (h *house) fill(prefix string, aggregates, n int) {
	h.t.Helper()
	_, err := h.pool.Exec(h.t.Context(), `INSERT INTO outbox_events (tenant_id, event_id, aggregate_id, sequence, event_type, payload)
		SELECT 'acme', 'evt_' || $1 || g || '_' || $3::int, $1 || g, $3::int, 'PaymentCreated', '{}' FROM generate_series(1, $2) g`, prefix, aggregates, n)
	require.NoError(h.t, err)
}

func id(aggregate string, n int) string { return fmt.Sprintf("evt_%s_%d", aggregate, n) }

// relay runs a relay until the test ends or stop is called.
func (h *house) relay(to outbox.Publisher, change ...func(*outbox.RelayConfig)) (stop func()) {
	return h.relayOn(h.pool, to, change...)
}

func (h *house) relayOn(pool *pgxpool.Pool, to outbox.Publisher, change ...func(*outbox.RelayConfig)) (stop func()) {
	cfg := outbox.RelayConfig{Interval: 20 * time.Millisecond, LeaseFor: 10 * time.Second, Log: slog.New(slog.NewTextHandler(h.log, nil))}
	for _, f := range change {
		f(&cfg)
	}
	r := outbox.NewRelay(pool, to, cfg)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	stop = func() {
		cancel()
		running.Wait()
	}
	h.t.Cleanup(stop)
	return stop
}

func leaseFor(d time.Duration) func(*outbox.RelayConfig) {
	return func(c *outbox.RelayConfig) { c.LeaseFor = d }
}

func interval(d time.Duration) func(*outbox.RelayConfig) {
	return func(c *outbox.RelayConfig) { c.Interval = d }
}

// eventually waits for what must come.
func (h *house) eventually(what string, true_ func() bool) {
	h.t.Helper()
	require.Eventually(h.t, true_, patience, 5*time.Millisecond, what)
}

// count is what a query about the outbox counts.
func (h *house) count(sql string, args ...any) (n int) {
	h.t.Helper()
	require.NoError(h.t, h.pool.QueryRow(h.t.Context(), sql, args...).Scan(&n))
	return n
}

func (h *house) unpublished() int {
	return h.count(`SELECT count(*) FROM outbox_events WHERE published_at IS NULL`)
}

// untilPublished waits until everything is marked but so many.
func (h *house) untilPublished(but int) {
	h.t.Helper()
	h.eventually("everything is published", func() bool { return h.unpublished() == but })
}

// untilRefused waits until so many events are set aside.
func (h *house) untilRefused(n int) {
	h.t.Helper()
	h.eventually("events are set aside", func() bool { return h.count(`SELECT count(*) FROM outbox_events WHERE refused_at IS NOT NULL`) == n })
}

// tape is a broker that remembers what it stored, in order.
type tape struct {
	mu     sync.Mutex
	stored []outbox.Recorded
	answer func(outbox.Recorded) error // nil takes everything
	gate   func(context.Context)       // before a wave is looked at
}

func (b *tape) Publish(ctx context.Context, wave []outbox.Recorded) []error {
	b.mu.Lock()
	gate := b.gate
	b.mu.Unlock()
	if gate != nil {
		gate(ctx)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	errs := make([]error, len(wave))
	for i, e := range wave {
		if b.answer != nil {
			errs[i] = b.answer(e)
		}
		if errs[i] == nil {
			b.stored = append(b.stored, e)
		}
	}
	return errs
}

func (b *tape) answers(f func(outbox.Recorded) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answer = f
}

func (b *tape) gates(f func(context.Context)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gate = f
}

func (b *tape) all() []outbox.Recorded {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]outbox.Recorded(nil), b.stored...)
}

// times counts how often each event was stored.
func (b *tape) times() map[string]int {
	times := map[string]int{}
	for _, e := range b.all() {
		times[e.ID]++
	}
	return times
}

// requireInOrder checks the promise for consumers: of each aggregate, what comes for the first time comes in order.
func requireInOrder(t *testing.T, stored []outbox.Recorded) {
	t.Helper()
	reached := map[string]int{}
	for _, e := range stored {
		require.LessOrEqual(t, e.Sequence, reached[e.AggregateID]+1, "%s overtook", e.ID)
		reached[e.AggregateID] = max(reached[e.AggregateID], e.Sequence)
	}
}

var errAway = errors.New("the broker is away")

// away answers like a broker that cannot be reached.
func away(outbox.Recorded) error { return errAway }

// logbook is a log that can be read while it is written.
type logbook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
