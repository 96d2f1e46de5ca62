// Command service measures the service against the floor: what PostgreSQL does for the same writes when pgbench sends them.
//
//	make bench                          everything, in rounds; half an hour
//	make bench ARGS='-short'            only the counts, against their limits; a minute, for CI
//	make bench ARGS='-scenarios settled -rounds 3'
//	make bench ARGS=-json               ends with everything as one line of JSON, to compare commits
//
// A setting of PostgreSQL or of the service is tried through the environment: PGOPTIONS='-c jit=off' or PAYMENTSD_DB_MAX_CONNS=8 reach
// the service and not the floor.
//
// Everything runs as processes of its own: a PostgreSQL with its default durable settings, the provider, over HTTP, and the service.
// Absolute figures move by a factor of two within a day, so what counts is:
//
//   - counts over fixed work: round trips, commits, WAL records and bytes, processor time, allocations, each of one operation;
//   - the median of ratios: floor and scenarios take turns in slices of some seconds, and each round gives one ratio.
//
// Every answer is checked. In the end the database must hold as many settled payments as clients were told of, and the provider
// must have charged as often.
//
// How to read it: scenarios.go says what is measured, requests.go what is sent and what must be answered, rounds.go how floor and
// scenarios take turns, counts.go what is counted; the rest is meters (procs.go, wire.go, wal.go) and tables (report.go, bar.go).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/paymentsd/paymentsd/bench/floor"
)

// options are what the command line says.
type options struct {
	bin       string
	short     bool
	json      bool
	rounds    int
	slice     time.Duration
	scenarios string
	tenants   int
	filled    int
	profile   string
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin/paymentsd", "the program to measure")
	flag.BoolVar(&o.short, "short", false, "count only, and compare with the limits")
	flag.BoolVar(&o.json, "json", false, "end with all figures as one line of JSON")
	flag.IntVar(&o.rounds, "rounds", 10, "rounds of slices; fewer than 10 say little")
	flag.DurationVar(&o.slice, "slice", 5*time.Second, "length of a slice, 1 s to 20 s")
	flag.StringVar(&o.scenarios, "scenarios", "", "names or beginnings of names, separated by commas; empty: all")
	flag.IntVar(&o.tenants, "tenants", 20, "tenants of the scenario with many of them")
	flag.IntVar(&o.filled, "filled", 10_000_000, "keys, payments and events that the filled tables hold")
	flag.StringVar(&o.profile, "profile", "", "file for a processor profile of the service under 64 clients")
	broker := flag.String("broker", "", "be the broker of a run, at this address; the benchmark starts itself so")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	run := measure
	if *broker != "" {
		run = func(ctx context.Context, _ options) error { return beBroker(ctx, *broker) }
	}
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is one run.
type bench struct {
	options
	w         *world
	floor     *floor.Bench // nil: there is no pgbench
	client    *http.Client
	began     time.Time
	settled   map[string]int // by database: payments and refunds that clients were told have settled
	uncharged int            // of those, how many were made by filling tables, not by paying
	problems  []string       // what makes the figures worthless
}

func measure(ctx context.Context, o options) (err error) {
	chosen, err := choose(o)
	if err != nil {
		return err
	}
	b := &bench{options: o, client: newClient(), began: time.Now(), settled: map[string]int{}}
	b.say("starting PostgreSQL and the provider")
	if b.w, err = openWorld(ctx, o.bin, o.tenants); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.w.close()) }()
	if err := b.openFloor(ctx); err != nil {
		return err
	}
	r := results{Program: programVersion(o.bin), Floor: b.floor != nil, RatioToFloor: none}
	if r.Counts, err = b.count(ctx); err != nil {
		return err
	}
	if !o.short {
		if err := b.inRounds(ctx, chosen, &r); err != nil {
			return err
		}
	}
	if o.profile != "" {
		if err := b.takeProfile(ctx); err != nil {
			return err
		}
	}
	if err := b.audit(ctx); err != nil {
		return err
	}
	r.Problems = b.problems
	if o.short {
		r.Problems = append(r.Problems, broken(r.Counts)...)
	}
	if err := r.print(os.Stdout, o); err != nil {
		return err
	}
	if len(r.Problems) > 0 {
		return errors.New(strings.Join(r.Problems, "\nbench: "))
	}
	return nil
}

// openFloor prepares pgbench. Without it there is no floor, and no ratio.
func (b *bench) openFloor(ctx context.Context) error {
	url, err := b.w.createDatabase(ctx, "floor")
	if err != nil {
		return err
	}
	b.floor, err = floor.Open(ctx, b.w.tools, url)
	if errors.Is(err, floor.ErrNoPgbench) {
		b.say("no floor: %v", err)
		return nil
	}
	return err
}

// say shows progress.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%7s  %s\n", time.Since(b.began).Round(100*time.Millisecond), fmt.Sprintf(format, args...))
}

// told adds up what clients were told.
func (b *bench) told(db *database, t *tally) { b.settled[db.name] += t.Verdicts[settled] }
