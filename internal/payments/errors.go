package payments

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrKeyReused: the idempotency key belongs to a different command.
	ErrKeyReused = errors.New("idempotency key was used for a different command")
	// ErrAccountNotFound: the tenant has no such account.
	ErrAccountNotFound = errors.New("account not found")
	// ErrAccountBlocked: the account takes no new payments.
	ErrAccountBlocked = errors.New("account is blocked")
	// ErrNotFound: the tenant has no such payment.
	ErrNotFound = errors.New("payment not found")
	// ErrNotSettled: only a settled payment can be given back, and this one may still become one.
	ErrNotSettled = errors.New("payment is not settled yet")
	// ErrNotRefundable: only a settled payment can be given back, and this one never will be.
	ErrNotRefundable = errors.New("payment was not settled")
	// ErrRefundTooLarge: together with the refunds that are pending or settled it is more than was paid.
	ErrRefundTooLarge = errors.New("refunds would exceed the payment")
	// ErrOtherCurrency: a refund is in its payment's currency.
	ErrOtherCurrency = errors.New("currency is not the payment's")
	// ErrNoDefaultCurrency: neither the request nor the account names a currency.
	ErrNoDefaultCurrency = errors.New("no currency is named, and the account has no default")
	// ErrUnavailable: the database did not take the command. Whether it had an effect is told by a retry with the same key.
	ErrUnavailable = errors.New("service cannot record payments at the moment")

	// errJudgeAgain: what was found out about the key is no longer true.
	errJudgeAgain = errors.New("the key has changed")
	// errLeaseLost: somebody else owns the key now; nothing was written.
	errLeaseLost = errors.New("lease was lost")
	// errMovedOn: the lease is good, but the payment is not where its owner believed it to be; nothing was written.
	errMovedOn = errors.New("payment is not in the expected state")
)

// FieldError: a member of the command breaks a rule that depends on the account, the payment or the day.
type FieldError struct {
	Field string
	Err   error
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Err.Error() }
func (e *FieldError) Unwrap() error { return e.Err }

// KeyExpiredError: the key's window has passed; its answer is gone, what it was about is not.
type KeyExpiredError struct{ PaymentID string }

func (e *KeyExpiredError) Error() string { return "idempotency key has expired" }

// InProgressError: the key's first request is still running.
type InProgressError struct {
	PaymentID  string
	RetryAfter time.Duration // until its lease ends, if it does not finish before
}

func (e *InProgressError) Error() string { return "first request with this key is still in progress" }

// DuplicateReferenceError: the account has a payment with this merchant reference, under another key.
type DuplicateReferenceError struct{ PaymentID string }

func (e *DuplicateReferenceError) Error() string {
	return fmt.Sprintf("merchant reference is taken by %s", e.PaymentID)
}

// ProviderUnavailableError: the provider was provably not reached. The payment is durable, and a retry with the same key
// sends it.
type ProviderUnavailableError struct{ PaymentID string }

func (e *ProviderUnavailableError) Error() string { return "provider could not be reached" }
