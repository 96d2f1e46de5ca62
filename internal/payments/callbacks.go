package payments

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/inbox"
	"github.com/paymentsd/paymentsd/internal/payments/internal/paymentssql"
	"github.com/paymentsd/paymentsd/internal/provider"
)

// What the provider says unasked is evidence and not an order. It is put on file, and then its payment enters the one door,
// where the file is looked at before the provider is asked. So a callback can settle a payment whose answer was lost, and can
// do nothing that the door could not do without it.
//
// A payment whose owner still waits for the provider's answer is left to its owner; the file is for whoever inherits it. A
// payment that is over stays as it is, whatever is said later. A payment that nobody knows may still come.
//
// How far a callback is believed:
//
//	all on file fit the payment (kind, provider key, amount, currency) and say the same    that is the outcome
//	... but they say "declined", and more than one attempt was made                        asked: which one is meant?
//	they contradict each other, or one of them contradicts the payment                     asked
//	one says that money moved, and the provider, asked, does not know the key              unknown; nothing is sent again

// callbackVerdict is what became of a callback.
type callbackVerdict string

const (
	// callbackWaiting: it fits, and its payment is pending. It stays so if the payment's owner ends it and nobody looks again.
	callbackWaiting callbackVerdict = "WAITING"
	// callbackApplied: the payment was moved by it.
	callbackApplied callbackVerdict = "APPLIED"
	// callbackNoEffect: it says what was known already, or tells of an attempt that the outcome did not come from.
	callbackNoEffect callbackVerdict = "NO_EFFECT"
	// callbackUnmatched: the tenant has no such payment, or not yet.
	callbackUnmatched callbackVerdict = "UNMATCHED"
	// callbackContradicts: it does not fit the payment, or says the opposite of how that ended. Somebody should look.
	callbackContradicts callbackVerdict = "CONTRADICTS"
)

const (
	// callbackConsumer is this package's name in the inbox.
	callbackConsumer = "provider-webhooks"
	// callbacksMax bounds what is read about one payment. All that say different things come first, so more of them add nothing.
	callbacksMax = 100
	// settlingMax bounds the payments that callbacks make a process drive at once, or wait for. What is more is left to recovery.
	settlingMax = 100
)

// callback is one of them, as it is on file.
type callback struct {
	webhookID string
	verdict   callbackVerdict

	// Which order it is about.
	kind        Kind
	key         string
	amountMinor int64
	currency    string

	claim
}

// claim is what a callback says of its order.
type claim struct {
	outcome     provider.Outcome // Confirmed or Declined
	chargeID    string
	declineCode string
}

// callbacks are all that is on file about one payment, in the order in which they came.
type callbacks []callback

// TakeCallback puts what the provider says on file, once however often it is said, and has the payment driven by it if that is
// pending and nobody is at it. It returns when the callback is durable; the driving goes on in the background. It returns
// ErrUnavailable when the database did not take it: then the provider has to say it again.
func (s *Service) TakeCallback(ctx context.Context, n provider.Notice) error {
	var verdict callbackVerdict
	var isNew bool
	err := s.retry(ctx, "take callback", func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) (err error) {
			verdict, isNew, err = s.fileCallback(ctx, tx, n)
			return err
		})
	})
	if err != nil {
		return err
	}
	became := strings.ToLower(string(verdict))
	if !isNew {
		became = "duplicate"
	}
	countCallback(ctx, became)
	if isNew && (verdict == callbackContradicts || verdict == callbackUnmatched) {
		s.log.WarnContext(ctx, "callback does not fit", "payment", n.PaymentID, "webhook", n.WebhookID, "verdict", verdict)
	}
	// A repeated one may be what is left of a process that died before it could drive.
	if verdict == callbackWaiting && !s.later(ctx, &s.settling, n.PaymentID, func(ctx context.Context) error { return s.settle(ctx, n.TenantID, n.PaymentID) }) {
		s.log.InfoContext(ctx, "payment with a callback is left to recovery", "payment", n.PaymentID)
	}
	return nil
}

