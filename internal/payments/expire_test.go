package payments

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/provider"
)

// pass makes time go by for every key.
func (h *house) pass(d time.Duration) {
	_, err := h.pool.Exec(h.t.Context(), `UPDATE idempotency_requests SET expires_at = expires_at - $1::interval, cleanup_at = cleanup_at - $1::interval,
		created_at = created_at - $1::interval`, d)
	require.NoError(h.t, err)
}

const batch = 2 // rows a batch of cleanup, so that there are several

func noRest(context.Context) {}

func (h *house) clean(s *Service) idempotency.Cleaned {
	_, err := s.CancelExpired(h.t.Context())
	require.NoError(h.t, err)
	cleaned, err := s.keys.Clean(h.t.Context(), s.cfg.TombstoneFor, batch, noRest)
	require.NoError(h.t, err)
	return cleaned
}

// A late retry is answered the same whether cleanup has come by or not: 409 and the payment, then, when the tombstone's time
// is over, like a first request, which the business key still stops from paying twice.
func TestLateRetryDoesNotDependOnCleanup(t *testing.T) {
	for _, cleaned := range []bool{false, true} {
		t.Run(fmt.Sprintf("cleaned %v", cleaned), func(t *testing.T) {
			h := setup(t)
			s, c := h.service(nil, nil), h.command()
			first, err := s.Create(t.Context(), c)
			require.NoError(t, err)
			clean := func() {
				if cleaned {
					h.clean(s)
				}
			}
			h.pass(25 * time.Hour)
			clean()
			_, err = s.Create(t.Context(), c)
			late, ok := errors.AsType[*KeyExpiredError](err)
			require.True(t, ok, err)
			require.Equal(t, first.Payment.ID, late.PaymentID)
			other := c
			other.Said.Amount = "11"
			_, err = s.Create(t.Context(), other)
			require.ErrorIs(t, err, ErrKeyReused, "a tombstone still knows what the key meant")

			h.pass(31 * 24 * time.Hour)
			clean()
			_, err = s.Create(t.Context(), c)
			require.True(t, errors.As(err, new(*DuplicateReferenceError)), err)
			another := c
			another.Said.MerchantReference = "another-invoice"
			result, err := s.Create(t.Context(), another)
			require.NoError(t, err)
			require.False(t, result.Replayed)
			require.Equal(t, 201, result.Answer.Status)
		})
	}
}

// Where it is so configured, a late retry is a new operation, and exactly one of many late retries is it.
func TestReusedKeyHasOneWinner(t *testing.T) {
	for _, cleaned := range []bool{false, true} {
		h := setup(t)
		h.cfg.ReuseExpired = true
		s, c := h.service(nil, nil), h.command()
		h.fault(c.Said.MerchantReference, "charge", "decline", 1) // a declined one may be paid again
		require.Equal(t, "first", kind(s.Create(t.Context(), c)))
		h.pass(25 * time.Hour)
		if cleaned {
			h.clean(s)
		}
		got := atOnce(30, func(int) string { return kind(s.Create(t.Context(), c)) })
		require.Equal(t, 1, got["first"], got)
		require.Equal(t, 30, got["first"]+got["busy"]+got["replay"], got)
		require.Len(t, h.charges(c.Said.MerchantReference), 1)
		require.Equal(t, 2, h.count(`SELECT count(*) FROM payments`))
	}
}

// J2: cleanup beside live work. Only what is over goes, however old the rest is.
func TestJ2_CleanupLeavesLiveWorkAlone(t *testing.T) {
	h := setup(t)
	s := h.service(nil, nil)
	completed := h.command()
	require.Equal(t, "first", kind(s.Create(t.Context(), completed)))
	unknown := h.command()
	h.fault(unknown.Said.MerchantReference, "charge", "execute_then_drop", 1)
	require.Equal(t, "pending", kind(s.Create(t.Context(), unknown)))
	stale := h.command()
	require.False(t, die(func() { _, _ = h.wired(&tripwire{at: 3}).Create(t.Context(), stale) }))
	running := h.command()
	live := h.service(nil, slowProvider{h.client(), func() {
		h.pass(1000 * time.Hour)
		for range 3 {
			h.clean(s)
			h.clean(h.service(nil, nil))
		}
	}})
	require.Equal(t, "first", kind(live.Create(t.Context(), running)), "its key was past its window while it was running")

	require.Equal(t, 4, h.count(`SELECT count(*) FROM payments`), "nothing deletes a payment")
	require.Zero(t, h.count(`SELECT count(*) FROM idempotency_requests WHERE idempotency_key = $1`, string(completed.Scope.Key)))
	require.Equal(t, 2, h.count(`SELECT count(*) FROM idempotency_requests WHERE status IN ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY')`))
	h.recoverAll(s)
	require.Zero(t, h.count(`SELECT count(*) FROM idempotency_requests WHERE status IN ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY')`))
	require.Len(t, h.charges(unknown.Said.MerchantReference), 1)
}

