package payments

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// A statement that failed is no answer to a business question. What PostgreSQL says is read from its SQLSTATE and from the
// constraint's name, never from its text, and leads to one of two ends: the whole transaction is tried again, or the caller
// is told that the service is unavailable. Never to "declined", never to a key that is left finished.

const (
	// triesMax: a conflict with other transactions is gone the second time nearly always; a connection that a restart cut is
	// back within the pauses or stays away for long.
	triesMax = 4
	// tryPause is the first pause; it doubles, so that all tries together take less than a second.
	tryPause = 50 * time.Millisecond
	// tryFor is how long one try may take. Statements take milliseconds, and the server ends those that wait for a lock sooner;
	// what takes longer is a database that hangs, and asking it again does not help.
	tryFor = 5 * time.Second
)

const (
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	uniqueViolation      = "23505"
	checkViolation       = "23514"
	businessKey          = "payments_business_key"
	refundsWithin        = "refunds_stay_within_payment"
)

// errRaced: another request with the same key came between this statement's snapshot and its insert, or into the same set.
var errRaced = errors.New("another request with this key came in between")

// retry runs a whole transaction until it succeeds, fails for a reason of its own, or has been tried triesMax times. It is
// given only transactions that may be repeated: each finds out by itself that an earlier try was committed.
func (s *Service) retry(ctx context.Context, doing string, transaction func(context.Context) error) error {
	var err error
	for try := range triesMax {
		if try > 0 {
			pause(ctx, tryPause<<(try-1))
		}
		trying, cancel := context.WithTimeout(ctx, tryFor)
		err = transaction(trying)
		hung := trying.Err() != nil
		cancel()
		if err == nil || !worthRepeating(err) || hung {
			break
		}
		s.log.WarnContext(ctx, "transaction is tried again", "doing", doing, "try", try+1, "error", err)
	}
	return unavailable(doing, err)
}

// worthRepeating reports whether the same transaction can succeed in a moment.
func worthRepeating(err error) bool {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch pg.Code {
		case serializationFailure, deadlockDetected:
			return true
		case uniqueViolation:
			return pg.ConstraintName == businessKey // now the holder can be seen
		case checkViolation:
			return pg.ConstraintName == refundsWithin // now the other refunds can be seen
		default:
			return isDisconnect(pg.Code)
		}
	}
	return isConnection(err)
}

// unavailable turns a database's failure into ErrUnavailable and lets every other error pass as it is, and what is that already.
func unavailable(doing string, err error) error {
	if isUnavailable(err) {
		return err
	}
	_, isPg := errors.AsType[*pgconn.PgError](err)
	if isPg || isConnection(err) || errors.Is(err, errRaced) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w: %w", doing, ErrUnavailable, err)
	}
	return err
}

func isUnavailable(err error) bool { return errors.Is(err, ErrUnavailable) }

// isDisconnect: the server ended the connection (57P01 to 57P03: shut down, crashed, starting), so what was under way is
// either committed or gone.
func isDisconnect(code string) bool { return code == "57P01" || code == "57P02" || code == "57P03" }

func isConnection(err error) bool {
	_, isNet := errors.AsType[net.Error](err)
	_, isConnect := errors.AsType[*pgconn.ConnectError](err)
	return isNet || isConnect || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, pgconn.ErrConnClosed) || pgconn.SafeToRetry(err)
}

// pause waits for about d (a half more or less, so that those who collided do not meet again), or until ctx is done.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d/2 + rand.N(d))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
