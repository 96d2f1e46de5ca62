package fake_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/provider/fake"
)

// TestEveryFaultOfAnOrder looks at what the client sees, at what was really executed, and at what a resend under the same
// key comes to.
func TestEveryFaultOfAnOrder(t *testing.T) {
	const cut = 0 // no status: the connection ended
	for _, row := range []struct {
		fault    string
		status   int
		executed int
		resend   int
	}{
		{`"fault":"delay","delayMs":50`, 201, 1, 201},
		{`"fault":"execute_then_drop"`, cut, 1, 201},
		{`"fault":"drop_before_execute"`, cut, 0, 201},
		{`"fault":"reset_mid_request"`, cut, 0, 201},
		{`"fault":"in_progress"`, 409, 0, 201},
		{`"fault":"rate_limited"`, 429, 0, 201},
		{`"fault":"error_before"`, 500, 0, 201},
		{`"fault":"error_after"`, 500, 1, 201},
		{`"fault":"error_forever"`, 500, 1, 500},
		{`"fault":"truncated_body"`, 201, 1, 201},
		{`"fault":"unreadable_body"`, 201, 1, 201},
		{`"fault":"wrong_amount"`, 201, 1, 201},
		{`"fault":"lower_case_currency"`, 201, 1, 201},
		{`"fault":"decline"`, 402, 0, 402},
		{`"fault":"decline","code":"LOST_CARD"`, 402, 0, 402},
		{`"fault":"close_idle"`, 201, 1, 201},
		{`"fault":"in_progress","delayMs":20`, 409, 0, 201},
	} {
		t.Run(row.fault, func(t *testing.T) {
			eachKind(t, fake.Config{}, func(t *testing.T, b bench) {
				b.spoil("inv-1", row.fault)

				other := b.post("k0", b.request("inv-0"))
				first := b.post("k1", b.request("inv-1"))

				require.Equal(t, 201, other.status, "it was not meant")
				require.Equal(t, row.status, first.status, first.body)
				require.Len(t, b.executed("inv-1"), row.executed)
				require.Equal(t, row.resend, b.post("k1", b.request("inv-1")).status)
				require.Len(t, b.executed("inv-1"), max(row.executed, map[int]int{201: 1}[row.resend]))
				require.Len(t, b.received("inv-1"), 2)
			})
		})
	}
}

func TestFaultsSpoilTheAnswerTheWayTheySay(t *testing.T) {
	eachKind(t, fake.Config{}, func(t *testing.T, b bench) {
		answerTo := func(i int, fault string) answer {
			reference := fmt.Sprintf("inv-%d", i)
			b.spoil(reference, fault)
			return b.post(fmt.Sprintf("k%d", i), b.request(reference))
		}
		require.ErrorIs(t, answerTo(1, `"fault":"truncated_body"`).err, io.ErrUnexpectedEOF)
		require.Contains(t, answerTo(2, `"fault":"unreadable_body"`).body, "<html>")
		require.Equal(t, 1001.0, answerTo(3, `"fault":"wrong_amount"`).members(t)["amountMinor"])
		require.Equal(t, 1000.0, b.executed("inv-3")[0]["amountMinor"])
		require.Equal(t, "eur", answerTo(4, `"fault":"lower_case_currency"`).members(t)["currency"])
		require.Equal(t, "EUR", b.executed("inv-4")[0]["currency"])
		require.Equal(t, "1", answerTo(5, `"fault":"rate_limited"`).header.Get("Retry-After"))
		require.Equal(t, "CARD_DECLINED", answerTo(6, `"fault":"decline"`).members(t)["declineCode"])
		require.Equal(t, "LOST_CARD", answerTo(7, `"fault":"decline","code":"LOST_CARD"`).members(t)["declineCode"])
		require.NotContains(t, answerTo(8, `"fault":"close_idle"`).header, "Connection")
		require.ErrorContains(t, answerTo(9, `"fault":"reset_mid_request"`).err, "reset")
		require.ErrorIs(t, answerTo(10, `"fault":"drop_before_execute"`).err, io.EOF)
		require.NotContains(t, b.received("inv-9")[0]["body"], "}", "the end of the request was never read")
	})
}

func TestErrorForeverIsTheSameEveryTimeAndLookupsFindTheOrder(t *testing.T) {
	eachKind(t, fake.Config{}, func(t *testing.T, b bench) {
		b.spoil("inv-1", `"fault":"error_forever"`)
		first := b.post("k1", b.request("inv-1"))
		for range 5 {
			again := b.post("k1", b.request("inv-1"))
			require.Equal(t, first.status, again.status)
			require.Equal(t, first.body, again.body)
		}
		require.Contains(t, b.lookup("k1").body, `"status":"succeeded"`)
		require.Len(t, b.executed("inv-1"), 1)
	})
}

func TestEveryFaultOfALookup(t *testing.T) {
	eachKind(t, fake.Config{}, func(t *testing.T, b bench) {
		b.post("k1", b.request("inv-1"))
		truth := b.lookup("k1").body
		spoiled := func(fault string) answer {
			b.spoilLookup("inv-1", fault)
			require.Equal(t, "[]", b.lookup("k2").body, "it was not meant")
			a := b.lookup("k1")
			require.Equal(t, truth, b.lookup("k1").body, "one time only")
			return a
		}
		require.Equal(t, "[]", spoiled(`"fault":"not_found"`).body)
		require.Equal(t, 500, spoiled(`"fault":"lookup_error"`).status)
		require.Equal(t, 429, spoiled(`"fault":"rate_limited"`).status)
		require.Contains(t, spoiled(`"fault":"unreadable_body"`).body, "<html>")
		require.ErrorIs(t, spoiled(`"fault":"truncated_body"`).err, io.ErrUnexpectedEOF)
		require.Contains(t, spoiled(`"fault":"wrong_amount"`).body, "1001")
		require.Equal(t, truth, spoiled(`"fault":"close_idle"`).body)
		begun := time.Now()
		require.Equal(t, truth, spoiled(`"fault":"delay","delayMs":50`).body)
		require.GreaterOrEqual(t, time.Since(begun), 50*time.Millisecond)
	})
}

