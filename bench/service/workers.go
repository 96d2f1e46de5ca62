package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/paymentsd/paymentsd/internal/broker"
)

// workerRoles run beside the API in production. The program may not have all of them.
var workerRoles = []string{"relay", "consume ledger", "consume receipts", "cleanup", "recover"}

// drainWithin bounds the wait for events that the slice before has left behind.
const drainWithin = 30 * time.Second

// startWorkers starts every worker that the program has, and waits until they have caught up.
func startWorkers(ctx context.Context, b *bench, s *stage) error {
	roles, err := b.w.roles(ctx)
	if err != nil {
		return err
	}
	addr, err := b.w.startBroker(ctx)
	if err != nil {
		return err
	}
	settings := []string{"DATABASE_URL=" + s.db.url, "PAYMENTSD_CLEANUP_INTERVAL=1s", "PAYMENTSD_NATS_URL=nats://" + addr}
	for _, role := range workerRoles {
		if !slices.ContainsFunc(roles, func(r string) bool { return r == role || r == strings.Fields(role)[0] }) {
			b.say("  this program has no %s", role)
			continue
		}
		p, err := b.w.start(ctx, strings.Fields(role), settings...)
		if err != nil {
			return err
		}
		s.workers = append(s.workers, p)
	}
	return s.untilPublished(ctx)
}

// endWorkers notes what was left to do, and ends them.
func endWorkers(ctx context.Context, b *bench, s *stage) error {
	left, err := s.unpublished(ctx)
	s.lag = append(s.lag, left)
	for _, p := range s.workers {
		b.w.end(p)
	}
	s.workers = nil
	return err
}

func (s *stage) hasRelay() bool {
	return slices.ContainsFunc(s.workers, func(p *process) bool { return p.role == "relay" })
}

func (s *stage) unpublished(ctx context.Context) (n int, err error) {
	err = s.db.pool.QueryRow(ctx, "SELECT count(*) FROM outbox_events WHERE published_at IS NULL").Scan(&n)
	return n, err
}

func (s *stage) untilPublished(ctx context.Context) error {
	for end := time.Now().Add(drainWithin); s.hasRelay() && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if left, err := s.unpublished(ctx); err != nil || left == 0 {
			return err
		}
	}
	return nil
}

// startBroker starts a NATS server as a process, once, and returns its address. The process is this program again: the server is
// one of its libraries, and in here it would use the load generator's processor time.
func (w *world) startBroker(ctx context.Context) (string, error) {
	if w.broker != "" {
		return w.broker, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	addr, err := freeAddr()
	if err != nil {
		return "", err
	}
	p := &process{role: "broker", cmd: exec.Command(self, "-broker", addr), ended: make(chan struct{})}
	p.cmd.Dir, p.cmd.Stderr = w.dir, os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // as in start
	if err := p.cmd.Start(); err != nil {
		return "", fmt.Errorf("start broker: %w", err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // it says itself why it ended
	}()
	w.running = append(w.running, p)
	for end := time.Now().Add(readyWithin); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr); err == nil {
			w.broker = addr
			return addr, conn.Close()
		}
	}
	return "", errors.New("start broker: it does not become ready")
}

// beBroker runs a NATS server in the directory nats of the working directory, until the context ends.
func beBroker(ctx context.Context, addr string) error {
	s, err := broker.StartNATS("nats", addr, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	<-ctx.Done()
	s.Stop()
	return nil
}
