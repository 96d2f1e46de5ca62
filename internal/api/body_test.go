package api

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/stretchr/testify/require"
)

func TestB3_TheSameMemberTwiceIsRefused(t *testing.T) {
	b := setup(t)
	rest := `,"accountId":"acc_1","currency":"EUR","merchantReference":"inv-1"}`
	for name, body := range map[string]string{
		"low first":         `{"amount":"10.00","amount":"100.00"` + rest,
		"high first":        `{"amount":"100.00","amount":"10.00"` + rest,
		"equal":             `{"amount":"10.00","amount":"10.00"` + rest,
		"second escaped":    `{"amount":"10.00","am\u006funt":"100.00"` + rest,
		"first escaped":     `{"am\u006Funt":"10.00","amount":"100.00"` + rest,
		"both escaped":      `{"\u0061mount":"10.00","am\u006funt":"100.00"` + rest,
		"of an unknown one": `{"amount":"10.00","x":1,"x":2` + rest,
		"inside another":    `{"amount":"10.00","x":{"y":1,"y":2}` + rest,
	} {
		t.Run("B3 "+name, func(t *testing.T) {
			b.rejects(b.paying("k", body), http.StatusBadRequest, "BODY_INVALID")
		})
	}
	// JSON names are case-sensitive: this is no second amount but an unknown member.
	b.rejectsField(b.paying("k", `{"amount":"10.00","Amount":"100.00"`+rest), "Amount", "UNKNOWN_MEMBER")
	b.settles("k", b0)
}

func TestB8_TextThatCannotBeKeptIsRefused(t *testing.T) {
	b := setup(t)
	for name, value := range map[string]string{
		"lone high surrogate": `"\ud800"`, "lone low surrogate": `"\udfff"`, "swapped pair": `"\udc00\ud800"`,
		"raw FF": "\"\xff\"", "overlong slash": "\"\xc0\xaf\"", "raw surrogate": "\"\xed\xa0\x80\"", "cut sequence": "\"\xe2\x82\"",
		"U+0000 escaped": `"a\u0000b"`, "U+0000 raw": "\"a\x00b\"", "raw newline": "\"a\nb\"",
	} {
		for _, member := range []string{"accountId", "amount", "currency", "merchantReference", "channel", "chanel"} {
			t.Run("B8 "+name+" in "+member, func(t *testing.T) {
				b.rejects(b.paying("k", b0WithRaw(member, value)), http.StatusBadRequest, "BODY_INVALID")
			})
		}
	}
	b.rejects(b.paying("k", `{"a\u0000":1,`+b0[1:]), http.StatusBadRequest, "BODY_INVALID")
	b.settles("k", b0) // the key is still free
}

func TestB8_ReplacementCharacterOfTheClientIsACharacter(t *testing.T) {
	b := setup(t)
	first := b.settles("k", b0With("merchantReference", "inv-\uFFFD"))
	require.Equal(t, "inv-\uFFFD", first.payment(t).MerchantReference)
	require.Equal(t, "inv-\uFFFD", b.wire("inv-\uFFFD").Reference)
	b.replays(first, b.paying("k", b0WithRaw("merchantReference", `"inv-\ufffd"`)))
	b.rejects(b.paying("k", b0WithRaw("merchantReference", `"inv-\ud800"`)), http.StatusBadRequest, "BODY_INVALID")
}

func TestB8_ControlCharactersAreNoReference(t *testing.T) {
	b := setup(t)
	for _, escape := range []string{`\n`, `\t`, `\u0001`, `\u001f`, `\u007f`, `\u0085`, `\u009f`} {
		b.rejectsField(b.paying("k", b0WithRaw("merchantReference", `"inv`+escape+`"`)), "merchantReference", "INVALID")
	}
}

func TestB9_NoChannelIsWeb(t *testing.T) {
	b := setup(t)
	spellings := map[string]string{"absent": b0, "null": b0WithRaw("channel", "null"), "web": b0With("channel", "web")}
	for name, body := range spellings {
		reference := "channel-" + name
		body = strings.Replace(body, "inv-1", reference, 1)
		first := b.settles(name, body)
		require.Equal(t, "web", first.payment(t).Channel)
		for other, same := range spellings {
			t.Run("B9 "+other+" after "+name, func(t *testing.T) {
				b.replays(first, b.paying(name, strings.Replace(same, "inv-1", reference, 1)))
			})
		}
		b.rejectsField(b.paying(name, strings.Replace(b0With("channel", ""), "inv-1", reference, 1)), "channel", "INVALID")
	}
}

func TestB9_NullMissingAndWrongKindsAreRefused(t *testing.T) {
	b := setup(t)
	for _, field := range []string{"accountId", "amount", "currency", "merchantReference"} {
		b.rejectsField(b.paying("k", b0WithRaw(field, "")), field, "REQUIRED")
		b.rejectsField(b.paying("k", b0WithRaw(field, "null")), field, "REQUIRED")
	}
	for _, field := range []string{"accountId", "amount", "currency", "merchantReference", "channel"} {
		for _, value := range []string{"10.00", "9007199254740993", "true", `["10.00"]`, "{}"} {
			b.rejectsField(b.paying("k", b0WithRaw(field, value)), field, "MUST_BE_STRING")
		}
	}
	for _, body := range []string{"null", "[]", `"x"`, "", " ", "1", "true", b0 + b0, b0 + "x", b0[:len(b0)-1], "{", "{]", `{"accountId"}`, `{'accountId':'acc_1'}`} {
		b.rejects(b.paying("k", body), http.StatusBadRequest, "BODY_INVALID")
	}
}

