package provider_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/provider"
	"github.com/paymentsd/paymentsd/internal/provider/fake"
)

// impatience is the client's time-out where a test waits for it.
const impatience = 200 * time.Millisecond

// TestEveryRowOfTheOutcomeTable walks the table of DESIGN section 9: the outcome, what was really charged, and how often
// the charge went over the wire.
func TestEveryRowOfTheOutcomeTable(t *testing.T) {
	type fault = map[string]any
	for _, row := range []struct {
		name     string
		fault    fault
		timeout  time.Duration
		outcome  provider.Outcome
		reason   string
		executed int
	}{
		{"confirmed", nil, patience, provider.Confirmed, "answered", 1},
		{"declined", fault{"fault": "decline", "code": "DO_NOT_HONOR"}, patience, provider.Declined, "answered", 0},
		{"C3 answers in lower case", fault{"fault": "lower_case_currency"}, patience, provider.Confirmed, "answered", 1},
		{"G6 reads half then RST", fault{"fault": "reset_mid_request"}, patience, provider.Unknown, "reset", 0},
		{"G6 reads all and drops", fault{"fault": "drop_before_execute"}, patience, provider.Unknown, "lost", 0},
		{"G6 executes and drops", fault{"fault": "execute_then_drop"}, patience, provider.Unknown, "lost", 1},
		{"G6 answers after our timeout", fault{"fault": "delay", "delayMs": 500}, impatience, provider.Unknown, "timeout", 1},
		{"G6 truncated body", fault{"fault": "truncated_body"}, patience, provider.Unknown, "truncated", 1},
		{"G6 unparsable body", fault{"fault": "unreadable_body"}, patience, provider.Unknown, "unreadable", 1},
		{"G6 429", fault{"fault": "rate_limited"}, patience, provider.Unknown, "http_429", 0},
		{"G7 409 in progress", fault{"fault": "in_progress"}, patience, provider.Unknown, "http_409", 0},
		{"500 before the effect", fault{"fault": "error_before"}, patience, provider.Unknown, "http_500", 0},
		{"500 after the effect", fault{"fault": "error_after"}, patience, provider.Unknown, "http_500", 1},
		{"G7 the same 500 for ever", fault{"fault": "error_forever"}, patience, provider.Unknown, "http_500", 1},
		{"amounts that do not match", fault{"fault": "wrong_amount"}, patience, provider.Unknown, "mismatch", 1},
		{"closes the connection after the answer", fault{"fault": "close_idle"}, patience, provider.Confirmed, "answered", 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := setup(t, fake.Config{}, row.timeout)
			if row.fault != nil {
				b.script(row.fault)
			}
			c := charge(t, "pay_1", "10.00", "EUR")

			result := b.charge(c)

			require.Equal(t, row.outcome, result.Outcome, result.Reason)
			require.Equal(t, row.reason, result.Reason)
			require.Equal(t, row.outcome == provider.Confirmed, result.ChargeID != "")
			require.Equal(t, row.outcome == provider.Declined, result.DeclineCode != "")
			require.Eventually(t, func() bool { return len(b.executed(c.Reference)) == row.executed },
				patience, 10*time.Millisecond)
			require.Equal(t, 1, b.tap.posts())
			require.Len(t, b.received(c.Reference), 1)
		})
	}
}

func TestDeclineCodeReachesUsOnlyIfItIsACode(t *testing.T) {
	for sent, got := range map[string]string{
		"INSUFFICIENT_FUNDS":     "INSUFFICIENT_FUNDS",
		"do_not_honor":           "DO_NOT_HONOR",
		"card 4111 1111 refused": "DECLINED",
		strings.Repeat("A", 65):  "DECLINED",
	} {
		b := setup(t, fake.Config{}, patience)
		b.script(map[string]any{"fault": "decline", "code": sent})
		require.Equal(t, provider.Result{Outcome: provider.Declined, DeclineCode: got, Reason: "answered"},
			b.charge(charge(t, "pay_1", "10.00", "EUR")))
	}
}

