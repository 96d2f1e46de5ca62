package payments

import (
	"context"
	"fmt"
	"time"

	"github.com/paymentsd/paymentsd/internal/events"
	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/outbox"
	"github.com/paymentsd/paymentsd/internal/payments/internal/paymentssql"
)

// step is one committed step of a payment: one arrow, or several in one transaction, and what goes with them.
type step struct {
	to          []State // one or two: every state it passes, the last one is where it stays
	reason      string
	sends       int    // recorded attempts, this step's included
	chargeID    string // of a confirmed payment
	declineCode string
	hold        bool          // keep the lease, renewed: a call to the provider follows
	pause       time.Duration // until recovery looks again; of an unknown outcome
}

// keyStatus says what a state makes of the key that owns the payment.
func keyStatus(s State, answer idempotency.Answer) (idempotency.Status, error) {
	switch s {
	case ProviderRequestSent, ProviderConfirmed:
		return idempotency.InProgress, nil
	case LocalPaymentCreated: // only the move back leads here: no byte was sent
		return idempotency.FailedRetryable, nil
	case UnknownRequiresRecovery:
		return idempotency.UnknownRequiresRecovery, nil
	case Completed, Declined, Canceled:
		return answer.Finished(), nil
	default:
		return "", fmt.Errorf("state %q has no key status", s)
	}
}

// move is the one writer: it takes the payment along the arrows of the step, or writes nothing at all. Together with the
// new state it writes the row of the history, the event that an arrow announces, and what becomes of the key: the
// lease renewed, the key parked until recovery looks again, or the answer stored for ever.
//
// It returns errLeaseLost when the lease is somebody else's, errMovedOn when the payment is not where it was believed to be,
// and ErrUnavailable when the database did not take it; the payment is returned unchanged then.
func (s *Service) move(ctx context.Context, lease idempotency.Lease, p Payment, next step) (Payment, error) {
	w, err := s.write(lease, p, next)
	if err != nil {
		return p, fmt.Errorf("move payment: %w", err)
	}
	w.traceParent = outbox.TraceParent(ctx)
	row, err := s.moves.Do(ctx, w)
	if err != nil {
		return p, unavailable("move payment", err)
	}
	if row.IsMoved {
		w.after.KeyExpiresAt = row.ExpiresAt
	}
	if row.IsMoved || s.isMine(ctx, lease, w.after) { // mine: an earlier try was committed, only its answer was lost
		if len(w.announced) > 0 {
			s.cfg.Committed()
		}
		return w.after, nil
	}
	refused := errMovedOn
	if !row.IsHeld {
		refused = errLeaseLost
	}
	countLostLease(ctx)
	s.log.WarnContext(ctx, "write refused", "payment", p.ID, "believed", p.State, "version", p.Version, "epoch", lease.Epoch, "reason", refused)
	return p, errLeaseLost
}

// moveSet runs the one writer.
func (s *Service) moveSet(ctx context.Context, set []write) (rows []paymentssql.MovePaymentsRow, err error) {
	params := s.moveParams(set)
	err = s.retry(ctx, "move payments", func(ctx context.Context) error {
		rows, err = s.sql.MovePayments(ctx, s.db, params)
		return err
	})
	return rows, err
}

// isMine reports whether the payment stands where this lease's write would have left it.
func (s *Service) isMine(ctx context.Context, lease idempotency.Lease, after Payment) bool {
	row, err := s.load(ctx, after.TenantID, after.ID)
	return err == nil && deref(row.KeyEpoch) == lease.Epoch &&
		State(row.Payment.State) == after.State && int(row.Payment.Version) == after.Version
}

// write is a step worked out: everything that the one statement needs, and the payment as it will be.
type write struct {
	lease     idempotency.Lease
	before    Payment
	via       State // between the two, "" for none
	after     Payment
	status    idempotency.Status
	answer    idempotency.Answer
	headers   []byte
	holdFor   time.Duration
	nextIn    time.Duration
	announced []outbox.Event

	traceParent string // of whoever caused the step
}

