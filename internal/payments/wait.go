package payments

import (
	"context"
	"sync"
	"time"

	"github.com/paymentsd/paymentsd/internal/idempotency"
)

const (
	// pollFirst and pollMax space the looks of a call that waits for another process's answer: soon, because most payments
	// take milliseconds, and then rarely, because the others take seconds.
	pollFirst = 20 * time.Millisecond
	pollMax   = 500 * time.Millisecond
)

// await waits until the key is no longer held, at most for the given time, or until the client is gone. It holds no
// connection while it waits: it looks now and then, and is woken when the owner is in the same process.
func (s *Service) await(client context.Context, scope idempotency.Scope, atMost time.Duration) {
	ctx, cancel := context.WithTimeout(client, atMost)
	defer cancel()
	woken, leave := s.waiting.join(scope)
	defer leave()
	for poll := pollFirst; ; poll = min(2*poll, pollMax) {
		select {
		case <-woken:
			return
		case <-time.After(poll):
		case <-ctx.Done():
			return // waited long enough: the next judgement says what there is
		}
		record, exists, err := s.keys.Read(ctx, scope)
		if err == nil && (!exists || !record.Held) {
			return
		}
	}
}

// waiting are the calls of this process that wait for a key. Correctness does not need it, only promptness does.
type waiting struct {
	mu     sync.Mutex
	scopes map[idempotency.Scope]*crowd
}

// crowd waits for one key.
type crowd struct {
	done  chan struct{}
	calls int
}

// join waits for the key's owner, until leave is called.
func (w *waiting) join(scope idempotency.Scope) (woken <-chan struct{}, leave func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.scopes == nil {
		w.scopes = map[idempotency.Scope]*crowd{}
	}
	c, ok := w.scopes[scope]
	if !ok {
		c = &crowd{done: make(chan struct{})}
		w.scopes[scope] = c
	}
	c.calls++
	return c.done, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if c.calls--; c.calls == 0 && w.scopes[scope] == c {
			delete(w.scopes, scope)
		}
	}
}

// wake tells everybody who waits for the key that its owner is done.
func (w *waiting) wake(scope idempotency.Scope) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c, ok := w.scopes[scope]; ok {
		close(c.done)
		delete(w.scopes, scope)
	}
}
