// Package provider promises two things about the payment provider: one call sends at most one request, and an outcome is
// never more certain than what was proved. Confirmed and Declined need a readable answer that fits the request; NotSent
// needs the proof that no byte of the request was written; everything else is Unknown, the zero value.
//
// How to read it: outcome.go holds the table that turns an answer into an Outcome, attempt.go the proof that nothing was
// written (and that nothing is written twice), client.go the HTTP around both, movement.go the bytes that are sent;
// webhook.go reads what the provider says unasked.
package provider

import (
	"context"
	"fmt"
)

// Outcome is what the provider told us about one charge.
type Outcome int

const (
	// Unknown: we were not told. Money may have moved.
	Unknown Outcome = iota
	// Confirmed: the provider says that it charged exactly what was asked.
	Confirmed
	// Declined: the provider says that it will not charge.
	Declined
	// NotSent: proved that no byte of the request was written, so nothing can have happened. Only Send returns it.
	NotSent
	// Absent: the provider says that it does not know the key. Only Lookup returns it. It is no proof that nothing will
	// happen: a lookup may lag behind the charge, and providers forget keys.
	Absent
)

// String is the outcome as logs and metrics show it.
func (o Outcome) String() string {
	switch o {
	case Unknown:
		return "unknown"
	case Confirmed:
		return "confirmed"
	case Declined:
		return "declined"
	case NotSent:
		return "not_sent"
	case Absent:
		return "absent"
	default:
		return fmt.Sprintf("invalid_outcome_%d", int(o))
	}
}

// Result is an outcome and what came with it. There is no error beside it: a call that fails has an outcome too.
type Result struct {
	Outcome Outcome
	// ChargeID is the provider's own id of the charge. Set when Confirmed, and only then.
	ChargeID string
	// DeclineCode says why the charge was refused, as upper snake case such as INSUFFICIENT_FUNDS; DECLINED when the
	// provider gave no code that can be shown. Set when Declined, and only then.
	DeclineCode string
	// Reason is one short word of ours for logs and metrics, never text of the provider: "answered", "absent",
	// "mismatch", "ambiguous", "undecided", "unreadable", "truncated", "too_large", "http_409" (any status),
	// "timeout", "canceled", "reset", "lost", "refused", "dns", "tls", "request_unreadable".
	Reason string
}

// Provider is the process boundary: the provider itself, over HTTP, or a stand-in that breaks where a test wants it to.
//
// Both methods may be called from many goroutines.
type Provider interface {
	// Send sends the order at most once. It returns Confirmed, Declined, NotSent or Unknown.
	Send(ctx context.Context, o Order) Result
	// Lookup asks what became of the order's key, and changes nothing. It returns Confirmed, Declined, Absent or Unknown.
	Lookup(ctx context.Context, o Order) Result
}

// Kind is the direction in which an order moves money.
type Kind string

const (
	// Charge: from the payer's account to the merchant.
	Charge Kind = "charge"
	// Refund: back, at most what a charge has moved.
	Refund Kind = "refund"
)

// Order is a request as it was stored before it was sent for the first time: Request are the bytes of Movement.Encode, sent
// unchanged however often, and what the answer is judged against.
type Order struct {
	Kind    Kind
	Key     string
	Request []byte
}

// NewOrder is the order for a payment: its key is made from the payment and nothing else, so that every attempt, every
// retry and every rescuer of one payment uses the same one.
func NewOrder(kind Kind, paymentID string, request []byte) Order {
	prefix := "provider_payment_"
	if kind == Refund {
		prefix = "provider_refund_"
	}
	return Order{kind, prefix + paymentID, request}
}

func unknown(reason string) Result { return Result{Outcome: Unknown, Reason: reason} }

func notSent(reason string) Result { return Result{Outcome: NotSent, Reason: reason} }
