package main

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	vegeta "github.com/tsenart/vegeta/v12/lib"
)

// target answers with a status, after a pause.
func target(t *testing.T, status int, pause func(n int64) time.Duration) (load, *atomic.Int64) {
	var seen atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(pause(seen.Add(1)))
		w.WriteHeader(status)
		_, _ = w.Write([]byte(`{"status":"SETTLED"}`)) // the client checks it
	}))
	t.Cleanup(s.Close)
	return load{judge: settles, next: func(v *vegeta.Target) error {
		v.Method, v.URL = http.MethodPost, s.URL
		return nil
	}}, &seen
}

func never(int64) time.Duration { return 0 }

func TestFixedWorkIsDoneOnceAndWhole(t *testing.T) {
	l, seen := target(t, 201, never)
	tally := closedLoop(t.Context(), newClient(), 7, until{100, time.Minute}, l)
	require.NoError(t, tally.err())
	require.EqualValues(t, 100, seen.Load())
	require.Equal(t, 100, tally.Verdicts[settled])
	require.Len(t, tally.Latencies, 100)
}

func TestClosedLoopHasNoMoreInFlightThanClients(t *testing.T) {
	var running, most atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := running.Add(1)
		defer running.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		time.Sleep(5 * time.Millisecond)
		w.WriteHeader(http.StatusCreated)
	}))
	defer s.Close()
	l := load{judge: func(*vegeta.Result) verdict { return settled }, next: func(v *vegeta.Target) error {
		v.Method, v.URL = http.MethodPost, s.URL
		return nil
	}}
	closedLoop(t.Context(), newClient(), 5, until{60, time.Minute}, l)
	require.EqualValues(t, 5, most.Load())
}

func TestWrongAnswersAreNoRate(t *testing.T) {
	l, _ := target(t, 500, never)
	tally := closedLoop(t.Context(), newClient(), 2, until{10, time.Minute}, l)
	require.ErrorContains(t, tally.err(), "10 of 10 answers were wrong: 10 × 500")
	require.Zero(t, tally.answered())
}

// A stall must be charged to every request that was due in it, not only to the one that met it.
func TestOpenLoopMeasuresFromWhenARequestWasDue(t *testing.T) {
	p := &pace{every: 10 * time.Millisecond, count: 100}
	wait, stop := p.Pace(0, 0)
	require.Zero(t, wait)
	require.False(t, stop)
	wait, _ = p.Pace(5*time.Millisecond, 1)
	require.Equal(t, 5*time.Millisecond, wait)
	_, stop = p.Pace(time.Second, 100)
	require.True(t, stop)

	late := &vegeta.Result{Seq: 10, Timestamp: p.began.Add(500 * time.Millisecond), Latency: time.Millisecond}
	require.Equal(t, 401*time.Millisecond, p.latency(late), "it was due at 100 ms and could only be sent at 500")
}

func TestOpenLoopSendsWhetherOrNotThereAreAnswers(t *testing.T) {
	l, seen := target(t, 201, func(n int64) time.Duration {
		if n == 1 {
			return 300 * time.Millisecond
		}
		return 0
	})
	tally := openLoop(t.Context(), newClient(), 200, 200*time.Millisecond, l)
	require.EqualValues(t, 40, seen.Load())
	require.Equal(t, 40, tally.Verdicts[settled])
}

func TestOnlyWhatWasPromisedIsRight(t *testing.T) {
	body := []byte(`{"status":"SETTLED"}`)
	fresh := &vegeta.Result{Code: 201, Body: body}
	again := &vegeta.Result{Code: 201, Body: body, Headers: http.Header{"Idempotent-Replayed": {"true"}}}
	pending := &vegeta.Result{Code: 202, Body: []byte(`{"status":"PENDING"}`)}
	conflict := &vegeta.Result{Code: 409, Body: []byte(`{"code":"SOME_CODE"}`)}
	for _, r := range []*vegeta.Result{again, pending, conflict, {}} {
		require.Equal(t, wrong, settles(r))
	}
	for _, r := range []*vegeta.Result{fresh, pending, conflict, {}} {
		require.Equal(t, wrong, replays(r))
	}
	require.Equal(t, settled, settles(fresh))
	require.Equal(t, replayed, replays(again))
	require.Equal(t, refused, refuses("SOME_CODE")(conflict))
	require.Equal(t, wrong, refuses("OTHER_CODE")(conflict))
}

func TestRatioIsTheMedianOfTheRoundsRatios(t *testing.T) {
	of := func(rates ...float64) *series {
		s := &series{}
		for _, r := range rates {
			s.samples = append(s.samples, sample{rate: r})
		}
		return s
	}
	require.InDelta(t, 2, of(200, 100, 900).ratioTo(of(100, 50, 300)), 1e-9)
	require.InDelta(t, 2.5, of(200, 900).ratioTo(of(100, 300)), 1e-9)
	require.EqualValues(t, none, of(1).ratioTo(nil))
	require.EqualValues(t, none, (*series)(nil).ratioTo(of(1)))
}

func TestScenariosAreChosenByTheBeginningOfTheirNames(t *testing.T) {
	ok := options{rounds: 1, slice: time.Second, tenants: 1, filled: 1}
	all, err := choose(ok)
	require.NoError(t, err)
	require.Len(t, all, len(scenarios))
	ok.scenarios = "settled-1,repl"
	some, err := choose(ok)
	require.NoError(t, err)
	var names []string
	for _, s := range some {
		names = append(names, s.name)
	}
	require.Equal(t, []string{"settled-1", "replays"}, names, "a whole name is nothing else's beginning")
	ok.scenarios = "nothing"
	_, err = choose(ok)
	require.ErrorContains(t, err, "there are settled-1, ")
	_, err = choose(options{rounds: 1, slice: time.Minute, tenants: 1, filled: 1})
	require.ErrorContains(t, err, "-slice")
}
