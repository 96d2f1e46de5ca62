package fake

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHeldKeyAdmitsOnlyItsHolder(t *testing.T) {
	b, err := openBook(t.TempDir(), 0, 0, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.close()) })
	o := order{key: "k1", body: []byte("{}"), request: chargeRequest{Reference: "inv-1", AmountMinor: 1}}
	holder := o
	holder.holds = true

	require.NoError(t, b.hold("k1"))
	require.ErrorIs(t, b.hold("k1"), errKeyHeld)
	_, _, err = b.charge(o)
	require.ErrorIs(t, err, errKeyHeld)
	require.Empty(t, b.executed(""))

	_, replayed, err := b.charge(holder)
	require.NoError(t, err)
	require.False(t, replayed)
	_, replayed, err = b.charge(o)
	require.NoError(t, err)
	require.True(t, replayed, "the key is free again, and known")
}
