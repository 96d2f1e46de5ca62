// Package events is the published language: what this service tells others about a payment, under which names, in which
// shape. Members are only ever added; a consumer that knows this version can read every later one.
package events

import (
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"github.com/paymentsd/paymentsd/internal/money"
)

// Type names what happened.
type Type string

const (
	PaymentCreated          Type = "PaymentCreated"
	PaymentSettled          Type = "PaymentSettled"
	PaymentDeclined         Type = "PaymentDeclined"
	PaymentCanceled         Type = "PaymentCanceled"
	PaymentRecoveryRequired Type = "PaymentRecoveryRequired"

	RefundCreated          Type = "RefundCreated"
	RefundSettled          Type = "RefundSettled"
	RefundDeclined         Type = "RefundDeclined"
	RefundCanceled         Type = "RefundCanceled"
	RefundRecoveryRequired Type = "RefundRecoveryRequired"

	AccountChanged Type = "AccountChanged"
)

// isAboutPayment reports whether this build knows the type and its payload is a Payment.
func (t Type) isAboutPayment() bool {
	switch t {
	case PaymentCreated, PaymentSettled, PaymentDeclined, PaymentCanceled, PaymentRecoveryRequired,
		RefundCreated, RefundSettled, RefundDeclined, RefundCanceled, RefundRecoveryRequired:
		return true
	default:
		return false
	}
}

// OfRefund is the refund's word for what happened to a payment: RefundSettled for PaymentSettled.
func (t Type) OfRefund() Type { return "Refund" + Type(strings.TrimPrefix(string(t), "Payment")) }

// Payment is the payload of every payment event. Sequence counts the events of one payment from 1 without gaps, so a
// consumer sees when it missed one.
type Payment struct {
	EventID           string    `json:"eventId"`
	Type              Type      `json:"type"`
	PaymentID         string    `json:"paymentId"`
	ParentPaymentID   string    `json:"parentPaymentId,omitzero"` // of a refund: the payment that is given back
	AccountID         string    `json:"accountId"`
	Amount            string    `json:"amount"` // decimal, with the currency's number of places
	Currency          string    `json:"currency"`
	MerchantReference string    `json:"merchantReference"`
	OccurredAt        time.Time `json:"occurredAt"`
	Sequence          int       `json:"sequence"`
}

// Account is the payload of AccountChanged: the account as it is now.
type Account struct {
	EventID         string    `json:"eventId"`
	Type            Type      `json:"type"`
	AccountID       string    `json:"accountId"`
	Status          string    `json:"status"`
	DefaultCurrency string    `json:"defaultCurrency,omitzero"`
	OccurredAt      time.Time `json:"occurredAt"`
	Sequence        int       `json:"sequence"`
}

// Encode is the payload as it is stored and sent, member order included.
func (a Account) Encode() ([]byte, error) { return json.Marshal(a, json.Deterministic(true)) }

// NewID makes an event id, "evt_" and 32 hex digits that grow with time.
func NewID() string { return newID("evt_") }

// NewPaymentID makes a payment id, "pay_" and 32 hex digits that grow with time.
func NewPaymentID() string { return newID("pay_") }

// NewRefundID makes a refund id, "ref_" and 32 hex digits that grow with time.
func NewRefundID() string { return newID("ref_") }

func newID(prefix string) string {
	id := uuid.Must(uuid.NewV7()) // fails only when the system has no randomness: nothing can go on then
	const hexDigits = "0123456789abcdef"
	out := make([]byte, 0, len(prefix)+2*len(id))
	out = append(out, prefix...)
	for _, b := range id {
		out = append(out, hexDigits[b>>4], hexDigits[b&15])
	}
	return string(out)
}

// Money is the amount of the event. It returns an error when text and currency do not make one. A currency that has been
// withdrawn since is still the currency of the payments that were made in it.
func (p Payment) Money() (money.Amount, error) {
	one, err := money.Stored(1, p.Currency)
	if err != nil {
		return money.Amount{}, err
	}
	return money.Parse(p.Amount, one.Currency())
}

// Describe fills in the payload of an event about a payment of this amount.
func (p Payment) Describe(a money.Amount) Payment {
	p.Amount, p.Currency = a.String(), a.Currency().String()
	return p
}

// Encode is the payload as it is stored and sent, member order included.
func (p Payment) Encode() ([]byte, error) { return json.Marshal(p, json.Deterministic(true)) }
