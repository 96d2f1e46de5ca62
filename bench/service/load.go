package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"
)

// load is a stream of requests with what their answers must be.
type load struct {
	next  vegeta.Targeter
	judge func(*vegeta.Result) verdict
}

// verdict is what an answer says of its request.
type verdict int

const (
	wrong    verdict = iota // not what was promised
	settled                 // a new payment or refund that moved money
	replayed                // the stored answer of an earlier one
	refused                 // refused, as it had to be
)

// until bounds a load. It ends at whichever comes first.
type until struct {
	count int // 0: by time alone
	time  time.Duration
}

const (
	// fixedWorkWithin bounds loads of a fixed count.
	fixedWorkWithin = 2 * time.Minute
	// openLoopClientsMax bounds requests in flight when the service does not keep up with a constant rate.
	openLoopClientsMax = 2000
	// wrongKindsMax is how many different wrong answers are remembered; the first ones tell.
	wrongKindsMax = 5
)

const (
	// requestWithin is far above everything that is scripted. A request that takes longer counts as unanswered.
	requestWithin = 60 * time.Second
	// idleFor is shorter than the idle time-out of any server: a request that meets a closing connection would be repeated.
	idleFor = 4 * time.Second
)

// newClient keeps every connection that the largest load needs.
func newClient() *http.Client {
	return &http.Client{
		Timeout:   requestWithin,
		Transport: &http.Transport{MaxIdleConnsPerHost: openLoopClientsMax, IdleConnTimeout: idleFor, DisableCompression: true},
	}
}

// tally is what came of a load.
type tally struct {
	Verdicts  map[verdict]int
	Took      time.Duration
	Latencies []time.Duration // sorted
	wrongs    map[string]int
}

func (t *tally) answered() int {
	return t.Verdicts[settled] + t.Verdicts[replayed] + t.Verdicts[refused]
}

func (t *tally) perSecond() float64 { return float64(t.answered()) / t.Took.Seconds() }

// quantile is a latency; q is between 0 and 1.
func (t *tally) quantile(q float64) time.Duration {
	if len(t.Latencies) == 0 {
		return 0
	}
	return t.Latencies[min(int(q*float64(len(t.Latencies))), len(t.Latencies)-1)]
}

// err says what was wrong, if anything was: a fast service that answers wrongly has no rate.
func (t *tally) err() error {
	if t.Verdicts[wrong] == 0 {
		return nil
	}
	var kinds []string
	for _, kind := range slices.Sorted(maps.Keys(t.wrongs)) {
		kinds = append(kinds, fmt.Sprintf("%d × %s", t.wrongs[kind], kind))
	}
	return fmt.Errorf("%d of %d answers were wrong: %s", t.Verdicts[wrong], t.Verdicts[wrong]+t.answered(), strings.Join(kinds, "; "))
}

// closedLoop is clients that each send their next request when the last one is answered: how much there can be.
func closedLoop(ctx context.Context, client *http.Client, clients int, end until, l load) *tally {
	return run(ctx, client, clients, clients, &pace{count: uint64(end.count)}, end.time, l)
}

// openLoop sends requests at a constant rate, whether or not the ones before are answered, and measures each from when it was
// due: a service that stalls is charged for everybody who would have waited.
func openLoop(ctx context.Context, client *http.Client, perSecond float64, d time.Duration, l load) *tally {
	every := time.Duration(float64(time.Second) / perSecond)
	return run(ctx, client, 50, openLoopClientsMax, &pace{every: every, count: uint64(max(1, d/every))}, d+requestWithin, l)
}

// pace says when requests are due: at once, or one every so often.
type pace struct {
	every time.Duration
	count uint64 // 0: no end
	began time.Time
}

func (p *pace) Pace(elapsed time.Duration, hits uint64) (time.Duration, bool) {
	if hits == 0 {
		p.began = time.Now().Add(-elapsed)
	}
	return time.Duration(hits)*p.every - elapsed, p.count > 0 && hits >= p.count
}

func (p *pace) Rate(time.Duration) float64 { return 0 } // for displays, of which there is none

// latency is how long a request took: from when it was due, if it was due at a time.
func (p *pace) latency(r *vegeta.Result) time.Duration {
	if p.every == 0 {
		return r.Latency
	}
	return r.End().Sub(p.began.Add(time.Duration(r.Seq) * p.every))
}

func run(ctx context.Context, client *http.Client, clients, clientsMax int, p *pace, atMost time.Duration, l load) *tally {
	attacker := vegeta.NewAttacker(vegeta.Client(client), vegeta.Workers(uint64(clients)), vegeta.MaxWorkers(uint64(clientsMax)))
	stop := context.AfterFunc(ctx, func() { attacker.Stop() })
	defer stop()
	t := &tally{Verdicts: map[verdict]int{}, wrongs: map[string]int{}}
	began := time.Now()
	for r := range attacker.Attack(l.next, p, atMost, "") {
		v := l.judge(r)
		t.Verdicts[v]++
		if v == wrong {
			t.remember(r)
		}
		t.Latencies = append(t.Latencies, p.latency(r))
	}
	t.Took = time.Since(began)
	slices.Sort(t.Latencies)
	return t
}

func (t *tally) remember(r *vegeta.Result) {
	kind := fmt.Sprintf("%d %s", r.Code, firstBytes(r.Body, 160))
	if r.Code == 0 {
		kind = "no answer: " + r.Error
	}
	if t.wrongs[kind] > 0 || len(t.wrongs) < wrongKindsMax {
		t.wrongs[kind]++
	}
}

func firstBytes(b []byte, n int) []byte { return b[:min(len(b), n)] }
