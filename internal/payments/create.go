package payments

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/outbox"
)

// Result is what a keyed call is answered with: the stored answer of a finished payment, or a payment that is pending.
type Result struct {
	Answer       idempotency.Answer
	Replayed     bool // the answer was stored before this call
	Pending      bool // there is no answer yet; Payment says what there is
	Waited       bool // the call waited for another one's answer, as it was asked to
	Async        bool // the payment is driven in the background, as it was asked to
	Payment      Payment
	RetryAfter   time.Duration // when asking again is worth it; of a pending payment
	KeyExpiresAt time.Time

	SchemaVersion string // the representation that the key's first request is answered in
}

// judgementsMax bounds how often a call judges its key again because the record changed under it. Each round needs
// somebody else to have made progress on this one key; more than a few in one call means a bug, not traffic.
const judgementsMax = 8

// Create is every keyed call, POST /payments and POST /payments/{id}/refunds: one key in one scope, at most one payment, at
// most one movement of money.
//
// It opens the payment in the one transaction and then acts on what the key turned out to mean. From the first statement on
// it works on a context of its own: a client that hangs up must not turn a good charge into an unknown one.
//
// It returns ErrKeyReused, KeyExpiredError, InProgressError, DuplicateReferenceError, ProviderUnavailableError, the command's
// own Refusal, FieldError, ErrNotFound, ErrNotSettled, ErrNotRefundable, ErrRefundTooLarge, ErrAccountNotFound, ErrAccountBlocked,
// idempotency.ErrUnknownRule, or ErrUnavailable when the database did not take the command.
func (s *Service) Create(client context.Context, c Command) (Result, error) {
	ctx, cancel := s.detach(client)
	defer cancel()

	resolved, refusal := s.resolve(ctx, c)
	if isUnavailable(refusal) {
		return Result{}, refusal
	}
	var o opening
	if refusal == nil {
		var err error
		if o, err = s.newOpening(c, resolved); err != nil {
			return Result{}, err
		}
		o.traceParent = outbox.TraceParent(ctx)
	}
	waited := false
	for range judgementsMax {
		if ctx.Err() != nil { // the call was stalled; what there is now can still be told
			ctx, cancel = s.detach(client)
			defer cancel()
		}
		f, err := s.find(ctx, c, o, refusal)
		if err != nil {
			return Result{}, err
		}
		var result Result
		switch f.verdict {
		case idempotency.First:
			result, err = s.run(ctx, c, f.record.Lease, o.payment(f))
		case idempotency.Replay:
			result = Result{Answer: f.record.Answer, Replayed: true}
		case idempotency.Abandoned:
			result, err = s.takeOver(ctx, c, f.record.Lease)
		case idempotency.InFlight, idempotency.Recovering:
			if c.Wait > 0 && !waited {
				waited = true
				s.await(client, c.Scope, c.Wait)
				continue
			}
			result, err = s.busy(ctx, f)
		case idempotency.Mismatch:
			if s.mayReuse(f.record) {
				err = s.reuse(ctx, f.record)
				break
			}
			s.log.WarnContext(ctx, "key reused for a different command", "tenant", c.Scope.TenantID, "operation", c.Scope.Operation)
			return Result{}, ErrKeyReused
		case idempotency.Lapsed:
			err = s.lapsed(ctx, f.record)
		default:
			return Result{}, fmt.Errorf("create payment: verdict %v has no rule", f.verdict)
		}
		if err != errJudgeAgain {
			return s.complete(result, f, waited), err
		}
	}
	return Result{}, fmt.Errorf("create payment: %w: the key kept changing", ErrUnavailable)
}

// complete adds what every result says: until when its key can be replayed, and in which representation it is answered. A key
// that is not finished yet never expires, and its window begins when it is finished: at the earliest now.
func (s *Service) complete(r Result, f found, waited bool) Result {
	r.Waited, r.SchemaVersion = waited, f.record.Lease.SchemaVersion
	if r.KeyExpiresAt.IsZero() {
		r.KeyExpiresAt = f.record.ExpiresAt
	}
	if now := time.Now(); !f.record.Over() && r.KeyExpiresAt.Before(now) {
		r.KeyExpiresAt = now.Add(s.cfg.KeyWindow)
	}
	return r
}

// find judges the key: by the one transaction, or, when a rule refuses, by a look that claims nothing.
func (s *Service) find(ctx context.Context, c Command, o opening, refusal error) (f found, err error) {
	if refusal != nil {
		f, err = s.look(ctx, c, refusal)
	} else {
		f, err = s.open(ctx, o)
	}
	if err == nil {
		count(ctx, f.verdict)
	}
	return f, err
}

// run drives a payment to where it will go, or, for a client that does not want to wait, has it driven. When too many are
// driven in the background already, the client waits all the same: a preference is not a promise.
func (s *Service) run(ctx context.Context, c Command, lease idempotency.Lease, p Payment) (Result, error) {
	finish := func(ctx context.Context) error { _, err := s.finish(ctx, lease, p); return err }
	if !c.Async || !s.later(ctx, &s.background, p.ID, finish) {
		return s.finish(ctx, lease, p)
	}
	return Result{Pending: true, Async: true, Payment: p, RetryAfter: time.Second, KeyExpiresAt: p.KeyExpiresAt}, nil
}

