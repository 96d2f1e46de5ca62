package payments

import (
	"context"
	"time"

	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/money"
)

// The operation names of the keyed calls, in scopes and fingerprints.
const (
	OperationCreate = "create_payment"
	OperationRefund = "create_refund"
)

// Said is what a client said, in canonical form. It is what a fingerprint is made of: not what the server resolved from it,
// such as an account's default currency, which may be another one by the time of the retry. "" is a member that was not
// said; said members are never empty.
type Said struct {
	APIVersion        string // the version that the request named
	PaymentID         string // of a refund: the path parameter
	AccountID         string
	Amount            string // shortest decimal form
	Currency          string // upper case
	MerchantReference string
	Channel           string // the default where none was said: saying it and not saying it are the same
	Description       string
}

// Command is the meaning of a keyed request, and how its sender wants to be answered.
type Command struct {
	Scope         idempotency.Scope
	Said          Said
	SchemaVersion string // the representation to answer in
	// Refusal is why the request would be refused by a rule that may change with time, nil otherwise. What its key already
	// means comes first: a rule that became stricter hides no stored answer.
	Refusal error

	Wait  time.Duration // how long to wait for the first request's answer instead of being told that it is in progress
	Async bool          // be told that the payment is pending as soon as it is durable
}

// The rules by which fingerprints are made. Both are kept for ever; which one is written is a setting, because during a
// deploy the older build must be able to read what the newer one writes.
const (
	RuleV1 = "v1"
	RuleV2 = "v2" // adds description
)

// Fingerprint states the command's meaning under a rule. Not in it: the tenant and the key (they are the scope), headers
// that only shape the answer, and whatever the server makes or resolves. It returns idempotency.ErrUnknownRule.
func (c Command) Fingerprint(rule string) (idempotency.Fingerprint, error) {
	if rule != RuleV1 && rule != RuleV2 {
		return "", idempotency.ErrUnknownRule
	}
	s := c.Said
	if c.Scope.Operation == OperationRefund {
		return idempotency.Sum(rule, OperationRefund, said("apiVersion", s.APIVersion), said("paymentId", s.PaymentID),
			said("amount", s.Amount), said("currency", s.Currency)), nil
	}
	fields := []idempotency.Field{
		said("apiVersion", s.APIVersion), said("accountId", s.AccountID), said("amount", s.Amount), said("currency", s.Currency),
		said("merchantReference", s.MerchantReference), said("channel", s.Channel),
	}
	// Rule v1 has no description. A command with one cannot be the command that a v1 row was made of, so it must not have
	// its fingerprint either.
	if rule == RuleV2 || s.Description != "" {
		fields = append(fields, said("description", s.Description))
	}
	return idempotency.Sum(rule, OperationCreate, fields...), nil
}

func said(name, value string) idempotency.Field {
	if value == "" {
		return idempotency.No(name)
	}
	return idempotency.Some(name, value)
}

// resolved is what the server makes of what was said, by rules that may change with time.
type resolved struct {
	kind      Kind
	accountID string
	reference string
	amount    money.Amount
	chargeID  string // of a refund: what is given back
}

// resolve applies those rules. An error that is not ErrUnavailable is a refusal.
func (s *Service) resolve(ctx context.Context, c Command) (resolved, error) {
	switch {
	case c.Refusal != nil:
		return resolved{}, c.Refusal
	case c.Scope.Operation == OperationRefund:
		return s.resolveRefund(ctx, c)
	default:
		return s.resolvePayment(ctx, c)
	}
}

func (s *Service) resolvePayment(ctx context.Context, c Command) (resolved, error) {
	code := c.Said.Currency
	if code == "" {
		account, err := s.Account(ctx, c.Scope.TenantID, c.Said.AccountID)
		if err != nil {
			return resolved{}, err
		}
		if account.DefaultCurrency == "" {
			return resolved{}, &FieldError{"currency", ErrNoDefaultCurrency}
		}
		code = account.DefaultCurrency
	}
	amount, err := parseAmount(c.Said.Amount, code)
	return resolved{kind: KindPayment, accountID: c.Said.AccountID, reference: c.Said.MerchantReference, amount: amount}, err
}

// resolveRefund looks the parent up. Whether the refund still fits is judged in the one transaction, where nobody can come
// in between.
func (s *Service) resolveRefund(ctx context.Context, c Command) (resolved, error) {
	parent, err := s.Get(ctx, c.Scope.TenantID, c.Said.PaymentID)
	switch {
	case err != nil:
		return resolved{}, err
	case parent.Kind != KindPayment:
		return resolved{}, ErrNotFound
	case !parent.State.Terminal():
		return resolved{}, ErrNotSettled
	case parent.State != Completed:
		return resolved{}, ErrNotRefundable
	case c.Said.Currency != "" && c.Said.Currency != parent.Amount.Currency().String():
		return resolved{}, &FieldError{"currency", ErrOtherCurrency}
	}
	amount, err := parseAmount(c.Said.Amount, parent.Amount.Currency().String())
	return resolved{KindRefund, parent.AccountID, parent.MerchantReference, amount, parent.ChargeID}, err
}

func parseAmount(said, code string) (money.Amount, error) {
	currency, err := money.ParseCurrency(code)
	if err != nil {
		return money.Amount{}, &FieldError{"currency", err}
	}
	amount, err := money.Parse(said, currency)
	if err != nil {
		return money.Amount{}, &FieldError{"amount", err}
	}
	return amount, nil
}
