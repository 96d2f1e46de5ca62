package payments

import (
	"context"
	"fmt"
	"time"

	"github.com/paymentsd/paymentsd/internal/events"
	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/payments/internal/paymentssql"
	"github.com/paymentsd/paymentsd/internal/provider"
)

// Result is what a keyed call is answered with: the stored answer of a finished payment, or a payment that is pending.
type Result struct {
	Answer       idempotency.Answer
	Replayed     bool // the answer was stored before this call
	Pending      bool // there is no answer yet; Payment says what there is
	Payment      Payment
	RetryAfter   time.Duration // when asking again is worth it; of a pending payment
	KeyExpiresAt time.Time
}

// judgementsMax bounds how often a call judges its key again because the record changed under it. Each round needs
// somebody else to have made progress on this one key; more than a few in one call means a bug, not traffic.
const judgementsMax = 5

// Create is POST /payments: one key in one scope, at most one payment, at most one charge.
//
// It opens the payment in the one transaction and then acts on what the key turned out to mean. From the first statement on
// it works on a context of its own: a client that hangs up must not turn a good charge into an unknown one.
//
// It returns ErrKeyReused, ErrKeyExpired, ErrAccountNotFound, ErrAccountBlocked, InProgressError, DuplicateReferenceError,
// ProviderUnavailableError, idempotency.ErrUnknownRule, or ErrUnavailable when the database did not take the command.
func (s *Service) Create(ctx context.Context, c CreateCommand) (Result, error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()

	opening, err := newOpening(c)
	if err != nil {
		return Result{}, err
	}
	for range judgementsMax {
		found, err := s.open(ctx, opening)
		if err != nil {
			return Result{}, err
		}
		count(ctx, found.verdict)
		var result Result
		switch found.verdict {
		case idempotency.First:
			result, err = s.finish(ctx, found.record.Lease, opening.payment(found))
		case idempotency.Replay:
			return Result{Answer: found.record.Answer, Replayed: true, KeyExpiresAt: found.record.ExpiresAt}, nil
		case idempotency.Abandoned:
			result, err = s.takeOver(ctx, found.record.Lease)
		case idempotency.Recovering:
			return s.pendingByID(ctx, c.Scope.TenantID, found.record.Lease.ResourceID, found.record.HeldFor)
		case idempotency.InFlight:
			return Result{KeyExpiresAt: found.record.ExpiresAt}, &InProgressError{found.record.Lease.ResourceID, found.record.HeldFor}
		case idempotency.Mismatch:
			s.log.WarnContext(ctx, "key reused for a different command", "tenant", c.Scope.TenantID, "operation", c.Scope.Operation)
			return Result{}, ErrKeyReused
		case idempotency.Lapsed:
			return Result{KeyExpiresAt: found.record.ExpiresAt}, ErrKeyExpired
		default:
			return Result{}, fmt.Errorf("create payment: verdict %v has no rule", found.verdict)
		}
		if err != errLeaseLost {
			return result, err
		}
		// Somebody else owns the key now, or finished it: judge again what there is.
	}
	return Result{}, fmt.Errorf("create payment: %w: the key kept changing", ErrUnavailable)
}

// finish drives a payment under a lease. When the database stops taking moves the payment is durable all the same and
// recovery goes on from where it is, so the caller is told that it is pending, never that it failed.
func (s *Service) finish(ctx context.Context, lease idempotency.Lease, p Payment) (Result, error) {
	moved, result, err := s.drive(ctx, lease, p)
	if isUnavailable(err) {
		s.log.ErrorContext(ctx, "payment is left to recovery", "payment", p.ID, "state", moved.State, "error", err)
		return Result{Pending: true, Payment: moved, RetryAfter: s.leases.For(), KeyExpiresAt: p.KeyExpiresAt}, nil
	}
	return result, err
}

// takeOver acquires an abandoned key and finishes its payment. It returns errLeaseLost when somebody else was quicker.
func (s *Service) takeOver(ctx context.Context, seen idempotency.Lease) (Result, error) {
	lease, ok, err := s.leases.TakeOver(ctx, seen)
	if err != nil {
		return Result{}, unavailable("take over", err)
	}
	if !ok {
		return Result{}, errLeaseLost
	}
	p, err := s.Get(ctx, lease.TenantID, lease.ResourceID)
	if err != nil {
		return Result{}, err
	}
	s.log.InfoContext(ctx, "key taken over by a retry", "payment", p.ID, "state", p.State, "epoch", lease.Epoch)
	return s.finish(ctx, lease, p)
}

func (s *Service) pendingByID(ctx context.Context, tenantID, paymentID string, retryAfter time.Duration) (Result, error) {
	p, err := s.Get(ctx, tenantID, paymentID)
	if err != nil {
		return Result{}, err
	}
	return Result{Pending: true, Payment: p, RetryAfter: retryAfter, KeyExpiresAt: p.KeyExpiresAt}, nil
}

// detach gives work that must not die with its client a deadline of its own: twice the lease, which is longer than any
// walk through the states takes, and after which somebody else owns the key anyway.
func (s *Service) detach(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 2*s.leases.For())
}

// opening is a payment as it is about to be opened, with everything that makes it the same payment however often the
// opening has to be tried.
type opening struct {
	command     CreateCommand
	paymentID   string
	fingerprint idempotency.Fingerprint
	request     []byte // to the provider
	eventID     string
	payload     []byte
}

