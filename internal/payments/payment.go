package payments

import (
	"fmt"
	"time"

	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/money"
	"github.com/paymentsd/paymentsd/internal/payments/internal/paymentssql"
	"github.com/paymentsd/paymentsd/internal/provider"
)

// Payment is a payment as it was read. Ages are by the database's clock at that moment.
type Payment struct {
	TenantID          string
	ID                string
	Kind              Kind
	ParentID          string // of a refund: the payment that is given back
	AccountID         string
	MerchantReference string
	Channel           string
	Description       string
	Amount            money.Amount
	RefundedMinor     int64 // reserved by refunds that are pending or settled
	State             State
	Version           int // moves so far
	Events            int // events so far
	CreatedAt         time.Time
	UpdatedAt         time.Time
	KeyExpiresAt      time.Time
	KeyExpired        bool

	// The provider's side.
	Request      []byte        // the bytes to send, every time the same
	Sends        int           // recorded attempts
	FirstSentAge time.Duration // the provider counts its key window from here
	LastSentAge  time.Duration // its lookup may not show the payment before the lag has passed since here
	ChargeID     string
	DeclineCode  string
	LastReason   string // why the outcome is what it is; for operators

	answer idempotency.Answer // stored by the move that finished it; empty on a payment that was read
}

// Kind is the direction in which a payment moves money.
type Kind string

const (
	KindPayment Kind = "PAYMENT"
	KindRefund  Kind = "REFUND"
)

// Move is one arrow that a payment took.
type Move struct {
	Version int
	From    State
	To      State
	Reason  string
	Epoch   int64 // of the lease under which it was made
	At      time.Time
}

// loaded is a payment as LoadPayment reads it, with what its key and the clock add.
func loaded(row paymentssql.LoadPaymentRow) (Payment, error) {
	p, err := paymentOf(row.Payment)
	p.KeyExpired = row.IsKeyExpired
	p.FirstSentAge, p.LastSentAge = seconds(row.FirstSentAgeSeconds), seconds(row.LastSentAgeSeconds)
	if row.KeyExpiresAt != nil {
		p.KeyExpiresAt = *row.KeyExpiresAt
	}
	return p, err
}

func paymentOf(row paymentssql.Payment) (Payment, error) {
	amount, err := money.Stored(row.AmountMinor, row.Currency)
	if err != nil {
		return Payment{}, fmt.Errorf("read payment %s: %w", row.PaymentID, err)
	}
	return Payment{
		TenantID: row.TenantID, ID: row.PaymentID, Kind: Kind(row.Kind), ParentID: deref(row.ParentID), AccountID: row.AccountID,
		MerchantReference: row.MerchantReference, Channel: row.Channel, Description: deref(row.Description), Amount: amount,
		RefundedMinor: row.RefundedMinor, State: State(row.State), Version: int(row.Version), Events: int(row.Events),
		CreatedAt: row.CreatedAt, UpdatedAt: row.UpdatedAt, Request: row.ProviderRequest, Sends: int(row.ProviderSends),
		ChargeID: deref(row.ProviderChargeID), DeclineCode: deref(row.DeclineCode), LastReason: row.LastReason,
	}, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// deref reads a nullable column of which NULL means the zero value.
func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// order is what the provider is sent for the payment, every time the same.
func (p Payment) order() provider.Order {
	kind := provider.Charge
	if p.Kind == KindRefund {
		kind = provider.Refund
	}
	return provider.NewOrder(kind, p.ID, p.Request)
}
