package receipts

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/events"
	"github.com/paymentsd/paymentsd/internal/pgtest"
)

// What a mailer says decides what becomes of the receipt; nothing else does.
func TestOutcomeDecidesWhatBecomesOfTheReceipt(t *testing.T) {
	for name, row := range map[string]struct {
		result Result
		status string
		later  string // when it is tried again, as an interval from now; "" is never
	}{
		"sent":            {Result{Outcome: Sent}, StatusSent, ""},
		"not sent":        {Result{NotSent, "smtp_451", false}, StatusPending, "15 s"},
		"nobody is there": {Result{NotSent, "no_connection", true}, StatusPending, "15 s"},
		"refused":         {Result{Refused, "smtp_550", false}, StatusFailed, ""},
		"unknown":         {Result{Unknown, "lost_after_text", false}, StatusUnknown, ""},
		"nothing at all":  {Result{}, StatusUnknown, ""},
		"no such outcome": {Result{Outcome: 99, Reason: "?"}, StatusUnknown, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := setup(t)
			h.due(1)
			p := &post{does: func(Mail) Result {
				require.Equal(t, StatusSending, h.receipt(0).Status, "the intent is durable before the mail server hears of it")
				return row.result
			}}
			if row.result == (Result{}) {
				row.result.Reason = "?"
				p.does = func(Mail) Result { panic("mailer") }
			}
			h.send(p)
			r := h.receipt(0)
			require.Equal(t, row.status, r.Status)
			require.Equal(t, 1, r.Attempts)
			if row.status == StatusSent {
				require.NotNil(t, r.SentAt)
				require.Empty(t, r.LastError)
			} else {
				require.NotEmpty(t, r.LastError)
			}
			found, err := h.sender(h.pool, p).SendDue(t.Context())
			require.NoError(t, err)
			require.False(t, found, "not at once")
			require.Equal(t, 1, p.count())
			if row.later != "" {
				require.Equal(t, 1, h.count(`SELECT count(*) FROM receipts WHERE next_attempt_at BETWEEN now() + interval '5 s' AND now() + $1::interval`, row.later))
			}
		})
	}
}

func TestPausesGrowFromSecondsToAnHour(t *testing.T) {
	for attempts, want := range map[int]time.Duration{0: pauseMin, 1: pauseMin, 2: 20 * time.Second, 4: 80 * time.Second, 10: pauseMax, 1_000_000: pauseMax} {
		pause := backOff(pauseMin, attempts, pauseMax)
		require.GreaterOrEqual(t, pause, want*3/4)
		require.LessOrEqual(t, pause, want*5/4)
	}
}

func TestSendersShareTheReceiptsAndSendEachOnce(t *testing.T) {
	h := setup(t)
	h.due(300)
	p := &post{}
	for range 3 {
		defer h.background(func(ctx context.Context) error { return h.sender(h.pool, p).Run(ctx, 20*time.Millisecond) })()
	}
	h.eventually(func() bool { return h.count(`SELECT count(*) FROM receipts WHERE status = 'SENT'`) == 300 })
	require.Equal(t, 300, p.count())
	ids := map[string]bool{}
	for _, m := range p.mails {
		ids[m.MessageID] = true
		require.Equal(t, "acc_1@acme.example", m.To)
	}
	require.Len(t, ids, 300)
	open, err := CountOpen(t.Context(), h.pool)
	require.NoError(t, err)
	require.Zero(t, open)
}

// A sender that is killed while it sends leaves a receipt in doubt, when its lease is over and not before. Nobody sends it again by
// himself.
func TestKilledSenderLeavesDoubt(t *testing.T) {
	h := setup(t)
	h.due(1)
	_, err := h.sender(h.pool, &post{}).sql.AcquireDueReceipt(t.Context(), h.pool, acquisition("killed", time.Minute))
	require.NoError(t, err)
	p := &post{}
	stop := h.background(func(ctx context.Context) error { return h.sender(h.pool, p).Run(ctx, 10*time.Millisecond) })
	time.Sleep(100 * time.Millisecond)
	require.Equal(t, StatusSending, h.receipt(0).Status, "it may only be slow")
	h.exec(`UPDATE receipts SET locked_until = now() - interval '1 s'`)
	h.eventually(func() bool { return h.receipt(0).Status == StatusUnknown })
	time.Sleep(100 * time.Millisecond)
	stop()
	require.Zero(t, p.count())
	require.Equal(t, "sender_gone", h.receipt(0).LastError)
	open, err := CountOpen(t.Context(), h.pool)
	require.NoError(t, err)
	require.Equal(t, Open{Unknown: 1}, open)
}

