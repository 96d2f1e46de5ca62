package payments

import (
	"context"
	"fmt"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/pgtest"
	"github.com/paymentsd/paymentsd/internal/provider"
)

// notice is a callback that fits a payment, as the provider says it of a charge that went well.
func (h *house) notice(webhookID, paymentID string, changes ...func(*provider.Notice)) provider.Notice {
	h.t.Helper()
	n := provider.Notice{WebhookID: webhookID, TenantID: "acme", PaymentID: paymentID, Kind: provider.Charge, Key: "provider_payment_" + paymentID,
		Outcome: provider.Confirmed, ChargeID: "ch_of_" + paymentID, AmountMinor: 1000, Currency: "EUR"}
	list := h.list("/control/charges")
	if strings.HasPrefix(paymentID, "ref_") {
		n.Kind, n.Key = provider.Refund, "provider_refund_"+paymentID
		list = h.list("/control/refunds")
	}
	for _, executed := range list {
		if executed["paymentId"] == paymentID {
			n.ChargeID, n.AmountMinor = executed["id"].(string), int64(executed["amountMinor"].(float64))
		}
	}
	for _, change := range changes {
		change(&n)
	}
	return n
}

func declinedBy(chargeID string) func(*provider.Notice) {
	return func(n *provider.Notice) {
		n.Outcome, n.ChargeID, n.DeclineCode = provider.Declined, chargeID, "CARD_DECLINED"
	}
}

// take is a callback, and then everything that it has made happen.
func (h *house) take(s *Service, n provider.Notice) {
	h.t.Helper()
	require.NoError(h.t, s.TakeCallback(h.t.Context(), n))
	_ = s.settling.Wait()
}

func (h *house) verdict(webhookID string) (verdict string) {
	require.NoError(h.t, h.pool.QueryRow(h.t.Context(), `SELECT verdict FROM provider_callbacks WHERE webhook_id = $1`, webhookID).Scan(&verdict))
	return verdict
}

func (h *house) idOf(c Command) (paymentID string) {
	require.NoError(h.t, h.pool.QueryRow(h.t.Context(), `SELECT payment_id FROM payments WHERE idempotency_key = $1`, string(c.Scope.Key)).Scan(&paymentID))
	return paymentID
}

// lookups is how often the provider was asked about a reference.
func (h *house) lookups(reference string) int {
	n := 0
	for _, r := range h.list("/control/requests?reference=" + url.QueryEscape(reference)) {
		if r["method"] == "GET" {
			n++
		}
	}
	return n
}

// lost is a payment that was sent and of which nobody was told how it ended.
func (h *house) lost(s *Service) (c Command, paymentID string) {
	h.t.Helper()
	c = h.command()
	h.fault(c.Said.MerchantReference, "charge", "execute_then_drop", 1)
	require.Equal(h.t, "pending", kind(s.Create(h.t.Context(), c)))
	return c, h.idOf(c)
}

// The provider's answer is lost, and its callback settles the payment: there is no recovery here, nor does anybody ask.
func TestG11_CallbackSettlesWhatTheAnswerDidNot(t *testing.T) {
	h := setup(t)
	s := h.service(nil, nil)
	c, id := h.lost(s)
	h.take(s, h.notice("msg_1", id))
	state, reason := h.stateOf(c)
	require.Equal(t, "COMPLETED webhook", state+" "+reason)
	require.Zero(t, h.lookups(c.Said.MerchantReference))
	require.Equal(t, []string{"PaymentCreated", "PaymentRecoveryRequired", "PaymentSettled"}, h.eventsOf(id))
	require.Equal(t, "APPLIED", h.verdict("msg_1"))
	require.Equal(t, "replay", kind(s.Create(t.Context(), c)))

	poor := h.command()
	h.control("PUT", "/control/accounts/acc_1", map[string]any{"balances": map[string]string{"EUR": "0"}})
	h.fault(poor.Said.MerchantReference, "charge", "execute_then_drop", 1)
	require.Equal(t, "pending", kind(s.Create(t.Context(), poor)))
	h.take(s, h.notice("msg_2", h.idOf(poor), declinedBy("ch_000002")))
	state, reason = h.stateOf(poor)
	require.Equal(t, "DECLINED webhook", state+" "+reason)
	require.Zero(t, h.lookups(poor.Said.MerchantReference))
	require.Equal(t, []string{"PaymentCreated", "PaymentRecoveryRequired", "PaymentDeclined"}, h.eventsOf(h.idOf(poor)))
	result, err := s.Create(t.Context(), poor)
	require.NoError(t, err)
	require.Equal(t, 402, result.Answer.Status)
	require.Equal(t, 1, h.count(`SELECT count(*) FROM payments WHERE decline_code = 'CARD_DECLINED'`))
	h.audit()
}

