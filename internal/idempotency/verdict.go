package idempotency

import (
	"fmt"
	"time"
)

// Status is what a key row says about its operation.
type Status string

const (
	// InProgress: somebody owns the key and works, or did until it died. Left by finishing, failing or not knowing.
	InProgress Status = "IN_PROGRESS"
	// Completed: done; the answer is stored and replayed until the key expires.
	Completed Status = "COMPLETED"
	// FailedReplayable: definitely refused; the refusal is stored and replayed like a success.
	FailedReplayable Status = "FAILED_REPLAYABLE"
	// FailedRetryable: proved to have had no effect; the client's retry runs again on the same resource.
	FailedRetryable Status = "FAILED_RETRYABLE"
	// UnknownRequiresRecovery: nobody can say yet whether it had its effect. Left only by finding out.
	UnknownRequiresRecovery Status = "UNKNOWN_REQUIRES_RECOVERY"
	// Expired: a tombstone; the body is gone.
	Expired Status = "EXPIRED"
)

// Unresolved reports whether the key's operation may still change the world.
func (s Status) Unresolved() bool { return s == InProgress || s == UnknownRequiresRecovery }

// Verdict is what an acquisition found.
type Verdict int

const (
	// Undecided is no verdict; acting on it is a bug.
	Undecided Verdict = iota
	// First: the key was free and is this caller's now.
	First
	// Replay: finished before; answer with what is stored.
	Replay
	// InFlight: the first request is still running, and its owner's lease is good.
	InFlight
	// Mismatch: the key belongs to a different command.
	Mismatch
	// Recovering: the outcome is unknown and somebody is finding out.
	Recovering
	// Abandoned: unfinished, and nobody holds it: it may be taken over.
	Abandoned
	// Lapsed: the key expired; what it meant is known, its answer is gone.
	Lapsed
)

func (v Verdict) String() string {
	names := [...]string{"undecided", "first", "replay", "in flight", "mismatch", "recovering", "abandoned", "expired"}
	if v < 0 || int(v) >= len(names) {
		return fmt.Sprintf("Verdict(%d)", int(v))
	}
	return names[v]
}

// Record is a key row as an acquisition read it. Times are judged by the database that holds it.
type Record struct {
	Lease       Lease
	Fingerprint Fingerprint
	Status      Status
	Held        bool          // somebody's lease is good
	HeldFor     time.Duration // for how long still
	ExpiredFor  time.Duration // since the window passed; negative while it has not
	Answer      Answer        // of a finished key

	ResourceType string
	CreatedAt    time.Time
	ExpiresAt    time.Time
}

// Over reports whether the key's window has passed and nothing can happen under it any more. Unresolved keys never expire.
func (r Record) Over() bool {
	return r.Status == Expired || r.ExpiredFor >= 0 && !r.Status.Unresolved()
}

// Judge says what the record means for a command. The order of its questions is the contract: whether the key belongs to
// this command comes before anything else about it is looked at or revealed, and a lease is asked about only for what is
// unfinished. It returns ErrUnknownRule when the fingerprints cannot be compared.
func (r Record) Judge(c Command) (Verdict, error) {
	same, err := r.Fingerprint.Means(c)
	if err != nil {
		return Undecided, err
	}
	if !same {
		return Mismatch, nil
	}
	if r.Over() {
		return Lapsed, nil
	}
	switch r.Status {
	case Completed, FailedReplayable:
		return Replay, nil
	case FailedRetryable:
		return Abandoned, nil
	case InProgress:
		if r.Held {
			return InFlight, nil
		}
		return Abandoned, nil
	case UnknownRequiresRecovery:
		if r.Held {
			return Recovering, nil
		}
		return Abandoned, nil
	default:
		return Undecided, fmt.Errorf("judge key: status %q is not one this build knows", r.Status)
	}
}
