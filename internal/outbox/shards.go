package outbox

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/paymentsd/paymentsd/internal/outbox/internal/outboxsql"
)

// leases are the shards that a relay holds. The database's clock judges them. The relay's own only tells it when to stop
// sending: counted from before the statement that renewed them was sent, and with a margin, so that it stops too early
// rather than too late.
type leases struct {
	db       outboxsql.DBTX
	sql      *outboxsql.Queries
	relayID  string
	leaseFor time.Duration
	every    time.Duration // between two looks at who else is there

	epochs map[int16]int64 // shard → the epoch it is held in
	asked  time.Time       // when the statement was sent that renewed them last
	until  time.Time       // when to stop sending
}

func newLeases(db outboxsql.DBTX, cfg RelayConfig) *leases {
	return &leases{db: db, sql: outboxsql.New(), relayID: "relay_" + rand.Text(), leaseFor: cfg.LeaseFor, every: min(cfg.LeaseFor/3, cfg.Interval)}
}

// keep renews the leases, lets go what is over the relay's fair share and acquires what is free up to it, when it is time to.
// It is called when nothing is on its way: what is let go is another's at once.
func (l *leases) keep(ctx context.Context) error {
	if time.Since(l.asked) < l.every {
		return nil
	}
	return l.hold(ctx, true)
}

// renew renews the leases when half of their time is over, and changes nothing else.
func (l *leases) renew(ctx context.Context) error {
	if time.Since(l.asked) < l.leaseFor/2 {
		return nil
	}
	return l.hold(ctx, false)
}

func (l *leases) hold(ctx context.Context, mayRebalance bool) error {
	ctx, cancel := context.WithTimeout(ctx, statementFor)
	defer cancel()
	asked := time.Now()
	rows, err := l.sql.HoldShards(ctx, l.db, outboxsql.HoldShardsParams{RelayID: l.relayID, LeaseFor: l.leaseFor, MayRebalance: mayRebalance})
	if err != nil {
		return fmt.Errorf("hold shards of the outbox: %w", err)
	}
	l.epochs = make(map[int16]int64, len(rows))
	for _, row := range rows {
		l.epochs[row.Shard] = row.Epoch
	}
	l.asked, l.until = asked, asked.Add(l.leaseFor-l.leaseFor/5)
	return nil
}

// valid reports whether the leases are surely ours.
func (l *leases) valid() bool { return time.Now().Before(l.until) }

// holds reports whether the event's shard has been ours, without a gap, since the event was read.
func (l *leases) holds(e due) bool { return l.epochs[e.shard] == e.epoch }

func (l *leases) shards() []int16 { return slices.Sorted(maps.Keys(l.epochs)) }

// letGo makes the shards free for others.
func (l *leases) letGo(ctx context.Context) error {
	l.epochs = nil
	if err := l.sql.LetShardsGo(ctx, l.db, l.relayID); err != nil {
		return fmt.Errorf("let shards of the outbox go: %w", err)
	}
	return nil
}