// fileCallback writes a callback that has not come before, and says what can be said about it now. The inbox forgets after a
// while; what is on file has the webhook's id for its key, and decides.
func (s *Service) fileCallback(ctx context.Context, tx pgx.Tx, n provider.Notice) (v callbackVerdict, isNew bool, err error) {
	c := callbackOf(n)
	first, err := inbox.Once(ctx, tx, callbackConsumer, []inbox.Key{{TenantID: n.TenantID, MessageID: n.WebhookID}})
	if err != nil {
		return "", false, err
	}
	row, err := s.sql.LoadPayment(ctx, tx, paymentssql.LoadPaymentParams{TenantID: n.TenantID, PaymentID: n.PaymentID})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		c.verdict = callbackUnmatched
	case err != nil:
		return "", false, err
	default:
		p, err := loaded(row)
		if err != nil {
			return "", false, err
		}
		c.verdict = c.judge(p)
	}
	if !first[0] {
		return c.verdict, false, nil
	}
	rows, err := s.sql.InsertCallback(ctx, tx, paymentssql.InsertCallbackParams{
		TenantID: n.TenantID, WebhookID: n.WebhookID, PaymentID: n.PaymentID, Kind: string(c.kind), Outcome: strings.ToUpper(c.outcome.String()),
		ProviderKey: c.key, ChargeID: c.chargeID, AmountMinor: c.amountMinor, Currency: c.currency, DeclineCode: c.declineCode,
		Verdict: string(c.verdict),
	})
	return c.verdict, rows == 1, err
}

func callbackOf(n provider.Notice) callback {
	kind := KindPayment
	if n.Kind == provider.Refund {
		kind = KindRefund
	}
	return callback{webhookID: n.WebhookID, kind: kind, key: n.Key, amountMinor: n.AmountMinor, currency: n.Currency,
		claim: claim{n.Outcome, n.ChargeID, n.DeclineCode}}
}

// settle lets a payment that the provider said something about enter the one door, once nobody is at it any more. Whoever
// acquires its key later than that looks at the file anyway.
func (s *Service) settle(ctx context.Context, tenantID, paymentID string) error {
	row, err := s.load(ctx, tenantID, paymentID)
	if err != nil {
		return err
	}
	scope := idempotency.Scope{TenantID: tenantID, Operation: row.Payment.OperationName, Key: idempotency.Key(row.Payment.IdempotencyKey)}
	key, err := s.freeKey(ctx, scope)
	if err != nil {
		return err
	}
	p, err := s.Get(ctx, tenantID, paymentID)
	switch {
	case err != nil:
		return err
	case p.State.Terminal():
		told, err := s.toldAbout(ctx, p)
		if err == nil {
			s.judgeAll(ctx, p, told)
		}
		return err
	case key.Held, p.State != ProviderRequestSent && p.State != UnknownRequiresRecovery:
		return nil // somebody else's; or provably not sent, and then it waits for its client
	}
	lease, ok, err := s.keys.TakeOverUnresolved(ctx, key.Lease)
	if err != nil || !ok {
		return unavailable("settle by callback", err)
	}
	if p, err = s.Get(ctx, tenantID, paymentID); err != nil {
		return err
	}
	s.log.InfoContext(ctx, "key taken over for a callback", "payment", p.ID, "state", p.State, "epoch", lease.Epoch)
	if _, err = s.finish(ctx, lease, p); err == errJudgeAgain {
		return nil // somebody else was quicker
	}
	return err
}

// freeKey reads a key, and waits for its owner first: for a lease at most, or until this process is told to end.
func (s *Service) freeKey(ctx context.Context, scope idempotency.Scope) (idempotency.Record, error) {
	key, _, err := s.keys.Read(ctx, scope)
	if err == nil && key.Held {
		s.await(s.draining, scope, s.keys.LeaseFor())
		key, _, err = s.keys.Read(ctx, scope)
	}
	return key, unavailable("read key", err)
}

