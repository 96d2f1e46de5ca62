package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"
)

// scenario is one thing that is measured in slices.
type scenario struct {
	name     string // on the command line and in JSON
	what     string
	clients  int
	place    place
	delay    time.Duration // of every charge
	load     func(*bench, *stage) load
	run      func(context.Context, *bench, scenario, *stage) (*tally, error) // nil: a closed loop of the load
	before   func(context.Context, *bench, *stage) error
	after    func(context.Context, *bench, *stage) error
	isPayers bool // one of those of which the best counts
}

// place says on which database a scenario runs, and with what an instance of the service is set up for it. Scenarios of one
// place share both.
type place struct{ database, settings string }

var (
	ordinary = place{database: "main"}
	noSets   = place{database: "main", settings: "PAYMENTSD_SET_MAX=1"}
	full     = place{database: "filled"}
	crowded  = place{database: "crowded"}
)

// stage is a place that is ready: an instance of the service on its database, and payments that have been made there.
type stage struct {
	db      *database
	api     *process
	made    madePayments
	workers []*process
	lag     []int // events that were left unpublished at the end of each slice beside workers
}

// preMade is how many payments replays and refunds build on.
const preMade = 2000

var scenarios = []scenario{
	{name: "settled-1", what: "settled payments", clients: 1, load: paying, isPayers: true},
	{name: "settled-8", what: "settled payments", clients: 8, load: paying, isPayers: true},
	{name: "settled-32", what: "settled payments", clients: 32, load: paying, isPayers: true},
	{name: "settled-128", what: "settled payments", clients: 128, load: paying, isPayers: true},
	{name: "settled-256", what: "settled payments", clients: 256, load: paying, isPayers: true},
	{name: "settled-tenants", what: "settled payments of many tenants", clients: 128,
		load: func(b *bench, s *stage) load { return newPayments(s.api.addr, b.tenants) }},
	{name: "settled-no-sets", what: "settled payments, each transaction alone", clients: 8, place: noSets, load: paying},
	{name: "replays", what: "replays", clients: 8, load: func(_ *bench, s *stage) load { return again(s.api.addr, s.made.orders) }},
	{name: "conflicts", what: "keys with another body", clients: 8, load: func(_ *bench, s *stage) load { return others(s.api.addr, s.made.orders) }},
	{name: "in-flight", what: "duplicates of payments that are being made", clients: 32, run: besideSlowPayments},
	{name: "refunds", what: "settled refunds", clients: 32, load: func(_ *bench, s *stage) load { return refundsOf(s.api.addr, s.made.paid) }},
	{name: "mixed", what: "payments, 5% of them retries", clients: 32,
		load: func(_ *bench, s *stage) load { return mixed(s.api.addr, 1, s.made.orders, 5) }},
	{name: "slow-provider", what: "settled payments, provider takes 200 ms", clients: 1000, delay: 200 * time.Millisecond, load: paying},
	{name: "filled", what: "settled payments, tables filled", clients: 32, place: full, load: paying},
	{name: "workers", what: "settled payments beside all workers", clients: 32, place: crowded, load: paying, before: startWorkers, after: endWorkers},
}

func init() { // what most have in common is said once
	for i := range scenarios {
		if scenarios[i].place == (place{}) {
			scenarios[i].place = ordinary
		}
	}
}

func paying(_ *bench, s *stage) load { return newPayments(s.api.addr, 1) }

// choose gives the scenarios that the command line names.
func choose(o options) ([]scenario, error) {
	if o.slice < time.Second || o.slice > 20*time.Second {
		return nil, errors.New("-slice must be between 1s and 20s: pgbench counts in seconds, and a key's lease is not endless")
	}
	if o.rounds < 1 || o.tenants < 1 || o.filled < 1 {
		return nil, errors.New("-rounds, -tenants and -filled must be at least 1")
	}
	if o.scenarios == "" {
		return scenarios, nil
	}
	var chosen []scenario
	names := strings.Split(o.scenarios, ",")
	for _, s := range scenarios {
		if slices.ContainsFunc(names, func(n string) bool { return n == s.name || n != "" && !isScenario(n) && strings.HasPrefix(s.name, n) }) {
			chosen = append(chosen, s)
		}
	}
	if len(chosen) == 0 {
		var known []string
		for _, s := range scenarios {
			known = append(known, s.name)
		}
		return nil, fmt.Errorf("-scenarios %s: there are %s", o.scenarios, strings.Join(known, ", "))
	}
	return chosen, nil
}

