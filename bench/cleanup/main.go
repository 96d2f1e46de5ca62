// Command cleanup measures what cleanup costs the traffic beside it: a million expired keys and some published events
// are cleaned while payments are made, and the latency of the payments is compared with that of the minute before, in one run
// on one machine.
//
//	make bench-cleanup
//
// Real processes: a PostgreSQL with durable settings, the provider, the API, and the cleanup role. The load is open-loop: a
// request is due at its time whether or not the one before it has been answered, and its latency counts from then.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/paymentsd/paymentsd/internal/devpg"
)

func main() {
	bin := flag.String("bin", "bin/paymentsd", "the program to measure")
	rows := flag.Int("rows", 1_000_000, "expired keys")
	events := flag.Int("events", 100_000, "published events")
	rate := flag.Int("rate", 100, "payments a second")
	before := flag.Duration("before", 30*time.Second, "how long to measure without cleanup")
	flag.Parse()
	if err := run(context.Background(), *bin, *rows, *events, *rate, *before); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, bin string, rows, events, rate int, before time.Duration) error {
	dir, err := os.MkdirTemp("", "paymentsd-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	server, err := devpg.Start(ctx, devpg.Config{Dir: filepath.Join(dir, "postgres"), Log: slog.Default()})
	if err != nil {
		return err
	}
	defer func() { _ = server.Stop(ctx) }() // the directory goes with it
	v := &village{bin: bin, env: append(os.Environ(), "DATABASE_URL="+server.URL(), "PAYMENTSD_DATA_DIR="+dir, "PAYMENTSD_LOG_LEVEL=error",
		"PAYMENTSD_PROVIDER_ADDR="+free(), "PAYMENTSD_CLEANUP_INTERVAL=1s")}
	defer v.end()
	if err := v.command("migrate", "--demo").Run(); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	pool, err := pgxpool.New(ctx, server.URL())
	if err != nil {
		return err
	}
	defer pool.Close()
	fmt.Printf("filling %d expired keys and %d published events\n", rows, events)
	if err := fill(ctx, pool, rows, events); err != nil {
		return err
	}
	addr := free()
	for _, start := range []func() error{func() error { return v.start("provider") }, func() error { return v.start("api", "PAYMENTSD_HTTP_ADDR="+addr) }} {
		if err := start(); err != nil {
			return err
		}
	}
	if err := ready("http://" + addr + "/readyz"); err != nil {
		return err
	}

	fmt.Printf("%d payments/s for %v without cleanup\n", rate, before)
	load(addr, "warm", rate, time.After(5*time.Second))
	alone := load(addr, "alone", rate, time.After(before))
	fmt.Println("and now with cleanup, until nothing is left to clean")
	if err := v.start("cleanup"); err != nil {
		return err
	}
	began := time.Now()
	beside := load(addr, "beside", rate, untilClean(ctx, pool))
	took := time.Since(began)

	fmt.Printf("\n| payments | count | failed | p50 | p99 | max |\n|---|---|---|---|---|---|\n")
	alone.print("without cleanup")
	beside.print("beside cleanup")
	fmt.Printf("\ncleaned in %v (%.0f rows/s); p99 beside / without: %.2f (must stay below 2)\n", took.Round(time.Second),
		float64(rows+events)/took.Seconds(), beside.quantile(.99).Seconds()/alone.quantile(.99).Seconds())
	return nil
}

// fill makes the rows that a busy service leaves behind in a day.
func fill(ctx context.Context, pool *pgxpool.Pool, rows, events int) error {
	for sql, n := range map[string]int{
		`INSERT INTO idempotency_requests (tenant_id, operation_name, idempotency_key, request_hash, status, resource_type, resource_id,
			response_schema_version, response_status, response_content_type, response_headers, response_body, created_at, expires_at, cleanup_at)
		SELECT 'acme', 'create_payment', 'old-' || md5(g::text), 'v2:' || repeat(md5(g::text), 2), 'COMPLETED', 'payment', 'pay_' || md5(g::text),
			'2026-05-01', 201, 'application/json', '{"Location":"/payments/pay_0"}', convert_to(repeat('x', 180), 'UTF8'),
			now() - interval '26 h', now() - interval '2 h' + g * interval '1 ms', now() - interval '2 h' + g * interval '1 ms'
		FROM generate_series(1, $1::int) g`: rows,
		`INSERT INTO outbox_events (tenant_id, event_id, aggregate_id, sequence, event_type, payload, created_at, published_at)
		SELECT 'acme', 'evt_' || md5(g::text), 'pay_' || md5(g::text), 1, 'PaymentCreated', '{"amount":"10.00"}', now() - interval '100 h', now() - interval '99 h' + g * interval '1 ms'
		FROM generate_series(1, $1::int) g`: events,
	} {
		if _, err := pool.Exec(ctx, sql, n); err != nil {
			return err
		}
	}
	_, err := pool.Exec(ctx, `VACUUM ANALYZE`)
	if err == nil {
		_, err = pool.Exec(ctx, `CHECKPOINT`)
	}
	return err
}

// untilClean ends when no old row is left.
func untilClean(ctx context.Context, pool *pgxpool.Pool) <-chan time.Time {
	done := make(chan time.Time)
	go func() {
		defer close(done)
		for left := 1; left > 0; time.Sleep(2 * time.Second) {
			err := pool.QueryRow(ctx, `SELECT (SELECT count(*) FROM (SELECT FROM idempotency_requests WHERE cleanup_at <= now() LIMIT 1) k)
				+ (SELECT count(*) FROM (SELECT FROM outbox_events WHERE published_at <= now() - interval '72 h' LIMIT 1) e)`).Scan(&left)
			if err != nil {
				fmt.Fprintln(os.Stderr, "bench:", err)
				return
			}
		}
	}()
	return done
}

// latencies are those of one load.
type latencies struct {
	mu     sync.Mutex
	all    []time.Duration
	failed int
}

// load makes payments at a rate until the end comes.
func load(addr, name string, rate int, end <-chan time.Time) *latencies {
	l := &latencies{}
	var running sync.WaitGroup
	defer running.Wait()
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-end:
			return l
		case due := <-tick.C:
			running.Go(func() { l.pay(addr, fmt.Sprintf("%s-%d", name, n), due) })
		}
	}
}

