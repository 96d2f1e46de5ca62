package payments

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/provider"
)

// opened is a payment in LOCAL_PAYMENT_CREATED, with the lease of the request that opened it.
func (h *house) opened(s *Service) (idempotency.Lease, Payment) {
	o := h.openingOf(s, h.command())
	f, err := s.open(h.t.Context(), o)
	require.NoError(h.t, err)
	require.Equal(h.t, idempotency.First, f.verdict)
	return f.record.Lease, o.payment(f)
}

var sentMark = step{to: []State{ProviderRequestSent}, sends: 1, reason: "first_send", hold: true}

// everything is a picture of all rows that a move writes.
func (h *house) everything() (picture string) {
	require.NoError(h.t, h.pool.QueryRow(h.t.Context(), `SELECT
		(SELECT json_agg(k ORDER BY idempotency_key)::text FROM idempotency_requests k) ||
		coalesce((SELECT json_agg(i ORDER BY idempotency_key)::text FROM idempotency_in_progress i), '') ||
		(SELECT json_agg(p ORDER BY payment_id)::text FROM payments p) ||
		coalesce((SELECT json_agg(m ORDER BY payment_id, version)::text FROM payment_moves m), '') ||
		(SELECT json_agg(e ORDER BY position)::text FROM outbox_events e)`).Scan(&picture))
	return picture
}

// The guard on the lease, alone: the state is as believed, the epoch is not.
func TestOvertakenEpochWritesNothing(t *testing.T) {
	h := setup(t)
	s := h.service(nil, nil)
	lease, p := h.opened(s)
	_, err := h.pool.Exec(t.Context(), `UPDATE idempotency_requests SET lease_epoch = lease_epoch + 1`)
	require.NoError(t, err)
	before := h.everything()

	w, err := s.write(lease, p, sentMark)
	require.NoError(t, err)
	rows, err := s.sql.MovePayments(t.Context(), h.pool, s.moveParams([]write{w}))
	require.NoError(t, err)
	require.False(t, rows[0].IsHeld)
	require.False(t, rows[0].IsMoved)
	require.Equal(t, before, h.everything())

	_, err = s.move(t.Context(), lease, p, sentMark)
	require.Equal(t, errLeaseLost, err)
}

// The guard on the state, alone: the epoch is right, the payment is somewhere else.
func TestPaymentThatMovedOnIsNotMoved(t *testing.T) {
	for name, elsewhere := range map[string]string{
		"another state":   `UPDATE payments SET state = 'PROVIDER_REQUEST_SENT', first_sent_at = now(), last_sent_at = now()`,
		"another version": `UPDATE payments SET version = version + 1`,
	} {
		t.Run(name, func(t *testing.T) {
			h := setup(t)
			s := h.service(nil, nil)
			lease, p := h.opened(s)
			_, err := h.pool.Exec(t.Context(), elsewhere)
			require.NoError(t, err)
			before := h.everything()

			w, err := s.write(lease, p, sentMark)
			require.NoError(t, err)
			rows, err := s.sql.MovePayments(t.Context(), h.pool, s.moveParams([]write{w}))
			require.NoError(t, err)
			require.True(t, rows[0].IsHeld, "the lease is good")
			require.False(t, rows[0].IsMoved)
			require.Equal(t, before, h.everything())
		})
	}
}

// A finished key is nobody's: even its last owner, with the right epoch, writes no more.
func TestFinishedKeyIsNotWrittenAgain(t *testing.T) {
	h := setup(t)
	s := h.service(nil, nil)
	lease, p := h.opened(s)
	end, _, err := s.drive(t.Context(), lease, p)
	require.NoError(t, err)
	require.Equal(t, Completed, end.State)
	_, err = h.pool.Exec(t.Context(), `UPDATE payments SET state = 'LOCAL_PAYMENT_CREATED', version = 1, provider_charge_id = NULL, first_sent_at = NULL, last_sent_at = NULL`)
	require.NoError(t, err)
	before := h.everything()
	_, err = s.move(t.Context(), lease, p, sentMark)
	require.Equal(t, errLeaseLost, err)
	require.Equal(t, before, h.everything())
}

// slowProvider lets a test act while a charge is under way.
type slowProvider struct {
	provider.Provider
	during func()
}

func (p slowProvider) Send(ctx context.Context, o provider.Order) provider.Result {
	r := p.Provider.Send(ctx, o)
	p.during()
	return r
}

