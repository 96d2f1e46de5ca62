package payments

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/provider"
)

// keyJSON is everything that a key's row says.
func (h *house) keyJSON(key idempotency.Key) (row string) {
	require.NoError(h.t, h.pool.QueryRow(h.t.Context(), `SELECT to_jsonb(k)::text FROM idempotency_requests k WHERE idempotency_key = $1`, string(key)).Scan(&row))
	return row
}

// aged lets a share of every lease be left.
func (h *house) aged(left time.Duration) {
	_, err := h.pool.Exec(h.t.Context(), `UPDATE idempotency_requests SET locked_until = now() + $1::interval WHERE locked_until IS NOT NULL`, left)
	require.NoError(h.t, err)
}

// Writing the key at each step would be a write for nothing; not writing it when its lease is about to end would lose it.
func TestOwnerRenewsItsLeaseOnlyWhenItHasAged(t *testing.T) {
	h := setup(t)
	s := h.service(nil, nil)
	lease, p := h.opened(s)
	before := h.keyJSON(lease.Key)
	sent, err := s.move(t.Context(), lease, p, sentMark)
	require.NoError(t, err)
	require.Equal(t, before, h.keyJSON(lease.Key))
	require.Equal(t, p.KeyExpiresAt, sent.KeyExpiresAt, "what is not written is told all the same")

	lease, p = h.opened(s)
	h.aged(testLease * 8 / 10)
	_, err = s.move(t.Context(), lease, p, sentMark)
	require.NoError(t, err)
	require.Equal(t, 1, h.count(`SELECT count(*) FROM idempotency_requests WHERE idempotency_key = $1 AND locked_until > now() + $2::interval`,
		string(lease.Key), testLease*95/100))
	h.audit() // renewed, it is still listed among those in progress
}

// deadlineProvider notes when the call has to end.
type deadlineProvider struct {
	provider.Provider
	until time.Time
}

func (p *deadlineProvider) Send(ctx context.Context, o provider.Order) provider.Result {
	p.until, _ = ctx.Deadline()
	return p.Provider.Send(ctx, o)
}

// A lease that is left as it is ends sooner than one that is renewed, and so must the call under it.
func TestCallEndsBeforeALeaseThatWasNotRenewed(t *testing.T) {
	h := setup(t)
	noted := &deadlineProvider{Provider: h.client()}
	s := h.service(nil, noted)
	lease, p := h.opened(s)
	h.aged(testLease * 95 / 100)
	var over time.Time
	require.NoError(t, h.pool.QueryRow(t.Context(), `SELECT locked_until FROM idempotency_requests`).Scan(&over))
	_, _, err := s.drive(t.Context(), lease, p)
	require.NoError(t, err)
	require.False(t, noted.until.IsZero())
	require.Less(t, noted.until, over)
}

// Whatever becomes of a key, it is in the list while it is in progress and at no other time; audit compares.
func TestKeysInProgressAreListedAndNoOthers(t *testing.T) {
	h := setup(t)
	s := h.service(nil, nil)
	listed := func(n int, when string) {
		t.Helper()
		require.Equal(t, n, h.count(`SELECT count(*) FROM idempotency_in_progress`), when)
		h.audit()
	}
	lease, p := h.opened(s)
	listed(1, "claimed")
	_, _, err := s.drive(t.Context(), lease, p)
	require.NoError(t, err)
	listed(0, "completed")

	declined, unknown, retryable, expired := h.command(), h.command(), h.command(), h.command()
	h.fault(declined.Said.MerchantReference, "charge", "decline", 1)
	require.Equal(t, "first", kind(s.Create(t.Context(), declined)))
	listed(0, "declined")
	h.fault(unknown.Said.MerchantReference, "charge", "execute_then_drop", 1)
	require.Equal(t, "pending", kind(s.Create(t.Context(), unknown)))
	listed(0, "unknown")
	h.leaseOver()
	_, found, err := s.keys.AcquireDue(t.Context())
	require.NoError(t, err)
	require.True(t, found)
	listed(0, "unknown and taken over")
	h.recoverAll(s)
	listed(0, "found out")

	unreachable := h.service(nil, unreachableProvider{})
	for _, c := range []Command{retryable, expired} {
		_, err := unreachable.Create(t.Context(), c)
		require.ErrorAs(t, err, new(*ProviderUnavailableError))
	}
	listed(0, "waiting for their clients")
	record, _, err := s.keys.Read(t.Context(), retryable.Scope)
	require.NoError(t, err)
	_, found, err = s.keys.TakeOver(t.Context(), record.Lease)
	require.NoError(t, err)
	require.True(t, found)
	listed(1, "the client came back")
	h.recoverAll(s)
	listed(0, "the client's retry was abandoned and recovered")
	h.pass(25 * time.Hour)
	_, found, err = s.keys.AcquireExpired(t.Context())
	require.NoError(t, err)
	require.True(t, found)
	listed(1, "the other client did not")
	h.recoverAll(s)
	listed(0, "canceled")
}

