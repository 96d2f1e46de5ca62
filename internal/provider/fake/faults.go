package fake

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// The faults. Each request, and each webhook, uses up at most one: the oldest scripted one that fits it.
//
// "executes" always means what an ordinary request would do: a key that is known gives its remembered answer, an account
// without funds declines, and so does a charge of which too little is left to refund. What the fault then spoils is the
// answer.
const (
	faultDelay             = "delay"               // waits delayMs, then acts as usual
	faultExecuteThenDrop   = "execute_then_drop"   // executes, then closes the connection without an answer
	faultDropBeforeExecute = "drop_before_execute" // reads everything, then closes the connection; no effect
	faultResetMidRequest   = "reset_mid_request"   // reads a part of the request, then resets the connection; no effect
	faultInProgress        = "in_progress"         // 409; no effect
	faultRateLimited       = "rate_limited"        // 429 with Retry-After; no effect
	faultErrorBefore       = "error_before"        // 500; no effect, and the key is not remembered
	faultErrorAfter        = "error_after"         // executes, answers 500; a resend gets the ordinary answer
	faultErrorForever      = "error_forever"       // executes, and remembers a 500 under the key: every resend gets that, lookups find what was executed
	faultTruncatedBody     = "truncated_body"      // executes, sends half of the answer, closes the connection
	faultUnreadableBody    = "unreadable_body"     // executes, answers with the right status and something that is no JSON
	faultWrongAmount       = "wrong_amount"        // executes the right amount, answers with one minor unit more
	faultLowerCaseCurrency = "lower_case_currency" // executes, answers with "eur" for EUR, as some providers always do
	faultDecline           = "decline"             // 402 with code (CARD_DECLINED if there is none), remembered under the key
	faultNotFound          = "not_found"           // lookup: finds nothing, whatever there is
	faultLookupError       = "lookup_error"        // lookup: 500
	faultCloseIdle         = "close_idle"          // acts as usual, then closes the kept-alive connection without saying so

	// Of webhooks. delay, wrong_amount and lower_case_currency fit them too. What a webhook claims wrongly, it claims every
	// time it is repeated.
	faultEarly          = "early"           // sent, and its answer waited for, before the order is answered
	faultRepeat         = "repeat"          // sent copies times at once (2 if it is not said), all with one webhook-id
	faultOutOfOrder     = "out_of_order"    // held back until another webhook of its reference was delivered
	faultNever          = "never"           // not sent at all
	faultStaleDecline   = "stale_decline"   // once it is delivered, another one says that an older attempt at the same payment was declined
	faultUnknownPayment = "unknown_payment" // names a payment that nobody has
	faultBadSignature   = "bad_signature"   // signed with another secret
	faultOldTimestamp   = "old_timestamp"   // signed ten minutes ago
)

// The calls that a fault can spoil.
const (
	onCharge       = "charge"
	onRefund       = "refund"
	onLookup       = "lookup" // of a charge
	onRefundLookup = "refund_lookup"

	onWebhook       = "webhook" // about a charge
	onRefundWebhook = "refund_webhook"
)

var (
	onOrders   = []string{onCharge, onRefund}
	onLookups  = []string{onLookup, onRefundLookup}
	onWebhooks = []string{onWebhook, onRefundWebhook}
	onCalls    = slices.Concat(onOrders, onLookups)
	onAnything = slices.Concat(onCalls, onWebhooks)
)

// faultFits says on which calls a fault makes sense.
var faultFits = map[string][]string{
	faultDelay:             onAnything,
	faultExecuteThenDrop:   onOrders,
	faultDropBeforeExecute: onCalls,
	faultResetMidRequest:   onOrders,
	faultInProgress:        onOrders,
	faultRateLimited:       onCalls,
	faultErrorBefore:       onOrders,
	faultErrorAfter:        onOrders,
	faultErrorForever:      onOrders,
	faultTruncatedBody:     onCalls,
	faultUnreadableBody:    onCalls,
	faultWrongAmount:       onAnything,
	faultLowerCaseCurrency: onAnything,
	faultDecline:           onOrders,
	faultNotFound:          onLookups,
	faultLookupError:       onLookups,
	faultCloseIdle:         onCalls,
	faultEarly:             onWebhooks,
	faultRepeat:            onWebhooks,
	faultOutOfOrder:        onWebhooks,
	faultNever:             onWebhooks,
	faultStaleDecline:      onWebhooks,
	faultUnknownPayment:    onWebhooks,
	faultBadSignature:      onWebhooks,
	faultOldTimestamp:      onWebhooks,
}