// A stalled sender still knows what happened, so it ends the doubt; but not when somebody has decided meanwhile.
func TestLateSenderEndsTheDoubtUnlessSomebodyHasDecided(t *testing.T) {
	for name, row := range map[string]struct {
		decide func(*house)
		want   string
		mails  int
	}{
		"nobody":   {func(*house) {}, StatusSent, 1},
		"operator": {func(h *house) { require.NoError(h.t, Resend(t.Context(), h.pool, "acme", "receipt_payment_pay_0")) }, StatusPending, 1},
		"being sent by another": {func(h *house) {
			require.NoError(h.t, Resend(t.Context(), h.pool, "acme", "receipt_payment_pay_0"))
			_, err := h.sender(h.pool, nil).sql.AcquireDueReceipt(t.Context(), h.pool, acquisition("another", time.Minute))
			require.NoError(h.t, err)
		}, StatusSending, 2},
		"sent by another": {func(h *house) {
			require.NoError(h.t, Resend(t.Context(), h.pool, "acme", "receipt_payment_pay_0"))
			h.send(&post{does: func(Mail) Result { return Result{NotSent, "smtp_451", false} }})
		}, StatusPending, 2},
	} {
		t.Run(name, func(t *testing.T) {
			h := setup(t)
			h.due(1)
			stalled := &post{does: func(Mail) Result {
				h.exec(`UPDATE receipts SET locked_until = now() - interval '1 s'`)
				n, err := h.sender(h.pool, nil).DoubtAbandoned(t.Context())
				require.NoError(t, err)
				require.Equal(t, 1, n)
				row.decide(h)
				return Result{Outcome: Sent}
			}}
			h.send(stalled)
			require.Equal(t, row.want, h.receipt(0).Status)
			require.Equal(t, row.mails, h.receipt(0).Attempts)
		})
	}
}

// The database goes away at every point of a sending. No mail is sent twice, and none is in doubt that was not begun.
func TestLostAnswersOfTheDatabaseSendNothingTwice(t *testing.T) {
	for name, cut := range map[string]func(*pgtest.Proxy) *pgtest.Cut{
		"acquired, not told": func(p *pgtest.Proxy) *pgtest.Cut { return p.DropNextReply(pgtest.Containing("AcquireDueReceipt")) },
		"acquire never came": func(p *pgtest.Proxy) *pgtest.Cut { return p.DropNextRequest(pgtest.Containing("AcquireDueReceipt")) },
		"recorded, not told": func(p *pgtest.Proxy) *pgtest.Cut { return p.DropNextReply(pgtest.Containing("RecordOutcome")) },
		"record never came":  func(p *pgtest.Proxy) *pgtest.Cut { return p.DropNextRequest(pgtest.Containing("RecordOutcome")) },
		"released, not told": func(p *pgtest.Proxy) *pgtest.Cut { return p.DropNextReply(pgtest.Containing("ReleaseUnbegun")) },
		"doubted, not told":  func(p *pgtest.Proxy) *pgtest.Cut { return p.DropNextReply(pgtest.Containing("DoubtAbandoned")) },
	} {
		t.Run(name, func(t *testing.T) {
			h := setup(t)
			h.due(2)
			proxy := pgtest.NewProxy(t, h.pool.Config().ConnString())
			planned := cut(proxy)
			p := &post{}
			db := pgtest.Open(t, proxy.URL(), func(c *pgxpool.Config) { c.MaxConns = 1 })
			defer h.background(func(ctx context.Context) error { h.sender(db, p).work(ctx, 20*time.Millisecond); return nil })()
			h.eventually(func() bool {
				return planned.Fired() && h.count(`SELECT count(*) FROM receipts WHERE status = 'SENT' AND attempts = 1`) == 2
			})
			require.Equal(t, 2, p.count())
		})
	}
}

// An outcome that cannot be recorded is not forgotten by sending again: the worker that knows it never releases that receipt.
func TestOutcomeThatCannotBeRecordedIsInDoubtAndNotSentAgain(t *testing.T) {
	h := setup(t)
	h.due(1)
	proxy := pgtest.NewProxy(t, h.pool.Config().ConnString())
	begun, goOn := make(chan struct{}), make(chan struct{})
	p := &post{does: func(Mail) Result { close(begun); <-goOn; return Result{Outcome: Sent} }}
	s := h.sender(pgtest.Open(t, proxy.URL()), p)
	s.recordFor = 300 * time.Millisecond
	defer h.background(func(ctx context.Context) error { s.work(ctx, 20*time.Millisecond); return nil })()
	<-begun
	proxy.Down()
	close(goOn)
	time.Sleep(500 * time.Millisecond)
	proxy.Up(t)
	time.Sleep(200 * time.Millisecond)
	require.Equal(t, StatusSending, h.receipt(0).Status)
	h.exec(`UPDATE receipts SET locked_until = now() - interval '1 s'`)
	h.eventually(func() bool { return h.receipt(0).Status == StatusUnknown })
	time.Sleep(200 * time.Millisecond)
	require.Equal(t, StatusUnknown, h.receipt(0).Status)
	require.Equal(t, 1, p.count())
}

// Told to end, a sender waits for the mail that it has begun.
func TestShutdownWaitsForTheOutcome(t *testing.T) {
	h := setup(t)
	h.due(1)
	begun, goOn := make(chan struct{}), make(chan struct{})
	p := &post{does: func(Mail) Result { close(begun); <-goOn; return Result{Outcome: Sent} }}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.sender(h.pool, p).Run(ctx, time.Second) }()
	<-begun
	cancel()
	time.Sleep(50 * time.Millisecond)
	close(goOn)
	require.NoError(t, <-done)
	require.Equal(t, StatusSent, h.receipt(0).Status)
}

