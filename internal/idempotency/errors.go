package idempotency

import "errors"

var (
	// ErrKeyRequired: the request has no idempotency key. It is never processed without one.
	ErrKeyRequired = errors.New("idempotency key is missing")
	// ErrKeyInvalid: the idempotency key is not of the documented syntax.
	ErrKeyInvalid = errors.New("idempotency key is not 1 to 255 visible ASCII characters")
	// ErrUnknownRule: a stored fingerprint was made by a rule that this build does not know. Nothing can be concluded, so
	// nothing is replayed, refused or executed.
	ErrUnknownRule = errors.New("stored fingerprint was made by a rule this build does not know")
	// ErrUnknownVersion: the answer is due in a representation that this build does not know. A newer one does.
	ErrUnknownVersion = errors.New("answer is due in a version this build does not know")
)
