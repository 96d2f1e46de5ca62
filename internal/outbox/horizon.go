package outbox

import "time"

const (
	// settleFor is how long a position that was seen stays above the horizon. Whoever was given a lower one at that time
	// has committed since, unless its transaction is one of the long ones that readings from the beginning are for.
	settleFor = 2 * time.Second
	// fromBeginningRest is how much longer than a reading from the beginning took the relay leaves the beginning alone.
	fromBeginningRest = 9
)

// horizon says at which position a reading begins. It is a matter of speed alone: published rows stay in the index as long as
// anybody's snapshot could see them as unpublished, and a reading has to step over each of them. So most readings begin a
// little before the newest position that was seen. Whatever lies before that, because its transaction committed late, its
// event was held back or its shard has come from another relay, is found by the readings from the beginning: one an
// interval, or fewer when they are long.
type horizon struct {
	every time.Duration

	at       int64     // where a reading that was cut short goes on; 0 is none
	floor    int64     // what was the newest position when it was settled
	newest   int64     // the newest position seen
	settled  int64     // newest, settleFor ago
	settleAt time.Time // when settled becomes the floor
	fromZero time.Time // when to read from the beginning
}

func newHorizon(every time.Duration) horizon { return horizon{every: every} }

// forget makes the next reading one from the beginning.
func (h *horizon) forget() { h.at, h.fromZero = 0, time.Time{} }

// from is the position at which the next reading begins.
func (h *horizon) from(now time.Time) int64 {
	switch {
	case !now.Before(h.fromZero):
		return 0
	case h.at > 0:
		return h.at
	default:
		return h.floor
	}
}

// read notes a reading: how long it took, the positions it began and ended at (0: found nothing), and where to go on when
// it was cut short (0: it was not).
func (h *horizon) read(now time.Time, took time.Duration, from, last, next int64) {
	h.at, h.newest = next, max(h.newest, last)
	if from == 0 {
		h.fromZero = now.Add(max(h.every, fromBeginningRest*took))
	}
	if !now.Before(h.settleAt) {
		h.floor, h.settled, h.settleAt = h.settled, h.newest, now.Add(settleFor)
	}
}
