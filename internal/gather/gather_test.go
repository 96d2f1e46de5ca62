package gather_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/gather"
)

var (
	errPoison = errors.New("poisoned")
	errOutage = errors.New("outage")
)

type request struct {
	lane, thing, holder string
	n                   int
}

// desk runs sets and holds them up for as long as a test wants.
type desk struct {
	*gather.Gatherer[request, int]
	gate chan struct{} // a message lets one set go; closed, all

	mu   sync.Mutex
	sets [][]request
	fail func([]request) error
}

func newDesk(underWayMax, sizeMax int) *desk {
	d := &desk{gate: make(chan struct{}), fail: func([]request) error { return nil }}
	d.Gatherer = gather.New(gather.Rules[request]{
		UnderWayMax: underWayMax, SizeMax: sizeMax,
		Lane:   func(r request) string { return r.lane },
		Apart:  func(r request) (string, string) { return r.thing, r.holder },
		Divide: func(err error) bool { return errors.Is(err, errPoison) },
	}, func(_ context.Context, set []request) ([]int, error) {
		d.mu.Lock()
		d.sets = append(d.sets, set)
		d.mu.Unlock()
		<-d.gate
		if err := d.fail(set); err != nil {
			return nil, err
		}
		out := make([]int, len(set))
		for i, r := range set {
			out[i] = 10 * r.n
		}
		return out, nil
	})
	return d
}

func (d *desk) began() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.sets)
}

// queue sends requests one after the other, each in the queue before the next, behind a set that is under way.
func (d *desk) queue(t *testing.T, done *sync.WaitGroup, check func(r request, out int, err error), requests ...request) {
	for _, r := range requests {
		before := d.Waiting()
		done.Go(func() {
			out, err := d.Do(context.Background(), r)
			check(r, out, err)
		})
		for d.Waiting() == before {
			require.NoError(t, t.Context().Err())
		}
	}
}

// occupy has one set under way.
func (d *desk) occupy(t *testing.T, done *sync.WaitGroup) {
	before := d.began()
	done.Go(func() { _, _ = d.Do(context.Background(), request{lane: "first"}) })
	for d.began() == before {
		require.NoError(t, t.Context().Err())
	}
}

func isRight(t *testing.T) func(request, int, error) {
	return func(r request, out int, err error) {
		if err != nil || out != 10*r.n {
			t.Errorf("%v: got %d, %v", r, out, err)
		}
	}
}

func many(lane string, from, count int) (list []request) {
	for n := range count {
		list = append(list, request{lane: lane, n: from + n})
	}
	return list
}

func TestWhoeverComesMeanwhileGoesTogether(t *testing.T) {
	d, done := newDesk(1, 100), &sync.WaitGroup{}
	d.occupy(t, done)
	d.queue(t, done, isRight(t), many("a", 1, 30)...)
	close(d.gate)
	done.Wait()
	require.Len(t, d.sets, 2)
	require.Equal(t, many("a", 1, 30), d.sets[1], "in the order in which they came")
}

func TestNobodyWaitsForCompany(t *testing.T) {
	d := newDesk(2, 100)
	close(d.gate)
	for n := range 5 {
		out, err := d.Do(t.Context(), request{n: n})
		require.NoError(t, err)
		require.Equal(t, 10*n, out)
	}
	require.Len(t, d.sets, 5)
}

func TestASetIsBounded(t *testing.T) {
	d, done := newDesk(1, 10), &sync.WaitGroup{}
	d.occupy(t, done)
	d.queue(t, done, isRight(t), many("a", 1, 25)...)
	close(d.gate)
	done.Wait()
	require.Equal(t, []int{1, 10, 10, 5}, sizes(d))
}

func TestSizeOneLetsEverybodyGoAlone(t *testing.T) {
	d, done := newDesk(1, 1), &sync.WaitGroup{}
	for n := range 5 {
		done.Go(func() { _, _ = d.Do(t.Context(), request{n: n}) })
	}
	for d.began() < 5 {
		require.NoError(t, t.Context().Err())
	}
	close(d.gate)
	done.Wait()
	require.Equal(t, []int{1, 1, 1, 1, 1}, sizes(d))
}

// A tenant that floods the service gets its share of a set, not all of it.
func TestEachLaneGetsItsShare(t *testing.T) {
	d, done := newDesk(1, 10), &sync.WaitGroup{}
	d.occupy(t, done)
	d.queue(t, done, isRight(t), many("flood", 1, 40)...)
	d.queue(t, done, isRight(t), many("quiet", 100, 2)...)
	close(d.gate)
	done.Wait()
	inFirst := map[string]int{}
	for _, r := range d.sets[1] {
		inFirst[r.lane]++
	}
	require.Equal(t, map[string]int{"flood": 8, "quiet": 2}, inFirst, "what the quiet one leaves is not wasted")
}

