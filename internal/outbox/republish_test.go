package outbox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/outbox"
	"github.com/paymentsd/paymentsd/internal/pgtest"
)

// A broker that has lost everything gets everything again that was published within the time, in order and under the same
// ids, while a relay runs; and what was published before it does not.
func TestWhatABrokerLostIsPublishedAgain(t *testing.T) {
	h := newHouse(t, pgtest.Pool(t))
	h.fill("pay_", 1500, 1)
	h.fill("pay_", 1500, 2)
	h.append("pay_old", 1)
	stop := h.relay(h.tape)
	h.untilPublished(0)
	_, err := h.pool.Exec(t.Context(), `UPDATE outbox_events SET published_at = now() - interval '3 h' WHERE aggregate_id = 'pay_old'`)
	require.NoError(t, err)
	stop()
	lost := &tape{}
	h.relay(lost)
	total, err := outbox.Republish(t.Context(), h.pool, time.Hour)
	require.NoError(t, err)
	require.EqualValues(t, 3000, total)
	h.untilPublished(0)
	requireInOrder(t, lost.all())
	times := lost.times()
	require.Len(t, times, 3000)
	require.NotContains(t, times, "evt_pay_old_1")
	for id, n := range times {
		require.Equal(t, 1, n, id)
	}
}
