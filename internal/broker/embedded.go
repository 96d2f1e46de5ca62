package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	// embeddedReadyFor is what reading a long stream back from the disk may take.
	embeddedReadyFor = 30 * time.Second
	// embeddedPayloadMax is a thousand times an event of ours.
	embeddedPayloadMax = 1 << 20
)

// Server is a NATS server inside this process.
type Server struct {
	server *server.Server
	lock   *os.File
}

// StartNATS starts a server that keeps its streams in a directory, and returns when it can be used. It writes to the disk
// before it acknowledges: the relay forgets an event at the acknowledgement, so one that only a cache had would be lost with
// the power. With atomic batches that costs nothing that can be measured (docs/decisions/0013).
func StartNATS(dir, addr string, log *slog.Logger) (*Server, error) {
	host, port, err := splitAddr(addr)
	if err != nil {
		return nil, fmt.Errorf("start NATS: %w", err)
	}
	lock, err := ownDir(dir)
	if err != nil {
		return nil, fmt.Errorf("start NATS: %w", err)
	}
	said := &serverLog{log: log}
	s, err := server.NewServer(&server.Options{
		ServerName: "paymentsd", Host: host, Port: port, NoSigs: true, MaxPayload: embeddedPayloadMax,
		JetStream: true, StoreDir: dir, SyncAlways: true,
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start NATS: %w", err), lock.Close())
	}
	s.SetLoggerV2(said, false, false, false)
	go s.Start()
	if !s.ReadyForConnections(embeddedReadyFor) || !s.JetStreamEnabled() {
		s.Shutdown()
		return nil, errors.Join(fmt.Errorf("start NATS at %s with %s: %s", addr, dir, said.worst()), lock.Close())
	}
	return &Server{s, lock}, nil
}

// URL is where clients find the server.
func (s *Server) URL() string { return s.server.ClientURL() }

// Stop ends the server when everything it acknowledged is on the disk.
func (s *Server) Stop() {
	s.server.Shutdown()
	s.server.WaitForShutdown()
	s.lock.Close() // gives the directory back
}

// splitAddr also finds out whether the address can be listened at: the server's own words about that are for a log.
func splitAddr(addr string) (host string, port int, err error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", 0, err
	}
	defer l.Close()
	host, _, err = net.SplitHostPort(addr)
	if err != nil {
		return "", 0, err
	}
	return host, l.Addr().(*net.TCPAddr).Port, nil
}

// ownDir takes the directory for this process; the kernel gives it back when the process dies. Two servers in one directory
// would destroy it.
func ownDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%s belongs to another process: %w", dir, err), f.Close())
	}
	return f, nil
}

// serverLog carries the server's log into ours, and remembers the last bad thing it said.
type serverLog struct {
	log *slog.Logger

	mu  sync.Mutex
	bad string
}

func (l *serverLog) say(level slog.Level, format string, args []any) {
	text := fmt.Sprintf(format, args...)
	if level == slog.LevelError {
		l.mu.Lock()
		l.bad = text
		l.mu.Unlock()
	}
	l.log.Log(context.Background(), level, "NATS: "+text)
}

func (l *serverLog) worst() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bad == "" {
		return "not ready after " + strconv.Itoa(int(embeddedReadyFor.Seconds())) + " s"
	}
	return l.bad
}

func (l *serverLog) Noticef(format string, v ...any) { l.say(slog.LevelDebug, format, v) }
func (l *serverLog) Warnf(format string, v ...any)   { l.say(slog.LevelWarn, format, v) }
func (l *serverLog) Errorf(format string, v ...any)  { l.say(slog.LevelError, format, v) }
func (l *serverLog) Fatalf(format string, v ...any)  { l.say(slog.LevelError, format, v) }
func (l *serverLog) Debugf(format string, v ...any)  { l.say(slog.LevelDebug, format, v) }
func (l *serverLog) Tracef(format string, v ...any)  { l.say(slog.LevelDebug, format, v) }