// toldAbout reads what is on file about a payment.
func (s *Service) toldAbout(ctx context.Context, p Payment) (callbacks, error) {
	ctx, cancel := context.WithTimeout(ctx, tryFor)
	defer cancel()
	rows, err := s.sql.ListCallbacks(ctx, s.db, paymentssql.ListCallbacksParams{TenantID: p.TenantID, PaymentID: p.ID, RowsMax: callbacksMax})
	if err != nil {
		return nil, unavailable("read callbacks", err)
	}
	told := make(callbacks, len(rows))
	for i, r := range rows {
		told[i] = callback{webhookID: r.WebhookID, verdict: callbackVerdict(r.Verdict), kind: Kind(r.Kind), key: r.ProviderKey,
			amountMinor: r.AmountMinor, currency: r.Currency, claim: claim{provider.Confirmed, r.ChargeID, r.DeclineCode}}
		if r.Outcome != "CONFIRMED" { // the table has no third one
			told[i].outcome = provider.Declined
		}
	}
	return told, nil
}

// fits reports whether the callback is about the very order that the payment is.
func (c callback) fits(p Payment) bool {
	return c.kind == p.Kind && c.key == p.order().Key && c.amountMinor == p.Amount.Minor() && c.currency == p.Amount.Currency().String()
}

// judge says what can be said about a callback by itself.
func (c callback) judge(p Payment) callbackVerdict {
	itsCharge := c.chargeID == p.ChargeID
	switch {
	case !c.fits(p):
		return callbackContradicts
	case !p.State.Terminal():
		return callbackWaiting
	case c.outcome == provider.Confirmed && p.State == Completed && itsCharge:
		return callbackNoEffect
	case c.outcome == provider.Declined && !itsCharge: // the payment was declined, or another attempt at it
		return callbackNoEffect
	default:
		return callbackContradicts
	}
}

// believe is the outcome that the callbacks prove together. It is Unknown when they do not.
func (told callbacks) believe(p Payment) provider.Result {
	if len(told) == 0 {
		return provider.Result{}
	}
	first := told[0]
	for _, c := range told {
		if !c.fits(p) || c.claim != first.claim {
			return provider.Result{}
		}
	}
	switch {
	case first.outcome == provider.Confirmed:
		return provider.Result{Outcome: provider.Confirmed, ChargeID: first.chargeID, Reason: reasonCallback}
	case p.Sends == 1:
		return provider.Result{Outcome: provider.Declined, DeclineCode: first.declineCode, Reason: reasonCallback}
	default:
		return provider.Result{}
	}
}

// reasonCallback is why a payment moved that was moved by a callback.
const reasonCallback = "webhook"

// claimMoney reports whether any of the callbacks says that money moved, true or not.
func (told callbacks) claimMoney() bool {
	return slices.ContainsFunc(told, func(c callback) bool { return c.outcome == provider.Confirmed })
}

// judgeAll writes down what became of the callbacks. Nothing depends on it but what operators see.
func (s *Service) judgeAll(ctx context.Context, p Payment, told callbacks) {
	params := paymentssql.JudgeCallbacksParams{TenantID: p.TenantID}
	isApplied := slices.ContainsFunc(told, func(c callback) bool { return c.verdict == callbackApplied })
	for _, c := range told {
		if c.verdict != callbackWaiting && c.verdict != callbackUnmatched {
			continue // that will not change any more
		}
		v := c.judge(p)
		if v == callbackNoEffect && p.LastReason == reasonCallback && !isApplied {
			v, isApplied = callbackApplied, true
		}
		if v == c.verdict {
			continue
		}
		params.WebhookIds = append(params.WebhookIds, c.webhookID)
		params.Befores = append(params.Befores, string(c.verdict))
		params.Verdicts = append(params.Verdicts, string(v))
	}
	if len(params.WebhookIds) == 0 {
		return
	}
	if err := s.sql.JudgeCallbacks(ctx, s.db, params); err != nil {
		s.log.WarnContext(ctx, "what became of callbacks was not recorded", "payment", p.ID, "error", err)
		return
	}
	for _, v := range params.Verdicts {
		countCallback(ctx, strings.ToLower(v))
	}
}
