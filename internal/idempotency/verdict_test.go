package idempotency

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// named is a command that rule v1 knows, and that means its name.
type named string

func (n named) Fingerprint(rule string) (Fingerprint, error) {
	if rule != "v1" {
		return "", ErrUnknownRule
	}
	return Sum(rule, "op", Some("name", string(n))), nil
}

// Every status, held and not, before and after the window: what a request of the same command may do.
func TestJudge(t *testing.T) {
	const before, after = -time.Hour, time.Hour
	for _, c := range []struct {
		status     Status
		held       bool
		expiredFor time.Duration
		verdict    Verdict
	}{
		{Completed, false, before, Replay}, {Completed, false, after, Lapsed}, {Completed, false, 0, Lapsed},
		{FailedReplayable, false, before, Replay}, {FailedReplayable, false, after, Lapsed},
		{FailedRetryable, false, before, Abandoned}, {FailedRetryable, false, after, Lapsed},
		{InProgress, true, before, InFlight}, {InProgress, false, before, Abandoned},
		{UnknownRequiresRecovery, true, before, Recovering}, {UnknownRequiresRecovery, false, before, Abandoned},
		// Unresolved keys never expire.
		{InProgress, true, after, InFlight}, {InProgress, false, after, Abandoned},
		{UnknownRequiresRecovery, true, after, Recovering}, {UnknownRequiresRecovery, false, after, Abandoned},
		// A tombstone is expired whatever its times say.
		{Expired, false, before, Lapsed}, {Expired, false, after, Lapsed},
	} {
		fingerprint, err := named("mine").Fingerprint("v1")
		require.NoError(t, err)
		record := Record{Fingerprint: fingerprint, Status: c.status, Held: c.held, ExpiredFor: c.expiredFor}

		verdict, err := record.Judge(named("mine"))
		require.NoError(t, err)
		require.Equal(t, c.verdict, verdict, "%s held=%v expired for %s", c.status, c.held, c.expiredFor)

		// Another command learns one thing, and it is the same thing whatever the key's state is.
		verdict, err = record.Judge(named("other"))
		require.NoError(t, err)
		require.Equal(t, Mismatch, verdict, "%s held=%v expired for %s", c.status, c.held, c.expiredFor)

		record.Fingerprint = "v99:" + fingerprint[3:]
		verdict, err = record.Judge(named("mine"))
		require.ErrorIs(t, err, ErrUnknownRule)
		require.Equal(t, Undecided, verdict)
	}
}

func TestJudgeDoesNotGuessAtStatusesOfAnotherBuild(t *testing.T) {
	fingerprint, err := named("mine").Fingerprint("v1")
	require.NoError(t, err)
	verdict, err := Record{Fingerprint: fingerprint, Status: "REFUNDING", ExpiredFor: -1}.Judge(named("mine"))
	require.ErrorContains(t, err, "REFUNDING")
	require.Equal(t, Undecided, verdict)
}

func TestVerdictsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for v := Undecided; v <= Lapsed; v++ {
		require.NotContains(t, v.String(), "Verdict(")
		require.False(t, seen[v.String()])
		seen[v.String()] = true
	}
	require.Equal(t, "Verdict(99)", Verdict(99).String())
}
