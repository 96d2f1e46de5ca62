package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/paymentsd/paymentsd/internal/idempotency/internal/idempotencysql"
)

// Scope is the caller's tenant, the operation and the key: what may own at most one operation.
type Scope struct {
	TenantID  string
	Operation string
	Key       Key
}

// Lease is the right to act on one key. Epoch fences: every write names it, and it grows at every acquisition, so whoever
// was overtaken matches no row any more. That it also has an end in time only says when somebody else may overtake.
type Lease struct {
	Scope
	Epoch         int64
	ResourceID    string // what the key is about
	SchemaVersion string // the representation its answer is made in
	Attempts      int    // acquisitions after the first
}

// Keys is the table of keys, for everything but the two statements that claim and finish one together with its payment.
type Keys struct {
	db       idempotencysql.DBTX
	sql      *idempotencysql.Queries
	leaseFor time.Duration
}

// NewKeys works on a pool of connections to the primary, with leases that last leaseFor.
func NewKeys(db idempotencysql.DBTX, leaseFor time.Duration) *Keys {
	return &Keys{db, idempotencysql.New(), leaseFor}
}

// statementFor is how long one statement about a key may take: they take milliseconds, or the database hangs.
const statementFor = 5 * time.Second

// LeaseFor is how long a lease lasts.
func (k *Keys) LeaseFor() time.Duration { return k.leaseFor }

// LeaseLeft is how much of a lease is left at least when its owner goes on with it: an owner that has more does not renew it, which
// would be a write for nothing.
func (k *Keys) LeaseLeft() time.Duration { return k.leaseFor - k.leaseFor/10 }

// TakeOver acquires the key that was read as free, for its client. Of all who read the same record one succeeds; the others
// get false, and what they read is no longer true.
func (k *Keys) TakeOver(ctx context.Context, seen Lease) (Lease, bool, error) {
	return k.takeOver(ctx, seen, true)
}

// TakeOverUnresolved is TakeOver for somebody who is not the key's client: what waits for its client is not taken.
func (k *Keys) TakeOverUnresolved(ctx context.Context, seen Lease) (Lease, bool, error) {
	return k.takeOver(ctx, seen, false)
}

func (k *Keys) takeOver(ctx context.Context, seen Lease, isClient bool) (Lease, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, statementFor)
	defer cancel()
	row, err := k.sql.TakeOverKey(ctx, k.db, idempotencysql.TakeOverKeyParams{
		LeaseFor: k.leaseFor, TenantID: seen.TenantID, OperationName: seen.Operation, IdempotencyKey: string(seen.Key),
		SeenEpoch: seen.Epoch, IsClient: isClient,
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return Lease{}, false, nil
	}
	if err != nil {
		return Lease{}, false, fmt.Errorf("take over key: %w", err)
	}
	return Lease{seen.Scope, row.LeaseEpoch, row.ResourceID, row.ResponseSchemaVersion, int(row.RecoveryAttempts)}, true, nil
}

// AcquireDue acquires one unresolved key that nobody holds and whose time to be looked at has come. It returns false when
// there is none. Several workers may ask at once; they get different keys.
func (k *Keys) AcquireDue(ctx context.Context) (Lease, bool, error) {
	row, err := k.sql.AcquireAbandonedKey(ctx, k.db, k.leaseFor)
	if errors.Is(err, pgx.ErrNoRows) {
		var due idempotencysql.AcquireDueKeyRow
		due, err = k.sql.AcquireDueKey(ctx, k.db, k.leaseFor)
		row = idempotencysql.AcquireAbandonedKeyRow(due)
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return Lease{}, false, nil
	}
	if err != nil {
		return Lease{}, false, fmt.Errorf("acquire due key: %w", err)
	}
	return leaseOf(row), true, nil
}

func leaseOf(row idempotencysql.AcquireAbandonedKeyRow) Lease {
	scope := Scope{row.TenantID, row.OperationName, Key(row.IdempotencyKey)}
	return Lease{scope, row.LeaseEpoch, row.ResourceID, row.ResponseSchemaVersion, int(row.RecoveryAttempts)}
}

// Unresolved is what operators watch: keys whose outcome is not known, and how long the oldest has been waiting.
type Unresolved struct {
	Unknown          int64
	InProgressOldest time.Duration
	UnknownOldest    time.Duration
}

// Unresolved counts the keys that recovery has still to resolve.
func (k *Keys) Unresolved(ctx context.Context) (Unresolved, error) {
	row, err := k.sql.CountUnresolvedKeys(ctx, k.db)
	if err != nil {
		return Unresolved{}, fmt.Errorf("count unresolved keys: %w", err)
	}
	return Unresolved{row.Unknown, seconds(row.InProgressOldestSeconds), seconds(row.UnknownOldestSeconds)}, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
