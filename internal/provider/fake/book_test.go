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
	o := order{key: "k1", body: []byte("{}"), terms: terms{chargeTerms: chargeTerms{Reference: "inv-1", AmountMinor: 1}}}
	holder := o
	holder.holds = true

	require.NoError(t, b.hold("k1"))
	require.ErrorIs(t, b.hold("k1"), errKeyHeld)
	_, _, err = b.place(o)
	require.ErrorIs(t, err, errKeyHeld)
	other := o
	other.ChargeID = "ch_000001"
	_, _, err = b.place(other)
	require.ErrorIs(t, err, errKeyHeld, "whichever the kind")
	require.Empty(t, b.executed(charge, ""))

	_, replayed, err := b.place(holder)
	require.NoError(t, err)
	require.False(t, replayed)
	_, replayed, err = b.place(o)
	require.NoError(t, err)
	require.True(t, replayed, "the key is free again, and known")
}