// later has a payment worked on in the background, and reports whether it is: not when too many are already.
func (s *Service) later(ctx context.Context, group *errgroup.Group, paymentID string, work func(context.Context) error) bool {
	return group.TryGo(func() error {
		ctx, cancel := s.detach(ctx)
		defer cancel()
		defer func() {
			if r := recover(); r != nil { // there is no request any more that could answer for it
				s.log.ErrorContext(ctx, "payment is left to recovery", "payment", paymentID, "panic", r)
			}
		}()
		if err := work(ctx); err != nil {
			s.log.InfoContext(ctx, "payment was not finished in the background", "payment", paymentID, "error", err)
		}
		return nil
	})
}

// finish drives a payment under a lease. When the database stops taking moves the payment is durable all the same and
// recovery goes on from where it is, so the caller is told that it is pending, never that it failed.
func (s *Service) finish(ctx context.Context, lease idempotency.Lease, p Payment) (Result, error) {
	defer s.waiting.wake(lease.Scope)
	moved, result, err := s.drive(ctx, lease, p)
	if isUnavailable(err) && ctx.Err() != nil {
		return result, errJudgeAgain // stalled for so long that its own time is over: somebody else may have finished
	}
	if isUnavailable(err) {
		s.log.ErrorContext(ctx, "payment is left to recovery", "payment", p.ID, "state", moved.State, "error", err)
		return Result{Pending: true, Payment: moved, RetryAfter: s.keys.LeaseFor(), KeyExpiresAt: p.KeyExpiresAt}, nil
	}
	if err == errLeaseLost {
		return result, errJudgeAgain // somebody else owns the key now, or has finished it
	}
	return result, err
}

// takeOver acquires an abandoned key and finishes its payment.
func (s *Service) takeOver(ctx context.Context, c Command, seen idempotency.Lease) (Result, error) {
	lease, ok, err := s.keys.TakeOver(ctx, seen)
	if err != nil {
		return Result{}, unavailable("take over", err)
	}
	if !ok {
		return Result{}, errJudgeAgain // somebody else was quicker
	}
	p, err := s.Get(ctx, lease.TenantID, lease.ResourceID)
	if err != nil {
		return Result{}, err
	}
	s.log.InfoContext(ctx, "key taken over by a retry", "payment", p.ID, "state", p.State, "epoch", lease.Epoch)
	return s.run(ctx, c, lease, p)
}

// busy tells a retry that somebody else is at work: on the first request, or on finding out what became of it.
func (s *Service) busy(ctx context.Context, f found) (Result, error) {
	if f.verdict == idempotency.InFlight {
		return Result{}, &InProgressError{f.record.Lease.ResourceID, f.record.HeldFor}
	}
	p, err := s.Get(ctx, f.record.Lease.TenantID, f.record.Lease.ResourceID)
	return Result{Pending: true, Payment: p, RetryAfter: f.record.HeldFor}, err
}

// lapsed answers a retry that came after its key's window. What was never sent in the window is canceled first: it must not
// be sent by anybody any more.
func (s *Service) lapsed(ctx context.Context, r idempotency.Record) error {
	switch {
	case r.Status == idempotency.FailedRetryable:
		lease, ok, err := s.keys.TakeOver(ctx, r.Lease)
		if err != nil {
			return unavailable("cancel expired", err)
		}
		if ok {
			err = s.cancel(ctx, lease)
		}
		if err != nil && err != errLeaseLost {
			return err
		}
		return errJudgeAgain
	case s.mayReuse(r):
		return s.reuse(ctx, r)
	default:
		return &KeyExpiredError{r.Lease.ResourceID}
	}
}

// mayReuse reports whether a key is free again: its window has passed, and either that is enough by configuration, or its
// tombstone's time is over too, whether or not cleanup has come by.
func (s *Service) mayReuse(r idempotency.Record) bool {
	return r.Over() && r.Status != idempotency.FailedRetryable && (s.cfg.ReuseExpired || r.ExpiredFor >= s.cfg.TombstoneFor)
}

func (s *Service) reuse(ctx context.Context, r idempotency.Record) error {
	if err := s.keys.Forget(ctx, r.Lease); err != nil {
		return unavailable("reuse expired key", err)
	}
	return errJudgeAgain
}

// detach gives work that must not die with its client a deadline of its own: twice the lease, which is longer than any
// walk through the states takes, and after which somebody else owns the key anyway.
func (s *Service) detach(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 2*s.keys.LeaseFor())
}

// Drain waits for what runs in the background. What only waits there does not any longer.
func (s *Service) Drain() {
	s.drain()
	_, _ = s.background.Wait(), s.settling.Wait() // what runs there returns no error
}
