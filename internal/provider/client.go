package provider

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"syscall"
	"time"
)

const (
	// idleConnsMax is how many warm connections are kept. The service is built for 1,000 requests in flight; with fewer
	// kept connections than that, each wave would dial anew what the last wave closed.
	idleConnsMax = 1024

	// idleConnFor closes an idle connection before the provider does. A server that closes just as we write leaves an
	// unknown outcome behind, so we go first: 5 s is the shortest keep-alive in common use (the default of Node.js).
	idleConnFor = 4 * time.Second
)

// Client is the provider over HTTP. It is safe for concurrent use.
type Client struct {
	routes    map[Kind]*url.URL
	timeout   time.Duration
	transport *http.Transport
}

var _ Provider = (*Client)(nil)

// NewClient makes a client of the provider at baseURL (http or https, optionally with a path, never with credentials).
// The timeout covers a whole exchange, from the dial to the last byte of the answer.
func NewClient(baseURL string, timeout time.Duration) (*Client, error) {
	u, err := url.Parse(baseURL)
	switch {
	case err != nil:
		return nil, errors.New("provider URL cannot be parsed") // the parser's error repeats the URL, which may hold a secret
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return nil, errors.New("provider URL must look like http://host:port")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("provider URL must have no credentials, no query and no fragment")
	case timeout <= 0:
		return nil, errors.New("provider timeout must be greater than zero")
	}
	if u.Path == "" {
		u.Path = "/" // JoinPath would leave the request line without a leading slash
	}
	return &Client{
		routes:    map[Kind]*url.URL{Charge: u.JoinPath("v1", "charges"), Refund: u.JoinPath("v1", "refunds")},
		timeout:   timeout,
		transport: newTransport(timeout, &tls.Config{MinVersion: tls.VersionTLS12}),
	}, nil
}

// newTransport switches off everything in net/http that repeats, redirects or transforms a request. Redirects and
// cookies are the business of http.Client, which is not used at all: a RoundTripper performs one exchange.
func newTransport(timeout time.Duration, tlsConfig *tls.Config) *http.Transport {
	dialer := &net.Dialer{Timeout: timeout} // net/http lets a dial run on after its request has given up
	return &http.Transport{
		DialContext:            dialPlain(dialer),
		DialTLSContext:         dialTLS(dialer, tlsConfig),
		Proxy:                  nil, // HTTP_PROXY would put a stranger between us and the provider, with rules of its own on repeating
		DisableCompression:     true,
		ForceAttemptHTTP2:      false, // HTTP/2 shares a connection among calls and repeats refused streams by itself
		TLSNextProto:           map[string]func(string, *tls.Conn) http.RoundTripper{},
		MaxConnsPerHost:        0, // no queue in here: the number of calls in flight is bounded where requests come in
		MaxIdleConns:           idleConnsMax,
		MaxIdleConnsPerHost:    idleConnsMax,
		IdleConnTimeout:        idleConnFor,
		MaxResponseHeaderBytes: answerBytesMax,
	}
}

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

func dialPlain(dialer *net.Dialer) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		raw, err := dialer.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &conn{Conn: raw}, nil
	}
}

// dialTLS shakes hands here, and not in net/http, so that the gate stands above the encryption (see conn).
func dialTLS(dialer *net.Dialer, config *tls.Config) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, dialer.Timeout)
		defer cancel()
		raw, err := dialer.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		config := config.Clone()
		config.ServerName, _, _ = net.SplitHostPort(addr) // net/http always gives host:port
		secure := tls.Client(raw, config)
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = raw.Close() // the handshake's error is the one that matters
			return nil, &handshakeError{err}
		}
		return &conn{Conn: secure}, nil
	}
}

type handshakeError struct{ err error }

func (e *handshakeError) Error() string { return "TLS handshake with provider: " + e.err.Error() }
func (e *handshakeError) Unwrap() error { return e.err }

// Send sends the order, at most once.
func (c *Client) Send(ctx context.Context, o Order) Result {
	want, err := decodeRequest(o.Request)
	if err != nil {
		return notSent("request_unreadable")
	}
	a := &attempt{}
	got, err := c.exchange(ctx, a, newSendRequest(c.routes[o.Kind], o))
	switch {
	case err == nil:
		return judgeSend(got, o.Key, want)
	case a.seal():
		return notSent(reasonOf(err))
	default:
		return unknown(reasonOf(err))
	}
}

// Lookup asks what became of the order.
func (c *Client) Lookup(ctx context.Context, o Order) Result {
	want, err := decodeRequest(o.Request)
	if err != nil {
		return unknown("request_unreadable")
	}
	got, err := c.exchange(ctx, &attempt{repeatable: true}, newLookupRequest(c.routes[o.Kind], o.Key))
	if err != nil {
		return unknown(reasonOf(err))
	}
	return judgeLookup(got, o.Key, want)
}

// newSendRequest makes a POST that net/http cannot repeat: its body can be read once, and GetBody, which would give a
// second one, is nil. With GetBody, http.NewRequest's default for bytes, the mere presence of the header
// Idempotency-Key would make it repeatable (Request.isReplayable, golang.org/issue/19943).
func newSendRequest(route *url.URL, o Order) *http.Request {
	return &http.Request{
		Method:        http.MethodPost,
		URL:           route,
		Header:        header("Idempotency-Key", o.Key, "Content-Type", "application/json"),
		Body:          io.NopCloser(bytes.NewReader(o.Request)),
		ContentLength: int64(len(o.Request)),
		GetBody:       nil,
	}
}

func newLookupRequest(route *url.URL, key string) *http.Request {
	u := *route
	u.RawQuery = url.Values{"idempotency_key": {key}}.Encode()
	return &http.Request{Method: http.MethodGet, URL: &u, Header: header()}
}

func header(namesAndValues ...string) http.Header {
	h := http.Header{"Accept": {"application/json"}, "User-Agent": {"paymentsd"}}
	for i := 0; i < len(namesAndValues); i += 2 {
		h.Set(namesAndValues[i], namesAndValues[i+1])
	}
	return h
}

// exchange sends the request and reads the answer, within the client's timeout. It returns an error exactly when not
// even the head of an answer arrived.
func (c *Client) exchange(ctx context.Context, a *attempt, req *http.Request) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	resp, err := c.transport.RoundTrip(req.WithContext(httptrace.WithClientTrace(ctx, a.trace())))
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	return readAnswer(resp), nil
}

// reasonOf names an error for logs and metrics. No outcome depends on it.
func reasonOf(err error) string {
	var (
		dnsErr       *net.DNSError
		handshakeErr *handshakeError
		netErr       net.Error
	)
	switch {
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.As(err, &dnsErr):
		return "dns"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &netErr) && netErr.Timeout():
		return "timeout" // also in the middle of a handshake
	case errors.As(err, &handshakeErr):
		return "tls"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "reset"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "truncated"
	case errors.Is(err, errAnswerTooLarge):
		return "too_large"
	default:
		return "lost" // the connection ended without an answer
	}
}