// An owner is paused beyond its lease with the provider's yes in its hands; somebody else takes over and finishes. When the
// owner wakes, it writes nothing, and its client gets the stored answer.
func TestStalledOwnerCannotWriteAfterTakeover(t *testing.T) {
	h := setup(t)
	c := h.command()
	var finished string
	stalled := h.service(nil, slowProvider{h.client(), func() {
		h.leaseOver()
		found, err := h.service(nil, nil).Recover(t.Context())
		require.NoError(t, err)
		require.True(t, found)
		finished = h.everything()
	}})
	result, err := stalled.Create(t.Context(), c)
	require.NoError(t, err)
	require.True(t, result.Replayed, "the answer is the one that the new owner stored")
	require.Equal(t, 201, result.Answer.Status)
	require.Equal(t, finished, h.everything(), "the stalled owner wrote something")
	require.Len(t, h.charges(c.Said.MerchantReference), 1)
	h.audit()
}

// An owner that was overtaken while its outcome is still unknown answers "pending", never an error.
func TestStalledOwnerOfUnknownPaymentAnswersPending(t *testing.T) {
	h := setup(t)
	c := h.command()
	h.fault(c.Said.MerchantReference, "lookup", "lookup_error", 1)
	stalled := h.service(nil, slowProvider{h.client(), func() {
		h.leaseOver()
		found, err := h.service(nil, nil).Recover(t.Context())
		require.NoError(t, err)
		require.True(t, found)
	}})
	result, err := stalled.Create(t.Context(), c)
	require.NoError(t, err)
	if !result.Pending { // the stalled owner took the parked key over again, and found the charge
		require.Equal(t, 201, result.Answer.Status)
	}
	require.Len(t, h.charges(c.Said.MerchantReference), 1)
	h.audit()
}

// A lease that nobody took is still its owner's, however late it is.
func TestLateOwnerThatNobodyOvertookFinishes(t *testing.T) {
	h := setup(t)
	late := h.service(nil, slowProvider{h.client(), h.leaseOver})
	result, err := late.Create(t.Context(), h.command())
	require.NoError(t, err)
	require.Equal(t, 201, result.Answer.Status)
	require.False(t, result.Replayed)
	h.audit()
}

// Taking over compares the epoch that was read, alone: the key is free, but it is not the one that was seen.
func TestTakeOverNeedsTheEpochThatWasSeen(t *testing.T) {
	h := setup(t)
	s := h.service(nil, nil)
	lease, _ := h.opened(s)
	h.leaseOver()
	for _, epoch := range []int64{lease.Epoch - 1, lease.Epoch + 1} {
		seen := lease
		seen.Epoch = epoch
		_, ok, err := s.keys.TakeOver(t.Context(), seen)
		require.NoError(t, err)
		require.False(t, ok)
	}
	_, ok, err := s.keys.TakeOver(t.Context(), lease)
	require.NoError(t, err)
	require.True(t, ok)
	_, ok, err = s.keys.TakeOver(t.Context(), lease)
	require.NoError(t, err)
	require.False(t, ok, "it is held now, and its epoch has grown")
}

// Nor does the right epoch help while the lease is good.
func TestTakeOverNeedsAFreeLease(t *testing.T) {
	h := setup(t)
	s := h.service(nil, nil)
	lease, _ := h.opened(s)
	_, ok, err := s.keys.TakeOver(t.Context(), lease)
	require.NoError(t, err)
	require.False(t, ok)
}

// A client that hangs up in the middle of the charge does not make a good charge an unknown one.
func TestClientThatHangsUpChangesNothing(t *testing.T) {
	h := setup(t)
	ctx, hangUp := context.WithCancel(t.Context())
	c := h.command()
	result, err := h.service(nil, hangingUp{h.client(), hangUp}).Create(ctx, c)
	require.NoError(t, err)
	require.Equal(t, 201, result.Answer.Status)
	require.Len(t, h.charges(c.Said.MerchantReference), 1)
	h.audit()
}

// hangingUp has the client hang up just before the request is sent.
type hangingUp struct {
	provider.Provider
	hangUp func()
}

func (p hangingUp) Send(ctx context.Context, o provider.Order) provider.Result {
	p.hangUp()
	return p.Provider.Send(ctx, o)
}
