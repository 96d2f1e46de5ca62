package outbox

import (
	"time"

	"github.com/paymentsd/paymentsd/internal/outbox/internal/outboxsql"
)

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
// event was held back or not acknowledged or its shard has come from another relay, is found by the readings from the
// beginning: one an interval, or fewer when they are long. What comes behind such an event in its aggregate waits for it
// (is_behind in DueEvents).
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

// ends returns the last position of a reading and, when it was cut short by one of its limits, where the next has to begin so
// that it misses nothing; else 0.
func ends(rows []outboxsql.DueEventsRow, shardMax, rowsMax int) (last, next int64) {
	ofShard := map[int16]int{}
	for _, row := range rows {
		last = row.Position
		if ofShard[row.Shard]++; ofShard[row.Shard] == shardMax && next == 0 {
			next = last + 1
		}
	}
	if next == 0 && len(rows) == rowsMax {
		next = last + 1
	}
	return last, next
}
