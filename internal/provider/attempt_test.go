package provider

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const body = `{"account":"acc_1","amountMinor":1000,"currency":"EUR","reference":"inv-1","paymentId":"pay_1"}`

// brokenPipe takes no bytes, or as many as it is told.
type brokenPipe struct {
	net.Conn
	takes int
}

func (p brokenPipe) Write([]byte) (int, error) { return p.takes, errors.New("broken pipe") }

func TestSealTellsNothingWrittenFromSomething(t *testing.T) {
	t.Run("never had a connection", func(t *testing.T) {
		require.True(t, (&attempt{}).seal())
	})
	t.Run("had one and never wrote", func(t *testing.T) {
		a := &attempt{}
		a.admit(&conn{})
		require.True(t, a.seal())
	})
	t.Run("the connection was dead and took nothing", func(t *testing.T) {
		a, c := &attempt{}, &conn{Conn: brokenPipe{takes: 0}}
		a.admit(c)
		_, err := c.Write([]byte("POST"))
		require.Error(t, err)
		require.True(t, a.seal())
	})
	t.Run("the connection took one byte", func(t *testing.T) {
		a, c := &attempt{}, &conn{Conn: brokenPipe{takes: 1}}
		a.admit(c)
		_, err := c.Write([]byte("POST"))
		require.Error(t, err)
		require.False(t, a.seal())
	})
	t.Run("a write has begun and nobody knows how far it is", func(t *testing.T) {
		a, c := &attempt{}, &conn{}
		a.admit(c)
		require.NoError(t, a.beginWrite(c))
		require.False(t, a.seal())
	})
}

func TestNothingIsWrittenAfterTheSeal(t *testing.T) {
	a, c := &attempt{}, &conn{Conn: brokenPipe{takes: 4}}
	a.admit(c)
	require.True(t, a.seal())
	n, err := c.Write([]byte("POST"))
	require.Zero(t, n)
	require.ErrorIs(t, err, errGateShut)
}

func TestOnlyTheFirstConnectionMayCarryACharge(t *testing.T) {
	a, first, second := &attempt{}, &conn{Conn: brokenPipe{takes: 4}}, &conn{Conn: brokenPipe{takes: 4}}
	a.admit(first)
	a.admit(second)
	_, err := second.Write([]byte("POST"))
	require.ErrorIs(t, err, errSecondSender)
	require.True(t, a.seal(), "the second connection has written nothing")

	_, err = (&conn{}).Write([]byte("POST"))
	require.ErrorIs(t, err, errNoAttempt)
}

// TestGateStopsNetHTTPFromRepeating proves the gate where it matters: this request is made so that net/http may repeat
// it (it has GetBody, as http.NewRequest would set it), the warm connection dies on it, and net/http does dial again.
func TestGateStopsNetHTTPFromRepeating(t *testing.T) {
	client, posts := clientOfAServerThatAnswersOncePerConnection(t)
	warm := client.Send(t.Context(), Order{Kind: Charge, Key: "warm", Request: []byte(body)})
	require.Equal(t, Confirmed, warm.Outcome, warm.Reason)

	req := newSendRequest(client.routes[Charge], Order{Kind: Charge, Key: "repeatable", Request: []byte(body)})
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(body)), nil }
	connections := 0
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connections++ }})
	a := &attempt{}
	_, err := client.exchange(ctx, a, req)

	require.Error(t, err)
	require.False(t, a.seal(), "the first connection took the request")
	require.Equal(t, 2, connections, "net/http did try again")
	require.EqualValues(t, 2, posts.Load(), "and nothing went out")
}

