package pgtest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
)

// link is one client's connection through the proxy. The numbers of rounds tie replies to requests: PostgreSQL ends each
// with one ReadyForQuery, the first of them for the start-up.
type link struct {
	proxy          *Proxy
	client, server net.Conn

	// Known to carryRequests alone.
	statements map[string]string // prepared statement name → text
	portals    map[string]string // portal name → text
	round      []string          // statements executed since the last round ended
	sent       int               // rounds passed on, without the start-up

	mu        sync.Mutex
	cut       *Cut // loses the reply to round cutRound
	cutRound  int
	closeOnce sync.Once
}

func (l *link) close() {
	l.closeOnce.Do(func() {
		l.client.Close()
		l.server.Close()
	})
}

// losesReply reports whether a reply is to be lost on this link.
func (l *link) losesReply() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cut != nil
}

// carryRequests passes on what the client sends, one round at a time, so that a round can be lost whole.
func (l *link) carryRequests() {
	var held []byte
	for {
		message, err := readTyped(l.client)
		if err != nil {
			return
		}
		held = append(held, message...)
		l.note(message)
		if !endsRound(message[0]) && !mustPass(message[0]) {
			continue
		}
		if endsRound(message[0]) {
			if cut := l.decide(); cut != nil && cut.before {
				cut.fire()
				return
			}
		}
		if _, err := l.server.Write(held); err != nil {
			return
		}
		held = held[:0]
	}
}

// decide ends a round. A cut of its reply is in place before the server sees the request.
func (l *link) decide() *Cut {
	request := Request{SQL: l.round}
	l.round = nil
	l.sent++
	if len(request.SQL) == 0 {
		return nil
	}
	l.proxy.requests.Add(1)
	cut := l.proxy.take(request)
	if cut != nil && !cut.before {
		l.mu.Lock()
		l.cut, l.cutRound = cut, l.sent+1 // after the start-up's
		l.mu.Unlock()
	}
	return cut
}

// carryReplies passes on what the server sends, up to the reply that is to be lost.
func (l *link) carryReplies() {
	answered := 0
	for {
		message, err := readTyped(l.server)
		l.mu.Lock()
		cut, lost := l.cut, l.cut != nil && answered+1 == l.cutRound
		l.mu.Unlock()
		if err != nil {
			if lost {
				cut.fire() // the server went down with its answer
			}
			return
		}
		if message[0] == 'Z' { // ReadyForQuery
			answered++
			if lost {
				cut.fire()
				return
			}
		}
		if lost {
			continue
		}
		if _, err := l.client.Write(message); err != nil && cut == nil {
			return
		}
	}
}

// note remembers what a message prepares, binds and executes.
func (l *link) note(message []byte) {
	body := message[5:]
	switch message[0] {
	case 'Q': // Query
		text, _ := cutString(body)
		l.execute(text)
	case 'P': // Parse: statement, text
		name, rest := cutString(body)
		l.statements[name], _ = cutString(rest)
	case 'B': // Bind: portal, statement
		portal, rest := cutString(body)
		name, _ := cutString(rest)
		l.portals[portal] = l.statements[name]
	case 'E': // Execute: portal
		portal, _ := cutString(body)
		l.execute(l.portals[portal])
	}
}

// execute counts a statement, unless it does nothing: pools ping with a comment.
func (l *link) execute(text string) {
	text = strings.TrimSpace(text)
	if text == "" || strings.HasPrefix(text, "--") && !strings.Contains(text, "\n") {
		return
	}
	l.round = append(l.round, text)
}

// endsRound: after Query, Sync or FunctionCall the server answers with ReadyForQuery.
func endsRound(kind byte) bool { return kind == 'Q' || kind == 'S' || kind == 'F' }

// mustPass: Flush, COPY data, passwords and Terminate get an answer, or none, without a round ending.
func mustPass(kind byte) bool { return strings.IndexByte("HdcfpX", kind) >= 0 }

func cutString(b []byte) (string, []byte) {
	text, rest, _ := bytes.Cut(b, []byte{0})
	return string(text), rest
}

// messageBytesMax is far above what tests send and stops a reader that lost its place in the stream.
const messageBytesMax = 64 << 20

// readUntyped reads a start-up message: length, content.
func readUntyped(r io.Reader) ([]byte, error) { return readMessage(r, 0) }

// readTyped reads any later message: type, length, content.
func readTyped(r io.Reader) ([]byte, error) { return readMessage(r, 1) }

func readMessage(r io.Reader, typeBytes int) ([]byte, error) {
	head := make([]byte, typeBytes+4)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	length := int(int32At(head, typeBytes)) // counts itself, not the type
	if length < 4 || length > messageBytesMax || typeBytes == 0 && length < 8 {
		return nil, fmt.Errorf("not a message: length %d", length)
	}
	message := make([]byte, typeBytes+length)
	copy(message, head)
	_, err := io.ReadFull(r, message[len(head):])
	return message, err
}

func int32At(b []byte, at int) int32 { return int32(binary.BigEndian.Uint32(b[at:])) }