func TestFaultsAreUsedUpInOrder(t *testing.T) {
	eachKind(t, fake.Config{}, func(t *testing.T, b bench) {
		b.spoil("inv-1", `"fault":"in_progress","times":2`)
		b.spoil("*", `"fault":"rate_limited"`)
		b.spoil("inv-1", `"fault":"error_after"`)
		var seen []int
		for range 6 {
			seen = append(seen, b.post("k1", b.request("inv-1")).status)
		}
		require.Equal(t, []int{409, 409, 429, 500, 201, 201}, seen)
		require.Len(t, b.executed("inv-1"), 1)
	})
}

func TestTimes(t *testing.T) {
	for times, want := range map[string][]int{
		``:             {429, 201, 201, 201},
		`,"times":0`:   {429, 201, 201, 201},
		`,"times":1`:   {429, 201, 201, 201},
		`,"times":3`:   {429, 429, 429, 201},
		`,"times":-1`:  {429, 429, 429, 429},
		`,"times":-99`: {429, 429, 429, 429},
	} {
		b := setup(t, fake.Config{})
		b.script(`{"reference":"*","on":"charge","fault":"rate_limited"` + times + `}`)
		var seen []int
		for range 4 {
			seen = append(seen, b.post("k1", request("inv-1")).status)
		}
		require.Equal(t, want, seen, times)
		b.control(http.MethodDelete, "/control/faults", "")
		require.Equal(t, 201, b.post("k1", request("inv-1")).status)
	}
}

func TestClientThatHangsUpDuringADelayTakesNothingBack(t *testing.T) {
	eachKind(t, fake.Config{}, func(t *testing.T, b bench) {
		b.spoil("*", `"fault":"delay","delayMs":200`)
		conn, err := net.Dial("tcp", strings.TrimPrefix(b.base, "http://"))
		require.NoError(t, err)
		body := b.request("inv-1")
		_, err = fmt.Fprintf(conn, "POST /v1/%ss HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k1\r\nContent-Length: %d\r\n\r\n%s", b.kind, len(body), body)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return len(b.received("inv-1")) == 1 }, patience, time.Millisecond)
		require.NoError(t, conn.Close())
		require.Eventually(t, func() bool { return len(b.executed("inv-1")) == 1 }, patience, 5*time.Millisecond)
	})
}

func TestHalfARequestHasNoEffectAndIsKept(t *testing.T) {
	eachKind(t, fake.Config{}, func(t *testing.T, b bench) {
		conn, err := net.Dial("tcp", strings.TrimPrefix(b.base, "http://"))
		require.NoError(t, err)
		_, err = io.WriteString(conn, "POST /v1/"+b.kind+"s HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k1\r\nContent-Length: 500\r\n\r\n"+
			`{"reference":"inv-1","account":"ac`)
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		require.Eventually(t, func() bool { return len(b.received("inv-1")) == 1 }, patience, time.Millisecond)
		require.Empty(t, b.executed(""))
	})
}

func TestControlRefusesWhatItDoesNotUnderstand(t *testing.T) {
	b := setup(t, fake.Config{})
	for _, row := range []struct{ method, path, body string }{
		{"POST", "/control/faults", ``},
		{"POST", "/control/faults", `{"reference":"*","on":"charge","fault":"explode"}`},
		{"POST", "/control/faults", `{"on":"charge","fault":"decline"}`},
		{"POST", "/control/faults", `{"reference":"*","on":"payout","fault":"decline"}`},
		{"POST", "/control/faults", `{"reference":"*","on":"lookup","fault":"decline"}`},
		{"POST", "/control/faults", `{"reference":"*","on":"refund_lookup","fault":"decline"}`},
		{"POST", "/control/faults", `{"reference":"*","on":"charge","fault":"not_found"}`},
		{"POST", "/control/faults", `{"reference":"*","on":"refund","fault":"not_found"}`},
		{"POST", "/control/faults", `{"reference":"*","on":"charge","fault":"delay"}`},
		{"POST", "/control/faults", `{"reference":"*","on":"charge","fault":"delay","delayMs":-1}`},
		{"POST", "/control/faults", `{"reference":"*","on":"charge","fault":"delay","delayMs":600001}`},
		{"POST", "/control/faults", `{"reference":"*","on":"charge","fault":"decline","time":2}`},
		{"POST", "/control/down", `{}`},
		{"POST", "/control/down", `{"forMs":-5}`},
		{"POST", "/control/down", `{"forMs":"5"}`},
		{"PUT", "/control/accounts/acc_1", `{"balances":{"EUR":10}}`},
		{"PUT", "/control/accounts/acc_1", `{"balances":{"EUR":"10.001"}}`},
		{"PUT", "/control/accounts/acc_1", `{"balances":{"EUR":"-1"}}`},
		{"PUT", "/control/accounts/acc_1", `{"balances":{"XXX":"10"}}`},
	} {
		a := b.call(row.method, row.path, "", row.body)
		require.Equal(t, http.StatusBadRequest, a.status, row.body)
		require.Equal(t, "application/problem+json", a.header.Get("Content-Type"))
		require.NotEmpty(t, a.members(t)["detail"])
	}
	require.Equal(t, 201, b.post("k1", request("inv-1")).status, "nothing was scripted")
}
