package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

const (
	// attemptsMax is how often an event may fail while others are taken, before somebody has to look at it. With the pauses
	// in between it is set aside after some four minutes.
	attemptsMax = 10
	// holdFirst and holdMax are how long an event is held back after it failed. The pause doubles.
	holdFirst = time.Second
	holdMax   = time.Minute
	// refusalBytesMax is room for a sentence. A broker's error text is somebody else's, and may be long.
	refusalBytesMax = 200
)

// due is an event that was read as unpublished, and the lease it was read under.
type due struct {
	Recorded
	shard    int16
	epoch    int64
	attempts int // failures so far

	pause   time.Duration // of an event that failed: how long it is held back
	refusal string        // of an event that is set aside: why
}

// aggregate names what keeps its order.
type aggregate struct{ tenantID, id string }

func (e due) aggregate() aggregate { return aggregate{e.TenantID, e.AggregateID} }

// waves splits a batch, in which the events of each aggregate are in order: the first of every aggregate, then the second of
// those that have one, and so on.
func waves(batch []due) [][]due {
	var all [][]due
	seen := make(map[aggregate]int, len(batch))
	for _, e := range batch {
		n := seen[e.aggregate()]
		seen[e.aggregate()]++
		if n == len(all) {
			all = append(all, nil)
		}
		all[n] = append(all[n], e)
	}
	return all
}

// delivered is what the broker's answers mean for the rows.
type delivered struct {
	acked  []due
	failed []due
}

// judge adds what one wave's answers mean. It returns an error when they mean an outage: then nothing is held against events
// that nobody refused. It reports congestion when so many events got no answer in time that the time was too short and not
// the events to blame.
func (d *delivered) judge(wave []due, errs []error) (congested bool, outage error) {
	acked, late := 0, 0
	for _, err := range errs {
		switch {
		case err == nil:
			acked++
		case errors.Is(err, context.DeadlineExceeded):
			late++
		}
	}
	congested = 2*late >= len(wave)
	for i, e := range wave {
		switch err := errs[i]; {
		case err == nil:
			d.acked = append(d.acked, e)
		case errors.Is(err, ErrRefused):
			d.failed = append(d.failed, e.setAside(err.Error()))
		case acked == 0:
			outage = err
		case congested && errors.Is(err, context.DeadlineExceeded):
			// It stays as it is and is sent again, in a smaller wave.
		case e.attempts+1 >= attemptsMax:
			d.failed = append(d.failed, e.setAside(fmt.Sprintf("failed %d times, the last time: %v", e.attempts+1, err)))
		default:
			e.pause = jittered(min(holdFirst<<e.attempts, holdMax))
			d.failed = append(d.failed, e)
		}
	}
	return congested, outage
}

func (e due) setAside(why string) due {
	e.refusal = strings.ToValidUTF8(why[:min(len(why), refusalBytesMax)], "")
	e.refusal = strings.ReplaceAll(e.refusal, "\x00", "")
	return e
}

// keepIf returns those that pass, in a slice of their own.
func keepIf(wave []due, pass func(due) bool) []due {
	kept := make([]due, 0, len(wave))
	for _, e := range wave {
		if pass(e) {
			kept = append(kept, e)
		}
	}
	return kept
}

// columns are what a statement about many events takes: who they are, and the shards and epochs they were read under.
func columns(events []due) (tenants, aggregates []string, sequences []int32, shards []int16, epochs []int64) {
	type lease struct {
		shard int16
		epoch int64
	}
	named := map[lease]bool{}
	for _, e := range events {
		tenants, aggregates, sequences = append(tenants, e.TenantID), append(aggregates, e.AggregateID), append(sequences, int32(e.Sequence))
		if l := (lease{e.shard, e.epoch}); !named[l] {
			named[l] = true
			shards, epochs = append(shards, e.shard), append(epochs, e.epoch)
		}
	}
	return tenants, aggregates, sequences, shards, epochs
}
