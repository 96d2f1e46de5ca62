package payments

import (
	"context"
	"fmt"
	"time"

	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/provider"
)

// maxSteps bounds a drive. The longest walk is sent, unproved, confirmed, completed in three rounds of the loop; more than
// twice that is a bug.
const maxSteps = 8

// drive is the one door. A first request, a retry that took over, and the recovery worker all enter here with a lease, and
// differ only in the state they find. It returns the payment as it left it, and what its caller can be told:
//
//   - the rendered answer, when the payment reached its end;
//   - a pending result, when nobody can say yet;
//   - ProviderUnavailableError, when the provider was provably not reached;
//   - errLeaseLost, when somebody else owns the key by now and nothing was written.
func (s *Service) drive(ctx context.Context, lease idempotency.Lease, p Payment) (Payment, Result, error) {
	var err error
	for range maxSteps {
		switch p.State {
		case LocalPaymentCreated:
			if p.waitedTooLong() {
				p, err = s.move(ctx, lease, p, step{to: []State{Canceled}, sends: p.Sends, reason: "key_expired"})
				break
			}
			p, err = s.sendFirst(ctx, lease, p)
			if err == nil && p.State == LocalPaymentCreated {
				return p, Result{KeyExpiresAt: p.KeyExpiresAt}, &ProviderUnavailableError{p.ID}
			}
		case ProviderRequestSent, UnknownRequiresRecovery:
			p, err = s.findOut(ctx, lease, p)
		case ProviderConfirmed:
			p, err = s.move(ctx, lease, p, step{to: []State{Completed}, sends: p.Sends, chargeID: p.ChargeID, reason: p.LastReason})
		case Completed, Declined, Canceled:
			return p, Result{Answer: p.answer, Payment: p, KeyExpiresAt: p.KeyExpiresAt}, nil
		default:
			return p, Result{}, fmt.Errorf("drive payment: state %q has no rule", p.State)
		}
		if err != nil {
			return p, Result{}, err
		}
		if p.State == UnknownRequiresRecovery {
			return p, Result{Pending: true, Payment: p, RetryAfter: s.cfg.RecoveryPause, KeyExpiresAt: p.KeyExpiresAt}, nil
		}
	}
	return p, Result{}, fmt.Errorf("drive payment: no end after %d steps", maxSteps)
}

// waitedTooLong reports whether a payment that was provably not sent, and was left for its client to retry, has outlived its
// key: nobody will ask for it any more, so nobody may send it any more.
func (p Payment) waitedTooLong() bool {
	return p.KeyExpired && p.State == LocalPaymentCreated && p.Version > 1
}

// sendFirst sends what has never been sent. The intent is durable before the call: whoever finds the payment afterwards
// knows that the provider may have it. Because no earlier attempt can have reached the provider, "no byte of the request
// was written" proves here that there was no effect, and the payment goes back to where it was.
func (s *Service) sendFirst(ctx context.Context, lease idempotency.Lease, p Payment) (Payment, error) {
	p, result, err := s.send(ctx, lease, p, step{to: []State{ProviderRequestSent}, sends: p.Sends + 1, reason: "first_send", hold: true})
	if err != nil {
		return p, err
	}
	if result.Outcome == provider.NotSent {
		return s.move(ctx, lease, p, step{to: []State{LocalPaymentCreated}, sends: 0, reason: result.Reason}) // no send that counts
	}
	return s.moveBy(ctx, lease, p, result)
}

// findOut resolves a payment whose request somebody else may have sent. It asks before it acts: first its own files, where the
// provider may have told the outcome unasked, then the provider, by the key.
func (s *Service) findOut(ctx context.Context, lease idempotency.Lease, p Payment) (Payment, error) {
	told, err := s.toldAbout(ctx, p)
	if err != nil {
		return p, err
	}
	result := told.believe(p)
	if result.Outcome == provider.Unknown {
		result = s.provider.Lookup(ctx, p.order())
		countOutcome(ctx, "lookup", result)
	}
	after, err := s.actOn(ctx, lease, p, result, told)
	if err == nil {
		s.judgeAll(ctx, after, told)
	}
	return after, err
}

// actOn moves a payment by what was found out. Only when that is proof that the provider has never seen the key is the same
// request sent again.
func (s *Service) actOn(ctx context.Context, lease idempotency.Lease, p Payment, result provider.Result, told callbacks) (Payment, error) {
	if result.Outcome != provider.Absent {
		return s.moveBy(ctx, lease, p, result)
	}
	doubt := s.absenceDoubt(p)
	if told.claimMoney() {
		doubt = "absent_but_told" // one of the two is wrong, and money may have moved
	}
	if doubt != "" {
		return s.moveBy(ctx, lease, p, provider.Result{Outcome: provider.Unknown, Reason: doubt})
	}
	p, result, err := s.send(ctx, lease, p, step{to: []State{UnknownRequiresRecovery}, sends: p.Sends + 1, reason: "send_again", hold: true})
	if err != nil {
		return p, err
	}
	return s.moveBy(ctx, lease, p, result)
}

// send records an attempt and makes it: one POST for one committed row, never more. The call may not begin or go on once
// the lease that the record renewed, or left as it was, is over: an owner that was stalled in between must not send when it wakes.
func (s *Service) send(ctx context.Context, lease idempotency.Lease, p Payment, record step) (Payment, provider.Result, error) {
	leaseEnds := time.Now().Add(s.keys.LeaseLeft())
	p, err := s.move(ctx, lease, p, record)
	if err != nil {
		return p, provider.Result{}, err
	}
	ctx, cancel := context.WithDeadline(ctx, leaseEnds)
	defer cancel()
	result := s.provider.Send(ctx, p.order())
	countOutcome(ctx, "send", result)
	return p, result, nil
}

// moveBy moves a payment by what the provider said. Only a yes and a no are definite; everything else leaves it unknown,
// to be asked about again after a pause.
func (s *Service) moveBy(ctx context.Context, lease idempotency.Lease, p Payment, r provider.Result) (Payment, error) {
	next := step{sends: p.Sends, reason: r.Reason}
	switch r.Outcome {
	case provider.Confirmed:
		next.to, next.chargeID = []State{ProviderConfirmed, Completed}, r.ChargeID
	case provider.Declined:
		next.to, next.declineCode = []State{Declined}, r.DeclineCode
	case provider.Unknown, provider.NotSent, provider.Absent:
		next.to, next.pause = []State{UnknownRequiresRecovery}, s.pause(lease, p, r)
	default:
		return p, fmt.Errorf("move payment: outcome %v has no rule", r.Outcome)
	}
	return s.move(ctx, lease, p, next)
}