// write works out a step. A step along an arrow that the table does not have is a bug, and is refused here.
func (s *Service) write(lease idempotency.Lease, p Payment, next step) (write, error) {
	w := write{lease: lease, before: p, after: p}
	switch len(next.to) {
	case 1:
	case 2:
		w.via = next.to[0]
	default:
		return w, fmt.Errorf("a step of %d arrows", len(next.to))
	}
	a := &w.after
	for _, to := range next.to {
		arrow, ok := arrowBetween(a.State, to)
		if !ok {
			return w, fmt.Errorf("no arrow from %s to %s", a.State, to)
		}
		a.Version++
		a.State = to
		if arrow.announce == "" {
			continue
		}
		a.Events++
		event := describe(*a, arrow.announce)
		payload, err := event.Encode()
		if err != nil {
			return w, err
		}
		w.announced = append(w.announced, outbox.Event{
			ID: event.EventID, AggregateID: a.ID, Sequence: a.Events, Type: string(event.Type), Payload: payload})
	}
	a.Sends, a.LastReason, a.ChargeID, a.DeclineCode = next.sends, next.reason, next.chargeID, next.declineCode

	var err error
	if a.State.Terminal() {
		if w.answer, err = s.render(*a, lease.SchemaVersion); err != nil {
			return w, fmt.Errorf("render answer: %w", err)
		}
		a.answer = w.answer
		if w.headers, err = w.answer.Headers(); err != nil {
			return w, fmt.Errorf("render headers: %w", err)
		}
	}
	if w.status, err = keyStatus(a.State, w.answer); err != nil {
		return w, err
	}
	switch {
	case next.hold:
		w.holdFor, w.nextIn = s.keys.LeaseFor(), s.keys.LeaseFor()
	default:
		w.nextIn = next.pause
	}
	return w, nil
}

// describe is the event that announces what just happened to the payment.
func describe(p Payment, t events.Type) events.Payment {
	if p.Kind == KindRefund {
		t = t.OfRefund()
	}
	return events.Payment{
		EventID: events.NewID(), Type: t, PaymentID: p.ID, ParentPaymentID: p.ParentID, AccountID: p.AccountID,
		MerchantReference: p.MerchantReference, OccurredAt: time.Now().UTC(), Sequence: p.Events,
	}.Describe(p.Amount)
}

func (s *Service) moveParams(set []write) paymentssql.MovePaymentsParams {
	p := paymentssql.MovePaymentsParams{KeyWindow: s.cfg.KeyWindow, LeaseLeft: s.keys.LeaseLeft()}
	for i, w := range set {
		p.Ordinals = append(p.Ordinals, int32(i))
		p.TenantIds = append(p.TenantIds, w.lease.TenantID)
		p.OperationNames = append(p.OperationNames, w.lease.Operation)
		p.IdempotencyKeys = append(p.IdempotencyKeys, string(w.lease.Key))
		p.LeaseEpochs = append(p.LeaseEpochs, w.lease.Epoch)
		p.PaymentIds = append(p.PaymentIds, w.after.ID)
		p.FromStates = append(p.FromStates, string(w.before.State))
		p.ViaStates = append(p.ViaStates, string(w.via))
		p.ToStates = append(p.ToStates, string(w.after.State))
		p.FromVersions = append(p.FromVersions, int32(w.before.Version))
		p.Versions = append(p.Versions, int32(w.after.Version))
		p.EventCounts = append(p.EventCounts, int32(w.after.Events))
		p.Sends = append(p.Sends, int32(w.after.Sends))
		p.ChargeIds = append(p.ChargeIds, w.after.ChargeID)
		p.DeclineCodes = append(p.DeclineCodes, w.after.DeclineCode)
		p.Reasons = append(p.Reasons, w.after.LastReason)
		p.KeyStatuses = append(p.KeyStatuses, string(w.status))
		p.HoldFor = append(p.HoldFor, w.holdFor)
		p.NextAttemptIn = append(p.NextAttemptIn, w.nextIn)
		p.ResponseStatuses = append(p.ResponseStatuses, int32(w.answer.Status))
		p.ContentTypes = append(p.ContentTypes, w.answer.ContentType)
		p.ResponseHeaders = append(p.ResponseHeaders, string(w.headers))
		p.ResponseBodies = append(p.ResponseBodies, w.answer.Body)
		p.ErrorCodes = append(p.ErrorCodes, w.answer.ErrorCode)
		for _, e := range w.announced {
			p.EventPaymentIds = append(p.EventPaymentIds, e.AggregateID)
			p.EventIds = append(p.EventIds, e.ID)
			p.EventSequences = append(p.EventSequences, int32(e.Sequence))
			p.EventTypes = append(p.EventTypes, e.Type)
			p.EventPayloads = append(p.EventPayloads, string(e.Payload))
			p.EventTraceParents = append(p.EventTraceParents, w.traceParent)
		}
	}
	return p
}