// anyReference in a fault fits every request, those included whose reference is not known.
const anyReference = "*"

const (
	// Scripts are written by hand or by a test; a thousand faults that nobody used up are a test that forgot to clear.
	faultsMax = 1000

	// What lasts longer than ten minutes is not a delay or an outage but a process that should be stopped.
	pauseMax = 10 * time.Minute

	// As many as a receiver with a hundred instances could be sent by a provider that has lost count.
	copiesMax = 100

	// Longer than any code a client may show (64), so that too long ones can be tried as well.
	codeCharsMax = 200
)

// fault is one line of the script. The zero value is no fault.
type fault struct {
	// Reference is the merchantReference it is meant for, or "*".
	Reference string `json:"reference"`
	// On is charge, refund, lookup, refund_lookup, webhook or refund_webhook. Absent: whatever the fault is made for, charge
	// before lookup before webhook, and never what is about refunds.
	On   string `json:"on"`
	Name string `json:"fault"`
	// Times is how many requests it spoils, one after another. Absent or 0: one. Negative: all, until the script is
	// cleared.
	Times int `json:"times"`
	// DelayMS makes any fault wait first. While an order waits, its key is held: a second request with it gets 409.
	DelayMS int64 `json:"delayMs"`
	// Code is the decline code of the faults decline and stale_decline.
	Code string `json:"code"`
	// Copies is how many times the fault repeat sends a webhook.
	Copies int `json:"copies"`
}

func (f fault) delay() time.Duration { return time.Duration(f.DelayMS) * time.Millisecond }

// withDefaults fills in what may be left out, or says what is wrong with the fault.
func (f fault) withDefaults() (fault, error) {
	fits, known := faultFits[f.Name]
	if !known {
		return f, fmt.Errorf("fault must be one of %s", strings.Join(slices.Sorted(maps.Keys(faultFits)), ", "))
	}
	if f.On == "" {
		f.On = fits[0]
	}
	if f.Times == 0 {
		f.Times = 1
	}
	if (f.Name == faultDecline || f.Name == faultStaleDecline) && f.Code == "" {
		f.Code = "CARD_DECLINED"
	}
	if f.Name == faultRepeat && f.Copies == 0 {
		f.Copies = 2
	}
	switch {
	case f.Reference == "":
		return f, errors.New(`reference must name a merchantReference, or "*" for every request`)
	case !slices.Contains(fits, f.On):
		return f, fmt.Errorf("on must be %s for the fault %s", strings.Join(fits, " or "), f.Name)
	case f.DelayMS < 0 || f.DelayMS > pauseMax.Milliseconds():
		return f, fmt.Errorf("delayMs must be between 0 and %d", pauseMax.Milliseconds())
	case f.Name == faultDelay && f.DelayMS == 0:
		return f, errors.New("delayMs must say how long the delay is")
	case f.Copies < 0 || f.Copies > copiesMax:
		return f, fmt.Errorf("copies must be between 1 and %d", copiesMax)
	case len(f.Code) > codeCharsMax:
		return f, fmt.Errorf("code must not be longer than %d bytes", codeCharsMax)
	}
	return f, nil
}

// faultScript is the queue of what goes wrong.
type faultScript struct {
	mu    sync.Mutex
	queue []fault
}

func (s *faultScript) add(f fault) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == faultsMax {
		return fmt.Errorf("there are %d faults that nothing has used up; DELETE /control/faults clears them", faultsMax)
	}
	s.queue = append(s.queue, f)
	return nil
}

func (s *faultScript) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = nil
}

// take uses up the next fault for a request, and gives no fault if there is none.
func (s *faultScript) take(on, reference string) fault {
	return s.takeIf(on, reference, func(fault) bool { return true })
}

// takeIf is take, but leaves the next fault alone unless it is wanted.
func (s *faultScript) takeIf(on, reference string, wanted func(fault) bool) fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.queue, func(f fault) bool {
		return f.On == on && (f.Reference == anyReference || f.Reference == reference)
	})
	if i < 0 || !wanted(s.queue[i]) {
		return fault{}
	}
	f := s.queue[i]
	switch {
	case f.Times == 1:
		s.queue = slices.Delete(s.queue, i, i+1)
	case f.Times > 1:
		s.queue[i].Times--
	}
	return f
}
