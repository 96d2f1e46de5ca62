package api

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestD1_MissingAndMalformedKeys(t *testing.T) {
	b := setup(t)
	b.rejects(b.paying("", b0, without("Idempotency-Key")), http.StatusBadRequest, "IDEMPOTENCY_KEY_REQUIRED")
	for _, blank := range []string{"", " ", " \t "} {
		b.rejects(b.paying(blank, b0), http.StatusBadRequest, "IDEMPOTENCY_KEY_REQUIRED")
	}
	for _, key := range []string{"k 1", `"k-1";p=1`, `"k-1`, `"`, `""`, `"k"x`, `"k\n"`, `"k 1"`, "caf\u00e9", "\u200bk", `"caf\u00e9"`, "k\t1", "k-1, k-2"} {
		t.Run(fmt.Sprintf("D1 %q", key), func(t *testing.T) {
			b.rejects(b.paying(key, b0), http.StatusBadRequest, "IDEMPOTENCY_KEY_INVALID")
		})
	}
	b.rejects(b.paying("k-1", b0, with("Idempotency-Key", "k-1")), http.StatusBadRequest, "IDEMPOTENCY_KEY_INVALID")
	b.rejects(b.paying("k-1", b0, with("Idempotency-Key", "")), http.StatusBadRequest, "IDEMPOTENCY_KEY_INVALID")

	// A key anywhere else is none.
	r := b.request("POST", "/payments?idempotency-key=k&Idempotency-Key=k", b0, with("Content-Type", "application/json"))
	b.rejects(r, http.StatusBadRequest, "IDEMPOTENCY_KEY_REQUIRED")
	r = b.request("POST", "/payments", `{"idempotencyKey":"k",`+b0[1:], with("Content-Type", "application/json"))
	b.rejects(r, http.StatusBadRequest, "IDEMPOTENCY_KEY_REQUIRED")
}

func TestD1_QuotedAndBareAreOneKey(t *testing.T) {
	b := setup(t)
	first := b.settles(`"k-1"`, b0)
	b.replays(first, b.paying("k-1", b0))
	b.replays(first, b.paying("  k-1\t", b0))
	b.conflicts("k-1", b.paying("k-1", bodyFor("inv-2")))

	first = b.settles("bare", bodyFor("bare"))
	b.replays(first, b.paying(`"bare"`, bodyFor("bare")))

	first = b.settles(`a"b\c`, bodyFor("escapes"))
	b.replays(first, b.paying(`"a\"b\\c"`, bodyFor("escapes")))

	// What looks like a parameter behind a bare key belongs to it.
	b.settles("k-1;p=1", bodyFor("with-parameter"))
}

func TestD1_KeysAreCaseSensitive(t *testing.T) {
	b := setup(t)
	upper, lower := b.settles("K-1", bodyFor("upper")), b.settles("k-1", bodyFor("lower"))
	require.NotEqual(t, upper.payment(t).PaymentID, lower.payment(t).PaymentID)
	b.conflicts("K-1", b.paying("K-1", bodyFor("lower")))
}

func TestD2_KeysOfEveryLength(t *testing.T) {
	b := setup(t)
	for _, length := range []int{255, 256, 2700, 9000, 60000} {
		for name, key := range map[string]string{"random": randomKey(length), "repeated": strings.Repeat("a", length)} {
			t.Run(fmt.Sprintf("D2 %d %s", length, name), func(t *testing.T) {
				reference := fmt.Sprintf("inv-%d-%s", length, name)
				r := b.paying(key, bodyFor(reference))
				if length > 255 {
					b.rejects(r, http.StatusBadRequest, "IDEMPOTENCY_KEY_INVALID")
					return
				}
				first := b.settles(key, bodyFor(reference))
				b.replays(first, b.paying(key, bodyFor(reference)))
				b.replays(first, b.paying(`"`+strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key)+`"`, bodyFor(reference)))
				require.Equal(t, "provider_payment_"+first.payment(t).PaymentID, b.charges(reference)[0].IdempotencyKey)
				require.Equal(t, 1, b.count(`SELECT count(*) FROM idempotency_requests WHERE idempotency_key = $1`, key))
			})
		}
	}
}

// Headers beyond all measure do not reach this API: HTTP itself refuses them.
func TestD2_HeadersBeyondAllMeasureLeaveNoTrace(t *testing.T) {
	b := setup(t)
	a, err := exchange(b.paying(strings.Repeat("a", 4*headerBytesMax), b0))
	if err == nil { // else the connection was cut while it was still sending
		require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, a.status)
	}
	require.Equal(t, traces{}, b.traces())
	b.settles("k", b0)
}

// randomKey has no repetitions that an index could compress, and does not begin with a quote.
func randomKey(length int) string {
	random := rand.New(rand.NewPCG(uint64(length), 2))
	key := []byte{'k'}
	for len(key) < length {
		key = append(key, byte('!'+random.IntN('~'-'!'+1)))
	}
	return string(key)
}
