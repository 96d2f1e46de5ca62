package ledger

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/events"
	"github.com/paymentsd/paymentsd/internal/inbox"
	"github.com/paymentsd/paymentsd/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// settled is a payment of 10.00 EUR by acc_1 that was settled.
func settled(n int) events.Payment {
	return events.Payment{
		EventID: fmt.Sprintf("evt_settled_%d", n), Type: events.PaymentSettled, PaymentID: fmt.Sprintf("pay_%d", n), AccountID: "acc_1",
		Amount: "10.00", Currency: "EUR", MerchantReference: "s3cret reference", OccurredAt: time.Date(2026, 5, 1, 12, 0, n%60, 0, time.UTC), Sequence: 2,
	}
}

// refunded is a refund of part of it.
func refunded(n int, amount string) events.Payment {
	p := settled(n)
	p.EventID, p.Type, p.PaymentID, p.ParentPaymentID, p.Amount = fmt.Sprintf("evt_refunded_%d", n), events.RefundSettled, fmt.Sprintf("ref_%d", n), p.PaymentID, amount
	return p
}

func message(t testing.TB, tenantID string, p events.Payment) inbox.Message {
	payload, err := p.Encode()
	require.NoError(t, err)
	body, err := events.Wrap(tenantID, "", payload)
	require.NoError(t, err)
	return inbox.Message{ID: p.EventID, Reference: "test:" + p.EventID, Body: body}
}

// feed is a broker with messages for one instance.
type feed struct {
	mu      sync.Mutex
	waiting []inbox.Message
	acked   int
}

func (f *feed) Fetch(_ context.Context, messagesMax int) (inbox.Batch, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := min(messagesMax, len(f.waiting))
	batch := f.waiting[:n:n]
	f.waiting = f.waiting[n:]
	return inbox.Batch{
		Messages: batch,
		Done: func(context.Context) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.acked += n
			return nil
		},
		Again: func(context.Context, time.Duration) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.waiting = append(batch, f.waiting...)
			return nil
		},
	}, nil
}

func (f *feed) ackedCount() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.acked
}

type house struct {
	t    *testing.T
	pool *pgxpool.Pool
	log  lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(line []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(line)
}

func setup(t *testing.T) *house { return &house{t: t, pool: pgtest.Pool(t)} }

// start runs an instance on the given connections until stop is called.
func (h *house) start(db inbox.Database, f *feed) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- NewConsumer(db, f, slog.New(slog.NewTextHandler(&h.log, nil))).Run(ctx) }()
	return func() {
		cancel()
		require.NoError(h.t, <-done)
	}
}

// consume runs an instance until it has acknowledged the messages.
func (h *house) consume(messages ...inbox.Message) {
	h.t.Helper()
	f := &feed{waiting: messages}
	stop := h.start(h.pool, f)
	defer stop()
	h.eventually(func() bool { return f.ackedCount() == len(messages) })
}

func (h *house) eventually(ok func() bool) {
	h.t.Helper()
	require.Eventually(h.t, ok, 30*time.Second, 2*time.Millisecond)
}

func (h *house) exec(sql string, args ...any) {
	h.t.Helper()
	_, err := h.pool.Exec(context.Background(), sql, args...)
	require.NoError(h.t, err)
}

func (h *house) count(sql string, args ...any) (n int) {
	h.t.Helper()
	require.NoError(h.t, h.pool.QueryRow(context.Background(), sql, args...).Scan(&n))
	return n
}

func (h *house) letters() []inbox.Letter {
	h.t.Helper()
	letters, err := inbox.ListDeadLetters(context.Background(), h.pool, inbox.Query{Consumer: ConsumerName, Max: 1000})
	require.NoError(h.t, err)
	return letters
}

// requireBalanced checks what the audit checks: every payment has one pair, and each pair sums to zero.
func (h *house) requireBalanced(pairs int) {
	h.t.Helper()
	require.Equal(h.t, 2*pairs, h.count(`SELECT count(*) FROM ledger_entries`))
	require.Equal(h.t, pairs, h.count(`SELECT count(*) FROM (SELECT FROM ledger_entries GROUP BY tenant_id, source_payment_id HAVING count(*) = 2 AND sum(amount_minor) = 0) pairs`))
}