// Of many abandoned keys one acquisition takes one, and each takes another.
func TestAbandonedKeysAreAcquiredOneByOne(t *testing.T) {
	h := setup(t)
	s := h.service(nil, nil)
	const abandoned = 5
	for range abandoned {
		h.opened(s)
	}
	_, found, err := s.keys.AcquireDue(t.Context())
	require.NoError(t, err)
	require.False(t, found, "their leases are not over")
	h.leaseOver()
	seen := map[string]bool{}
	for n := range abandoned {
		lease, found, err := s.keys.AcquireDue(t.Context())
		require.NoError(t, err)
		require.True(t, found)
		seen[lease.ResourceID] = true
		require.Equal(t, n+1, h.count(`SELECT count(*) FROM idempotency_requests WHERE locked_until > now()`))
	}
	require.Len(t, seen, abandoned)
	_, found, err = s.keys.AcquireDue(t.Context())
	require.NoError(t, err)
	require.False(t, found)
}

// asOlderBuild makes a key in progress look as a build before the list wrote it.
func (h *house) asOlderBuild() {
	for _, sql := range []string{`DELETE FROM idempotency_in_progress`, `UPDATE idempotency_requests SET next_attempt_at = locked_until WHERE status = 'IN_PROGRESS'`} {
		_, err := h.pool.Exec(h.t.Context(), sql)
		require.NoError(h.t, err)
	}
}

// During a deploy an older build works beside this one. What it claims and abandons is recovered, and what it finishes is over.
func TestOlderBuildBesideThisOneLosesNothing(t *testing.T) {
	h := setup(t)
	s := h.service(nil, nil)
	h.opened(s)
	h.asOlderBuild()
	unresolved, err := s.keys.Unresolved(t.Context())
	require.NoError(t, err)
	require.Positive(t, unresolved.InProgressOldest)
	h.leaseOver()
	found, err := s.Recover(t.Context())
	require.NoError(t, err)
	require.True(t, found, "claimed by the older build, and abandoned")
	h.audit()

	_, p := h.opened(s)
	h.asOlderBuild()
	h.leaseOver()
	record, _, err := s.keys.Read(t.Context(), p.scopeOf(h))
	require.NoError(t, err)
	lease, found, err := s.keys.TakeOver(t.Context(), record.Lease)
	require.NoError(t, err)
	require.True(t, found)
	h.audit() // it is listed now
	_, _, err = s.drive(t.Context(), lease, p)
	require.NoError(t, err)
	h.audit()

	finished := h.count(`SELECT count(*) FROM idempotency_requests WHERE status = 'COMPLETED'`)
	stale := func() {
		_, err := h.pool.Exec(t.Context(), `INSERT INTO idempotency_in_progress SELECT tenant_id, operation_name, idempotency_key FROM idempotency_requests`)
		require.NoError(t, err)
	}
	stale() // claimed here, finished by the older build
	found, err = s.Recover(t.Context())
	require.NoError(t, err)
	require.False(t, found)
	h.pass(25 * time.Hour)
	cleaned, err := s.keys.Clean(t.Context(), time.Hour, 100, func(context.Context) {})
	require.NoError(t, err)
	require.EqualValues(t, finished, cleaned.Scrubbed)
	require.Zero(t, h.count(`SELECT count(*) FROM idempotency_in_progress`))

	stale()
	record, _, err = s.keys.Read(t.Context(), lease.Scope)
	require.NoError(t, err)
	require.NoError(t, s.keys.Forget(t.Context(), record.Lease))
	require.Zero(t, h.count(`SELECT count(*) FROM idempotency_in_progress WHERE idempotency_key = $1`, string(lease.Key)))
}

// scopeOf is the scope of the key that owns the payment.
func (p Payment) scopeOf(h *house) idempotency.Scope {
	scope := idempotency.Scope{TenantID: p.TenantID}
	require.NoError(h.t, h.pool.QueryRow(h.t.Context(), `SELECT operation_name, idempotency_key FROM payments WHERE payment_id = $1`, p.ID).
		Scan(&scope.Operation, &scope.Key))
	return scope
}

// One row for one commit tells every arrow; a history that an older build wrote, one row for each, reads the same.
func TestHistoryTellsEveryMoveWhicheverBuildWroteIt(t *testing.T) {
	h := setup(t)
	s := h.service(nil, nil)
	lease, p := h.opened(s)
	_, _, err := s.drive(t.Context(), lease, p)
	require.NoError(t, err)
	history := func() (said [][2]State) {
		moves, err := s.History(t.Context(), p.TenantID, p.ID)
		require.NoError(t, err)
		for i, m := range moves {
			require.Equal(t, i+1, m.Version)
			require.NotZero(t, m.At)
			require.EqualValues(t, 1, m.Epoch)
			said = append(said, [2]State{m.From, m.To})
		}
		return said
	}
	want := [][2]State{{Received, LocalPaymentCreated}, {LocalPaymentCreated, ProviderRequestSent}, {ProviderRequestSent, ProviderConfirmed}, {ProviderConfirmed, Completed}}
	require.Equal(t, want, history())
	for _, sql := range []string{
		`INSERT INTO payment_moves SELECT tenant_id, payment_id, 1, 'RECEIVED', 'LOCAL_PAYMENT_CREATED', 'claimed', 1 FROM payments`,
		`INSERT INTO payment_moves SELECT tenant_id, payment_id, 3, from_state, via_state, reason, 1 FROM payment_moves WHERE via_state IS NOT NULL`,
		`UPDATE payment_moves SET from_state = via_state, via_state = NULL WHERE via_state IS NOT NULL`,
	} {
		_, err := h.pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	require.Equal(t, want, history())
	_, err = s.History(t.Context(), "other", p.ID)
	require.Equal(t, ErrNotFound, err)
}
