package payments

import (
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/idempotency"
)

// quoted finds the words in a CHECK constraint as PostgreSQL prints it.
var quoted = regexp.MustCompile(`'([A-Z_]+)'`)

func wordsOfConstraint(t *testing.T, h *house, table, constraint string) (words []string) {
	var definition string
	require.NoError(t, h.pool.QueryRow(t.Context(), `SELECT pg_get_constraintdef(oid) FROM pg_constraint
		WHERE conrelid = $1::regclass AND conname = $2`, table, constraint).Scan(&definition))
	for _, m := range quoted.FindAllStringSubmatch(definition, -1) {
		words = append(words, m[1])
	}
	return words
}

func TestStatesOfCodeAndDatabaseAreTheSame(t *testing.T) {
	h := setup(t)
	var stored []string
	for _, s := range states {
		if s != Received { // no row ever shows it
			stored = append(stored, string(s))
		}
	}
	require.ElementsMatch(t, stored, wordsOfConstraint(t, h, "payments", "state_is_known"))
	require.ElementsMatch(t, []string{
		string(idempotency.InProgress), string(idempotency.Completed), string(idempotency.FailedReplayable),
		string(idempotency.FailedRetryable), string(idempotency.UnknownRequiresRecovery), string(idempotency.Expired),
	}, wordsOfConstraint(t, h, "idempotency_requests", "status_is_known"))
}

// Every ordered pair of states is tried: the arrows of the table can be worked out, all others are refused.
func TestOnlyArrowsOfTheTableCanBeTaken(t *testing.T) {
	s := New(nil, idempotency.NewKeys(nil, testLease), nil, testRender, Config{}, testLog())
	for _, from := range states {
		for _, to := range states {
			_, isArrow := arrowBetween(from, to)
			_, err := s.write(idempotency.Lease{}, Payment{State: from}, step{to: []State{to}})
			if isArrow && from != Received { // the one transaction takes that arrow
				require.NoError(t, err, "%s to %s", from, to)
			} else if !isArrow {
				require.ErrorContains(t, err, "no arrow", "%s to %s", from, to)
			}
		}
	}
}

func TestEveryStateIsReachedAndLeftOrTerminal(t *testing.T) {
	for _, s := range states {
		reached := slices.ContainsFunc(arrows, func(a arrow) bool { return a.to == s })
		require.Equal(t, s != Received, reached, s)
		require.NotPanics(t, func() { s.Public() })
		require.Equal(t, s.Terminal(), s.Public() != Pending, s)
	}
}

// No timer turns unknown into failed: the only ways out are what the provider said.
func TestUnknownIsLeftOnlyByWhatTheProviderSaid(t *testing.T) {
	for _, to := range states {
		_, ok := arrowBetween(UnknownRequiresRecovery, to)
		require.Equal(t, slices.Contains([]State{ProviderConfirmed, Declined, UnknownRequiresRecovery}, to), ok, to)
	}
}