func TestInsufficientFundsIsADecline(t *testing.T) {
	b := setup(t, fake.Config{}, patience)
	b.control(http.MethodPut, "/control/accounts/acc_1", `{"balances":{"EUR":"15.00"}}`)
	first, second := charge(t, "pay_1", "10.00", "EUR"), charge(t, "pay_2", "10.00", "EUR")
	require.Equal(t, provider.Confirmed, b.charge(first).Outcome)
	refused := provider.Result{Outcome: provider.Declined, DeclineCode: "INSUFFICIENT_FUNDS", Reason: "answered"}
	require.Equal(t, refused, b.charge(second))
	require.Equal(t, refused, b.lookup(second))
}

// TestG6NotSent: nobody reads a byte of the request, and the client can prove it.
func TestG6NotSent(t *testing.T) {
	silent := listen(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	hangsUp := listen(t, func(net.Conn) {})
	stranger := httptest.NewUnstartedServer(http.NotFoundHandler())
	stranger.Config.ErrorLog = log.New(io.Discard, "", 0) // it complains about the handshake, as it should
	stranger.StartTLS()
	t.Cleanup(stranger.Close)
	closed := listen(t, nil)

	for name, row := range map[string]struct{ base, reason string }{
		"refused":                      {"http://" + closed, "refused"},
		"refused before TLS":           {"https://" + closed, "refused"},
		"DNS failure":                  {"http://no..such.host", "dns"},
		"TLS unknown authority":        {stranger.URL, "tls"},
		"TLS the server hangs up":      {"https://" + hangsUp, "tls"},
		"TLS the server never answers": {"https://" + silent, "timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			c := charge(t, "pay_1", "10.00", "EUR")
			client := newClient(t, row.base, impatience*5)
			require.Equal(t, provider.Result{Outcome: provider.NotSent, Reason: row.reason},
				client.Send(t.Context(), c.Order()))
			require.Equal(t, provider.Result{Outcome: provider.Unknown, Reason: row.reason},
				client.Lookup(t.Context(), c.Order()), "a lookup is never not sent: it is about the charge")
		})
	}
}

func TestG6NotSentWhenCanceledBefore(t *testing.T) {
	b := setup(t, fake.Config{}, patience)
	c := charge(t, "pay_1", "10.00", "EUR")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, provider.Result{Outcome: provider.NotSent, Reason: "canceled"}, b.client.Send(ctx, c.Order()))
	require.Equal(t, provider.Result{Outcome: provider.NotSent, Reason: "request_unreadable"},
		b.client.Send(t.Context(), provider.Order{Kind: provider.Charge, Key: c.Order().Key, Request: []byte(`{"account":"acc_1"}`)}))
	require.Empty(t, b.tap.text())
	require.Empty(t, b.executed(""))
}