func TestG11_CallbackSettlesARefund(t *testing.T) {
	h := setup(t)
	s := h.service(nil, nil)
	paid := h.command()
	require.Equal(t, "first", kind(s.Create(t.Context(), paid)))
	c := h.refundOf(h.idOf(paid), "4")
	h.fault(paid.Said.MerchantReference, "refund", "execute_then_drop", 1)
	require.Equal(t, "pending", kind(s.Create(t.Context(), c)))
	id := h.idOf(c)

	h.take(s, h.notice("msg_0", id, func(n *provider.Notice) { n.Kind = provider.Charge }))
	require.Equal(t, "CONTRADICTS", h.verdict("msg_0"), "it was no charge")
	require.Equal(t, 1, h.count(`SELECT count(*) FROM payments WHERE payment_id = $1 AND state = 'UNKNOWN_REQUIRES_RECOVERY'`, id))
	_, err := h.pool.Exec(t.Context(), `DELETE FROM provider_callbacks`)
	require.NoError(t, err)

	h.take(s, h.notice("msg_1", id))
	require.Equal(t, "APPLIED", h.verdict("msg_1"))
	require.Equal(t, []string{"RefundCreated", "RefundRecoveryRequired", "RefundSettled"}, h.eventsOf(id))
	require.Zero(t, h.lookups(paid.Said.MerchantReference))
	require.Equal(t, "replay", kind(s.Create(t.Context(), c)))
	h.audit()
}

// The callback comes while the owner still waits for the answer. It disturbs nobody, and it is there for whoever inherits.
func TestG11_EarlyCallbackIsLeftToTheOwner(t *testing.T) {
	h := setup(t)
	receiving, c := h.service(nil, nil), h.command()
	var early string
	owner := h.service(nil, slowProvider{h.client(), func() {
		require.NoError(t, receiving.TakeCallback(t.Context(), h.notice("msg_1", h.idOf(c))))
		early = h.verdict("msg_1")
		time.Sleep(100 * time.Millisecond) // time enough for a take-over, if there were one
	}})
	require.Equal(t, "first", kind(owner.Create(t.Context(), c)))
	_ = receiving.settling.Wait()
	require.Equal(t, "WAITING", early)
	require.Equal(t, "NO_EFFECT", h.verdict("msg_1"))
	require.Equal(t, 1, h.count(`SELECT max(lease_epoch) FROM payment_moves`), "nobody took over")
	_, reason := h.stateOf(c)
	require.Equal(t, "answered", reason)
	require.Equal(t, []string{"PaymentCreated", "PaymentSettled"}, h.eventsOf(h.idOf(c)))
	h.audit()
}

// The same, but the answer is lost: the callback waits until the owner has given up, and settles the payment at once.
func TestG11_EarlyCallbackOutlastsALostAnswer(t *testing.T) {
	h := setup(t)
	receiving, c := h.service(nil, nil), h.command()
	h.fault(c.Said.MerchantReference, "charge", "execute_then_drop", 1)
	owner := h.service(nil, slowProvider{h.client(), func() {
		require.NoError(t, receiving.TakeCallback(t.Context(), h.notice("msg_1", h.idOf(c))))
	}})
	require.Equal(t, "pending", kind(owner.Create(t.Context(), c)))
	_ = receiving.settling.Wait()
	state, reason := h.stateOf(c)
	require.Equal(t, "COMPLETED webhook", state+" "+reason)
	require.Zero(t, h.lookups(c.Said.MerchantReference))
	h.audit()
}

// The owner dies with the answer in its hands. Whoever inherits finds the callback on file, and asks nobody.
func TestG11_EarlyCallbackIsThereForTheHeir(t *testing.T) {
	for _, way := range waysBack {
		t.Run(way.name, func(t *testing.T) {
			h := setup(t)
			c, receiving := h.command(), h.service(nil, nil)
			require.False(t, die(func() {
				_, _ = h.service(nil, slowProvider{h.client(), func() {
					require.NoError(t, receiving.TakeCallback(t.Context(), h.notice("msg_1", h.idOf(c))))
					receiving.Drain() // that process ends too, and need not wait for the owner
					runtime.Goexit()
				}}).Create(t.Context(), c)
			}))
			h.leaseOver()
			way.run(h, h.service(nil, nil), c)
			state, reason := h.stateOf(c)
			require.Equal(t, "COMPLETED webhook", state+" "+reason)
			require.Zero(t, h.lookups(c.Said.MerchantReference))
			require.Equal(t, "APPLIED", h.verdict("msg_1"))
			require.Equal(t, "replay", kind(receiving.Create(t.Context(), c)))
			h.audit()
		})
	}
}

