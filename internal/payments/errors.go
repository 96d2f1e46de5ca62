package payments

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrKeyReused: the idempotency key belongs to a different command.
	ErrKeyReused = errors.New("idempotency key was used for a different command")
	// ErrKeyExpired: the key's window has passed; its answer is gone.
	ErrKeyExpired = errors.New("idempotency key has expired")
	// ErrAccountNotFound: the tenant has no such account.
	ErrAccountNotFound = errors.New("account not found")
	// ErrAccountBlocked: the account takes no new payments.
	ErrAccountBlocked = errors.New("account is blocked")
	// ErrNotFound: the tenant has no such payment.
	ErrNotFound = errors.New("payment not found")
	// ErrUnavailable: the database did not take the command. Whether it had an effect is told by a retry with the same key.
	ErrUnavailable = errors.New("service cannot record payments at the moment")

	// errLeaseLost: somebody else owns the key now; nothing was written.
	errLeaseLost = errors.New("lease was lost")
	// errMovedOn: the lease is good, but the payment is not where its owner believed it to be; nothing was written.
	errMovedOn = errors.New("payment is not in the expected state")
)

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
