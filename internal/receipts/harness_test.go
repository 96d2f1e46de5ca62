package receipts

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/events"
	"github.com/paymentsd/paymentsd/internal/inbox"
	"github.com/paymentsd/paymentsd/internal/pgtest"
	"github.com/paymentsd/paymentsd/internal/receipts/internal/receiptssql"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// settled is a payment of 10.00 EUR by acc_1 that was settled.
func settled(n int) events.Payment {
	return events.Payment{
		EventID: fmt.Sprintf("evt_settled_%d", n), Type: events.PaymentSettled, PaymentID: fmt.Sprintf("pay_%d", n), AccountID: "acc_1",
		Amount: "10.00", Currency: "EUR", MerchantReference: "s3cret reference", OccurredAt: time.Date(2026, 5, 1, 12, 0, n%60, 0, time.UTC), Sequence: 2,
	}
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

// post is a mailer that does as it is told, and keeps what it was given.
type post struct {
	mu    sync.Mutex
	mails []Mail
	does  func(Mail) Result
}

func (p *post) Send(_ context.Context, m Mail) Result {
	p.mu.Lock()
	p.mails = append(p.mails, m)
	does := p.does
	p.mu.Unlock()
	if does == nil {
		return Result{Outcome: Sent}
	}
	return does(m)
}

func (p *post) Within() time.Duration { return time.Second }

func (p *post) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mails)
}

type house struct {
	t         *testing.T
	pool      *pgxpool.Pool
	addresses Addresses
	log       lockedBuffer
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

func setup(t *testing.T) *house {
	h := &house{t: t, pool: pgtest.Pool(t)}
	var err error
	h.addresses, err = ParseAddresses("receipts@paymentsd.example", "{account}@{tenant}.example")
	require.NoError(t, err)
	return h
}

func (h *house) logger() *slog.Logger { return slog.New(slog.NewTextHandler(&h.log, nil)) }

func (h *house) sender(db receiptssql.DBTX, m Mailer) *Sender {
	return NewSender(db, m, h.addresses, h.logger())
}

// start runs an instance of the consumer until stop is called.
func (h *house) start(db inbox.Database, f *feed) (stop func()) {
	return h.background(func(ctx context.Context) error { return NewConsumer(db, f, h.addresses, h.logger()).Run(ctx) })
}

func (h *house) background(run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
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

// due makes n receipts that are due.
func (h *house) due(n int) {
	h.t.Helper()
	var all []inbox.Message
	for i := range n {
		all = append(all, message(h.t, "acme", settled(i)))
	}
	h.consume(all...)
}

// send has one receipt sent that is due.
func (h *house) send(m Mailer) {
	h.t.Helper()
	found, err := h.sender(h.pool, m).SendDue(context.Background())
	require.NoError(h.t, err)
	require.True(h.t, found)
}

func (h *house) receipt(n int) Receipt {
	h.t.Helper()
	r, err := Get(context.Background(), h.pool, "acme", fmt.Sprintf("receipt_payment_pay_%d", n))
	require.NoError(h.t, err)
	return r
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

func acquisition(name string, leaseFor time.Duration) receiptssql.AcquireDueReceiptParams {
	return receiptssql.AcquireDueReceiptParams{LeaseFor: leaseFor, SenderID: name}
}

func cutHeader(mail string) (header, text string) {
	header, text, _ = strings.Cut(mail, "\r\n\r\n")
	return header, text
}
