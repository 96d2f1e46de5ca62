package payments

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/provider"
)

// What can go wrong, and who repairs it.
//
// A process can die between any two instructions. What it leaves behind is always one of these, because every step of a
// payment is one commit:
//
//	LOCAL_PAYMENT_CREATED       The claim is durable, the intent to send is not: no byte has left the house. Whoever inherits
//	                            the key sends.
//	PROVIDER_REQUEST_SENT       The intent is durable. The request may never have left, may be on its way, may have been
//	                            executed, may have been answered to a process that was dead by then. Our tables cannot tell
//	                            these apart, so whoever inherits the key asks the provider first.
//	UNKNOWN_REQUIRES_RECOVERY   The same, and somebody has already failed to find out.
//	PROVIDER_CONFIRMED          Never seen alone, as completing is the same commit; completing is all that is left to do.
//
// "Asks the provider" has traps of its own. A lookup that finds nothing proves nothing while the provider's index lags
// behind, so within the lag the answer is "unknown". After it, "absent" means that the charge does not exist, and the same
// request may be sent again under the same provider key, but only as long as the provider still remembers keys: past its
// window the same key would charge a second time, and an absence may be forgetfulness. Then recovery only goes on looking,
// the key stays reserved, and a person decides. No timer turns an unknown into a failure, and nothing here ever makes a
// second provider key.
//
// An owner is presumed dead when its lease is over by the database's clock. It may be merely slow: then it wakes, finds its
// epoch gone, and writes nothing (move.go); its provider call, if it still goes out, carries the same key as ours.
//
// Recovery does not know how a payment was interrupted and does not look for favourite states: it acquires every unresolved
// key whose time has come, and sends its payment through the same door as everybody else.

const (
	// pauseMax ends the doubling of pauses: an unknown payment is asked about every hour for as long as it is unknown.
	pauseMax = time.Hour
	// doublingsMax keeps the shift from overflowing; any first pause has reached pauseMax long before.
	doublingsMax = 30
	// sendsMax bounds the POSTs of one payment. A provider that answers "in progress" a few times deserves another try; one
	// that answers every resend with the same error proves nothing by it, and from then on it is only asked.
	sendsMax = 5
	// recoveryWorkers is how many payments one process recovers at a time: enough to go on while a few wait for a slow
	// provider, few enough not to be what slows it.
	recoveryWorkers = 8
)

// Recover acquires one payment that is due, drives it, and reports whether there was one.
func (s *Service) Recover(ctx context.Context) (found bool, err error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	lease, found, err := s.keys.AcquireDue(ctx)
	if err != nil || !found {
		return false, unavailable("recover", err)
	}
	countRecovery(ctx)
	// A payment that makes this build panic must not stop the recovery of the others. Its lease runs out, and it is tried
	// again after that.
	defer func() {
		if r := recover(); r != nil {
			found, err = true, fmt.Errorf("recover payment %s: panic: %v", lease.ResourceID, r)
		}
	}()
	p, err := s.Get(ctx, lease.TenantID, lease.ResourceID)
	if err != nil {
		return true, fmt.Errorf("recover payment %s: %w", lease.ResourceID, err)
	}
	after, _, err := s.drive(ctx, lease, p)
	s.log.InfoContext(ctx, "recovery", "payment", p.ID, "found", p.State, "left", after.State, "reason", after.LastReason, "epoch", lease.Epoch)
	if _, unreachable := err.(*ProviderUnavailableError); unreachable || err == errLeaseLost {
		return true, nil // the client's turn; or somebody else's
	}
	return true, err
}

// RunRecovery recovers what is due, every interval and at once at the start, until ctx is done. It ends what it has begun.
func (s *Service) RunRecovery(ctx context.Context, every time.Duration) {
	var workers sync.WaitGroup
	for range recoveryWorkers {
		workers.Go(func() {
			tick := time.NewTicker(every)
			defer tick.Stop()
			for {
				s.recoverAllDue(ctx)
				select {
				case <-tick.C:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	workers.Wait()
}

func (s *Service) recoverAllDue(ctx context.Context) {
	for ctx.Err() == nil {
		found, err := s.Recover(ctx)
		if err != nil {
			s.log.ErrorContext(ctx, "recovery failed", "error", err)
			return // until the next tick: what fails once in a row tends to fail twice
		}
		if !found {
			return
		}
	}
}

// absenceDoubt says why the provider not knowing the key is no reason to send again, or "" when it is one.
func (s *Service) absenceDoubt(p Payment) string {
	if p.LastSentAge < s.cfg.ProviderLookupLag {
		return "absent_within_lookup_lag"
	}
	return s.lastSendPassed(p)
}

// lastSendPassed says why a payment may not be sent again at all, or "". The margin before the end of the provider's window
// covers the time that a send takes and clocks that do not agree.
func (s *Service) lastSendPassed(p Payment) string {
	margin := s.cfg.ProviderKeyWindow / 10
	switch {
	case p.FirstSentAge >= s.cfg.ProviderKeyWindow-margin:
		return "absent_past_provider_key_window"
	case p.Sends >= sendsMax:
		return "absent_after_last_send"
	default:
		return ""
	}
}

// pause is how long to leave an unknown payment alone: seconds first, then minutes, then hours, or just until the
// provider's lookup can be believed.
func (s *Service) pause(lease idempotency.Lease, p Payment, r provider.Result) time.Duration {
	if rest := s.cfg.ProviderLookupLag - p.LastSentAge; r.Reason == "absent_within_lookup_lag" && rest > 0 {
		return rest
	}
	doubled := s.cfg.RecoveryPause << min(lease.Attempts, doublingsMax)
	if doubled <= 0 || doubled > pauseMax {
		doubled = pauseMax
	}
	return doubled*3/4 + rand.N(doubled/2)
}