func TestMailServerThatIsDownIsNotStormed(t *testing.T) {
	h := setup(t)
	h.due(50)
	p := &post{does: func(Mail) Result { return Result{NotSent, "no_connection", true} }}
	stop := h.background(func(ctx context.Context) error { return h.sender(h.pool, p).Run(ctx, 10*time.Millisecond) })
	time.Sleep(300 * time.Millisecond)
	stop()
	require.LessOrEqual(t, p.count(), workers)
	require.Equal(t, 50, h.count(`SELECT count(*) FROM receipts WHERE status = 'PENDING'`))
}

func TestPersonDecidesAboutDoubtAndFailure(t *testing.T) {
	h := setup(t)
	h.due(4)
	results := []Result{{Unknown, "lost_after_text", false}, {Refused, "smtp_550", false}, {Outcome: Sent}, {Unknown, "lost_after_text", false}}
	p := &post{does: func(m Mail) Result { return results[m.MessageID[len("receipt_payment_pay_")]-'0'] }}
	for range 4 {
		h.send(p)
	}
	id := func(n int) string { return h.receipt(n).ID }
	unknown, err := List(t.Context(), h.pool, StatusUnknown, Receipt{}, 1)
	require.NoError(t, err)
	require.Len(t, unknown, 1)
	next, err := List(t.Context(), h.pool, StatusUnknown, unknown[0], 10)
	require.NoError(t, err)
	require.Equal(t, []string{id(0), id(3)}, []string{unknown[0].ID, next[0].ID})
	require.Equal(t, "10.00", unknown[0].Amount.String())

	require.NoError(t, Resend(t.Context(), h.pool, "acme", id(0)))
	require.NoError(t, Resend(t.Context(), h.pool, "acme", id(1)))
	require.ErrorIs(t, Resend(t.Context(), h.pool, "acme", id(2)), ErrNotYours)
	require.ErrorIs(t, Resend(t.Context(), h.pool, "acme", id(0)), ErrNotYours, "twice")
	require.ErrorIs(t, Resend(t.Context(), h.pool, "globex", id(0)), ErrNotFound)
	require.NoError(t, ConfirmSent(t.Context(), h.pool, "acme", id(3)))
	require.ErrorIs(t, ConfirmSent(t.Context(), h.pool, "acme", id(1)), ErrNotYours)

	before := p.mails
	p.does = nil
	h.send(p)
	h.send(p)
	for n := range 4 {
		require.Equal(t, StatusSent, h.receipt(n).Status)
	}
	require.Len(t, p.mails, 6)
	for _, again := range p.mails[4:] {
		require.Contains(t, before, again, "the same mail, Message-ID and all")
	}
}

func TestAccountThatMakesNoAddressFails(t *testing.T) {
	h := setup(t)
	odd := settled(0)
	odd.AccountID = "a234567890123456789012345678901234567890123456789012345678901234"
	h.addresses.to = "receipts-for-{account}@{tenant}.example" // longer than a local part may be
	h.consume(message(t, "acme", odd))
	p := &post{}
	h.send(p)
	require.Zero(t, p.count())
	r := h.receipt(0)
	require.Equal(t, []string{StatusFailed, "no_recipient"}, []string{r.Status, r.LastError})
}

// H7: what a client wrote is in the mail, in its text, and nowhere else.
func TestH7ReferencesAreInTheTextAlone(t *testing.T) {
	h := setup(t)
	odd := settled(0)
	odd.MerchantReference = "s3cret reference =?utf-8?q?x?= Bcc: x@y é"
	h.consume(message(t, "acme", odd))
	server, addr := newGoodServer(t, nil, false)
	m, err := NewSMTP("smtp://"+addr, "receipts@paymentsd.example", 5*time.Second)
	require.NoError(t, err)
	h.send(m)
	require.Equal(t, StatusSent, h.receipt(0).Status)
	header, text := cutHeader(server.received[0].text)
	require.Contains(t, text, "s3cret reference")
	require.NotContains(t, header, "s3cret")
	require.NotContains(t, header, "Bcc")
	require.NotContains(t, h.log.String(), "s3cret")
	require.NotContains(t, h.log.String(), "acc_1@")
}

func TestRefundSaysSo(t *testing.T) {
	h := setup(t)
	p := settled(0)
	p.Type, p.PaymentID, p.ParentPaymentID = events.RefundSettled, "ref_0", "pay_0"
	h.consume(message(t, "acme", p))
	sent := &post{}
	h.send(sent)
	require.Equal(t, "Refund: 10.00 EUR", sent.mails[0].Subject)
	require.Contains(t, sent.mails[0].Text, "You have been given back 10.00 EUR.")
	require.Equal(t, "receipt_refund_ref_0.acme@paymentsd.example", sent.mails[0].MessageID)
}
