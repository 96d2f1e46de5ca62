package fake

import "fmt"

// Why the ledger declines an order.
const (
	insufficientFunds   = "INSUFFICIENT_FUNDS"
	chargeNotFound      = "CHARGE_NOT_FOUND"
	refundExceedsCharge = "REFUND_EXCEEDS_CHARGE"
)

// ledger is the money of the book: what has moved, and what may still move. It is guarded by the book's mutex, so that
// nothing moves between a question to it and the record of the answer: fifty refunds at once each see the one before.
type ledger struct {
	attempts map[kind]int // how many there were, declined ones included; the next one gets the next number as its id
	executed map[listing][]*attempt
	byKey    map[listing][]*attempt      // the executed ones, by kind and the key they came under
	charges  map[string]*attempt         // the executed ones, by id
	refunded map[string]int64            // what was given back of a charge, by its id
	balances map[string]map[string]int64 // what is left, by account and currency; without a balance an account is unlimited
}

// listing names a list of executed attempts, oldest first: those of a kind with a reference or, if that is empty, all of
// the kind.
type listing struct {
	kind      kind
	reference string
}

func newLedger() ledger {
	return ledger{
		attempts: map[kind]int{},
		executed: map[listing][]*attempt{},
		byKey:    map[listing][]*attempt{},
		charges:  map[string]*attempt{},
		refunded: map[string]int64{},
		balances: map[string]map[string]int64{},
	}
}

// apply moves the money of an attempt, if it moved any.
func (l *ledger) apply(a *attempt) {
	k := a.kind()
	l.attempts[k]++
	if a.Status != succeeded {
		return
	}
	for _, in := range []listing{{k, ""}, {k, a.Reference}} {
		l.executed[in] = append(l.executed[in], a)
	}
	under := listing{k, a.IdempotencyKey}
	l.byKey[under] = append(l.byKey[under], a)
	toAccount := -a.AmountMinor
	if k == refund {
		l.refunded[a.ChargeID] += a.AmountMinor
		toAccount = a.AmountMinor
	} else {
		l.charges[a.ID] = a
	}
	if _, limited := l.balances[a.Account][a.Currency]; limited {
		l.balances[a.Account][a.Currency] += toAccount
	}
}

// nextID is the id of the attempt that is applied next.
func (l *ledger) nextID(k kind) string { return fmt.Sprintf("%s_%06d", k.idPrefix, l.attempts[k]+1) }

// objection gives the decline code of an order that must not move money, or nothing.
func (l *ledger) objection(t terms) string {
	if t.kind() == refund {
		return l.objectionToRefund(t)
	}
	if balance, limited := l.balances[t.Account][t.Currency]; limited && balance < t.AmountMinor {
		return insufficientFunds
	}
	return ""
}

func (l *ledger) objectionToRefund(t terms) string {
	c := l.charges[t.ChargeID]
	switch {
	case c == nil, c.Account != t.Account, c.Currency != t.Currency:
		return chargeNotFound // what somebody else paid, or paid otherwise, is not there for this order
	case l.refunded[c.ID]+t.AmountMinor > c.AmountMinor:
		return refundExceedsCharge
	default:
		return ""
	}
}

// list gives copies that nobody changes.
func (l *ledger) list(in listing) []attempt { return copies(l.executed[in]) }

func copies(attempts []*attempt) []attempt {
	found := make([]attempt, 0, len(attempts))
	for _, a := range attempts {
		found = append(found, *a)
	}
	return found
}
