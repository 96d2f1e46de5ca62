package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/paymentsd/paymentsd/bench/floor"
)

// sample is one slice.
type sample struct {
	rate  float64 // operations a second
	used  micros  // by one operation
	p50   time.Duration
	p99   time.Duration
	memMB float64
}

// series is what was measured of one scenario, or of one shape of the floor; a sample a round.
type series struct {
	name    string
	what    string
	clients int
	samples []sample
}

// floors are the shapes of the floor that are measured in every round.
var floors = []struct {
	name   string
	script floor.Script
}{{"D1", floor.D1}, {"D1-alone", floor.D1Alone}, {"D2", floor.D2}, {"floor-replays", floor.Replayed}}

// inRounds lets floor and scenarios take turns. Each round is one slice of everything.
func (b *bench) inRounds(ctx context.Context, chosen []scenario, r *results) error {
	stages := map[place]*stage{}
	for _, sc := range chosen {
		if stages[sc.place] != nil {
			continue
		}
		s, err := b.stage(ctx, sc.place)
		if err != nil {
			return err
		}
		stages[sc.place] = s
	}
	all := map[string]*series{}
	var order []string
	note := func(name, what string, clients int, s sample) {
		if all[name] == nil {
			all[name] = &series{name: name, what: what, clients: clients}
			order = append(order, name)
		}
		all[name].samples = append(all[name].samples, s)
		b.say("  %-16s %9.0f/s", name, s.rate)
	}
	if _, err := b.w.databases[chosen[0].place.database].pool.Exec(ctx, "CHECKPOINT"); err != nil {
		return err
	}
	for round := range b.rounds {
		b.say("round %d of %d", round+1, b.rounds)
		if err := b.playFloors(ctx, note); err != nil {
			return err
		}
		for _, sc := range chosen {
			s, err := b.sample(ctx, sc, stages[sc.place])
			if err != nil {
				return fmt.Errorf("%s: %w", sc.name, err)
			}
			note(sc.name, sc.what, sc.clients, s)
		}
	}
	for _, name := range order {
		r.Series = append(r.Series, summarize(*all[name], all))
	}
	r.weigh(all)
	if s := stages[crowded]; s != nil {
		r.Lag = s.lag
	}
	return b.latencies(ctx, stages[ordinary], all, r)
}

func (b *bench) playFloors(ctx context.Context, note func(string, string, int, sample)) error {
	if b.floor == nil {
		return nil
	}
	for _, f := range floors {
		before, err := b.w.used()
		if err != nil {
			return err
		}
		began := time.Now()
		rate, err := b.floor.For(ctx, f.script, b.slice)
		if err != nil {
			return err
		}
		operations := int(rate * time.Since(began).Seconds())
		after, err := b.w.used()
		if err != nil {
			return err
		}
		used := after.minus(before).per(operations)
		used.Generator = 0 // pgbench is a process that this one does not see into
		note(f.name, f.script.Name, f.script.Clients, sample{rate: rate, used: used})
	}
	return nil
}

// sample plays one slice and reads the meters around it.
func (b *bench) sample(ctx context.Context, sc scenario, s *stage) (sample, error) {
	before, err := b.w.used(s.api)
	if err != nil {
		return sample{}, err
	}
	t, err := b.play(ctx, sc, s)
	if err != nil {
		return sample{}, err
	}
	after, err := b.w.used(s.api)
	if err != nil {
		return sample{}, err
	}
	m, err := s.api.memory()
	if t.answered() == 0 {
		err = errors.Join(err, errors.New("nothing was answered"))
	}
	return sample{t.perSecond(), after.minus(before).per(t.answered()), t.quantile(.5), t.quantile(.99), float64(m.Now) / (1 << 20)}, err
}

// latencies are taken last: at constant rates, in an open loop.
func (b *bench) latencies(ctx context.Context, s *stage, all map[string]*series, r *results) error {
	if s == nil {
		return nil
	}
	type row struct {
		what string
		rate float64
		load load
	}
	rows := []row{{"settled payments", 100, newPayments(s.api.addr, 1)}}
	if payers := all["settled-32"]; payers != nil {
		rows = append(rows, row{"settled payments, half of what 32 clients reach", payers.median() / 2, newPayments(s.api.addr, 1)})
	}
	if replays := all["replays"]; replays != nil {
		rows = append(rows, row{"replays, half of what 8 clients reach", replays.median() / 2, again(s.api.addr, s.made.orders)})
	}
	for _, w := range rows {
		b.say("latency: %s, %.0f/s", w.what, w.rate)
		t := openLoop(ctx, b.client, w.rate, 2*b.slice, w.load)
		b.told(s.db, t)
		if err := t.err(); err != nil {
			return err
		}
		r.Latencies = append(r.Latencies, latencyRow{w.what, w.rate, len(t.Latencies), millis(t.quantile(.5)), millis(t.quantile(.99)),
			millis(t.quantile(.999)), millis(t.quantile(1))})
	}
	return ctx.Err()
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// rates are the samples' rates, in the order of the rounds.
func (s *series) rates() []float64 {
	var rates []float64
	for _, x := range s.samples {
		rates = append(rates, x.rate)
	}
	return rates
}

func (s *series) median() float64 { return median(s.rates()) }

// ratioTo is the median of the rounds' ratios; NaN when there is nothing to compare.
func (s *series) ratioTo(other *series) float64 {
	if s == nil || other == nil {
		return none
	}
	var ratios []float64
	for i := range min(len(s.samples), len(other.samples)) {
		ratios = append(ratios, s.samples[i].rate/other.samples[i].rate)
	}
	return median(ratios)
}

// none stands for what was not measured.
const none = -1

func median(values []float64) float64 {
	if len(values) == 0 {
		return none
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// takeProfile profiles the processor time of the service under load.
func (b *bench) takeProfile(ctx context.Context) error {
	s, err := b.stage(ctx, ordinary)
	if err != nil {
		return err
	}
	const seconds = 10
	b.say("profiling the service for %d s", seconds)
	done := make(chan *tally, 1)
	go func() {
		done <- closedLoop(ctx, b.client, loadClients, until{time: (seconds + 1) * time.Second}, newPayments(s.api.addr, 1))
	}()
	profile, err := get(ctx, fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", s.api.admin, seconds))
	t := <-done
	b.told(s.db, t)
	if err := errors.Join(err, t.err()); err != nil {
		return err
	}
	return os.WriteFile(b.profile, []byte(profile), 0o644)
}
