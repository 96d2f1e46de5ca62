package payments

import (
	"fmt"
	"slices"
	"strings"

	"github.com/paymentsd/paymentsd/internal/events"
)

// State is where a payment is. This file holds every arrow between states, and nothing else does.
type State string

const (
	// Received: inside the one transaction; no row ever shows it.
	Received State = "RECEIVED"
	// LocalPaymentCreated: durable, and provably not sent. Left by the mark that it is about to be sent.
	LocalPaymentCreated State = "LOCAL_PAYMENT_CREATED"
	// ProviderRequestSent: the intent to send is durable; the request may be on its way. Left by what the provider says,
	// or by proof that no byte of the request was written.
	ProviderRequestSent State = "PROVIDER_REQUEST_SENT"
	// UnknownRequiresRecovery: the provider may or may not have charged. Left only by what the provider says; time alone
	// never ends it.
	UnknownRequiresRecovery State = "UNKNOWN_REQUIRES_RECOVERY"
	// ProviderConfirmed: charged. Left by completing, normally in the same transaction.
	ProviderConfirmed State = "PROVIDER_CONFIRMED"
	// Completed: charged, announced and answered.
	Completed State = "COMPLETED"
	// Declined: the provider said no.
	Declined State = "DECLINED"
	// Canceled: given up before anything was sent.
	Canceled State = "CANCELED"
)

// states in the order in which a payment can meet them.
var states = []State{Received, LocalPaymentCreated, ProviderRequestSent, UnknownRequiresRecovery, ProviderConfirmed,
	Completed, Declined, Canceled}

// arrow is one move that a payment may make. Announce is the event that the move publishes, "" for none.
type arrow struct {
	from, to State
	announce events.Type
	because  string // printed in the diagram
}

var arrows = []arrow{
	{Received, LocalPaymentCreated, events.PaymentCreated, "claimed"},
	{LocalPaymentCreated, ProviderRequestSent, "", "about to be sent"},
	{LocalPaymentCreated, Canceled, events.PaymentCanceled, "given up, never sent"},
	{ProviderRequestSent, ProviderConfirmed, "", "confirmed"},
	{ProviderRequestSent, Declined, events.PaymentDeclined, "declined"},
	{ProviderRequestSent, UnknownRequiresRecovery, events.PaymentRecoveryRequired, "no proof"},
	{ProviderRequestSent, LocalPaymentCreated, "", "no byte was sent"},
	{UnknownRequiresRecovery, ProviderConfirmed, "", "found"},
	{UnknownRequiresRecovery, Declined, events.PaymentDeclined, "found declined"},
	{UnknownRequiresRecovery, UnknownRequiresRecovery, "", "still no proof, or sent again"},
	{ProviderConfirmed, Completed, events.PaymentSettled, "settled"},
}

// arrowBetween finds the arrow, or says that there is none.
func arrowBetween(from, to State) (arrow, bool) {
	i := slices.IndexFunc(arrows, func(a arrow) bool { return a.from == from && a.to == to })
	if i < 0 {
		return arrow{}, false
	}
	return arrows[i], true
}

// Terminal reports whether no arrow leaves the state.
func (s State) Terminal() bool {
	return !slices.ContainsFunc(arrows, func(a arrow) bool { return a.from == s })
}

// Status is what clients see: the internal names never leave the service except in operators' views.
type Status string

const (
	Pending        Status = "PENDING"
	Settled        Status = "SETTLED"
	StatusDeclined Status = "DECLINED"
	StatusCanceled Status = "CANCELED"
)

// Statuses are all of them.
var Statuses = []Status{Pending, Settled, StatusDeclined, StatusCanceled}

// Public is the client's word for the state.
func (s State) Public() Status {
	switch s {
	case Received, LocalPaymentCreated, ProviderRequestSent, UnknownRequiresRecovery, ProviderConfirmed:
		return Pending
	case Completed:
		return Settled
	case Declined:
		return StatusDeclined
	case Canceled:
		return StatusCanceled
	default:
		panic(fmt.Sprintf("state %q is not in the table", string(s)))
	}
}

// Diagram draws the table of arrows in Mermaid's notation; ARCHITECTURE.md shows its output.
func Diagram() string {
	var b strings.Builder
	b.WriteString("stateDiagram-v2\n    [*] --> " + string(Received) + "\n")
	for _, a := range arrows {
		label := a.because
		if a.announce != "" {
			label += " / " + string(a.announce)
		}
		fmt.Fprintf(&b, "    %s --> %s: %s\n", a.from, a.to, label)
	}
	for _, s := range states {
		if s.Terminal() {
			fmt.Fprintf(&b, "    %s --> [*]\n", s)
		}
	}
	return b.String()
}
