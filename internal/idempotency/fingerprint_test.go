package idempotency

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSumIsTheDocumentedEncoding(t *testing.T) {
	encoded := "\x00\x00\x00\x02v1" + "\x00\x00\x00\x02op" +
		"\x00\x00\x00\x01a" + "\x00" + // absent
		"\x00\x00\x00\x01b" + "\x01" + "\x00\x00\x00\x00" + // empty
		"\x00\x00\x00\x01c" + "\x01" + "\x00\x00\x00\x02\xc3\xa9"
	digest := sha256.Sum256([]byte(encoded))
	require.Equal(t, Fingerprint("v1:"+hex.EncodeToString(digest[:])), Sum("v1", "op", No("a"), Some("b", ""), Some("c", "é")))
}

// Pairs that encodings are known to confuse.
func TestSumTellsApart(t *testing.T) {
	for _, pair := range [][2][]Field{
		{{No("a")}, {Some("a", "")}},
		{{No("a")}, {}},
		{{Some("a", "bc")}, {Some("ab", "c")}},
		{{Some("a", "b"), Some("c", "d")}, {Some("a", "b\x00\x00\x00\x01c\x01\x00\x00\x00\x01d")}},
		{{Some("a", "b"), Some("c", "d")}, {Some("c", "d"), Some("a", "b")}},
		{{Some("a", "b")}, {Some("a", "b"), Some("a", "b")}},
		{{Some("a", "b\x00")}, {Some("a", "b")}},
		{{Some("a", "null")}, {No("a")}},
		{{Some("a", "caf\u00e9")}, {Some("a", "cafe\u0301")}},
	} {
		require.NotEqual(t, Sum("v1", "op", pair[0]...), Sum("v1", "op", pair[1]...), "%v", pair)
	}
	require.NotEqual(t, Sum("v1", "op"), Sum("v1", "other"))
	require.NotEqual(t, Sum("v1", "op", No("x")), Sum("v1", "opx"))
}

// Random lists of fields, made of the bytes that the encoding itself uses: no two different ones have the same fingerprint.
func TestSumIsInjective(t *testing.T) {
	random := rand.New(rand.NewPCG(8, 1))
	pieces := []string{"", "\x00", "\x01", "\x00\x00\x00\x00", "\x00\x00\x00\x01", "a", "\x00\x00\x00\x01a", "\x01\x00\x00\x00\x01a"}
	text := func() (s string) {
		for range random.IntN(3) {
			s += pieces[random.IntN(len(pieces))]
		}
		return s
	}
	seen := map[Fingerprint]string{}
	for range 20_000 {
		operation, fields := text(), []Field(nil)
		for range random.IntN(4) {
			if random.IntN(3) == 0 {
				fields = append(fields, No(text()))
			} else {
				fields = append(fields, Some(text(), text()))
			}
		}
		meaning := fmt.Sprintf("%q %#v", operation, fields)
		f := Sum("v1", operation, fields...)
		other, known := seen[f]
		require.True(t, !known || other == meaning, "one fingerprint for %s and %s", other, meaning)
		seen[f] = meaning
	}
	require.Greater(t, len(seen), 10_000, "the generator repeats itself too much to prove anything")
}