func TestG6UnknownWhenCanceledAfterTheRequestLeft(t *testing.T) {
	b := setup(t, fake.Config{}, patience)
	b.script(map[string]any{"fault": "delay", "delayMs": 300})
	c := charge(t, "pay_1", "10.00", "EUR")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for len(b.received(c.Reference)) == 0 {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	require.Equal(t, provider.Result{Outcome: provider.Unknown, Reason: "canceled"}, b.client.Send(ctx, c.Order()))
	require.Eventually(t, func() bool { return len(b.executed(c.Reference)) == 1 }, patience, 10*time.Millisecond,
		"the request was received in full; hanging up takes nothing back")
}

// TestG6AnswersOfOthers: what a proxy or a broken server says is no answer of the provider.
func TestG6AnswersOfOthers(t *testing.T) {
	const page = "HTTP/1.1 %d x\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>"
	for name, row := range map[string]struct{ says, reason string }{
		"nothing":                 {"", "timeout"},
		"502 from a proxy":        {fmt.Sprintf(page, 502), "http_502"},
		"503":                     {fmt.Sprintf(page, 503), "http_503"},
		"504":                     {fmt.Sprintf(page, 504), "http_504"},
		"425":                     {fmt.Sprintf(page, 425), "http_425"},
		"401":                     {fmt.Sprintf(page, 401), "http_401"},
		"404":                     {fmt.Sprintf(page, 404), "http_404"},
		"422":                     {fmt.Sprintf(page, 422), "http_422"},
		"402 without a decline":   {fmt.Sprintf(page, 402), "unreadable"},
		"200 with a page":         {fmt.Sprintf(page, 200), "unreadable"},
		"204":                     {"HTTP/1.1 204 No Content\r\n\r\n", "unreadable"},
		"302 elsewhere":           {"HTTP/1.1 302 Found\r\nLocation: /v1/charges\r\nContent-Length: 0\r\n\r\n", "http_302"},
		"307 elsewhere":           {"HTTP/1.1 307 Found\r\nLocation: /v1/charges\r\nContent-Length: 0\r\n\r\n", "http_307"},
		"408 then the end":        {"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n", "http_408"},
		"half a head":             {"HTTP/1.1 201 Crea", "timeout"},
		"no HTTP at all":          {"SSH-2.0-OpenSSH_9.2\r\n", "lost"},
		"a body without end":      {"HTTP/1.1 201 Created\r\n\r\n{", "timeout"},
		"a body above the limit":  {"HTTP/1.1 201 Created\r\n\r\n" + strings.Repeat(" ", 64<<10+1), "too_large"},
		"a head above the limit":  {"HTTP/1.1 201 Created\r\nX: " + strings.Repeat("x", 80<<10), "lost"},
		"chunks that just stop":   {"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"id\"\r\n", "timeout"},
		"a compressed lie (gzip)": {"HTTP/1.1 201 Created\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b", "unreadable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stop := make(chan struct{})
			t.Cleanup(func() { close(stop) })
			tap := listenIn(t, listen(t, func(c net.Conn) {
				_, _ = c.Read(make([]byte, 4096))
				_, _ = io.WriteString(c, row.says)
				<-stop
			}))
			c := charge(t, "pay_1", "10.00", "EUR")
			result := newClient(t, tap.url(), impatience*2).Send(t.Context(), c.Order())
			require.Equal(t, provider.Result{Outcome: provider.Unknown, Reason: row.reason}, result)
			require.Equal(t, 1, tap.posts())
		})
	}
}

// TestG7ProvidersOwnIdempotencyAnswers: the answers a provider gives to a key it has seen.
func TestG7ProvidersOwnIdempotencyAnswers(t *testing.T) {
	t.Run("409 in progress three times, then 201", func(t *testing.T) {
		b := setup(t, fake.Config{}, patience)
		b.script(map[string]any{"fault": "in_progress", "times": 3})
		c := charge(t, "pay_1", "10.00", "EUR")
		for range 3 {
			require.Equal(t, provider.Result{Outcome: provider.Unknown, Reason: "http_409"}, b.charge(c))
		}
		require.Equal(t, provider.Confirmed, b.charge(c).Outcome)
		require.Len(t, b.executed(c.Reference), 1)
		require.Equal(t, 4, b.tap.posts(), "one send for each call")
	})
	t.Run("the same 500 for ever, and the charge exists", func(t *testing.T) {
		b := setup(t, fake.Config{}, patience)
		b.script(map[string]any{"fault": "error_forever"})
		c := charge(t, "pay_1", "10.00", "EUR")
		for range 3 {
			require.Equal(t, provider.Result{Outcome: provider.Unknown, Reason: "http_500"}, b.charge(c))
		}
		found := b.lookup(c)
		require.Equal(t, provider.Confirmed, found.Outcome)
		require.Equal(t, b.executed(c.Reference)[0].ID, found.ChargeID)
		require.Len(t, b.executed(c.Reference), 1)
	})
	t.Run("a replayed 201 is a success", func(t *testing.T) {
		b := setup(t, fake.Config{}, patience)
		c := charge(t, "pay_1", "10.00", "EUR")
		first, again := b.charge(c), b.charge(c)
		require.Equal(t, provider.Confirmed, first.Outcome)
		require.Equal(t, first, again)
		require.Len(t, b.executed(c.Reference), 1)
	})
}

