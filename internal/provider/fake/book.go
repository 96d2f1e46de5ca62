package fake

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"
)

// book is what the provider knows. One mutex makes every decision atomic: whether a key is known, whether the money may
// move, the journal record, and the move itself. Everything is kept in memory, about 1 KiB an order, for as long as the
// journal exists: a test may ask for any charge it ever made.
type book struct {
	keyWindow time.Duration
	lookupLag time.Duration

	mu      sync.Mutex
	journal *journal
	closed  bool
	ledger  ledger
	keys    map[string]*attempt // what is remembered under a key, declined attempts included; one space for both kinds
	held    map[string]bool     // keys whose first request is still running
	byID    map[string]*attempt
	untold  map[string]*attempt // by webhook: what the receiver has still to be told
}

// attempt is an order that was executed or declined, with the answer that is remembered for its key.
type attempt struct {
	ID          string `json:"id"`
	Status      string `json:"status"` // succeeded or declined
	DeclineCode string `json:"declineCode,omitempty"`
	terms
	IdempotencyKey string    `json:"idempotencyKey"`
	ExecutedAt     time.Time `json:"executedAt"`
	WebhookID      string    `json:"webhookId,omitempty"` // under which it is told; empty: it is not
	RequestSHA256  string    `json:"requestSha256"`       // of the body's bytes: a key insists on equal bytes, not on equal meaning
	Answer         int       `json:"answerStatus"`        // 201, 402, or the 500 of error_forever
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
		keyWindow: keyWindow,
		lookupLag: lookupLag,
		ledger:    newLedger(),
		keys:      map[string]*attempt{},
		held:      map[string]bool{},
		byID:      map[string]*attempt{},
		untold:    map[string]*attempt{},
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
		b.keys[r.Attempt.IdempotencyKey] = r.Attempt
		b.byID[r.Attempt.ID] = r.Attempt
		if r.Attempt.WebhookID != "" {
			b.untold[r.Attempt.WebhookID] = r.Attempt
		}
		b.ledger.apply(r.Attempt)
	case r.Account != nil:
		b.ledger.balances[r.Account.Account] = r.Account.Minor
	case r.Told != "":
		delete(b.untold, r.Told)
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

// order is one request to charge or to refund, as it arrived.
type order struct {
	key  string
	body []byte
	terms
	holds     bool   // this request took the key with hold
	webhookID string // under which the order is to be told; empty: it is not

	// What the script says: refuse with this code; or execute, and remember a 500 as the answer.
	declineCode string
	failForever bool
}

// place does what a provider does with an order: gives the remembered attempt if the key is known, and otherwise
// executes or declines, once, and remembers. It returns errKeyReused, errKeyHeld, errProviderOff, or the journal's error,
// and then nothing has happened.
func (b *book) place(o order) (a attempt, replayed bool, err error) {
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
		if known.RequestSHA256 != fingerprint { // an order of the other kind always differs: only refunds say chargeId
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

// decide says what a new order comes to.
func (b *book) decide(o order) attempt {
	a := attempt{
		ID:             b.ledger.nextID(o.kind()),
		Status:         succeeded,
		terms:          o.terms,
		IdempotencyKey: o.key,
		ExecutedAt:     time.Now().UTC(),
		WebhookID:      o.webhookID,
		Answer:         http.StatusCreated,
	}
	code := cmp.Or(o.declineCode, b.ledger.objection(o.terms))
	switch {
	case code != "":
		a.Status, a.DeclineCode, a.Answer = declined, code, http.StatusPaymentRequired
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

// lookup gives what a lookup of this kind by key may see: nothing before the lookup lag is over; then what was executed
// under the key, for ever, for money that moved is on record after its key is forgotten; and what was declined under it, as
// long as the key is remembered.
func (b *book) lookup(k kind, key string) []attempt {
	b.mu.Lock()
	defer b.mu.Unlock()
	found := copies(b.ledger.byKey[listing{k, key}])
	if a := b.remembered(key); a != nil && a.kind() == k && a.Status != succeeded {
		found = append(found, *a)
	}
	return slices.DeleteFunc(found, func(a attempt) bool { return time.Since(a.ExecutedAt) < b.lookupLag })
}

// executed gives every order of this kind that really moved money, for one reference or (empty) for all.
func (b *book) executed(k kind, reference string) []attempt {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ledger.list(listing{k, reference})
}

// attempt gives an order by its id, executed or declined.
func (b *book) attempt(id string) (attempt, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.byID[id]
	if a == nil {
		return attempt{}, false
	}
	return *a, true
}

// toTell gives the orders of which the receiver has not been told, oldest first.
func (b *book) toTell() []attempt {
	b.mu.Lock()
	defer b.mu.Unlock()
	return copies(slices.SortedFunc(maps.Values(b.untold), func(x, y *attempt) int { return x.ExecutedAt.Compare(y.ExecutedAt) }))
}

// told remembers that the receiver knows. It does nothing for a webhook that nobody waits for any more.
func (b *book) told(webhookID string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.untold[webhookID] == nil {
		return nil
	}
	return b.write(record{Told: webhookID})
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
