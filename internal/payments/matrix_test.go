package payments

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/idempotency"
)

// The crash matrix. It is generated: a run that nothing kills counts the boundaries of a create, and then the process dies
// before and after each of them, under every behaviour of the provider, and what is left is brought to its end on both ways
// back, a client's retry and the recovery worker. On the way back the process dies once more, at each boundary there is.
// Whatever happens: one charge at the most, one answer, the right events, nothing stuck.

// behaviour is what the provider does to the first request for a reference.
type behaviour struct {
	name   string
	arm    func(h *house, reference string)
	charge int // charges there must be in the end
}

var behaviours = []behaviour{
	{"charges", func(*house, string) {}, 1},
	{"declines", func(h *house, r string) { h.fault(r, "charge", "decline", 1) }, 0},
	{"charges and loses the answer", func(h *house, r string) { h.fault(r, "charge", "execute_then_drop", 1) }, 1},
	{"loses the request", func(h *house, r string) { h.fault(r, "charge", "drop_before_execute", 1) }, 1},
	{"fails before the effect", func(h *house, r string) { h.fault(r, "charge", "error_before", 1) }, 1},
	{"fails after the effect", func(h *house, r string) { h.fault(r, "charge", "error_after", 1) }, 1},
}

// waysBack bring a payment whose process died to its end. Each is one process's work.
var waysBack = []struct {
	name string
	run  func(h *house, s *Service, c Command)
}{
	{"client retry", func(h *house, s *Service, c Command) { _, _ = s.Create(h.t.Context(), c) }},
	{"recovery worker", func(h *house, s *Service, _ Command) { _, _ = s.Recover(h.t.Context()) }},
}

func TestCrashMatrix(t *testing.T) {
	h := setup(t)
	points := 0
	for _, b := range behaviours {
		t.Run(b.name, func(t *testing.T) {
			h := h.in(t)
			boundaries := h.boundariesOfCreate(b)
			require.GreaterOrEqual(t, boundaries, 4, "claim, sent mark, charge, outcome")
			for at := 1; at <= boundaries; at++ {
				for _, after := range []bool{false, true} {
					for _, way := range waysBack {
						points += h.crashAndComeBack(b, at, after, way.name, way.run)
					}
				}
			}
		})
	}
	t.Logf("%d crash points", points)
	h.audit()
}

// in is the same house seen by a subtest.
func (h *house) in(t *testing.T) *house {
	again := &house{t: t, pool: h.pool, bank: h.bank, timeout: h.timeout, cfg: h.cfg, log: h.log}
	again.reference.Store(h.reference.Add(100_000))
	return again
}

func (h *house) boundariesOfCreate(b behaviour) int {
	c, wire := h.command(), &tripwire{}
	b.arm(h, c.Said.MerchantReference)
	_, _ = h.wired(wire).Create(h.t.Context(), c)
	h.finishAndCheck(b, c, "no crash")
	return wire.seen
}

func (h *house) wired(wire *tripwire) *Service {
	return h.service(wiredDB{h.pool, wire}, wiredProvider{h.client(), wire})
}

// crashAndComeBack kills a create at one boundary, and then the way back at each of its own, until the way back lives.
func (h *house) crashAndComeBack(b behaviour, at int, after bool, way string, back func(*house, *Service, Command)) (points int) {
	for backAt := 1; ; backAt++ {
		for _, backAfter := range []bool{false, true} {
			c := h.command()
			b.arm(h, c.Said.MerchantReference)
			require.False(h.t, die(func() { _, _ = h.wired(&tripwire{at: at, after: after}).Create(h.t.Context(), c) }))
			h.leaseOver()
			lived := die(func() { back(h, h.wired(&tripwire{at: backAt, after: backAfter}), c) })
			h.finishAndCheck(b, c, fmt.Sprintf("create died at %d (after: %v), %s at %d (after: %v)", at, after, way, backAt, backAfter))
			points++
			if lived {
				return points
			}
		}
	}
}

// finishAndCheck lets a healthy process finish whatever is left, asks twice for the answer, and checks everything.
func (h *house) finishAndCheck(b behaviour, c Command, story string) {
	t := h.t
	s := h.service(nil, nil)
	h.recoverAll(s)
	first, err := s.Create(t.Context(), c)
	require.NoError(t, err, story)
	h.recoverAll(s) // the retry may have been the first to reach the provider, and may have met the fault
	first, err = s.Create(t.Context(), c)
	require.NoError(t, err, story)
	again, err := s.Create(t.Context(), c)
	require.NoError(t, err, story)
	require.True(t, again.Replayed, story)
	require.Equal(t, first.Answer, again.Answer, story)

	require.Len(t, h.charges(c.Said.MerchantReference), b.charge, story)
	require.Equal(t, 1, h.count(`SELECT count(*) FROM payments WHERE merchant_reference = $1`, c.Said.MerchantReference), story)
	var paymentID string
	require.NoError(t, h.pool.QueryRow(t.Context(), `SELECT payment_id FROM payments WHERE merchant_reference = $1`, c.Said.MerchantReference).Scan(&paymentID))
	types := h.eventsOf(paymentID)
	require.Equal(t, "PaymentCreated", types[0], story)
	end, status := "PaymentSettled", idempotency.Completed
	if b.charge == 0 {
		end, status = "PaymentDeclined", idempotency.FailedReplayable
	}
	require.Equal(t, end, types[len(types)-1], story)
	require.LessOrEqual(t, len(types), 3, story)
	require.Equal(t, 1, h.count(`SELECT count(*) FROM idempotency_requests WHERE resource_id = $1 AND status = $2`, paymentID, string(status)), story)
}