func (l *latencies) pay(addr, key string, due time.Time) {
	r, err := http.NewRequest("POST", "http://"+addr+"/payments", strings.NewReader(
		`{"accountId":"acc_1","amount":"10.00","currency":"EUR","merchantReference":"`+key+`"}`))
	if err != nil {
		panic(err) // the URL is ours
	}
	r.Header.Set("Authorization", "Bearer sk_demo_acme")
	r.Header.Set("Idempotency-Key", key)
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	took := time.Since(due)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, took)
	if err != nil || answer.StatusCode != http.StatusCreated {
		l.failed++
	}
	if err == nil {
		answer.Body.Close()
	}
}

func (l *latencies) quantile(q float64) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) == 0 {
		return 0
	}
	slices.Sort(l.all)
	return l.all[min(int(q*float64(len(l.all))), len(l.all)-1)]
}

func (l *latencies) print(name string) {
	fmt.Printf("| %s | %d | %d | %v | %v | %v |\n", name, len(l.all), l.failed, l.quantile(.5).Round(10*time.Microsecond),
		l.quantile(.99).Round(10*time.Microsecond), l.quantile(1).Round(10*time.Microsecond))
}

// village is the processes that are measured.
type village struct {
	bin     string
	env     []string
	running []*exec.Cmd
}

func (v *village) command(args ...string) *exec.Cmd {
	c := exec.Command(v.bin, args...)
	c.Env, c.Stderr = v.env, os.Stderr
	return c
}

func (v *village) start(role string, settings ...string) error {
	c := v.command(role)
	c.Env = append(slices.Clone(v.env), append(settings, "PAYMENTSD_ADMIN_ADDR="+free())...)
	v.running = append(v.running, c)
	return c.Start()
}

func (v *village) end() {
	for _, c := range slices.Backward(v.running) {
		_ = c.Process.Signal(syscall.SIGTERM) // it may have ended already
		_ = c.Wait()
	}
}

// free is an address that nobody listens on.
func free() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err) // no loopback, no benchmark
	}
	defer l.Close()
	return l.Addr().String()
}

func ready(url string) error {
	for range 200 {
		if answer, err := http.Get(url); err == nil {
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return nil
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("%s does not become ready", url)
}
