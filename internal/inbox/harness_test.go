package inbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// order is the message of the tests: what it is about, and what shall happen to it.
type order struct {
	Tenant string `json:"tenant"`
	ID     string `json:"id"`
	About  string `json:"about"`
	Seq    int    `json:"seq"`
	Do     string `json:"do"`
	Secret string `json:"secret,omitzero"`
}

func (o order) message() Message {
	body, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	return Message{ID: o.ID, Reference: "test:" + o.ID, Body: body}
}

// orders are n messages that are applied, each about something of its own.
func orders(n int) (set []Message) {
	for i := range n {
		set = append(set, order{Tenant: "acme", ID: fmt.Sprintf("m%03d", i), About: fmt.Sprintf("a%03d", i), Seq: 1, Do: "apply"}.message())
	}
	return set
}

var errNewer = errors.New("order of a newer version")

func readOrder(m Message) (Head, order, error) {
	var o order
	if err := json.Unmarshal(m.Body, &o); err != nil {
		return Head{}, o, errors.New("not an order")
	}
	head := Head{TenantID: o.Tenant, MessageID: o.ID, AggregateID: o.About, Sequence: o.Seq}
	switch o.Do {
	case "skip":
		head.Skip = "not_mine"
	case "newer":
		return head, o, fmt.Errorf("%w: 2", errNewer)
	case "panic in read":
		panic("read: " + o.Secret)
	}
	return head, o, nil
}

// house is a database with a table of effects, and what goes wrong in it.
type house struct {
	t    *testing.T
	pool *pgxpool.Pool
	log  *bytes.Buffer

	mu       sync.Mutex
	repaired bool                        // what failed works now
	hold     func(context.Context) error // called in every Apply, after its effects
}

func setup(t *testing.T) *house {
	h := &house{t: t, pool: pgtest.Pool(t), log: &bytes.Buffer{}}
	_, err := h.pool.Exec(t.Context(), `CREATE TABLE effects (tenant_id text, message_id text, n bigint GENERATED ALWAYS AS IDENTITY)`)
	require.NoError(t, err)
	return h
}

// consumer is one instance, on connections of its own choice.
func (h *house) consumer(db Database, source Source) *Consumer[order] {
	return New(Parts[order]{Name: "tester", DB: db, Source: source, Read: readOrder, UnknownVersion: errNewer, Apply: h.apply, Log: slog.New(slog.NewTextHandler(&locked{h: h}, nil))})
}

// locked lets several consumers log into one buffer.
type locked struct{ h *house }

func (l *locked) Write(line []byte) (int, error) {
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	return l.h.log.Write(line)
}

func (h *house) apply(ctx context.Context, tx pgx.Tx, fresh []Received[order]) error {
	h.mu.Lock()
	repaired, hold := h.repaired, h.hold
	h.mu.Unlock()
	for _, r := range fresh {
		if _, err := tx.Exec(ctx, `INSERT INTO effects (tenant_id, message_id) VALUES ($1, $2)`, r.TenantID, r.MessageID); err != nil {
			return err
		}
		if repaired {
			continue
		}
		switch r.Event.Do {
		case "poison":
			return fmt.Errorf("cannot handle %s", r.Event.Secret)
		case "refuse":
			return &Refusal{"contradiction", "order " + r.MessageID + " contradicts another"}
		case "panic":
			panic("apply: " + r.Event.Secret)
		case "nil pointer":
			var nobody *order
			nobody.Do = "never"
		case "bad data":
			_, err := tx.Exec(ctx, `SELECT $1::text::int`, r.Event.Secret)
			return err
		case "swallow":
			_, _ = tx.Exec(ctx, `SELECT 1/0`) // and go on as if nothing had happened
		}
	}
	if hold != nil {
		return hold(ctx)
	}
	return nil
}

// effects are the ids of the messages that took effect, in that order.
func (h *house) effects() []string { return h.column(`SELECT message_id FROM effects ORDER BY n`) }

func (h *house) column(sql string, args ...any) []string {
	h.t.Helper()
	rows, err := h.pool.Query(context.Background(), sql, args...)
	require.NoError(h.t, err)
	column, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(h.t, err)
	return column
}

func (h *house) count(sql string, args ...any) (n int) {
	h.t.Helper()
	require.NoError(h.t, h.pool.QueryRow(context.Background(), sql, args...).Scan(&n))
	return n
}

func (h *house) letters() []Letter {
	h.t.Helper()
	letters, err := ListDeadLetters(context.Background(), h.pool, Query{Max: 1000, WithDiscarded: true})
	require.NoError(h.t, err)
	return letters
}

func (h *house) repair() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.repaired = true
}

// queue is a broker: it gives a message again until it is acknowledged.
type queue struct {
	mu        sync.Mutex
	waiting   []Message
	acked     []string
	returned  int // batches given back
	fetches   int
	failFetch error
	failDone  int // acknowledgements to lose
}

func newQueue(messages ...Message) *queue { return &queue{waiting: messages} }

func (q *queue) Fetch(ctx context.Context, messagesMax int) (Batch, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.fetches++
	if q.failFetch != nil {
		return Batch{}, q.failFetch
	}
	n := min(messagesMax, len(q.waiting))
	batch := slices.Clone(q.waiting[:n])
	q.waiting = q.waiting[n:]
	answered := false
	answer := func() {
		if answered {
			panic("a batch is answered twice")
		}
		answered = true
	}
	return Batch{
		Messages: batch,
		Done: func(context.Context) error {
			q.mu.Lock()
			defer q.mu.Unlock()
			answer()
			if q.failDone > 0 {
				q.failDone--
				q.waiting = append(batch, q.waiting...)
				return errors.New("acknowledgement was lost")
			}
			for _, m := range batch {
				q.acked = append(q.acked, m.ID)
			}
			return nil
		},
		Again: func(context.Context, time.Duration) error {
			q.mu.Lock()
			defer q.mu.Unlock()
			answer()
			q.returned++
			q.waiting = append(batch, q.waiting...)
			return nil
		},
	}, nil
}

func (q *queue) ackedCount() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.acked)
}

func (q *queue) send(messages ...Message) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, messages...)
}

// run runs a consumer until n messages are acknowledged.
func (h *house) run(c *Consumer[order], q *queue, n int) {
	h.t.Helper()
	stop := h.start(c)
	defer stop()
	h.eventually(func() bool { return q.ackedCount() >= n })
}

// start runs a consumer until stop is called.
func (h *house) start(c *Consumer[order]) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	return func() {
		cancel()
		require.NoError(h.t, <-done)
	}
}

func (h *house) eventually(ok func() bool) {
	h.t.Helper()
	require.Eventually(h.t, ok, 30*time.Second, 2*time.Millisecond)
}
