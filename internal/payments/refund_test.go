package payments

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/provider"
)

// settled is a settled payment of 10.00 EUR.
func (h *house) settled(s *Service) string {
	result, err := s.Create(h.t.Context(), h.command())
	require.NoError(h.t, err)
	require.Equal(h.t, 201, result.Answer.Status)
	return result.Payment.ID
}

func (h *house) refunded(paymentID string) int {
	return h.count(`SELECT refunded_minor FROM payments WHERE payment_id = $1`, paymentID)
}

// executedRefunds is what the provider has really given back, in minor units.
func (h *house) executedRefunds() (sum int) {
	for _, r := range h.list("/control/refunds") {
		minor, _ := r["amountMinor"].(float64)
		sum += int(minor)
	}
	return sum
}

func TestRefundIsAPaymentInTheOtherDirection(t *testing.T) {
	h := setup(t)
	s := h.service(nil, nil)
	paymentID := h.settled(s)
	c := h.refundOf(paymentID, "4")
	first, err := s.Create(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, 201, first.Answer.Status)
	again, err := s.Create(t.Context(), c)
	require.NoError(t, err)
	require.True(t, again.Replayed)
	require.Equal(t, first.Answer.Body, again.Answer.Body)
	require.Equal(t, 400, h.executedRefunds())
	require.Equal(t, 400, h.refunded(paymentID))
	require.Equal(t, []string{"RefundCreated", "RefundSettled"}, h.eventsOf(first.Payment.ID))

	other := c
	other.Said.Amount = "5"
	_, err = s.Create(t.Context(), other)
	require.ErrorIs(t, err, ErrKeyReused)
	other = c
	other.Said.PaymentID = h.settled(s)
	_, err = s.Create(t.Context(), other)
	require.ErrorIs(t, err, ErrKeyReused, "the path parameter is part of the command")

	list, err := s.Refunds(t.Context(), "acme", paymentID)
	require.NoError(t, err)
	require.Len(t, list, 1)
	h.audit()
}

// Fifty refunds of 1.00 at once, under fifty keys, of a payment of 10.00: ten are given back.
func TestConcurrentRefundsNeverExceedThePayment(t *testing.T) {
	h := setup(t)
	s := h.service(nil, nil)
	paymentID := h.settled(s)
	got := atOnce(50, func(int) string {
		r, err := s.Create(t.Context(), h.refundOf(paymentID, "1"))
		if errors.Is(err, ErrRefundTooLarge) {
			return "too large"
		}
		return kind(r, err)
	})
	t.Log(got)
	require.Equal(t, 50, got["first"]+got["too large"]+got["unavailable"], got)
	require.Equal(t, 100*got["first"], h.executedRefunds())
	require.LessOrEqual(t, h.executedRefunds(), 1000)
	for range 10 { // those whom a crowd kept from being heard ask again
		_, _ = s.Create(t.Context(), h.refundOf(paymentID, "1"))
	}
	require.Equal(t, 1000, h.executedRefunds())
	require.Equal(t, 1000, h.refunded(paymentID))
	_, err := s.Create(t.Context(), h.refundOf(paymentID, "0.01"))
	require.ErrorIs(t, err, ErrRefundTooLarge)
	require.Equal(t, 10, h.count(`SELECT count(*) FROM idempotency_requests WHERE operation_name = 'create_refund'`), "a refused refund burns no key")
	h.audit()
}

// A refund whose outcome is unknown keeps its part reserved; one that is refused gives it back.
func TestUnknownRefundStaysReservedRefusedOneDoesNot(t *testing.T) {
	h := setup(t)
	s := h.service(nil, nil)
	paymentID := h.settled(s)
	reference := "inv-1"
	h.fault(reference, "refund", "drop_before_execute", 1)
	require.Equal(t, "pending", kind(s.Create(t.Context(), h.refundOf(paymentID, "6"))))
	require.Equal(t, 600, h.refunded(paymentID))
	_, err := s.Create(t.Context(), h.refundOf(paymentID, "5"))
	require.ErrorIs(t, err, ErrRefundTooLarge)
	h.recoverAll(s)
	require.Equal(t, 600, h.executedRefunds())

	h.fault(reference, "refund", "decline", 1)
	declined, err := s.Create(t.Context(), h.refundOf(paymentID, "4"))
	require.NoError(t, err)
	require.Equal(t, 402, declined.Answer.Status)
	require.Equal(t, 600, h.refunded(paymentID))
	_, err = s.Create(t.Context(), h.refundOf(paymentID, "4"))
	require.NoError(t, err)
	require.Equal(t, 1000, h.executedRefunds())
	h.audit()
}

