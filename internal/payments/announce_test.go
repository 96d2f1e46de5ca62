package payments

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Whoever publishes is told of every commit that announced something, when it is committed, and of nothing else.
func TestCommittedFollowsEveryAnnouncement(t *testing.T) {
	h := setup(t)
	var calls atomic.Int64
	h.cfg.Committed = func() {
		calls.Add(1)
		require.EqualValues(t, calls.Load(), h.count(`SELECT count(*) FROM outbox_events`), "the event is there already")
	}
	s, c := h.service(nil, nil), h.command()
	require.Equal(t, "first", kind(s.Create(t.Context(), c)))
	require.EqualValues(t, 2, calls.Load(), "created, settled; not when it was sent")
	require.Equal(t, "replay", kind(s.Create(t.Context(), c)))
	require.EqualValues(t, 2, calls.Load())

	_, id := h.lost(s)
	require.EqualValues(t, 4, calls.Load(), "created, recovery required")
	h.take(s, h.notice("msg_1", id))
	require.EqualValues(t, 5, calls.Load())
	require.EqualValues(t, 5, h.count(`SELECT count(*) FROM outbox_events`))
}

// A payment that was stored before orders named their tenant is sent as it was stored, and settles.
func TestStoredRequestWithoutATenantIsSentUnchanged(t *testing.T) {
	h := setup(t)
	s, c := h.service(nil, nil), h.command()
	o := h.openingOf(s, c)
	require.Contains(t, string(o.request), `,"tenant":"acme"`)
	o.request = []byte(strings.Replace(string(o.request), `,"tenant":"acme"`, "", 1))
	_, err := s.open(t.Context(), o)
	require.NoError(t, err)
	h.recoverOnce(s)
	require.Equal(t, "replay", kind(s.Create(t.Context(), c)))
	for _, r := range h.list("/control/requests") {
		require.Equal(t, string(o.request), r["body"])
	}
	require.NotContains(t, h.charges(c.Said.MerchantReference)[0], "tenant")
	h.audit()
}

// A process that is told to end does not wait for the owners of payments that it only has callbacks for.
func TestDrainWaitsForNobodyElse(t *testing.T) {
	h := setup(t)
	s := h.service(nil, nil)
	c, id := h.lost(s)
	h.hold(c)
	require.NoError(t, s.TakeCallback(t.Context(), h.notice("msg_1", id)))
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		s.Drain()
	}()
	require.Eventually(t, func() bool {
		select {
		case <-drained:
			return true
		default:
			return false
		}
	}, testLease/3, 10*time.Millisecond)
	require.Equal(t, "WAITING", h.verdict("msg_1"))
}