func TestWhatMustGoApartGoesApart(t *testing.T) {
	d, done := newDesk(1, 10), &sync.WaitGroup{}
	d.occupy(t, done)
	d.queue(t, done, isRight(t), request{thing: "invoice", holder: "k1", n: 1}, request{thing: "invoice", holder: "k2", n: 2},
		request{thing: "invoice", holder: "k1", n: 3}, request{n: 4}, request{n: 5})
	close(d.gate)
	done.Wait()
	require.Len(t, d.sets, 3)
	require.Equal(t, []int{1, 3, 4, 5}, numbers(d.sets[1]), "the same holder may go twice; nothing is nobody's")
	require.Equal(t, []int{2}, numbers(d.sets[2]))
}

func TestOnePoisonedMemberSpoilsNobody(t *testing.T) {
	d, done := newDesk(1, 100), &sync.WaitGroup{}
	d.fail = func(set []request) error {
		for _, r := range set {
			if r.n == 50 {
				return errPoison
			}
		}
		return nil
	}
	d.occupy(t, done)
	d.queue(t, done, func(r request, out int, err error) {
		if r.n != 50 {
			isRight(t)(r, out, err)
		} else if !errors.Is(err, errPoison) {
			t.Errorf("%v: got %d, %v", r, out, err)
		}
	}, many("a", 1, 100)...)
	close(d.gate)
	done.Wait()
	require.Less(t, d.began(), 2+2*8, "divided, not one by one")
}

func TestAnOutageIsNotDivided(t *testing.T) {
	d, done := newDesk(1, 100), &sync.WaitGroup{}
	d.fail = func(set []request) error { return errOutage }
	d.occupy(t, done)
	d.queue(t, done, func(r request, out int, err error) {
		if !errors.Is(err, errOutage) {
			t.Errorf("%v: got %d, %v", r, out, err)
		}
	}, many("a", 1, 20)...)
	close(d.gate)
	done.Wait()
	require.Equal(t, 2, d.began())
}

// Who gives up before the set went has had no effect; who gives up afterwards is told what became of it.
func TestGivingUpIsOverWhenTheSetIsOnItsWay(t *testing.T) {
	d, done := newDesk(1, 100), &sync.WaitGroup{}
	d.occupy(t, done)
	ctx, giveUp := context.WithCancel(t.Context())
	gone := make(chan error)
	go func() {
		_, err := d.Do(ctx, request{n: 1})
		gone <- err
	}()
	for d.Waiting() == 0 {
		require.NoError(t, t.Context().Err())
	}
	giveUp()
	require.ErrorIs(t, <-gone, context.Canceled)
	require.Zero(t, d.Waiting())

	ctx, giveUp = context.WithCancel(t.Context())
	late := make(chan int)
	go func() {
		out, _ := d.Do(ctx, request{n: 2})
		late <- out
	}()
	for d.Waiting() == 0 {
		require.NoError(t, t.Context().Err())
	}
	d.gate <- struct{}{}
	for d.began() < 2 {
		require.NoError(t, t.Context().Err())
	}
	giveUp()
	close(d.gate)
	require.Equal(t, 20, <-late)
	done.Wait()
	require.Len(t, d.sets, 2)
}

func TestAPanicLeavesNobodyWaiting(t *testing.T) {
	d, done := newDesk(1, 100), &sync.WaitGroup{}
	var told atomic.Int32
	d.fail = func(set []request) error {
		if len(set) > 1 {
			panic("boom")
		}
		return nil
	}
	d.occupy(t, done)
	for n := range 5 {
		before := d.Waiting()
		done.Go(func() {
			defer func() {
				if recover() != nil {
					told.Add(1)
				}
			}()
			if _, err := d.Do(context.Background(), request{n: n}); err != nil {
				told.Add(1)
			}
		})
		for d.Waiting() == before {
			require.NoError(t, t.Context().Err())
		}
	}
	close(d.gate)
	done.Wait()
	require.EqualValues(t, 5, told.Load())
	_, err := d.Do(t.Context(), request{})
	require.NoError(t, err, "and the next one goes")
}

func TestThousandsAtOnceEachGetTheirOwn(t *testing.T) {
	d, done := newDesk(2, 64), &sync.WaitGroup{}
	close(d.gate)
	check := isRight(t)
	for n := range 5000 {
		done.Go(func() {
			r := request{lane: fmt.Sprint(n % 7), thing: fmt.Sprint(n % 100), holder: fmt.Sprint(n), n: n}
			out, err := d.Do(context.Background(), r)
			check(r, out, err)
		})
	}
	done.Wait()
	total := 0
	for _, s := range d.sets {
		total += len(s)
		require.LessOrEqual(t, len(s), 64)
	}
	require.Equal(t, 5000, total)
}

func sizes(d *desk) (list []int) {
	for _, s := range d.sets {
		list = append(list, len(s))
	}
	return list
}

func numbers(set []request) (list []int) {
	for _, r := range set {
		list = append(list, r.n)
	}
	return list
}
