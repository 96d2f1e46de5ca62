package main

import (
	"encoding/binary"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRoundTripIsWhatExecutesAndWaits(t *testing.T) {
	parse := func(name, sql string) []byte { return []byte(name + "\x00" + sql + "\x00\x00\x00") }
	bind := func(name string) []byte { return []byte("\x00" + name + "\x00") }
	trip := trip{names: map[string]string{}}

	require.Empty(t, trip.follow('P', parse("s1", "-- name: OpenPayments :many\nWITH asked AS")))
	require.Empty(t, trip.follow('D', nil))
	require.Empty(t, trip.follow('S', nil), "preparing is not executing")

	require.Empty(t, trip.follow('B', bind("s1")))
	require.Empty(t, trip.follow('E', nil))
	require.Empty(t, trip.follow('B', bind("s1")))
	require.Empty(t, trip.follow('E', nil))
	require.Equal(t, "OpenPayments", trip.follow('S', nil), "many statements and one wait are one round trip")

	require.Empty(t, trip.follow('Q', []byte("-- ping\x00")))
	require.Equal(t, "(begin)", trip.follow('Q', []byte("begin\x00")))
}

func TestWireCountsHoweverBytesArrive(t *testing.T) {
	message := func(kind byte, body string) []byte {
		m := binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(body)+4))
		return append(m, body...)
	}
	stream := append(binary.BigEndian.AppendUint32(nil, 8), 0, 3, 0, 0)
	for range 3 {
		stream = append(stream, message('P', "\x00-- name: ReadAccount :one\x00\x00\x00")...)
		stream = append(stream, message('B', "\x00\x00")...)
		stream = append(stream, message('E', "\x00")...)
		stream = append(stream, message('S', "")...)
	}
	w := &wire{trips: map[string]int{}}
	var passed sink
	require.Error(t, w.countTo(&passed, &drip{stream}))
	require.Equal(t, map[string]int{"ReadAccount": 3}, w.seen())
	require.Equal(t, stream, []byte(passed), "and passes everything on")
}

type sink []byte

func (s *sink) Write(b []byte) (int, error) { *s = append(*s, b...); return len(b), nil }

// drip gives two bytes at a time.
type drip struct{ left []byte }

func (d *drip) Read(b []byte) (int, error) {
	if len(d.left) == 0 {
		return 0, os.ErrClosed
	}
	n := copy(b[:min(2, len(b))], d.left)
	d.left = d.left[n:]
	return n, nil
}

const waldump = `WAL statistics between 0/1A2B3C4 and 0/1B2C3D4:
Type                                           N      (%)          Record size      (%)             FPI size      (%)        Combined size      (%)
----                                           -      ---          -----------      ---             --------      ---        -------------      ---
XLOG/FPI_FOR_HINT                              2 (  0.01)                  102 (  0.01)                16384 ( 10.00)                16486 (  1.00)
Transaction/COMMIT                          1500 (  7.58)                51000 (  1.72)                    0 (  0.00)                51000 (  1.71)
Heap/INSERT                                 3885 ( 19.63)              1145000 ( 38.61)                    0 (  0.00)              1145000 ( 38.41)
Heap/INSERT+INIT                             115 (  0.58)                43000 (  1.45)                    0 (  0.00)                43000 (  1.44)
Heap/HOT_UPDATE                                0 (  0.00)                    0 (  0.00)                    0 (  0.00)                    0 (  0.00)
                                        --------                      --------                      --------                      --------
Total                                      19788                       2965434 [99.45%]                16384 [0.55%]              2981818 [100%]
`

func TestWALIsCountedWithoutFullPageImages(t *testing.T) {
	s, err := parseWAL(waldump)
	require.NoError(t, err)
	require.EqualValues(t, 2+1500+3885+115, s.records())
	require.EqualValues(t, 102+51000+1145000+43000, s.bytes())
	require.EqualValues(t, 1500, s.commits())
	require.Equal(t, walStats{{"Heap", 4000, 1188000}, {"Transaction", 1500, 51000}, {"XLOG", 2, 102}}, s.byManager())

	_, err = parseWAL("pg_waldump: error: could not find file")
	require.ErrorContains(t, err, "no statistics")
}

func TestProcessorTimeIsReadPastOddNames(t *testing.T) {
	s, err := parseStat("42 (a) S (b) S 7 42 42 0 -1 4194304 100 200 0 0 150 50 30 20 20 0 5 0 1000")
	require.NoError(t, err)
	require.Equal(t, stat{parent: 7, own: 2 * time.Second, children: 500 * time.Millisecond}, s)
	_, err = parseStat("42 (a) S 7")
	require.Error(t, err)
}

func TestMemoryIsInBytes(t *testing.T) {
	n, err := kilobytes([]byte("Name:\tpaymentsd\nVmHWM:\t   71088 kB\nVmRSS:\t   70000 kB\n"), "VmHWM")
	require.NoError(t, err)
	require.EqualValues(t, 71088<<10, n)
}

func TestHelpNamesTheRoles(t *testing.T) {
	help := `Usage: paymentsd <command> [flags]

Commands:
  api               Serve the API.
  recover           Find out what became of payments whose owner died or could
                    not know.
  consume ledger    Post to the ledger.
  tenant create     Make a tenant.

Flags:
  -h, --help                       Show context-sensitive help.
`
	require.Equal(t, []string{"api", "recover", "consume ledger", "tenant create"}, rolesIn(help))
}

func TestLimitIsBrokenByWhatIsAboveIt(t *testing.T) {
	c := counts{Costs: []cost{{Name: countAlone, RoundTrips: 3, Commits: 3}}, HOT: map[string]float64{"idempotency_requests": .95, "payments": .95}}
	require.Empty(t, broken(c))
	c.Costs[0].RoundTrips = 4
	require.Equal(t, []string{"round trips of a payment alone: 4.00, at most 3.01"}, broken(c))
	delete(c.HOT, "payments")
	require.Len(t, broken(c), 2, "what was not measured is not good")
}
