package fake

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"strings"
	"time"
)

// event is the body of a webhook: what became of an order.
type event struct {
	Type      string    `json:"type"` // charge.succeeded, charge.declined, refund.succeeded, refund.declined
	Timestamp time.Time `json:"timestamp"`
	Data      eventData `json:"data"`
}

type eventData struct {
	ID             string `json:"id"`
	Tenant         string `json:"tenant,omitempty"` // as the order said it
	PaymentID      string `json:"paymentId"`
	IdempotencyKey string `json:"idempotencyKey"`
	AmountMinor    int64  `json:"amountMinor"`
	Currency       string `json:"currency"`
	ChargeID       string `json:"chargeId,omitempty"` // of a refund
	DeclineCode    string `json:"declineCode,omitempty"`
}

// event is what the attempt's webhook says, as well as the fault lets it. It is the same every time.
func (a attempt) event(f fault) event {
	v := a.view(false).distorted(f)
	e := event{a.kind().event + "." + v.Status, v.ExecutedAt, eventData{
		ID: v.ID, Tenant: v.Tenant, PaymentID: v.PaymentID, IdempotencyKey: v.IdempotencyKey, AmountMinor: v.AmountMinor,
		Currency: v.Currency, ChargeID: v.ChargeID, DeclineCode: v.DeclineCode,
	}}
	if f.Name == faultUnknownPayment {
		e.Data.PaymentID = unknownLike(v.PaymentID)
		e.Data.IdempotencyKey = strings.TrimSuffix(v.IdempotencyKey, v.PaymentID) + e.Data.PaymentID
	}
	return e
}

// unknownLike is an id in the form of another one, and nobody's.
func unknownLike(id string) string {
	random := make([]byte, 16)
	_, _ = rand.Read(random) // it never fails
	prefix, _, _ := strings.Cut(id, "_")
	return prefix + "_" + hex.EncodeToString(random)
}

// stale is an older attempt at the same payment, which was declined, as another provider might have had it.
func (a attempt) stale(code string) attempt {
	a.ID, a.Status, a.DeclineCode, a.ExecutedAt = a.ID+"_older", declined, code, a.ExecutedAt.Add(-time.Minute)
	a.WebhookID = newID()
	return a
}

// newWebhookID names the webhook of a new order. Empty: nobody is to be told.
func (s *Server) newWebhookID() string {
	if s.courier == nil {
		return ""
	}
	return newID()
}

// newID is never one that an earlier provider has used, whatever became of its journal: receivers remember ids.
func newID() string { return "msg_" + rand.Text() }

const (
	// tellAfter lets the order's answer be first, as it mostly is at real providers.
	tellAfter = 50 * time.Millisecond

	// timestampAge is twice what the specification tolerates.
	timestampAge = 10 * time.Minute
)

// announce tells the receiver about a new order: now, if the script wants it early, and otherwise by what it returns, which
// is to be called once the order is answered.
func (s *Server) announce(k kind, a attempt) (afterAnswer func()) {
	nothing := func() {}
	if s.courier == nil {
		return nothing
	}
	f := s.faults.take(k.onTell, a.Reference)
	switch m := s.message(a, f); f.Name {
	case faultNever:
		s.told(a.WebhookID)
		return nothing
	case faultEarly:
		s.courier.sendNow(m)
		return nothing
	default:
		return func() { s.send(m, f) }
	}
}

// message makes the webhook of an attempt.
func (s *Server) message(a attempt, f fault) message {
	e := a.event(f)
	m := message{
		id: a.WebhookID, reference: a.Reference, event: e.Type, order: a.ID, body: encode(e), wait: cmp.Or(f.delay(), tellAfter),
		delivered: func() { s.told(a.WebhookID) },
	}
	switch f.Name {
	case faultBadSignature:
		m.forged = true
	case faultOldTimestamp:
		m.age = timestampAge
	case faultOutOfOrder:
		m.held = true
	case faultStaleDecline:
		m.delivered = func() {
			s.told(a.WebhookID)
			s.courier.send(s.message(a.stale(f.Code), fault{}))
		}
	}
	return m
}

func (s *Server) send(m message, f fault) {
	for range max(1, f.Copies) {
		s.courier.send(m)
	}
}

// told remembers that nobody has to be told any more. When that fails, the receiver is told once more after a restart, which
// it has to bear anyway.
func (s *Server) told(webhookID string) {
	if err := s.book.told(webhookID); err != nil {
		s.log.Debug("a delivered webhook was not recorded", "error", err)
	}
}

// tellWhatIsUntold goes on with what an earlier process had not delivered.
func (s *Server) tellWhatIsUntold() {
	for _, a := range s.book.toTell() {
		if !s.courier.send(s.message(a, fault{})) {
			return
		}
	}
}
