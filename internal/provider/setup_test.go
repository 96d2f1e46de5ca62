package provider_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/money"
	"github.com/paymentsd/paymentsd/internal/provider"
	"github.com/paymentsd/paymentsd/internal/provider/fake"
)

// bench is the real client before the real fake, over TCP, with a wiretap between them.
type bench struct {
	t      *testing.T
	client *provider.Client
	tap    *wiretap
	base   string // the fake itself, for its control API
}

// patience is the client's time-out where a test does not wait for it.
const patience = 10 * time.Second

func setup(t *testing.T, cfg fake.Config, timeout time.Duration) *bench {
	t.Helper()
	base := startFake(t, cfg)
	tap := listenIn(t, strings.TrimPrefix(base, "http://"))
	return &bench{t: t, client: newClient(t, tap.url(), timeout), tap: tap, base: base}
}

func startFake(t *testing.T, cfg fake.Config) (base string) {
	t.Helper()
	cfg.Addr, cfg.Dir = "127.0.0.1:0", t.TempDir()
	server, err := fake.Open(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx) }()
	t.Cleanup(func() {
		require.NoError(t, server.Close())
		cancel()
		require.NoError(t, <-done)
	})
	return "http://" + server.Addr()
}

func newClient(t *testing.T, base string, timeout time.Duration) *provider.Client {
	t.Helper()
	client, err := provider.NewClient(base, timeout)
	require.NoError(t, err)
	return client
}

func charge(t *testing.T, paymentID, amount, currency string) provider.Movement {
	t.Helper()
	c, err := money.ParseCurrency(currency)
	require.NoError(t, err)
	a, err := money.Parse(amount, c)
	require.NoError(t, err)
	return provider.Movement{PaymentID: paymentID, Account: "acc_1", Reference: "inv-" + paymentID, Amount: a}
}

// script puts one fault into the fake's script.
func (b *bench) script(fault map[string]any) {
	b.t.Helper()
	if _, ok := fault["reference"]; !ok {
		fault["reference"] = "*"
	}
	body, err := json.Marshal(fault)
	require.NoError(b.t, err)
	b.control(http.MethodPost, "/control/faults", string(body))
}

func (b *bench) control(method, path, body string) []byte {
	b.t.Helper()
	req, err := http.NewRequest(method, b.base+path, strings.NewReader(body))
	require.NoError(b.t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(b.t, err)
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	require.NoError(b.t, err)
	require.Less(b.t, resp.StatusCode, 300, string(answer))
	return answer
}

type executedCharge struct {
	ID, Reference, Currency, IdempotencyKey string
	AmountMinor                             int64
}

// executed is what the fake really charged for a reference.
func (b *bench) executed(reference string) []executedCharge {
	b.t.Helper()
	var charges []executedCharge
	found := b.control(http.MethodGet, "/control/charges?reference="+url.QueryEscape(reference), "")
	require.NoError(b.t, json.Unmarshal(found, &charges))
	return charges
}

type receivedRequest struct {
	Method, Path, Body string
	Headers            http.Header
}

// received is every request the fake got for a reference.
func (b *bench) received(reference string) []receivedRequest {
	b.t.Helper()
	var requests []receivedRequest
	found := b.control(http.MethodGet, "/control/requests?reference="+url.QueryEscape(reference), "")
	require.NoError(b.t, json.Unmarshal(found, &requests))
	return requests
}

func (b *bench) charge(c provider.Movement) provider.Result {
	return b.client.Send(b.t.Context(), c.Order())
}

func (b *bench) lookup(c provider.Movement) provider.Result {
	return b.client.Lookup(b.t.Context(), c.Order())
}

// wiretap is a TCP proxy that keeps every byte the client wrote. It passes on ends of file and resets as what they are.
type wiretap struct {
	listener net.Listener
	upstream string

	mu   sync.Mutex
	wire bytes.Buffer // of all connections
}

func listenIn(t *testing.T, upstream string) *wiretap {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := &wiretap{listener: listener, upstream: upstream}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go w.pass(client.(*net.TCPConn))
		}
	}()
	return w
}

func (w *wiretap) pass(client *net.TCPConn) {
	defer client.Close()
	dialed, err := net.Dial("tcp", w.upstream)
	if err != nil {
		return
	}
	server := dialed.(*net.TCPConn)
	defer server.Close()
	go func() {
		_, _ = io.Copy(io.MultiWriter(w, server), client)
		_ = server.CloseWrite()
	}()
	_, err = io.Copy(client, server)
	if errors.Is(err, syscall.ECONNRESET) {
		_ = client.SetLinger(0)
	}
}

func (w *wiretap) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.wire.Write(p)
}

func (w *wiretap) url() string { return "http://" + w.listener.Addr().String() }

// text is all the client wrote.
func (w *wiretap) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.wire.String()
}

// posts is how many requests to charge were begun on the wire.
func (w *wiretap) posts() int { return strings.Count(w.text(), "POST /v1/charges HTTP/1.1\r\n") }