// A payment that is over stays as it is, whatever is said of it afterwards.
func TestG11_LateCallbackChangesNothing(t *testing.T) {
	h := setup(t)
	s := h.service(nil, nil)
	settled, refused := h.command(), h.command()
	h.fault(refused.Said.MerchantReference, "charge", "decline", 1)
	require.Equal(t, "first", kind(s.Create(t.Context(), settled)))
	require.Equal(t, "first", kind(s.Create(t.Context(), refused)))
	before := h.everything()
	for i, row := range []struct {
		n       provider.Notice
		verdict string
	}{
		{h.notice("", h.idOf(settled)), "NO_EFFECT"},
		{h.notice("", h.idOf(settled), declinedBy("an older attempt")), "NO_EFFECT"},
		{h.notice("", h.idOf(settled), declinedBy("ch_000001")), "CONTRADICTS"},
		{h.notice("", h.idOf(settled), func(n *provider.Notice) { n.ChargeID = "ch_000009" }), "CONTRADICTS"},
		{h.notice("", h.idOf(settled), func(n *provider.Notice) { n.AmountMinor++ }), "CONTRADICTS"},
		{h.notice("", h.idOf(refused), declinedBy("ch_000002")), "NO_EFFECT"},
		{h.notice("", h.idOf(refused)), "CONTRADICTS"},
	} {
		row.n.WebhookID = fmt.Sprintf("msg_%d", i)
		h.take(s, row.n)
		require.Equal(t, row.verdict, h.verdict(row.n.WebhookID), i)
		require.Equal(t, before, h.everything(), i)
	}
	h.audit()
}

// What does not fit the payment, or contradicts itself, is not believed: the provider is asked.
func TestG11_WhatDoesNotFitIsNotBelieved(t *testing.T) {
	for name, row := range map[string]struct {
		told    []func(*provider.Notice)
		verdict string // of the first
	}{
		"another amount":        {[]func(*provider.Notice){func(n *provider.Notice) { n.AmountMinor = 1 }}, "CONTRADICTS"},
		"another currency":      {[]func(*provider.Notice){func(n *provider.Notice) { n.Currency = "USD" }}, "CONTRADICTS"},
		"another kind":          {[]func(*provider.Notice){func(n *provider.Notice) { n.Kind = provider.Refund }}, "CONTRADICTS"},
		"another key":           {[]func(*provider.Notice){func(n *provider.Notice) { n.Key = "provider_payment_pay_2" }}, "CONTRADICTS"},
		"yes and no":            {[]func(*provider.Notice){func(*provider.Notice) {}, declinedBy("ch_9")}, "NO_EFFECT"},
		"no and yes":            {[]func(*provider.Notice){declinedBy("ch_9"), func(*provider.Notice) {}}, "NO_EFFECT"},
		"yes twice, but not to": {[]func(*provider.Notice){func(*provider.Notice) {}, func(n *provider.Notice) { n.ChargeID = "ch_9" }}, "NO_EFFECT"},
	} {
		t.Run(name, func(t *testing.T) {
			h := setup(t)
			s := h.service(nil, nil)
			c, id := h.lost(s)
			receiving := h.service(nil, nil)
			h.hold(c) // so that all of them are there before anybody looks
			for i, change := range row.told {
				require.NoError(t, receiving.TakeCallback(t.Context(), h.notice(fmt.Sprintf("msg_%d", i), id, change)))
			}
			receiving.Drain()
			h.leaseOver()
			_, err := s.Recover(t.Context())
			require.NoError(t, err)
			state, reason := h.stateOf(c)
			require.Equal(t, "COMPLETED answered", state+" "+reason)
			require.Equal(t, 1, h.lookups(c.Said.MerchantReference))
			require.Equal(t, row.verdict, h.verdict("msg_0"))
			require.Equal(t, []string{"PaymentCreated", "PaymentRecoveryRequired", "PaymentSettled"}, h.eventsOf(id))
			h.audit()
		})
	}
}

// hold gives the key of a payment to somebody who does nothing with it.
func (h *house) hold(c Command) {
	_, err := h.pool.Exec(h.t.Context(), `UPDATE idempotency_requests SET locked_until = now() + interval '1 min' WHERE idempotency_key = $1`, string(c.Scope.Key))
	require.NoError(h.t, err)
}

