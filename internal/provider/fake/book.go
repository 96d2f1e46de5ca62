package fake

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

// book is what the provider knows. One mutex makes every decision atomic: whether a key is known, whether the account
// can pay, the journal record, and the charge itself. Everything is kept in memory, about 1 KiB a charge, for as long as
// the journal exists: a test may ask for any charge it ever made.
type book struct {
	keyWindow time.Duration
	lookupLag time.Duration

	mu          sync.Mutex
	journal     *journal
	closed      bool
	attempts    int                   // how many there were; the next one gets the next number as its id
	charges     []*attempt            // the executed ones, in order
	byReference map[string][]*attempt // the same, by reference
	keys        map[string]*attempt   // what is remembered under a key, declined attempts included
	held        map[string]bool       // keys whose first request is still running
	balances    map[string]map[string]int64
}

// chargeRequest is the body of POST /v1/charges. Every member is required, and no other is allowed.
type chargeRequest struct {
	Account     string `json:"account"`
	AmountMinor int64  `json:"amountMinor"`
	Currency    string `json:"currency"`
	Reference   string `json:"reference"`
	PaymentID   string `json:"paymentId"`
}

// attempt is a charge that was executed or declined, with the answer that is remembered for its key.
type attempt struct {
	ID             string    `json:"id"`
	Status         string    `json:"status"` // succeeded or declined
	DeclineCode    string    `json:"declineCode,omitempty"`
	Account        string    `json:"account"`
	AmountMinor    int64     `json:"amountMinor"`
	Currency       string    `json:"currency"`
	Reference      string    `json:"reference"`
	PaymentID      string    `json:"paymentId"`
	IdempotencyKey string    `json:"idempotencyKey"`
	ExecutedAt     time.Time `json:"executedAt"`
	RequestSHA256  string    `json:"requestSha256"` // of the body's bytes: a key insists on equal bytes, not on equal meaning
	Answer         int       `json:"answerStatus"`  // 201, 402, or the 500 of error_forever
}

const (
	succeeded = "succeeded"
	declined  = "declined"
)

// Why the book refuses a request. None of them leaves a trace.
var (
	errKeyReused   = errors.New("the idempotency key was used with another request")
	errKeyHeld     = errors.New("a request with this idempotency key is still running")
	errProviderOff = errors.New("the provider is closed")
)

func openBook(dir string, keyWindow, lookupLag time.Duration, log *slog.Logger) (*book, error) {
	b := &book{
		keyWindow:   keyWindow,
		lookupLag:   lookupLag,
		byReference: map[string][]*attempt{},
		keys:        map[string]*attempt{},
		held:        map[string]bool{},
		balances:    map[string]map[string]int64{},
	}
	journal, err := openJournal(dir, log, b.apply)
	b.journal = journal
	return b, err
}

// apply changes the book by one record. It runs when the record was written and again at every start, and has no other
// source than the record: what is replayed is what happened.
func (b *book) apply(r record) {
	switch {
	case r.Attempt != nil:
		a := r.Attempt
		b.attempts++
		b.keys[a.IdempotencyKey] = a
		if a.Status == succeeded {
			b.charges = append(b.charges, a)
			b.byReference[a.Reference] = append(b.byReference[a.Reference], a)
			if _, limited := b.balances[a.Account][a.Currency]; limited {
				b.balances[a.Account][a.Currency] -= a.AmountMinor
			}
		}
	case r.Account != nil:
		b.balances[r.Account.Account] = r.Account.Minor
	case r.Forget:
		clear(b.keys)
	}
}

// write makes a record durable first and true afterwards.
func (b *book) write(r record) error {
	if b.closed {
		return errProviderOff
	}
	if err := b.journal.append(r); err != nil {
		return err
	}
	b.apply(r)
	return nil
}

// order is one request to charge, as it arrived.
type order struct {
	key     string
	body    []byte
	request chargeRequest
	holds   bool // this request took the key with hold

	// What the script says: refuse with this code; or execute, and remember a 500 as the answer.
	declineCode string
	failForever bool
}

// charge does what a provider does with a request: gives the remembered attempt if the key is known, and otherwise
// executes or declines, once, and remembers. It returns errKeyReused, errKeyHeld, errProviderOff, or the journal's error,
// and then nothing has happened.
func (b *book) charge(o order) (a attempt, replayed bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if o.holds {
		delete(b.held, o.key)
	} else if b.held[o.key] {
		return attempt{}, false, errKeyHeld
	}
	sum := sha256.Sum256(o.body)
	fingerprint := hex.EncodeToString(sum[:])
	if known := b.remembered(o.key); known != nil {
		if known.RequestSHA256 != fingerprint {
			return attempt{}, false, errKeyReused
		}
		return *known, true, nil
	}
	a = b.decide(o)
	a.RequestSHA256 = fingerprint
	if err := b.write(record{Attempt: &a}); err != nil {
		return attempt{}, false, err
	}
	return a, false, nil
}

// decide says what a new request comes to.
func (b *book) decide(o order) attempt {
	a := attempt{
		ID:             fmt.Sprintf("ch_%06d", b.attempts+1),
		Status:         succeeded,
		Account:        o.request.Account,
		AmountMinor:    o.request.AmountMinor,
		Currency:       o.request.Currency,
		Reference:      o.request.Reference,
		PaymentID:      o.request.PaymentID,
		IdempotencyKey: o.key,
		ExecutedAt:     time.Now().UTC(),
		Answer:         http.StatusCreated,
	}
	balance, limited := b.balances[a.Account][a.Currency]
	switch {
	case o.declineCode != "":
		a.Status, a.DeclineCode, a.Answer = declined, o.declineCode, http.StatusPaymentRequired
	case limited && balance < a.AmountMinor:
		a.Status, a.DeclineCode, a.Answer = declined, "INSUFFICIENT_FUNDS", http.StatusPaymentRequired
	case o.failForever:
		a.Answer = http.StatusInternalServerError
	}
	return a
}

// hold marks the key as running, so that a second request with it is refused meanwhile. It returns errKeyHeld when the
// key is held already.
func (b *book) hold(key string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held[key] {
		return errKeyHeld
	}
	b.held[key] = true
	return nil
}

// release ends a hold whose request came to nothing.
func (b *book) release(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.held, key)
}

// remembered gives what is known under a key, or nil once it was forgotten.
func (b *book) remembered(key string) *attempt {
	a := b.keys[key]
	if a == nil || b.keyWindow > 0 && time.Since(a.ExecutedAt) >= b.keyWindow {
		return nil
	}
	return a
}

// lookup gives what a lookup by key may see: nothing before the lookup lag is over, nothing once the key is forgotten.
func (b *book) lookup(key string) []attempt {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.remembered(key)
	if a == nil || time.Since(a.ExecutedAt) < b.lookupLag {
		return nil
	}
	return []attempt{*a}
}

// executed gives every charge that really happened, for one reference or (empty) for all.
func (b *book) executed(reference string) []attempt {
	b.mu.Lock()
	defer b.mu.Unlock()
	found := b.charges
	if reference != "" {
		found = b.byReference[reference]
	}
	charges := make([]attempt, len(found))
	for i, a := range found {
		charges[i] = *a
	}
	return charges
}

func (b *book) setBalances(account string, minor map[string]int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.write(record{Account: &accountBalance{Account: account, Minor: minor}})
}

func (b *book) forgetKeys() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.write(record{Forget: true})
}

func (b *book) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return b.journal.close()
}
