package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/paymentsd/paymentsd/internal/idempotency/internal/idempotencysql"
)

// Expiry is part of the contract, not of housekeeping. A finished key is replayed for its window; then its body goes and a
// tombstone stays for a time of its own, so that a late retry still learns what it is late for; then nothing is left. What
// a retry is answered is judged by the times in the row and never by whether cleanup has come by. Unresolved keys never
// expire.

// Read is what the key says now. It returns false when there is no such key.
func (k *Keys) Read(ctx context.Context, scope Scope) (Record, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, statementFor)
	defer cancel()
	row, err := k.sql.ReadKey(ctx, k.db, idempotencysql.ReadKeyParams{
		TenantID: scope.TenantID, OperationName: scope.Operation, IdempotencyKey: string(scope.Key)})
	if errors.Is(err, pgx.ErrNoRows) {
		return Record{}, false, nil
	}
	if err != nil {
		return Record{}, false, fmt.Errorf("read key: %w", err)
	}
	r := Record{
		Lease:       Lease{scope, row.LeaseEpoch, row.ResourceID, row.ResponseSchemaVersion, int(row.RecoveryAttempts)},
		Fingerprint: Fingerprint(row.RequestHash),
		Status:      Status(row.Status),
		Held:        row.IsHeld, HeldFor: seconds(row.HeldForSeconds), ExpiredFor: seconds(row.ExpiredForSeconds),
		ResourceType: row.ResourceType, CreatedAt: row.CreatedAt, ExpiresAt: row.ExpiresAt,
	}
	if row.ResponseStatus != nil && row.ResponseContentType != nil {
		r.Answer, err = StoredAnswer(int(*row.ResponseStatus), *row.ResponseContentType, row.ResponseHeaders, row.ResponseBody)
	}
	if row.ErrorCode != nil {
		r.Answer.ErrorCode = *row.ErrorCode
	}
	return r, true, err
}

// Forget ends an expired key, so that the next request with it is a first one. Of all who saw the same key one succeeds.
func (k *Keys) Forget(ctx context.Context, seen Lease) error {
	err := k.sql.ForgetExpiredKey(ctx, k.db, idempotencysql.ForgetExpiredKeyParams{
		TenantID: seen.TenantID, OperationName: seen.Operation, IdempotencyKey: string(seen.Key),
		ResourceID: seen.ResourceID, SeenEpoch: seen.Epoch})
	if err != nil {
		return fmt.Errorf("forget expired key: %w", err)
	}
	return nil // whoever was quicker has forgotten it: what counts is what the next look finds
}

// AcquireExpired acquires one key whose client was told to retry and did not within the window. It returns false when there
// is none.
func (k *Keys) AcquireExpired(ctx context.Context) (Lease, bool, error) {
	row, err := k.sql.AcquireExpiredRetryableKey(ctx, k.db, k.leaseFor)
	if errors.Is(err, pgx.ErrNoRows) {
		return Lease{}, false, nil
	}
	if err != nil {
		return Lease{}, false, fmt.Errorf("acquire expired key: %w", err)
	}
	return leaseOf(idempotencysql.AcquireAbandonedKeyRow(row)), true, nil
}

// Cleaned counts what a cleaning did.
type Cleaned struct {
	Scrubbed  int64 // finished keys that became tombstones
	Deleted   int64 // tombstones that are gone
	Postponed int64 // unresolved keys, left alone
}

// Clean goes once over everything that is due, in batches of at most batchMax rows, each in a short transaction of its own,
// and rests in between. Any number of instances may clean at once; they get different rows.
func (k *Keys) Clean(ctx context.Context, keepTombstoneFor time.Duration, batchMax int, rest func(context.Context)) (Cleaned, error) {
	var total Cleaned
	after := time.Time{}
	for {
		batch, err := k.sql.CleanKeys(ctx, k.db, idempotencysql.CleanKeysParams{
			After: after, RowsMax: int32(batchMax), KeepTombstoneFor: keepTombstoneFor})
		if err != nil {
			return total, fmt.Errorf("clean keys: %w", err)
		}
		total.Scrubbed += batch.Scrubbed
		total.Deleted += batch.Deleted
		total.Postponed += batch.Postponed
		if batch.Seen < int64(batchMax) {
			return total, nil
		}
		after = batch.Until
		if rest(ctx); ctx.Err() != nil {
			return total, nil // what is left is cleaned the next time
		}
	}
}
