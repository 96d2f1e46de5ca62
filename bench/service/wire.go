package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"regexp"
	"sync"
)

// wire stands between the service and PostgreSQL and counts round trips: each time the client has sent something to execute
// and waits for the server. Preparing a statement, which happens once a connection, and the pool's pings do not count.
//
// It reads the messages of the frontend/backend protocol, version 3, in the direction of the server only; answers are copied
// as they come.
type wire struct {
	listener net.Listener
	upstream string
	url      string
	group    sync.WaitGroup

	mu    sync.Mutex
	open  map[net.Conn]bool
	trips map[string]int // by the name of the first statement in it
}

// seen gives the round trips so far.
func (w *wire) seen() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.trips)
}

func (w *wire) count(statement string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trips[statement]++
}

// openWire listens for connections to the database of the URL.
func openWire(databaseURL string) (*wire, error) {
	u, err := url.Parse(databaseURL)
	if err != nil {
		return nil, fmt.Errorf("open wire: %w", err)
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	w := &wire{upstream: u.Host, open: map[net.Conn]bool{}, trips: map[string]int{}}
	if w.listener, err = net.Listen("tcp", addr); err != nil {
		return nil, fmt.Errorf("open wire: %w", err)
	}
	u.Host = addr
	w.url = u.String()
	w.group.Go(w.serve)
	return w, nil
}

// close cuts every connection and returns when nothing is running any more.
func (w *wire) close() {
	w.listener.Close()
	w.mu.Lock()
	for c := range w.open {
		c.Close()
	}
	w.mu.Unlock()
	w.group.Wait()
}

func (w *wire) serve() {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return // closed
		}
		w.group.Go(func() { w.carry(client) })
	}
}

func (w *wire) carry(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", w.upstream)
	if err != nil {
		return // the client sees its connection end
	}
	defer server.Close()
	w.mu.Lock()
	w.open[client], w.open[server] = true, true
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		delete(w.open, client)
		delete(w.open, server)
		w.mu.Unlock()
	}()
	w.group.Go(func() {
		_, _ = io.Copy(client, server) // either end has closed, and so closes the other
		client.Close()
	})
	_ = w.countTo(server, client) // as above
}

// messageBytesMax is what a server accepts; more is not the protocol.
const messageBytesMax = 1 << 30

// countTo copies what the client sends, message by message. Everything that has arrived together is passed on together.
func (w *wire) countTo(server io.Writer, client io.Reader) error {
	if err := passStartup(server, client); err != nil {
		return err
	}
	trip := trip{names: map[string]string{}}
	buffer, used := make([]byte, 64<<10), 0
	for {
		if used == len(buffer) {
			buffer = append(buffer, make([]byte, len(buffer))...)
		}
		n, err := client.Read(buffer[used:])
		if err != nil {
			return err
		}
		used += n
		whole := 0
		for used-whole >= 5 {
			size := int(binary.BigEndian.Uint32(buffer[whole+1:])) + 1
			if size < 5 || size > messageBytesMax {
				return errors.New("read message: not the PostgreSQL protocol")
			}
			if used-whole < size {
				break
			}
			if statement := trip.follow(buffer[whole], buffer[whole+5:whole+size]); statement != "" {
				w.count(statement)
			}
			whole += size
		}
		if _, err := server.Write(buffer[:whole]); err != nil {
			return err
		}
		used = copy(buffer, buffer[whole:used])
	}
}

// trip is one round trip of one connection, as far as it has been seen.
type trip struct {
	names   map[string]string // of prepared statements, by the client's name for them
	first   string            // the first statement that is bound in it
	execute bool
}

// follow takes the next message. It returns the name of the trip's first statement when the trip is complete.
func (t *trip) follow(kind byte, message []byte) string {
	switch kind {
	case 'P': // Parse: the client's name, the text
		name, rest, _ := bytes.Cut(message, []byte{0})
		text, _, _ := bytes.Cut(rest, []byte{0})
		t.names[string(name)] = statementName(text)
	case 'B': // Bind: a portal, the client's name of the statement
		_, rest, _ := bytes.Cut(message, []byte{0})
		name, _, _ := bytes.Cut(rest, []byte{0})
		if t.first == "" {
			t.first = t.names[string(name)]
		}
	case 'E': // Execute
		t.execute = true
	case 'S': // Sync
		done := *t
		t.first, t.execute = "", false
		if done.execute {
			return done.first
		}
	case 'Q': // a query without parameters
		if !bytes.HasPrefix(message, []byte("-- ping")) {
			return statementName(bytes.TrimRight(message, "\x00"))
		}
	}
	return ""
}

var sqlcName = regexp.MustCompile(`^-- name: (\w+)`)

// statementName is the name that a query file gives the statement, or else how it begins.
func statementName(text []byte) string {
	if m := sqlcName.FindSubmatch(text); m != nil {
		return string(m[1])
	}
	return "(" + string(bytes.TrimSpace(text[:min(len(text), 20)])) + ")"
}

// passStartup passes on the one message that has no type. The URLs of this program ask for no encryption.
func passStartup(server io.Writer, client io.Reader) error {
	var size [4]byte
	if _, err := io.ReadFull(client, size[:]); err != nil {
		return err
	}
	rest := int64(binary.BigEndian.Uint32(size[:])) - 4
	if rest < 4 || rest > 10_000 { // the server's own limit
		return errors.New("read startup message: not the PostgreSQL protocol")
	}
	if _, err := server.Write(size[:]); err != nil {
		return err
	}
	_, err := io.CopyN(server, client, rest)
	return err
}