func TestLookupRows(t *testing.T) {
	for _, row := range []struct {
		name    string
		cfg     fake.Config
		prepare func(b *bench, c provider.Movement)
		outcome provider.Outcome
		reason  string
	}{
		{"found", fake.Config{}, paid, provider.Confirmed, "answered"},
		{"declined", fake.Config{}, refused, provider.Declined, "answered"},
		{"never charged", fake.Config{}, func(*bench, provider.Movement) {}, provider.Absent, "absent"},
		{"inside the lookup lag", fake.Config{LookupLag: time.Hour}, paid, provider.Absent, "absent"},
		{"after the lookup lag", fake.Config{LookupLag: time.Millisecond}, paid, provider.Confirmed, "answered"},
		{"says not found", fake.Config{}, paidBut("not_found"), provider.Absent, "absent"},
		{"error", fake.Config{}, paidBut("lookup_error"), provider.Unknown, "http_500"},
		{"rate limited", fake.Config{}, paidBut("rate_limited"), provider.Unknown, "http_429"},
		{"drops", fake.Config{}, paidBut("drop_before_execute"), provider.Unknown, "lost"},
		{"truncated", fake.Config{}, paidBut("truncated_body"), provider.Unknown, "truncated"},
		{"unreadable", fake.Config{}, paidBut("unreadable_body"), provider.Unknown, "unreadable"},
		{"wrong amount", fake.Config{}, paidBut("wrong_amount"), provider.Unknown, "mismatch"},
		{"C3 lower case", fake.Config{}, paidBut("lower_case_currency"), provider.Confirmed, "answered"},
		{"too slow", fake.Config{}, paidBut("delay"), provider.Unknown, "timeout"},
		{"keys were forgotten", fake.Config{}, func(b *bench, c provider.Movement) {
			paid(b, c)
			b.control(http.MethodPost, "/control/forget-keys", "")
		}, provider.Confirmed, "answered"},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := setup(t, row.cfg, impatience*2)
			c := charge(t, "pay_1", "10.00", "EUR")
			row.prepare(b, c)
			before := b.tap.posts()

			result := b.lookup(c)

			require.Equal(t, row.outcome, result.Outcome, result.Reason)
			require.Equal(t, row.reason, result.Reason)
			require.Equal(t, before, b.tap.posts(), "a lookup never charges")
		})
	}
}

func paid(b *bench, c provider.Movement) {
	require.Equal(b.t, provider.Confirmed, b.charge(c).Outcome)
	time.Sleep(2 * time.Millisecond) // so that a lag of one is over
}

func refused(b *bench, c provider.Movement) {
	b.script(map[string]any{"fault": "decline", "on": "charge"})
	require.Equal(b.t, provider.Declined, b.charge(c).Outcome)
}

func paidBut(lookupFault string) func(*bench, provider.Movement) {
	return func(b *bench, c provider.Movement) {
		paid(b, c)
		fault := map[string]any{"on": "lookup", "fault": lookupFault, "times": -1} // net/http may repeat a lookup
		if lookupFault == "delay" {
			fault["delayMs"] = 1000
		}
		b.script(fault)
	}
}

func TestClientRefusesAddressesThatMakeNoSense(t *testing.T) {
	for _, base := range []string{
		"", "localhost:8090", "ftp://localhost", "http://", "http://:8090", "http://user:secret@localhost", "http://localhost?x=1",
		"http://localhost#x", "http://local host", "http://localhost:port",
	} {
		_, err := provider.NewClient(base, time.Second)
		require.Error(t, err, base)
		require.NotContains(t, err.Error(), "secret")
	}
	_, err := provider.NewClient("http://localhost", 0)
	require.Error(t, err)
}

// listen gives the address of a TCP server; without a conversation, of one that is gone.
func listen(t *testing.T, converse func(net.Conn)) (addr string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	if converse == nil {
		require.NoError(t, listener.Close())
		return listener.Addr().String()
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				converse(conn)
			}()
		}
	}()
	return listener.Addr().String()
}