func TestB9_UnknownMembersAreRefused(t *testing.T) {
	b := setup(t)
	b.rejectsField(b.paying("k", b0With("chanel", "web")), "chanel", "UNKNOWN_MEMBER")
	b.rejectsField(b.paying("k", b0With("chanel", "pos")), "chanel", "UNKNOWN_MEMBER")
	b.rejectsField(b.paying("k", b0WithRaw("chanel", "null")), "chanel", "UNKNOWN_MEMBER")
	b.rejectsField(b.paying("k", `{"<script>alert(1)</script>":1,`+b0[1:]), "(unprintable)", "UNKNOWN_MEMBER")

	var many strings.Builder
	for i := range 500 {
		fmt.Fprintf(&many, `"m%03d":1,`, i)
	}
	p := b.rejects(b.paying("k", "{"+many.String()+b0[1:]), http.StatusUnprocessableEntity, "VALIDATION_FAILED")
	require.Len(t, p.Errors, fieldProblemsMax)
	b.settles("k", b0)
}

func TestB10_WhatIsNotOneJSONObjectInUTF8IsRefused(t *testing.T) {
	b := setup(t)
	var wide []byte
	for _, unit := range utf16.Encode([]rune("\uFEFF" + b0)) {
		wide = append(wide, byte(unit>>8), byte(unit))
	}
	b.rejects(b.paying("k", "\xEF\xBB\xBF"+b0), http.StatusBadRequest, "BODY_INVALID")
	b.rejects(b.paying("k", string(wide)), http.StatusBadRequest, "BODY_INVALID")

	for _, contentType := range []string{"text/plain", "application/x-www-form-urlencoded", "application/problem+json", "application/json, application/json",
		"application/json; charset=utf-16", "application/json; charset=latin1", "json", "application/json; charset"} {
		b.rejects(b.paying("k", b0, without("Content-Type"), with("Content-Type", contentType)), http.StatusUnsupportedMediaType, "UNSUPPORTED_MEDIA_TYPE")
	}
	b.rejects(b.paying("k", b0, without("Content-Type")), http.StatusUnsupportedMediaType, "UNSUPPORTED_MEDIA_TYPE")
	b.rejects(b.paying("k", b0, with("Content-Type", "application/json")), http.StatusUnsupportedMediaType, "UNSUPPORTED_MEDIA_TYPE")

	nested := strings.Repeat("[", bodyBytesMax/2-10) // deep, but within the size: the parser's own limit must hold
	b.rejects(b.paying("k", `{"x":`+nested), http.StatusBadRequest, "BODY_INVALID")
	nested += strings.Repeat("]", len(nested))
	b.rejects(b.paying("k", `{"x":`+nested+`}`), http.StatusUnprocessableEntity, "VALIDATION_FAILED")
	b.settles("k", b0)
}

func TestB10_LargeBodiesEndEarly(t *testing.T) {
	b := setup(t)
	const large = 5 << 20
	for name, body := range map[string]string{
		"5 MB of nesting": `{"x":` + strings.Repeat("[", large), "5 MB of spaces": strings.Repeat(" ", large),
		"spaces behind": b0 + strings.Repeat(" ", bodyBytesMax), "one byte too many": b0 + strings.Repeat(" ", bodyBytesMax-len(b0)+1),
	} {
		t.Run("B10 "+name, func(t *testing.T) {
			b.rejects(b.paying("k", body), http.StatusRequestEntityTooLarge, "BODY_TOO_LARGE")
			b.rejects(b.paying("k", "", streaming(strings.NewReader(body))), http.StatusRequestEntityTooLarge, "BODY_TOO_LARGE")
		})
	}
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	_, err := z.Write(make([]byte, large))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	b.rejects(b.paying("k", bomb.String(), with("Content-Encoding", "gzip")), http.StatusUnsupportedMediaType, "UNSUPPORTED_MEDIA_TYPE")

	b.settles("k", b0+strings.Repeat(" ", bodyBytesMax-len(b0))) // the largest body there is
}

func TestB10_BodyThatNeverEndsClaimsNothing(t *testing.T) {
	b := setup(t, func(s *settings) { s.readTimeout = 500 * time.Millisecond })
	half, end := io.Pipe()
	go func() { _, _ = io.WriteString(end, b0[:40]) }()
	b.rejects(b.paying("k", "", streaming(half)), http.StatusRequestTimeout, "BODY_TIMEOUT")
	_ = end.Close()
	b.settles("k", b0)
}

// A client that hangs up, or only closes its sending side, between its body and the claim has not paid, and whoever still
// listens must not read the silence as success.
func TestHangingUpBeforeTheClaimClaimsNothing(t *testing.T) {
	b := setup(t)
	b.get("/payments/" + noPayment) // the API key is remembered for a second: the database is not asked with a dead context
	ctx, hangUp := context.WithCancel(t.Context())
	r := httptest.NewRequestWithContext(ctx, "POST", "/payments", io.MultiReader(strings.NewReader(b0), &atEnd{do: hangUp}))
	r.Header = http.Header{"Authorization": {"Bearer sk_demo_acme"}, "Idempotency-Key": {"k"}, "Content-Type": {"application/json"}}
	w := httptest.NewRecorder()
	before := b.traces()
	b.handler.ServeHTTP(w, r)
	require.Equal(t, http.StatusRequestTimeout, w.Code)
	require.Equal(t, before, b.traces())
}

// atEnd is an empty reader that does something when it is read.
type atEnd struct{ do func() }

func (e *atEnd) Read([]byte) (int, error) { e.do(); return 0, io.EOF }
