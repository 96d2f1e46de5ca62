package payments

import (
	"context"
	"fmt"

	"github.com/paymentsd/paymentsd/internal/idempotency"
)

// Key is what a key says now. It returns false when the tenant has no such key, or none any more: a tombstone whose time is
// over is gone, whether or not cleanup has come by.
func (s *Service) Key(ctx context.Context, scope idempotency.Scope) (idempotency.Record, bool, error) {
	record, exists, err := s.keys.Read(ctx, scope)
	if err != nil {
		return idempotency.Record{}, false, unavailable("read key", err)
	}
	gone := record.Over() && record.ExpiredFor >= s.cfg.TombstoneFor
	return record, exists && !gone, nil
}

// CancelExpired gives up payments that were provably not sent, whose clients were told to retry and did not within the key's
// window, until there is none left. Each is announced.
func (s *Service) CancelExpired(ctx context.Context) (canceled int, err error) {
	for ctx.Err() == nil {
		lease, found, err := s.keys.AcquireExpired(ctx)
		if err != nil || !found {
			return canceled, unavailable("cancel expired payments", err)
		}
		if err := s.cancel(ctx, lease); err != nil && err != errLeaseLost {
			return canceled, fmt.Errorf("cancel payment %s: %w", lease.ResourceID, err)
		}
		canceled++
	}
	return canceled, nil
}

// cancel sends a payment that waited too long through the one door, which cancels it.
func (s *Service) cancel(ctx context.Context, lease idempotency.Lease) error {
	p, err := s.Get(ctx, lease.TenantID, lease.ResourceID)
	if err != nil {
		return err
	}
	_, _, err = s.drive(ctx, lease, p)
	return err
}
