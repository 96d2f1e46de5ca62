package pgtest

import (
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// Proxy stands between a client and PostgreSQL and loses what it is told to lose. It reads the protocol, so a cut falls
// between the server's work and the client's knowledge of it, not somewhere in a packet.
type Proxy struct {
	network, upstream string // where PostgreSQL is
	addr              string // where we listen; stays the same over Down and Up
	url               string
	requests          atomic.Int64

	mu       sync.Mutex
	listener net.Listener
	links    map[*link]struct{}
	cuts     []*Cut
	group    sync.WaitGroup
}

// Request is one round trip that executes something: the statements a client sends up to the point where it waits for
// the server. Preparing statements and pinging are not requests.
type Request struct {
	SQL []string // prepared statements by their text
}

// Match chooses a request.
type Match func(Request) bool

// Containing matches a request with the text in any of its statements, letter case aside.
func Containing(text string) Match {
	return func(r Request) bool {
		return strings.Contains(strings.ToLower(strings.Join(r.SQL, "\n")), strings.ToLower(text))
	}
}

// Cut is one planned loss. It happens once.
type Cut struct {
	match   []Match
	before  bool // before the server sees the request; else after it answered
	done    chan struct{}
	doneNow sync.Once
}

// Done is closed when the loss has happened.
func (c *Cut) Done() <-chan struct{} { return c.done }

// Fired reports whether the loss has happened: a test that plans one should require it.
func (c *Cut) Fired() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

func (c *Cut) fire() { c.doneNow.Do(func() { close(c.done) }) }

func (c *Cut) matches(r Request) bool {
	for _, m := range c.match {
		if !m(r) {
			return false
		}
	}
	return true
}

// NewProxy listens on a free port of 127.0.0.1 until the test ends. The connection to PostgreSQL is not encrypted.
func NewProxy(t testing.TB, upstreamURL string) *Proxy {
	t.Helper()
	cfg, err := pgx.ParseConfig(upstreamURL)
	require.NoError(t, err)
	p := &Proxy{links: make(map[*link]struct{})}
	p.network, p.upstream = pgconn.NetworkAddress(cfg.Host, cfg.Port)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	p.addr = l.Addr().String()
	u, err := url.Parse(upstreamURL)
	require.NoError(t, err)
	u.Host = p.addr
	query := u.Query()
	query.Del("host") // a socket directory would win over the address
	query.Set("sslmode", "disable")
	u.RawQuery = query.Encode()
	p.url = u.String()
	p.serve(l)
	t.Cleanup(p.Down)
	return p
}

// URL is the upstream database through the proxy.
func (p *Proxy) URL() string { return p.url }

// Requests counts the requests seen so far; see Request for what counts.
func (p *Proxy) Requests() int64 { return p.requests.Load() }

// DropNextReply plans to lose the answer to the next request that every match accepts: PostgreSQL executes it and has
// answered, then the client's connection closes without a byte of the answer.
func (p *Proxy) DropNextReply(match ...Match) *Cut { return p.plan(false, match) }

// DropNextRequest plans to close the connection instead of passing on the next request that every match accepts.
func (p *Proxy) DropNextRequest(match ...Match) *Cut { return p.plan(true, match) }

func (p *Proxy) plan(before bool, match []Match) *Cut {
	c := &Cut{match: match, before: before, done: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cuts = append(p.cuts, c)
	return c
}

// take returns the first planned cut for this request, which is then no longer planned.
func (p *Proxy) take(r Request) *Cut {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, c := range p.cuts {
		if c.matches(r) {
			p.cuts = append(p.cuts[:i:i], p.cuts[i+1:]...)
			return c
		}
	}
	return nil
}

// Down cuts every connection and refuses new ones. It returns when nothing of the proxy is running.
func (p *Proxy) Down() {
	p.mu.Lock()
	if p.listener != nil {
		p.listener.Close()
		p.listener = nil
	}
	for l := range p.links {
		l.close()
	}
	p.mu.Unlock()
	p.group.Wait()
}

// Up ends Down.
func (p *Proxy) Up(t testing.TB) {
	t.Helper()
	l, err := net.Listen("tcp4", p.addr)
	require.NoError(t, err)
	p.serve(l)
}

func (p *Proxy) serve(l net.Listener) {
	p.mu.Lock()
	p.listener = l
	p.mu.Unlock()
	p.group.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // closed by Down
			}
			p.group.Go(func() { p.carry(l, client) })
		}
	})
}

// carry runs one client's connection to its end.
func (p *Proxy) carry(accepted net.Listener, client net.Conn) {
	server, err := net.Dial(p.network, p.upstream)
	if err != nil {
		client.Close()
		return
	}
	l := &link{proxy: p, client: client, server: server, statements: map[string]string{}, portals: map[string]string{}}
	p.mu.Lock()
	if p.listener != accepted { // Down came between
		p.mu.Unlock()
		l.close()
		return
	}
	p.links[l] = struct{}{}
	p.mu.Unlock()
	defer func() {
		l.close()
		p.mu.Lock()
		delete(p.links, l)
		p.mu.Unlock()
	}()
	if err := l.startup(); err != nil {
		return
	}
	replies := make(chan struct{})
	go func() {
		defer close(replies)
		defer l.close()
		l.carryReplies()
	}()
	l.carryRequests()
	if !l.losesReply() { // the reply that is to be lost must still be seen to come
		l.close()
	}
	<-replies
}

var errCancelRequest = errors.New("a cancel request, which is all there is on its connection")

// startup passes on what comes before the first typed message. Encryption is declined, as a server without a
// certificate does.
func (l *link) startup() error {
	const (
		cancelRequest = 80877102
		sslRequest    = 80877103
		gssRequest    = 80877104
	)
	for {
		message, err := readUntyped(l.client)
		if err != nil {
			return err
		}
		switch code := int32At(message, 4); code {
		case sslRequest, gssRequest:
			if _, err := l.client.Write([]byte{'N'}); err != nil {
				return err
			}
		case cancelRequest:
			if _, err := l.server.Write(message); err != nil {
				return err
			}
			_, _ = io.Copy(io.Discard, l.server) //nolint:errcheck // the server closes when it has seen it
			return errCancelRequest
		default:
			_, err := l.server.Write(message)
			return err
		}
	}
}