func TestScrubbedKeyHasNoBodyAndKeepsWhatItMeant(t *testing.T) {
	h := setup(t)
	s := h.service(nil, nil)
	for range 5 {
		require.Equal(t, "first", kind(s.Create(t.Context(), h.command())))
	}
	h.pass(25 * time.Hour)
	require.Equal(t, idempotency.Cleaned{Scrubbed: 5}, h.clean(s))
	require.Equal(t, 5, h.count(`SELECT count(*) FROM idempotency_requests WHERE status = 'EXPIRED' AND response_body IS NULL AND response_headers IS NULL
		AND response_status IS NULL AND request_hash <> '' AND resource_id <> ''`))
	require.Equal(t, idempotency.Cleaned{}, h.clean(s), "once is enough")
	h.pass(31 * 24 * time.Hour)
	require.Equal(t, idempotency.Cleaned{Deleted: 5}, h.clean(s))
}

// unreachableProvider cannot be reached.
type unreachableProvider struct{ notSending }

func (unreachableProvider) Send(context.Context, provider.Order) provider.Result {
	return provider.Result{Outcome: provider.NotSent, Reason: "refused"}
}

// A payment that was provably not sent, and whose client never came back, is canceled with its key's expiry, announced, and
// never sent: not by cleanup, not by recovery, and not by the late retry itself.
func TestUnsentPaymentIsCanceledWhenItsKeyExpires(t *testing.T) {
	for _, by := range []string{"cleanup", "late retry", "late retry, reuse", "recovery after a crash of cleanup"} {
		t.Run(by, func(t *testing.T) {
			h := setup(t)
			h.cfg.ReuseExpired = by == "late retry, reuse"
			s, c := h.service(nil, nil), h.command()
			_, err := h.service(nil, unreachableProvider{}).Create(t.Context(), c)
			require.True(t, errors.As(err, new(*ProviderUnavailableError)), err)
			h.pass(25 * time.Hour)
			switch by {
			case "cleanup":
				canceled, err := s.CancelExpired(t.Context())
				require.NoError(t, err)
				require.Equal(t, 1, canceled)
			case "late retry":
				_, err := s.Create(t.Context(), c)
				require.True(t, errors.As(err, new(*KeyExpiredError)), err)
			case "late retry, reuse":
				require.Equal(t, "first", kind(s.Create(t.Context(), c)))
				require.Len(t, h.charges(c.Said.MerchantReference), 1, "the new operation's")
			case "recovery after a crash of cleanup":
				_, found, err := s.keys.AcquireExpired(t.Context())
				require.NoError(t, err)
				require.True(t, found)
				h.recoverAll(s)
			}
			require.Equal(t, 1, h.count(`SELECT count(*) FROM payments WHERE state = 'CANCELED'`))
			var canceled string
			require.NoError(t, h.pool.QueryRow(t.Context(), `SELECT payment_id FROM payments WHERE state = 'CANCELED'`).Scan(&canceled))
			require.Equal(t, []string{"PaymentCreated", "PaymentCanceled"}, h.eventsOf(canceled))
			if by != "late retry, reuse" {
				require.Zero(t, h.posts(c.Said.MerchantReference))
			}
		})
	}
}

