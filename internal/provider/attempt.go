package provider

import (
	"errors"
	"net"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
)

// attempt is the record of what one call wrote, and the gate its bytes go through. It turns two hopes about net/http
// into facts:
//
//   - Nothing was written. Error texts do not tell: a dial that failed, a warm connection that was dead on arrival and a
//     reset in the middle of the body look alike from outside. seal does tell, and it also shuts the gate, so that a
//     write loop which is late cannot falsify the statement afterwards.
//   - Nothing is written twice. The gate opens for one connection only. Whatever makes net/http take a second
//     connection for the same call (net/http regards a request with an Idempotency-Key header as safe to repeat), not a
//     byte passes.
//
// HTTP/1.1 gives a connection to one call at a time, which is what makes the bookkeeping per call possible.
type attempt struct {
	// repeatable lets every connection through: a lookup changes nothing, so net/http may ask again.
	repeatable bool

	mu      sync.Mutex
	conn    *conn // the connection that may carry this attempt
	writing int   // writes that have begun and not returned
	written int64 // bytes the connection took
	shut    bool
}

// trace makes net/http tell the attempt which connection carries it.
func (a *attempt) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		a.admit(info.Conn.(*conn)) // the transport has no dialers but ours
	}}
}

// admit binds the connection to the attempt, before the first byte of the request.
func (a *attempt) admit(c *conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conn == nil || a.repeatable {
		a.conn = c
	}
	c.attempt.Store(a)
}

var (
	errGateShut     = errors.New("write to provider: this attempt may no longer write")
	errNoAttempt    = errors.New("write to provider: no attempt owns the connection")
	errSecondSender = errors.New("write to provider: this attempt was already given a connection")
)

// write passes bytes on to the connection if the attempt may still write, and counts them.
func (a *attempt) write(c *conn, p []byte) (int, error) {
	if err := a.beginWrite(c); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(p)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writing--
	a.written += int64(n)
	return n, err
}

func (a *attempt) beginWrite(c *conn) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.shut:
		return errGateShut
	case a.conn != c:
		return errSecondSender
	}
	a.writing++
	return nil
}

// seal shuts the gate and reports whether nothing went through it. A write that has begun and not returned counts as
// something: it may be in the kernel already.
func (a *attempt) seal() (nothingWritten bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.shut = true
	return a.writing == 0 && a.written == 0
}

// conn is a connection whose writes pass the gate of the attempt that owns it. It embeds the interface, not a concrete
// type, so that no faster way around Write (ReadFrom, writev) is visible to net/http.
//
// With TLS it stands above the encryption: bytes of the handshake are no bytes of the request. A write that returns 0
// then means that the first record did not go out whole, and a record that is not whole can be read by nobody.
type conn struct {
	net.Conn
	attempt atomic.Pointer[attempt]
}

func (c *conn) Write(p []byte) (int, error) {
	a := c.attempt.Load()
	if a == nil {
		return 0, errNoAttempt
	}
	return a.write(c, p)
}
