// Package gather lets concurrent callers share one transaction: while one is on its way to the disk, the next callers
// gather, and then go together. Nobody waits for company: a lone caller goes at once and alone.
//
// What one caller brings never spoils what the others bring. A set whose transaction is refused is divided until the one
// that is refused stands alone; the others go through.
package gather

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Rules say how callers may go together.
type Rules[In any] struct {
	// UnderWayMax is how many sets may be under way at once: two, so that the database works on one while another waits for
	// the disk. More are smaller sets and more commits.
	UnderWayMax int
	// SizeMax bounds a set; 1 lets everybody go alone.
	SizeMax int
	// Lane is whose request it is. When there are more than fit into a set, each lane gets an equal share of it.
	Lane func(In) string
	// Apart names what a set may hold only once, and by whom: two requests with the same thing and another holder never go
	// together, because neither could see what the other did. An empty thing is none.
	Apart func(In) (thing, holder string)
	// Divide reports whether a refused set is worth dividing: when the refusal may be one member's fault. An outage is not.
	Divide func(error) bool
	// Observe is told of every set that goes: its size, and how long its first member has waited for it. Nil is nobody.
	Observe func(ctx context.Context, size int, waited time.Duration)
}

// Gatherer gathers requests of one kind. It is safe for concurrent use.
type Gatherer[In, Out any] struct {
	rules Rules[In]
	run   func(context.Context, []In) ([]Out, error)

	mu       sync.Mutex
	waiting  []*member[In, Out] // first come first
	underWay int
}

// member is one caller's part in a set.
type member[In, Out any] struct {
	in    In
	since time.Time
	taken bool // under the gatherer's lock: it is in a set, and no longer waiting
	// turn gets exactly one message: a set to run, of which this member is the first, or what became of the member.
	turn chan turn[In, Out]
}

type turn[In, Out any] struct {
	set []*member[In, Out]
	out Out
	err error
}

// New makes a gatherer. Run is the transaction of a set: it gives one result for each request, in their order, or an error
// for all of them, and then none of them may have had an effect. It gets the context of one of the callers, without its
// cancellation, and has to bound itself.
func New[In, Out any](rules Rules[In], run func(context.Context, []In) ([]Out, error)) *Gatherer[In, Out] {
	return &Gatherer[In, Out]{rules: rules, run: run}
}

// Do runs the request, alone or in company, and returns its result. When ctx is done before the request is on its way, it
// has had no effect and the context's error is returned; afterwards Do waits for what becomes of it.
func (g *Gatherer[In, Out]) Do(ctx context.Context, in In) (Out, error) {
	me := &member[In, Out]{in: in, since: time.Now()}
	if g.goAlone(me) {
		return g.lead(ctx, []*member[In, Out]{me})
	}
	var t turn[In, Out]
	select {
	case t = <-me.turn:
	case <-ctx.Done():
		if g.leave(me) {
			return t.out, ctx.Err()
		}
		t = <-me.turn
	}
	if t.set != nil {
		return g.lead(ctx, t.set)
	}
	return t.out, t.err
}

// Waiting is how many callers wait for a set.
func (g *Gatherer[In, Out]) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.waiting)
}

// goAlone reports whether the member may go at once; otherwise it waits from now on.
func (g *Gatherer[In, Out]) goAlone(me *member[In, Out]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.underWay < g.rules.UnderWayMax || g.rules.SizeMax == 1 {
		g.underWay++
		me.taken = true
		return true
	}
	me.turn = make(chan turn[In, Out], 1)
	g.waiting = append(g.waiting, me)
	return false
}

// leave takes a member that gives up out of the queue. It reports false when the member is in a set already.
func (g *Gatherer[In, Out]) leave(me *member[In, Out]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if me.taken {
		return false
	}
	for i, m := range g.waiting {
		if m == me {
			g.waiting = append(g.waiting[:i:i], g.waiting[i+1:]...)
			break
		}
	}
	return true
}

// lead runs a set for all of its members and returns the first one's result.
func (g *Gatherer[In, Out]) lead(ctx context.Context, set []*member[In, Out]) (out Out, err error) {
	delivered := false
	defer func() {
		if !delivered { // the transaction panicked: nobody may wait for ever
			for _, m := range set[1:] {
				m.turn <- turn[In, Out]{err: fmt.Errorf("set of %d: its transaction panicked", len(set))}
			}
		}
		g.next()
	}()
	ctx = context.WithoutCancel(ctx)
	if g.rules.Observe != nil {
		g.rules.Observe(ctx, len(set), time.Since(set[0].since))
	}
	results := g.divide(ctx, set)
	delivered = true
	for i, m := range set[1:] {
		m.turn <- results[i+1]
	}
	return results[0].out, results[0].err
}

// divide runs a set, and when it is refused, each half of it, down to the one whose fault it is.
func (g *Gatherer[In, Out]) divide(ctx context.Context, set []*member[In, Out]) []turn[In, Out] {
	in := make([]In, len(set))
	for i, m := range set {
		in[i] = m.in
	}
	out, err := g.run(ctx, in)
	if err != nil && len(set) > 1 && g.rules.Divide(err) {
		return append(g.divide(ctx, set[:len(set)/2]), g.divide(ctx, set[len(set)/2:])...)
	}
	results := make([]turn[In, Out], len(set))
	for i := range set {
		if results[i].err = err; err == nil {
			results[i].out = out[i]
		}
	}
	return results
}

// next lets the next set go, led by its first member, or makes room for the next caller.
func (g *Gatherer[In, Out]) next() {
	g.mu.Lock()
	defer g.mu.Unlock()
	set := g.take()
	if len(set) == 0 {
		g.underWay--
		return
	}
	set[0].turn <- turn[In, Out]{set: set}
}

// take takes the next set out of the queue: first come first, but an equal share for each lane when not all fit, and nothing
// together that has to go apart. It is called under the lock.
func (g *Gatherer[In, Out]) take() []*member[In, Out] {
	share := len(g.waiting)
	if share > g.rules.SizeMax {
		lanes := map[string]struct{}{}
		for _, m := range g.waiting {
			lanes[g.rules.Lane(m.in)] = struct{}{}
		}
		share = max(1, g.rules.SizeMax/len(lanes))
	}
	var set []*member[In, Out]
	holders, used := map[string]string{}, map[string]int{}
	// The second pass fills what lanes with little traffic have left of their share.
	for pass := 0; pass < 2 && len(set) < g.rules.SizeMax; pass++ {
		for _, m := range g.waiting {
			if m.taken || len(set) == g.rules.SizeMax {
				continue
			}
			thing, holder := g.rules.Apart(m.in)
			if by, ok := holders[thing]; ok && by != holder && thing != "" {
				continue
			}
			lane := g.rules.Lane(m.in)
			if pass == 0 && used[lane] == share {
				continue
			}
			used[lane]++
			holders[thing] = holder
			m.taken = true
			set = append(set, m)
		}
	}
	left := g.waiting[:0]
	for _, m := range g.waiting {
		if !m.taken {
			left = append(left, m)
		}
	}
	clear(g.waiting[len(left):])
	g.waiting = left
	return set
}
