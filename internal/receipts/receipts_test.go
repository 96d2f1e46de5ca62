package receipts

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/events"
	"github.com/paymentsd/paymentsd/internal/inbox"
	"github.com/paymentsd/paymentsd/internal/pgtest"
)

func TestOnlyWhatTookEffectHasAReceipt(t *testing.T) {
	h := setup(t)
	var all []inbox.Message
	for i, name := range []events.Type{
		events.PaymentCreated, events.PaymentSettled, events.PaymentDeclined, events.PaymentCanceled, events.PaymentRecoveryRequired,
		events.RefundCreated, events.RefundSettled, events.RefundDeclined, events.RefundCanceled, events.RefundRecoveryRequired} {
		p := settled(i)
		p.Type = name
		if name[0] == 'R' {
			p.PaymentID, p.ParentPaymentID = "ref_1", p.PaymentID
		}
		all = append(all, message(t, "acme", p))
	}
	h.consume(all...)
	require.Equal(t, 2, h.count(`SELECT count(*) FROM receipts`))
	r := h.receipt(1)
	require.Equal(t, StatusPending, r.Status)
	require.Equal(t, "receipt_payment_pay_1.acme@paymentsd.example", r.MessageID)
	require.Equal(t, 1, h.count(`SELECT count(*) FROM receipts WHERE receipt_id = 'receipt_refund_ref_1'`))
}

// A purge of the inbox followed by a full redelivery adds no receipt, and changes none that was sent.
func TestBusinessKeyDecidesWhenTheInboxHasForgotten(t *testing.T) {
	h := setup(t)
	h.due(600)
	p := &post{}
	h.send(p)
	h.exec(`DELETE FROM consumer_inbox`)
	h.due(600)
	require.Equal(t, 600, h.count(`SELECT count(*) FROM receipts`))
	require.Equal(t, 1, h.count(`SELECT count(*) FROM receipts WHERE status = 'SENT'`))
	h.consume(message(t, "globex", settled(1)))
	require.Equal(t, 601, h.count(`SELECT count(*) FROM receipts`), "another tenant's")
}

// The same payment under another event, saying something else: a person sees it, and the receipt stays as it was written.
func TestContradictionIsSeenAndChangesNothing(t *testing.T) {
	h := setup(t)
	other := settled(1)
	other.EventID, other.Amount = "evt_other", "99.00"
	h.consume(message(t, "acme", settled(1)), message(t, "acme", other), message(t, "acme", settled(2))) // in one batch
	h.consume(message(t, "acme", other))                                                                 // and again
	require.Equal(t, 2, h.count(`SELECT count(*) FROM receipts WHERE amount_minor = 1000`))
	require.Equal(t, 1, h.count(`SELECT count(*) FROM dead_letters WHERE reason = 'contradicts_receipt' AND message_id = 'evt_other'`))
	require.Equal(t, 1, h.count(`SELECT count(*) FROM dead_letters`))
}

// I4: "receipts likewise": one message to two instances at the same instant, and cut commits.
func TestI4OneReceiptWhateverIsCut(t *testing.T) {
	for name, cut := range map[string]func(*pgtest.Proxy) *pgtest.Cut{
		"after the mark":      func(p *pgtest.Proxy) *pgtest.Cut { return p.DropNextReply(pgtest.Containing("into consumer_inbox")) },
		"after the effect":    func(p *pgtest.Proxy) *pgtest.Cut { return p.DropNextReply(pgtest.Containing("into receipts")) },
		"commit never came":   func(p *pgtest.Proxy) *pgtest.Cut { return p.DropNextRequest(pgtest.Containing("commit")) },
		"commit was not told": func(p *pgtest.Proxy) *pgtest.Cut { return p.DropNextReply(pgtest.Containing("commit")) },
	} {
		t.Run(name, func(t *testing.T) {
			h := setup(t)
			proxy := pgtest.NewProxy(t, h.pool.Config().ConnString())
			planned := cut(proxy)
			one, two := &feed{waiting: []inbox.Message{message(t, "acme", settled(1))}}, &feed{waiting: []inbox.Message{message(t, "acme", settled(1))}}
			defer h.start(pgtest.Open(t, proxy.URL()), one)()
			h.eventually(planned.Fired)
			defer h.start(h.pool, two)()
			h.eventually(func() bool { return one.ackedCount() == 1 && two.ackedCount() == 1 })
			require.Equal(t, 1, h.count(`SELECT count(*) FROM receipts`))
			require.Equal(t, 1, h.count(`SELECT count(*) FROM consumer_inbox`))
		})
	}
}

func TestI4TwoInstancesAtOnceWriteOneReceiptEach(t *testing.T) {
	h := setup(t)
	var one, two []inbox.Message
	for i := range 300 {
		one = append(one, message(t, "acme", settled(i)))
		two = append([]inbox.Message{message(t, "acme", settled(i))}, two...)
	}
	feeds := []*feed{{waiting: one}, {waiting: two}}
	for _, f := range feeds {
		defer h.start(h.pool, f)()
	}
	for _, f := range feeds {
		h.eventually(func() bool { return f.ackedCount() == 300 })
	}
	require.Equal(t, 300, h.count(`SELECT count(*) FROM receipts`))
}
