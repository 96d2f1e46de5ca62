package provider_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/provider"
	"github.com/paymentsd/paymentsd/internal/provider/fake"
)

// TestWarmConnectionsClosedByTheServerSendOnce: after each answer the fake closes the connection without saying so, and
// the next call may or may not notice in time. However that race ends, a call is one POST or none.
func TestWarmConnectionsClosedByTheServerSendOnce(t *testing.T) {
	base := startFake(t, fake.Config{})
	b := &bench{t: t, client: newClient(t, base, patience), base: base} // no wiretap: its delay would hide the race
	b.script(map[string]any{"fault": "close_idle", "times": -1})
	for i := range 200 {
		c := charge(t, fmt.Sprintf("pay_%d", i), "10.00", "EUR")
		result := b.charge(c)
		received := b.received(c.Reference)
		switch result.Outcome {
		case provider.Confirmed:
			require.Len(t, received, 1)
		case provider.Unknown:
			require.LessOrEqual(t, len(received), 1)
		case provider.NotSent:
			require.Empty(t, received)
		default:
			require.Fail(t, "unexpected", "%+v", result)
		}
		require.Len(t, b.executed(c.Reference), len(received))
		if len(received) == 1 {
			require.Equal(t, []string{c.Order().Key}, received[0].Headers["Idempotency-Key"])
			require.Equal(t, string(c.Encode()), received[0].Body)
		}
	}
}

// TestDeadWarmConnectionIsNotRedialed makes the race of the test above end the bad way, always: the server answers the
// first request on a connection and kills the connection on the second. net/http would repeat such a request because it
// has an Idempotency-Key header.
func TestDeadWarmConnectionIsNotRedialed(t *testing.T) {
	for name, kill := range map[string]func(*bufio.Reader, *net.TCPConn){
		"on its first byte, with a reset": func(r *bufio.Reader, c *net.TCPConn) { _, _ = r.Peek(1); _ = c.SetLinger(0) },
		"when it was read, with an end": func(r *bufio.Reader, c *net.TCPConn) {
			req, err := http.ReadRequest(r)
			if err == nil {
				_, _ = io.Copy(io.Discard, req.Body)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			tap := listenIn(t, listen(t, func(c net.Conn) {
				reader := bufio.NewReader(c)
				answerOne(t, reader, c)
				kill(reader, c.(*net.TCPConn))
			}))
			client := newClient(t, tap.url(), patience)
			for i := range 100 {
				warm, cold := charge(t, fmt.Sprintf("pay_%da", i), "10.00", "EUR"), charge(t, fmt.Sprintf("pay_%db", i), "10.00", "EUR")
				require.Equal(t, provider.Confirmed, client.Send(t.Context(), warm.Order()).Outcome)
				require.Equal(t, provider.Unknown, client.Send(t.Context(), cold.Order()).Outcome)
				require.Equal(t, 1, strings.Count(tap.text(), cold.Order().Key+"\r\n"), "on the wire once, whatever became of it")
			}
			require.Equal(t, 200, tap.posts())
		})
	}
}

// answerOne reads a charge and confirms it.
func answerOne(t *testing.T, r *bufio.Reader, w io.Writer) {
	req, err := http.ReadRequest(r)
	if err != nil {
		return // the client is done
	}
	_, _ = io.Copy(io.Discard, req.Body)
	body := `{"id":"ch_1","status":"succeeded","amountMinor":1000,"currency":"EUR"}`
	_, err = fmt.Fprintf(w, "HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	if err != nil {
		t.Log("answer:", err)
	}
}

// TestConnectionsAreReused: proving one send for each call does not cost a connection for each call.
func TestConnectionsAreReused(t *testing.T) {
	base := startFake(t, fake.Config{})
	var dialed atomic.Int64
	front := listen(t, func(c net.Conn) {
		dialed.Add(1)
		server, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
		if err != nil {
			return
		}
		defer server.Close()
		go func() { _, _ = io.Copy(server, c) }()
		_, _ = io.Copy(c, server)
	})
	b := &bench{t: t, client: newClient(t, "http://"+front, patience), base: base}
	for i := range 20 {
		c := charge(t, fmt.Sprintf("pay_%d", i), "10.00", "EUR")
		require.Equal(t, provider.Confirmed, b.charge(c).Outcome)
		require.Equal(t, provider.Confirmed, b.lookup(c).Outcome)
	}
	b.script(map[string]any{"fault": "error_before"})
	require.Equal(t, provider.Unknown, b.charge(charge(t, "pay_x", "10.00", "EUR")).Outcome)
	require.Equal(t, provider.Confirmed, b.charge(charge(t, "pay_x", "10.00", "EUR")).Outcome)
	require.EqualValues(t, 1, dialed.Load())
}

// TestManyAtOnce: 1,000 calls in flight, one POST and one charge each.
func TestManyAtOnce(t *testing.T) {
	base := startFake(t, fake.Config{})
	b := &bench{t: t, client: newClient(t, base, patience*3), base: base}
	var calls sync.WaitGroup
	for i := range 1000 {
		calls.Go(func() {
			c := charge(t, fmt.Sprintf("pay_%d", i), "10.00", "EUR")
			if result := b.charge(c); result.Outcome != provider.Confirmed {
				t.Errorf("%s: %+v", c.Order().Key, result)
			}
		})
	}
	calls.Wait()
	require.Len(t, b.executed(""), 1000)
	require.Len(t, b.received(""), 1000)
}
