package floor

import (
	"testing"

	"github.com/stretchr/testify/require"
)

const report = `pgbench (15.18 (Debian 15.18-0+deb12u1))
transaction type: -
number of transactions actually processed: 100
number of failed transactions: 0 (0.000%)
latency average = 1.2 ms
initial connection time = 3.1 ms
tps = 1250.504321 (without initial connection time)
`

func TestRateIsInOperations(t *testing.T) {
	rate, err := perSecond(report, 50)
	require.NoError(t, err)
	require.InDelta(t, 62525.2, rate, 0.1)
}

func TestFloorWithFailuresIsNone(t *testing.T) {
	_, err := perSecond("number of failed transactions: 3 (1.000%)\ntps = 1.0 (without initial connection time)\n", 1)
	require.ErrorContains(t, err, "3 transactions failed")
	_, err = perSecond("pgbench: something else", 1)
	require.ErrorContains(t, err, "no rate")
}