func isScenario(name string) bool {
	return slices.ContainsFunc(scenarios, func(s scenario) bool { return s.name == name })
}

// stage gets a place ready.
func (b *bench) stage(ctx context.Context, p place) (*stage, error) {
	isNew := b.w.databases[p.database] == nil
	db, err := b.w.database(ctx, p.database)
	if err != nil {
		return nil, err
	}
	if isNew && p == full {
		if err := b.fill(ctx, db, b.filled); err != nil {
			return nil, err
		}
	}
	s := &stage{db: db}
	if s.api, err = b.w.startAPI(ctx, db.url, strings.Fields(p.settings)...); err != nil {
		return nil, err
	}
	b.say("%s: making %d payments first", strings.TrimSpace(p.database+" "+p.settings), preMade)
	made, t, err := makePayments(ctx, b.client, s.api.addr, loadClients, preMade)
	b.told(db, t)
	s.made = made
	return s, err
}

// play runs a scenario for a slice.
func (b *bench) play(ctx context.Context, sc scenario, s *stage) (*tally, error) {
	if sc.before != nil {
		if err := sc.before(ctx, b, s); err != nil {
			return nil, err
		}
	}
	fault := ""
	if sc.delay > 0 {
		fault = fmt.Sprintf(`{"reference":"*","on":"charge","fault":"delay","times":-1,"delayMs":%d}`, sc.delay.Milliseconds())
	}
	if err := b.w.script(ctx, fault); err != nil {
		return nil, err
	}
	var t *tally
	var err error
	if sc.run != nil {
		t, err = sc.run(ctx, b, sc, s)
	} else {
		t = closedLoop(ctx, b.client, sc.clients, until{time: b.slice}, sc.load(b, s))
		b.told(s.db, t)
		err = t.err()
	}
	if fault != "" {
		err = errors.Join(err, b.w.script(ctx, ""))
	}
	if sc.after != nil {
		err = errors.Join(err, sc.after(ctx, b, s))
	}
	return t, errors.Join(err, ctx.Err())
}

// slowPayments are so few that they are no load themselves.
const slowPayments = 8

// besideSlowPayments has the provider take longer than the slice over some payments, and asks for the same payments all the
// while. The slow ones must settle in the end.
func besideSlowPayments(ctx context.Context, b *bench, sc scenario, s *stage) (*tally, error) {
	delay := b.slice + 2*time.Second
	if err := b.w.script(ctx, fmt.Sprintf(`{"reference":"*","on":"charge","fault":"delay","times":%d,"delayMs":%d}`, slowPayments, delay.Milliseconds())); err != nil {
		return nil, err
	}
	running := make([]order, slowPayments)
	for i := range running {
		running[i] = newOrder(1)
	}
	var next atomic.Int64
	slow := load{judge: settles, next: func(t *vegeta.Target) error {
		running[next.Add(1)-1].fill(t, s.api.addr)
		return nil
	}}
	done := make(chan *tally, 1)
	go func() { done <- closedLoop(ctx, b.client, slowPayments, until{slowPayments, b.slice}, slow) }()
	err := untilSent(ctx, s.db, running)
	var t *tally
	if err == nil {
		t = closedLoop(ctx, b.client, sc.clients, until{time: b.slice}, duplicates(s.api.addr, running))
		err = t.err()
	}
	first := <-done
	b.told(s.db, first)
	return t, errors.Join(err, first.err())
}

// untilSent waits until every payment is at the provider.
func untilSent(ctx context.Context, db *database, running []order) error {
	var keys []string
	for _, o := range running {
		keys = append(keys, o.key)
	}
	for range 100 {
		var sent int
		err := db.pool.QueryRow(ctx, `SELECT count(*) FROM payments WHERE tenant_id = 'bench_0' AND state = 'PROVIDER_REQUEST_SENT'
			AND idempotency_key = ANY ($1) AND created_at > now() - interval '1 minute'`, keys).Scan(&sent)
		if err != nil || sent == len(running) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.New("payments do not reach the provider")
}