func newOpening(c CreateCommand) (opening, error) {
	fingerprint, err := c.Fingerprint(ruleV1)
	if err != nil {
		return opening{}, err
	}
	o := opening{command: c, paymentID: events.NewPaymentID(), fingerprint: fingerprint, eventID: events.NewID()}
	o.request = provider.Movement{PaymentID: o.paymentID, Account: c.AccountID, Reference: c.MerchantReference, Amount: c.Amount}.Encode()
	o.payload, err = events.Payment{
		EventID: o.eventID, Type: events.PaymentCreated, PaymentID: o.paymentID, AccountID: c.AccountID,
		MerchantReference: c.MerchantReference, OccurredAt: time.Now().UTC(), Sequence: 1,
	}.Describe(c.Amount).Encode()
	return o, err
}

// payment is the payment that the opening made.
func (o opening) payment(f found) Payment {
	c := o.command
	return Payment{
		TenantID: c.Scope.TenantID, ID: o.paymentID, AccountID: c.AccountID, MerchantReference: c.MerchantReference,
		Channel: c.Channel, Amount: c.Amount, State: LocalPaymentCreated, Version: 1, Events: 1, Request: o.request,
		CreatedAt: f.openedAt, UpdatedAt: f.openedAt, KeyExpiresAt: f.record.ExpiresAt,
	}
}

// found is what the one transaction found out about the key of one request.
type found struct {
	verdict  idempotency.Verdict
	record   idempotency.Record
	openedAt time.Time
}

// open runs the one transaction for one request and judges its key. Tried again after a lost answer it finds its own
// claim, by the payment id that nobody else can have, and goes on as its owner.
func (s *Service) open(ctx context.Context, o opening) (found, error) {
	var f found
	err := s.retry(ctx, "open payment", func() error {
		rows, err := s.sql.OpenPayments(ctx, s.db, s.openParams([]opening{o}))
		if err != nil {
			return err
		}
		f, err = judge(o, rows[0])
		return err
	})
	return f, err
}

// judge reads one row of the one transaction. What the key already means comes before what the rules say, so that a
// stricter rule never hides a stored answer.
func judge(o opening, row paymentssql.OpenPaymentsRow) (found, error) {
	scope := o.command.Scope
	if row.IsClaimed {
		lease := idempotency.Lease{Scope: scope, Epoch: 1, ResourceID: o.paymentID, SchemaVersion: o.command.SchemaVersion}
		return found{idempotency.First, idempotency.Record{Lease: lease, ExpiresAt: row.ExpiresAt}, row.OpenedAt}, nil
	}
	if row.Status == nil {
		switch {
		case row.AccountStatus == nil:
			return found{}, ErrAccountNotFound
		case *row.AccountStatus != "OPEN":
			return found{}, ErrAccountBlocked
		case row.HolderID != nil:
			return found{}, &DuplicateReferenceError{*row.HolderID}
		default:
			return found{}, errRaced
		}
	}
	record := idempotency.Record{
		Lease: idempotency.Lease{
			Scope: scope, Epoch: deref(row.LeaseEpoch), ResourceID: deref(row.ResourceID),
			SchemaVersion: deref(row.ResponseSchemaVersion), Attempts: int(deref(row.RecoveryAttempts)),
		},
		Fingerprint: idempotency.Fingerprint(deref(row.RequestHash)),
		Status:      idempotency.Status(*row.Status),
		Held:        row.IsHeld, HeldFor: seconds(row.HeldForSeconds), Expired: row.IsExpired, ExpiresAt: row.ExpiresAt,
	}
	if record.Lease.ResourceID == o.paymentID && record.Lease.Epoch == 1 && record.Status == idempotency.InProgress {
		return found{idempotency.First, record, row.OpenedAt}, nil
	}
	verdict, err := record.Judge(o.command)
	if err == nil && verdict == idempotency.Replay {
		record.Answer, err = idempotency.StoredAnswer(int(deref(row.ResponseStatus)), deref(row.ResponseContentType),
			row.ResponseHeaders, row.ResponseBody)
	}
	return found{verdict: verdict, record: record}, err
}

func (s *Service) openParams(set []opening) paymentssql.OpenPaymentsParams {
	p := paymentssql.OpenPaymentsParams{LeaseFor: s.leases.For(), KeyWindow: s.cfg.KeyWindow}
	for i, o := range set {
		c := o.command
		p.Ordinals = append(p.Ordinals, int32(i))
		p.TenantIds = append(p.TenantIds, c.Scope.TenantID)
		p.OperationNames = append(p.OperationNames, c.Scope.Operation)
		p.IdempotencyKeys = append(p.IdempotencyKeys, string(c.Scope.Key))
		p.RequestHashes = append(p.RequestHashes, string(o.fingerprint))
		p.SchemaVersions = append(p.SchemaVersions, c.SchemaVersion)
		p.PaymentIds = append(p.PaymentIds, o.paymentID)
		p.AccountIds = append(p.AccountIds, c.AccountID)
		p.MerchantReferences = append(p.MerchantReferences, c.MerchantReference)
		p.AmountsMinor = append(p.AmountsMinor, c.Amount.Minor())
		p.Currencies = append(p.Currencies, c.Amount.Currency().String())
		p.Channels = append(p.Channels, c.Channel)
		p.ProviderRequests = append(p.ProviderRequests, o.request)
		p.EventIds = append(p.EventIds, o.eventID)
		p.EventTypes = append(p.EventTypes, string(events.PaymentCreated))
		p.EventPayloads = append(p.EventPayloads, string(o.payload))
	}
	return p
}