// Five at once are one, and so are two that say the same under two names.
func TestG11_RepeatedCallbacksAreOne(t *testing.T) {
	h := setup(t)
	s := h.service(nil, nil)
	_, id := h.lost(s)
	var senders sync.WaitGroup
	for range 5 {
		senders.Go(func() { require.NoError(t, h.service(nil, nil).TakeCallback(t.Context(), h.notice("msg_1", id))) })
	}
	senders.Wait()
	require.Eventually(t, func() bool { return h.verdict("msg_1") == "APPLIED" }, 5*time.Second, 5*time.Millisecond)
	h.take(s, h.notice("msg_2", id))
	_, err := h.pool.Exec(t.Context(), `DELETE FROM consumer_inbox`)
	require.NoError(t, err)
	h.take(s, h.notice("msg_1", id))
	require.Equal(t, 2, h.count(`SELECT count(*) FROM provider_callbacks`))
	require.Equal(t, "APPLIED", h.verdict("msg_1"), "the inbox is shorter than a repetition")
	require.Equal(t, "NO_EFFECT", h.verdict("msg_2"))
	require.Equal(t, []string{"PaymentCreated", "PaymentRecoveryRequired", "PaymentSettled"}, h.eventsOf(id))
	h.audit()

	_, err = h.pool.Exec(t.Context(), `DELETE FROM provider_callbacks`)
	require.NoError(t, err)
	h.take(s, h.notice("msg_1", id))
	require.Zero(t, h.count(`SELECT count(*) FROM provider_callbacks`), "the inbox alone knows it too")
}

// A callback about a payment that nobody has is kept, and found when there is such a payment and somebody needs it.
func TestG11_UnmatchedCallbackIsKept(t *testing.T) {
	h := setup(t)
	s, c := h.service(nil, nil), h.command()
	o := h.openingOf(s, c)
	h.take(s, h.notice("msg_1", o.paymentID))
	h.take(s, h.notice("msg_2", "pay_of_nobody"))
	h.take(s, h.notice("msg_3", o.paymentID, func(n *provider.Notice) { n.TenantID = "nobody" }))
	require.Equal(t, 3, h.count(`SELECT count(*) FROM provider_callbacks WHERE verdict = 'UNMATCHED'`))

	f, err := s.open(t.Context(), o)
	require.NoError(t, err)
	_, err = s.move(t.Context(), f.record.Lease, o.payment(f), sentMark) // and the process dies
	require.NoError(t, err)
	h.recoverOnce(s)
	state, reason := h.stateOf(c)
	require.Equal(t, "COMPLETED webhook", state+" "+reason)
	require.Equal(t, "APPLIED", h.verdict("msg_1"))
	require.Equal(t, "UNMATCHED", h.verdict("msg_3"), "another tenant's")
}

// "Declined" is the outcome of an attempt. Where there was more than one, it may be another one's.
func TestG11_DeclineOfOneOfManyAttemptsIsAskedAbout(t *testing.T) {
	h := setup(t)
	s := h.service(nil, nil)
	c, id := h.lost(s)
	_, err := h.pool.Exec(t.Context(), `UPDATE payments SET provider_sends = 2`)
	require.NoError(t, err)
	h.take(s, h.notice("msg_1", id, declinedBy("ch_000000")))
	state, reason := h.stateOf(c)
	require.Equal(t, "COMPLETED answered", state+" "+reason)
	require.Equal(t, "NO_EFFECT", h.verdict("msg_1"))
	h.audit()
}

// A callback says that money moved, and does not fit; the provider, asked, knows nothing. Nothing is sent again.
func TestNothingIsSentAgainWhileACallbackSpeaksOfMoney(t *testing.T) {
	h := setup(t)
	s, c := h.service(nil, nil), h.command()
	h.fault(c.Said.MerchantReference, "charge", "drop_before_execute", 1)
	require.Equal(t, "pending", kind(s.Create(t.Context(), c)))
	h.take(s, h.notice("msg_1", h.idOf(c), func(n *provider.Notice) { n.AmountMinor = 1 }))
	h.recoverOnce(s)
	state, reason := h.stateOf(c)
	require.Equal(t, "UNKNOWN_REQUIRES_RECOVERY absent_but_told", state+" "+reason)
	require.Equal(t, 1, h.posts(c.Said.MerchantReference))

	_, err := h.pool.Exec(t.Context(), `UPDATE provider_callbacks SET outcome = 'DECLINED', decline_code = 'X'`)
	require.NoError(t, err)
	h.recoverOnce(s)
	state, _ = h.stateOf(c)
	require.Equal(t, "COMPLETED", state, "no money was spoken of, so it is sent again")
	h.audit()
}

