package fake

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRequestLogIsBounded(t *testing.T) {
	var log requestLog
	r := httptest.NewRequest("POST", "/v1/charges", nil)
	body := []byte(strings.Repeat("x", 1<<20))
	for range 100 {
		log.add(r, "k1", body)
	}
	require.LessOrEqual(t, log.bytes, requestLogBytesMax)
	require.Len(t, log.entries, 63)
	require.Len(t, log.of(""), 63)
}

func TestReferenceIsReadAsFarAsThereIsABody(t *testing.T) {
	for body, want := range map[string]string{
		`{"reference":"inv-1"}`:                                "inv-1",
		`{"account":"a","amountMinor":1,"reference":"inv-1",`:  "inv-1",
		`{"x":{"reference":"no"},"reference":"inv-\u0031","pa`: "inv-1",
		`{"x":{"reference":"no"`:                               "",
		`{"reference":"inv-`:                                   "",
		`{"reference":17}`:                                     "",
		`["reference","inv-1"]`:                                "",
		``:                                                     "",
	} {
		require.Equal(t, want, referenceIn([]byte(body)), body)
	}
}
