package accounts

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/money"
	"github.com/paymentsd/paymentsd/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// Whoever publishes is told of every change that was committed, and of no repetition.
func TestCommittedFollowsEveryAnnouncement(t *testing.T) {
	pool := pgtest.Pool(t)
	_, err := pool.Exec(t.Context(), `INSERT INTO tenants (tenant_id) VALUES ('acme')`)
	require.NoError(t, err)
	r := NewRegister(pool)
	calls := 0
	r.Committed = func() {
		calls++
		var events int
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM outbox_events`).Scan(&events))
		require.Equal(t, calls, events, "the event is there already")
	}
	euro, err := money.ParseCurrency("EUR")
	require.NoError(t, err)
	for i, change := range []func() error{
		func() error { _, _, err := r.Put(t.Context(), "acme", "acc_1", Open); return err },
		func() error { _, _, err := r.Put(t.Context(), "acme", "acc_1", Blocked); return err },
		func() error { _, err := r.SetDefaultCurrency(t.Context(), "acme", "acc_1", euro); return err },
	} {
		for range 2 {
			require.NoError(t, change())
			require.Equal(t, i+1, calls)
		}
	}
	_, err = r.SetDefaultCurrency(t.Context(), "acme", "acc_9", euro)
	require.ErrorIs(t, err, ErrNotFound)
	require.Equal(t, 3, calls)
}