// What was provably not sent waits for its client, whatever is said about it.
func TestCallbackDoesNotSendWhatWasNotSent(t *testing.T) {
	h := setup(t)
	s := h.service(nil, nil)
	lease, p := h.opened(s)
	p, err := s.move(t.Context(), lease, p, sentMark)
	require.NoError(t, err)
	_, err = s.move(t.Context(), lease, p, step{to: []State{LocalPaymentCreated}, reason: "refused"})
	require.NoError(t, err)
	before := h.everything()
	h.take(s, h.notice("msg_1", p.ID))
	require.Equal(t, before, h.everything())
	require.Equal(t, "WAITING", h.verdict("msg_1"))
	require.Empty(t, h.list("/control/requests"))
}

// The process dies at every boundary of taking a callback; the provider, which got no answer, says it again.
func TestCallbackSurvivesEveryCrash(t *testing.T) {
	h := setup(t)
	died := 0
	for at := 1; ; at++ {
		lived := false
		for _, after := range []bool{false, true} {
			c, id := h.lost(h.service(nil, nil))
			n := h.notice(fmt.Sprintf("msg_%d_%v", at, after), id)
			wire := &tripwire{at: at, after: after}
			lived = die(func() {
				_ = h.wired(wire).TakeCallback(context.Background(), n)
			})
			if lived {
				break
			}
			died++
			h.take(h.service(nil, nil), n)
			state, _ := h.stateOf(c)
			require.Equal(t, "COMPLETED", state, wire.names)
			require.Equal(t, 1, h.count(`SELECT count(*) FROM provider_callbacks WHERE webhook_id = $1 AND verdict = 'APPLIED'`, n.WebhookID))
			require.Equal(t, []string{"PaymentCreated", "PaymentRecoveryRequired", "PaymentSettled"}, h.eventsOf(id))
		}
		if lived {
			break
		}
	}
	require.Equal(t, 8, died, "inbox, payment, callback, commit; before and after each")
	h.audit()
}

// A commit whose answer is lost on the wire is found again, and the payment is driven all the same.
func TestLostCommitOfACallbackIsFoundAgain(t *testing.T) {
	for _, direction := range []string{"request", "reply"} {
		h := setup(t)
		_, id := h.lost(h.service(nil, nil))
		proxy := pgtest.NewProxy(t, h.pool.Config().ConnString())
		s := h.service(pgtest.Open(t, proxy.URL()), nil)
		drop := proxy.DropNextReply
		if direction == "request" {
			drop = proxy.DropNextRequest
		}
		cut := drop(pgtest.Containing("commit"))
		h.take(s, h.notice("msg_1", id))
		require.True(t, cut.Fired())
		require.Equal(t, "APPLIED", h.verdict("msg_1"))
		h.audit()
	}
}

func TestCallbackIsRefusedWithoutADatabase(t *testing.T) {
	h := setup(t)
	_, id := h.lost(h.service(nil, nil))
	proxy := pgtest.NewProxy(t, h.pool.Config().ConnString())
	s := h.service(pgtest.Open(t, proxy.URL()), nil)
	proxy.Down()
	require.ErrorIs(t, s.TakeCallback(t.Context(), h.notice("msg_1", id)), ErrUnavailable)
	require.Zero(t, h.count(`SELECT count(*) FROM consumer_inbox`)+h.count(`SELECT count(*) FROM provider_callbacks`))
}

// However many callbacks there are, they are believed when they agree, and not when a single one of them does not.
func TestAnyNumberOfCallbacksIsBelievedUnlessOneDisagrees(t *testing.T) {
	for _, last := range []string{"", "another charge"} {
		h := setup(t)
		s := h.service(nil, nil)
		_, id := h.lost(s)
		p, err := s.Get(t.Context(), "acme", id)
		require.NoError(t, err)
		_, err = h.pool.Exec(t.Context(), `INSERT INTO provider_callbacks (tenant_id, webhook_id, payment_id, kind, outcome, provider_key, charge_id,
			amount_minor, currency, verdict)
			SELECT 'acme', 'msg_' || n, $1, 'PAYMENT', 'CONFIRMED', $2, CASE WHEN n = 250 AND $3 <> '' THEN 'ch_2' ELSE 'ch_1' END, $4, 'EUR', 'WAITING'
			FROM generate_series(1, 250) n`, id, p.order().Key, last, p.Amount.Minor())
		require.NoError(t, err)
		told, err := s.toldAbout(t.Context(), p)
		require.NoError(t, err)
		want := provider.Confirmed
		if last != "" {
			want = provider.Unknown
		}
		require.Equal(t, want, told.believe(p).Outcome)
	}
}