func TestRefundOfWhatCannotBeRefunded(t *testing.T) {
	h := setup(t)
	s := h.service(nil, nil)
	_, err := s.Create(t.Context(), h.refundOf("pay_"+strings.Repeat("0", 32), "1"))
	require.ErrorIs(t, err, ErrNotFound)

	c := h.command()
	h.fault(c.Said.MerchantReference, "charge", "drop_before_execute", 1)
	pending, err := s.Create(t.Context(), c)
	require.NoError(t, err)
	require.True(t, pending.Pending)
	_, err = s.Create(t.Context(), h.refundOf(pending.Payment.ID, "1"))
	require.ErrorIs(t, err, ErrNotSettled)
	c = h.command()
	h.fault(c.Said.MerchantReference, "charge", "decline", 1)
	declined, err := s.Create(t.Context(), c)
	require.NoError(t, err)
	_, err = s.Create(t.Context(), h.refundOf(declined.Payment.ID, "1"))
	require.ErrorIs(t, err, ErrNotRefundable)

	paymentID := h.settled(s)
	refund, err := s.Create(t.Context(), h.refundOf(paymentID, "1"))
	require.NoError(t, err)
	_, err = s.Create(t.Context(), h.refundOf(refund.Payment.ID, "1"))
	require.ErrorIs(t, err, ErrNotFound, "a refund has no refunds")

	dollars := h.refundOf(paymentID, "1")
	dollars.Said.Currency = "USD"
	_, err = s.Create(t.Context(), dollars)
	require.ErrorIs(t, err, ErrOtherCurrency)
	tooFine := h.refundOf(paymentID, "1.001")
	_, err = s.Create(t.Context(), tooFine)
	require.True(t, errors.As(err, new(*FieldError)), err)
	require.Equal(t, 1, len(h.list("/control/refunds")))
}

// The crash matrix of a refund: the same boundaries, the same two ways back.
func TestRefundCrashMatrix(t *testing.T) {
	h := setup(t)
	s := h.service(nil, nil)
	for _, fault := range []string{"", "execute_then_drop", "drop_before_execute"} {
		for at := 2; at <= 6; at++ { // the first boundary is the read of the parent
			for _, after := range []bool{false, true} {
				for _, way := range waysBack {
					paymentID := h.settled(s)
					before := h.executedRefunds()
					if fault != "" {
						h.fault("*", "refund", fault, 1)
					}
					c := h.refundOf(paymentID, "7")
					_ = die(func() { _, _ = h.wired(&tripwire{at: at, after: after}).Create(t.Context(), c) })
					h.leaseOver()
					_ = die(func() { way.run(h, h.service(nil, nil), c) })
					h.recoverAll(s)
					_, err := s.Create(t.Context(), c)
					require.NoError(t, err)
					h.recoverAll(s)
					result, err := s.Create(t.Context(), c)
					require.NoError(t, err)
					require.True(t, result.Replayed, "%s %d %v %s", fault, at, after, way.name)
					require.Equal(t, 700, h.executedRefunds()-before, "%s %d %v %s", fault, at, after, way.name)
					require.Equal(t, 700, h.refunded(paymentID))
				}
			}
		}
	}
	h.audit()
}

// D4: one key in two operations is two keys.
func TestD4_OneKeyInTwoOperations(t *testing.T) {
	h := setup(t)
	s := h.service(nil, nil)
	c := h.command()
	first, err := s.Create(t.Context(), c)
	require.NoError(t, err)
	r := h.refundOf(first.Payment.ID, "1")
	r.Scope.Key = c.Scope.Key
	refund, err := s.Create(t.Context(), r)
	require.NoError(t, err)
	require.False(t, refund.Replayed)
	require.NotEqual(t, first.Answer.Body, refund.Answer.Body)
	require.Equal(t, provider.Refund, refund.Payment.order().Kind)
	require.Equal(t, idempotency.Key("key-1"), c.Scope.Key)
	h.audit()
}
