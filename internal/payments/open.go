package payments

import (
	"context"
	"time"

	"github.com/paymentsd/paymentsd/internal/events"
	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/payments/internal/paymentssql"
	"github.com/paymentsd/paymentsd/internal/provider"
)

// opening is a payment as it is about to be opened, with everything that makes it the same payment however often the
// opening has to be tried.
type opening struct {
	command     Command
	resolved    resolved
	paymentID   string
	fingerprint idempotency.Fingerprint
	request     []byte // to the provider
	event       events.Payment
	payload     []byte
	traceParent string
}

func (s *Service) newOpening(c Command, r resolved) (opening, error) {
	fingerprint, err := c.Fingerprint(s.cfg.FingerprintRule)
	if err != nil {
		return opening{}, err
	}
	o := opening{command: c, resolved: r, paymentID: newPaymentID(r.kind), fingerprint: fingerprint}
	o.request = provider.Movement{PaymentID: o.paymentID, Tenant: c.Scope.TenantID, Account: r.accountID, Reference: r.reference,
		Amount: r.amount, ChargeID: r.chargeID}.Encode()
	arrow, _ := arrowBetween(Received, LocalPaymentCreated)
	o.event = describe(o.payment(found{}), arrow.announce)
	o.payload, err = o.event.Encode()
	return o, err
}

// payment is the payment that the opening makes.
func (o opening) payment(f found) Payment {
	return Payment{
		TenantID: o.command.Scope.TenantID, ID: o.paymentID, Kind: o.resolved.kind, ParentID: o.command.Said.PaymentID,
		AccountID: o.resolved.accountID, MerchantReference: o.resolved.reference, Channel: o.command.Said.Channel,
		Description: o.command.Said.Description, Amount: o.resolved.amount, State: LocalPaymentCreated, Version: 1, Events: 1,
		Request: o.request, CreatedAt: f.openedAt, UpdatedAt: f.openedAt, KeyExpiresAt: f.record.ExpiresAt,
	}
}

// found is what the one transaction, or a mere look, found out about the key of one request.
type found struct {
	verdict  idempotency.Verdict
	record   idempotency.Record
	openedAt time.Time
}

// open takes part in the one transaction and judges the key of its request.
func (s *Service) open(ctx context.Context, o opening) (found, error) {
	for range triesMax {
		row, err := s.openings.Do(ctx, o)
		if err != nil {
			return found{}, unavailable("open payment", err)
		}
		f, err := judge(o, row)
		if err == nil && f.verdict == idempotency.First {
			s.cfg.Committed()
		}
		if err != errRaced {
			return f, err
		}
	}
	return found{}, unavailable("open payment", errRaced)
}

// openSet runs the one transaction. Tried again after a lost answer each request finds its own claim, by the payment id that
// nobody else can have, and goes on as its owner.
func (s *Service) openSet(ctx context.Context, set []opening) (rows []paymentssql.OpenPaymentsRow, err error) {
	params := s.openParams(set)
	err = s.retry(ctx, "open payments", func(ctx context.Context) error {
		rows, err = s.sql.OpenPayments(ctx, s.db, params)
		return err
	})
	return rows, err
}

// look judges the key of a request that a rule refuses. It returns the refusal when the key means nothing yet.
func (s *Service) look(ctx context.Context, c Command, refusal error) (found, error) {
	record, exists, err := s.keys.Read(ctx, c.Scope)
	switch {
	case err != nil:
		return found{}, unavailable("look at key", err)
	case !exists:
		return found{}, refusal
	}
	verdict, err := record.Judge(c)
	return found{verdict: verdict, record: record}, err
}

// judge reads one row of the one transaction. What the key already means comes before what the rules say.
func judge(o opening, row paymentssql.OpenPaymentsRow) (found, error) {
	scope := o.command.Scope
	if row.IsClaimed {
		lease := idempotency.Lease{Scope: scope, Epoch: 1, ResourceID: o.paymentID, SchemaVersion: o.command.SchemaVersion}
		return found{idempotency.First, idempotency.Record{Lease: lease, ExpiresAt: row.ExpiresAt}, row.OpenedAt}, nil
	}
	if row.Status == nil {
		return found{}, refusalOf(o, row)
	}
	record := idempotency.Record{
		Lease: idempotency.Lease{
			Scope: scope, Epoch: deref(row.LeaseEpoch), ResourceID: deref(row.ResourceID),
			SchemaVersion: deref(row.ResponseSchemaVersion), Attempts: int(deref(row.RecoveryAttempts)),
		},
		Fingerprint: idempotency.Fingerprint(deref(row.RequestHash)),
		Status:      idempotency.Status(*row.Status),
		Held:        row.IsHeld, HeldFor: seconds(row.HeldForSeconds), ExpiredFor: seconds(row.ExpiredForSeconds), ExpiresAt: row.ExpiresAt,
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

// refusalOf is why a free key was not claimed.
func refusalOf(o opening, row paymentssql.OpenPaymentsRow) error {
	switch {
	case row.ParentRefuses == "NOT_FOUND":
		return ErrNotFound
	case row.ParentRefuses == "NOT_SETTLED":
		return ErrNotRefundable
	case row.ParentRefuses == "OTHER_CURRENCY":
		return &FieldError{"currency", ErrOtherCurrency}
	case row.ParentRefuses == "TOO_MUCH":
		return ErrRefundTooLarge
	case o.resolved.kind == KindPayment && row.AccountStatus == nil:
		return ErrAccountNotFound
	case o.resolved.kind == KindPayment && *row.AccountStatus != string(AccountOpen):
		return ErrAccountBlocked
	case row.HolderID != nil:
		return &DuplicateReferenceError{*row.HolderID}
	default:
		return errRaced
	}
}

func (s *Service) openParams(set []opening) paymentssql.OpenPaymentsParams {
	p := paymentssql.OpenPaymentsParams{LeaseFor: s.keys.LeaseFor(), KeyWindow: s.cfg.KeyWindow}
	for i, o := range set {
		c, r := o.command, o.resolved
		p.Ordinals = append(p.Ordinals, int32(i))
		p.TenantIds = append(p.TenantIds, c.Scope.TenantID)
		p.OperationNames = append(p.OperationNames, c.Scope.Operation)
		p.IdempotencyKeys = append(p.IdempotencyKeys, string(c.Scope.Key))
		p.RequestHashes = append(p.RequestHashes, string(o.fingerprint))
		p.SchemaVersions = append(p.SchemaVersions, c.SchemaVersion)
		p.PaymentIds = append(p.PaymentIds, o.paymentID)
		p.Kinds = append(p.Kinds, string(r.kind))
		p.ParentIds = append(p.ParentIds, c.Said.PaymentID)
		p.AccountIds = append(p.AccountIds, r.accountID)
		p.MerchantReferences = append(p.MerchantReferences, r.reference)
		p.AmountsMinor = append(p.AmountsMinor, r.amount.Minor())
		p.Currencies = append(p.Currencies, r.amount.Currency().String())
		p.Channels = append(p.Channels, c.Said.Channel)
		p.Descriptions = append(p.Descriptions, c.Said.Description)
		p.ProviderRequests = append(p.ProviderRequests, o.request)
		p.EventIds = append(p.EventIds, o.event.EventID)
		p.EventTypes = append(p.EventTypes, string(o.event.Type))
		p.EventPayloads = append(p.EventPayloads, string(o.payload))
		p.TraceParents = append(p.TraceParents, o.traceParent)
	}
	return p
}

func newPaymentID(k Kind) string {
	if k == KindRefund {
		return events.NewRefundID()
	}
	return events.NewPaymentID()
}