// J3: two cleaners beside each other, and beside a session with an old snapshot, share the work and do each piece once.
func TestJ3_CleanersShareTheWork(t *testing.T) {
	h := setup(t)
	s := h.service(nil, nil)
	old, err := h.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = old.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = old.Exec(t.Context(), `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ`)
	require.NoError(t, err)
	require.NoError(t, old.QueryRow(t.Context(), `SELECT count(*) FROM idempotency_requests`).Scan(new(int)))

	const keys = 1000
	_, err = h.pool.Exec(t.Context(), `INSERT INTO idempotency_requests (tenant_id, operation_name, idempotency_key, request_hash, status, resource_type,
		resource_id, response_schema_version, response_status, response_content_type, response_headers, response_body, expires_at, cleanup_at)
		SELECT 'acme', 'create_payment', g::text, 'v2:' || repeat('0', 64), 'COMPLETED', 'payment', g::text, '2026-05-01', 201, 'application/json', '{}',
		'x', now() - interval '1 h' + g * interval '1 ms', now() - interval '1 h' + g * interval '1 ms' FROM generate_series(1, $1::int) g`, keys)
	require.NoError(t, err)
	var scrubbed atomic.Int64
	atOnce(3, func(int) string {
		cleaned, err := s.keys.Clean(context.Background(), s.cfg.TombstoneFor, 20, noRest)
		scrubbed.Add(cleaned.Scrubbed)
		return fmt.Sprint(err)
	})
	require.EqualValues(t, keys, scrubbed.Load())
	require.Equal(t, keys, h.count(`SELECT count(*) FROM idempotency_requests WHERE status = 'EXPIRED'`))
}

// A key whose outcome was found out after its window is finished then, and its window begins then: the client that was told
// 202 all along gets its answer, and one that comes much later is late. Reuse makes no second refund of it.
func TestWindowOfALateFinishBeginsWithTheFinish(t *testing.T) {
	h := setup(t)
	h.cfg.ReuseExpired = true
	s := h.service(nil, nil)
	paymentID := h.settled(s)
	c := h.refundOf(paymentID, "3")
	h.fault("*", "refund", "execute_then_drop", 1)
	require.Equal(t, "pending", kind(s.Create(t.Context(), c)))
	h.pass(40 * 24 * time.Hour)
	h.clean(s)
	h.fault("*", "refund_lookup", "lookup_error", 1)
	h.leaseOver()
	pending, err := s.Create(t.Context(), c)
	require.NoError(t, err)
	require.True(t, pending.Pending)
	require.True(t, pending.KeyExpiresAt.After(time.Now()), "nobody is told that an unresolved key has expired")

	h.recoverAll(s)
	result, err := s.Create(t.Context(), c)
	require.NoError(t, err)
	require.True(t, result.Replayed)
	require.WithinDuration(t, time.Now().Add(h.cfg.KeyWindow), result.KeyExpiresAt, time.Minute)
	require.Equal(t, 300, h.executedRefunds())
}

// The times of a payment that is finished at once stay as the claim set them.
func TestWindowOfAPromptFinishBeginsWithTheClaim(t *testing.T) {
	h := setup(t)
	require.Equal(t, "first", kind(h.service(nil, nil).Create(t.Context(), h.command())))
	require.Equal(t, 1, h.count(`SELECT count(*) FROM idempotency_requests WHERE expires_at = created_at + interval '24 h' AND cleanup_at = expires_at`))
}

// One acquisition takes one key, whatever plan the database makes of it.
func TestAcquiringTakesOneKey(t *testing.T) {
	h := setup(t)
	s := h.service(nil, nil)
	unreachable := h.service(nil, unreachableProvider{})
	const waiting = 20
	for range waiting {
		_, err := unreachable.Create(t.Context(), h.command())
		require.True(t, errors.As(err, new(*ProviderUnavailableError)), err)
	}
	h.pass(25 * time.Hour)
	_, found, err := s.keys.AcquireExpired(t.Context())
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, 1, h.count(`SELECT count(*) FROM idempotency_requests WHERE status = 'IN_PROGRESS'`))
	canceled, err := s.CancelExpired(t.Context())
	require.NoError(t, err)
	require.Equal(t, waiting-1, canceled)

	for range waiting {
		c := h.command()
		h.fault(c.Said.MerchantReference, "charge", "execute_then_drop", 1)
		require.Equal(t, "pending", kind(s.Create(t.Context(), c)))
	}
	h.leaseOver()
	_, found, err = s.keys.AcquireDue(t.Context())
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, 1, h.count(`SELECT count(*) FROM idempotency_requests WHERE locked_until > now()`))
}
