// Command relay measures how fast one relay drains the outbox: it fills a private PostgreSQL with events, two a payment, and
// times how long it takes until the embedded broker has acknowledged all of them and all of them are marked.
//
//	go run ./bench/relay
//
// Everything is as it is in production but for the distance: a PostgreSQL with durable settings, a broker that writes to the
// disk before it acknowledges, one process for relay and broker. They share the machine.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/paymentsd/paymentsd/internal/broker"
	"github.com/paymentsd/paymentsd/internal/devpg"
	"github.com/paymentsd/paymentsd/internal/outbox"
	"github.com/paymentsd/paymentsd/migrations"
)

func main() {
	n := flag.Int("events", 100_000, "events to publish")
	rounds := flag.Int("rounds", 3, "how often to do it; the first finds everything cold")
	profile := flag.String("cpuprofile", "", "write a CPU profile of this process to a file")
	flag.Parse()
	if err := run(context.Background(), *n, *rounds, *profile); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, n, rounds int, profile string) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	dir, err := os.MkdirTemp("", "paymentsd-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	postgres, err := devpg.Start(ctx, devpg.Config{Dir: filepath.Join(dir, "postgres"), Log: log})
	if err != nil {
		return err
	}
	defer func() { _ = postgres.Stop(ctx) }() // the directory goes with it
	if err := migrations.Up(ctx, postgres.URL()); err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, postgres.URL())
	if err != nil {
		return err
	}
	defer pool.Close()
	nats, err := broker.StartNATS(filepath.Join(dir, "nats"), "127.0.0.1:0", log)
	if err != nil {
		return err
	}
	defer nats.Stop()
	b, err := broker.Open(broker.Config{Kind: "nats", NATSURL: nats.URL(), Log: log})
	if err != nil {
		return err
	}
	defer b.Close()
	if profile != "" {
		f, err := os.Create(profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	fmt.Printf("| round | events | seconds | events/s | processor seconds of relay and broker |\n|---|---|---|---|---|\n")
	for round := range rounds {
		if err := fill(ctx, pool, round, n); err != nil {
			return err
		}
		before := processor()
		took, err := drain(ctx, pool, b.Publisher(), n, log)
		if err != nil {
			return err
		}
		fmt.Printf("| %d | %d | %.2f | %.0f | %.2f |\n", round+1, n, took.Seconds(), float64(n)/took.Seconds(), (processor() - before).Seconds())
	}
	return nil
}

// fill commits what a busy service leaves when its relay was away: of every payment that it was created and that it settled.
func fill(ctx context.Context, pool *pgxpool.Pool, round, n int) error {
	_, err := pool.Exec(ctx, `INSERT INTO outbox_events (tenant_id, event_id, aggregate_id, sequence, event_type, payload)
		SELECT 'acme', 'evt_' || e, 'pay_' || p, s, t, json_build_object('eventId', 'evt_' || e, 'type', t, 'paymentId', 'pay_' || p, 'accountId', 'acc_1',
			'amount', '10.00', 'currency', 'EUR', 'merchantReference', 'inv-' || g, 'occurredAt', '2026-01-01T00:00:00.123456Z', 'sequence', s)
		FROM (SELECT g, md5($1 || 'e' || g) AS e, md5($1 || 'p' || g / 2) AS p, g % 2 + 1 AS s,
		             CASE g % 2 WHEN 0 THEN 'PaymentCreated' ELSE 'PaymentSettled' END AS t
		      FROM generate_series(0, $2::int - 1) g) events ORDER BY g`, fmt.Sprint(round), n)
	if err == nil {
		_, err = pool.Exec(ctx, `VACUUM ANALYZE outbox_events`)
	}
	if err == nil {
		_, err = pool.Exec(ctx, `CHECKPOINT`)
	}
	return err
}

// counting counts what the broker acknowledged.
type counting struct {
	outbox.Publisher
	acked atomic.Int64
}

func (c *counting) Publish(ctx context.Context, wave []outbox.Recorded) []error {
	errs := c.Publisher.Publish(ctx, wave)
	for _, err := range errs {
		if err == nil {
			c.acked.Add(1)
		}
	}
	return errs
}

// drain runs a relay until everything is published and marked.
func drain(ctx context.Context, pool *pgxpool.Pool, to outbox.Publisher, n int, log *slog.Logger) (time.Duration, error) {
	c := &counting{Publisher: to}
	relay := outbox.NewRelay(pool, c, outbox.RelayConfig{Interval: time.Second, LeaseFor: 10 * time.Second, Log: log})
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	began := time.Now()
	running.Go(func() { relay.Run(ctx) })
	for c.acked.Load() < int64(n) {
		time.Sleep(time.Millisecond)
	}
	stop()
	running.Wait() // the last marks are in it
	took := time.Since(began)
	backlog, err := outbox.Unpublished(context.WithoutCancel(ctx), pool)
	if err == nil && (backlog.Events != 0 || c.acked.Load() != int64(n)) {
		err = fmt.Errorf("%d events, %d acknowledged, %d not marked", n, c.acked.Load(), backlog.Events)
	}
	return took, err
}

// processor is the time that this process has used the processor.
func processor() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