// TestSendRequestsCannotBeRepeated is the other guard, alone: even with a gate that lets everything through, net/http
// finds nothing it could send again.
func TestSendRequestsCannotBeRepeated(t *testing.T) {
	client, posts := clientOfAServerThatAnswersOncePerConnection(t)
	warm := client.Send(t.Context(), Order{Kind: Charge, Key: "warm", Request: []byte(body)})
	require.Equal(t, Confirmed, warm.Outcome, warm.Reason)

	_, err := client.exchange(t.Context(), &attempt{repeatable: true}, newSendRequest(client.routes[Charge], Order{Kind: Charge, Key: "key", Request: []byte(body)}))

	require.Error(t, err)
	require.EqualValues(t, 2, posts.Load())
}

// clientOfAServerThatAnswersOncePerConnection also gives the number of POSTs that were begun at the server.
func clientOfAServerThatAnswersOncePerConnection(t *testing.T) (*Client, *atomic.Int64) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	posts := &atomic.Int64{}
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			reader := bufio.NewReader(c)
			for answers := 0; answers < 2; answers++ {
				req, err := http.ReadRequest(reader)
				if err != nil {
					break
				}
				posts.Add(1)
				_, _ = io.Copy(io.Discard, req.Body)
				if answers == 0 {
					_, _ = io.WriteString(c, "HTTP/1.1 201 Created\r\nContent-Length: 70\r\n\r\n"+
						`{"id":"ch_1","status":"succeeded","amountMinor":1000,"currency":"EUR"}`)
				}
			}
			_ = c.Close()
		}
	}()
	client, err := NewClient("http://"+listener.Addr().String(), 5*time.Second)
	require.NoError(t, err)
	return client, posts
}

// TestTLSHandshakeBytesAreNoRequestBytes: the gate counts what the provider can read, not what the handshake costs.
func TestTLSHandshakeBytesAreNoRequestBytes(t *testing.T) {
	var received bytes.Buffer
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(&received, r.Body)
		_, _ = io.WriteString(w, `{"id":"ch_1","status":"succeeded","amountMinor":1000,"currency":"EUR"}`)
	}))
	t.Cleanup(server.Close)
	client, err := NewClient(server.URL, 5*time.Second)
	require.NoError(t, err)
	client.transport = newTransport(client.timeout, server.Client().Transport.(*http.Transport).TLSClientConfig)

	// A connection with the handshake done and no request written.
	secure, err := client.transport.DialTLSContext(t.Context(), "tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	a := &attempt{}
	a.admit(secure.(*conn))
	require.IsType(t, &tls.Conn{}, secure.(*conn).Conn)
	require.True(t, a.seal())
	require.NoError(t, secure.Close())

	result := client.Send(t.Context(), Order{Kind: Charge, Key: "key", Request: []byte(body)})
	require.Equal(t, Confirmed, result.Outcome, result.Reason)
	require.Equal(t, body, received.String())
}

// TestCanceledWithAConnectionInHand: the caller gives up after the connection is there and before the first byte. The
// write loop of net/http may be anywhere; what is called not sent never arrives all the same, not even late.
func TestCanceledWithAConnectionInHand(t *testing.T) {
	var arrived sync.Map
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived.Store(r.Header.Get("Idempotency-Key"), true)
		w.WriteHeader(http.StatusInternalServerError)
	}))
	client, err := NewClient(server.URL, 5*time.Second)
	require.NoError(t, err)

	outcomes := map[string]Outcome{}
	for i := range 300 {
		ctx, cancel := context.WithCancel(t.Context())
		giveUp := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
			if i%2 == 0 {
				cancel()
			} else {
				go cancel() // some time later, perhaps in the middle of the write
			}
		}}
		key := fmt.Sprintf("key_%d", i)
		outcomes[key] = client.Send(httptrace.WithClientTrace(ctx, giveUp), Order{Kind: Charge, Key: key, Request: []byte(body)}).Outcome
		cancel()
	}

	server.Close() // waits for every request that did arrive
	for key, outcome := range outcomes {
		_, late := arrived.Load(key)
		require.Contains(t, []Outcome{NotSent, Unknown}, outcome)
		require.False(t, outcome == NotSent && late, "%s was called not sent and arrived", key)
	}
}
