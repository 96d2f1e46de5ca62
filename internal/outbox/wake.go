package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/paymentsd/paymentsd/internal/outbox/internal/outboxsql"
)

const (
	// ringEvery is the least time between two rings: what comes within it shares one. It is what an event waits longest
	// before a relay looks.
	ringEvery = 20 * time.Millisecond
	// listenFor is how long the listener waits before it makes sure that its connection is still one.
	listenFor = 30 * time.Second
	// listenPause is how long to wait before listening again after it failed. Until then the interval wakes the relay.
	listenPause = 5 * time.Second
)

// Bell wakes the relays, of this and of other processes, when events have been committed. Nothing depends on it but how soon
// they are published. A nil Bell is silent.
type Bell struct {
	db   outboxsql.DBTX
	log  *slog.Logger
	rung chan struct{}
}

// NewBell makes a bell, which is silent until Run.
func NewBell(db outboxsql.DBTX, log *slog.Logger) *Bell {
	return &Bell{db, log, make(chan struct{}, 1)}
}

// Ring is called after a commit. It returns at once.
func (b *Bell) Ring() {
	if b == nil {
		return
	}
	select {
	case b.rung <- struct{}{}:
	default: // one ring wakes for all
	}
}

// Run passes the rings on until ctx is done.
func (b *Bell) Run(ctx context.Context) {
	for {
		select {
		case <-b.rung:
		case <-ctx.Done():
			return
		}
		if err := b.notify(ctx); err != nil {
			b.log.DebugContext(ctx, "relays could not be woken", "error", err)
		}
		sleep(ctx, ringEvery)
	}
}

func (b *Bell) notify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, statementFor)
	defer cancel()
	return outboxsql.New().RingBell(ctx, b.db)
}

// listen wakes whenever a bell rings anywhere, until ctx is done. It has a connection of its own. Where that cannot be had, or
// listening is not possible on it, as behind a pooler of transactions, nothing is woken.
func listen(ctx context.Context, db *pgxpool.Pool, log *slog.Logger, wake chan<- struct{}) {
	for ctx.Err() == nil {
		if err := listenOnce(ctx, db, wake); err != nil && ctx.Err() == nil {
			log.DebugContext(ctx, "relay is not woken and looks by itself", "error", err)
		}
		sleep(ctx, jittered(listenPause))
	}
}

// listenOnce listens until its connection breaks or ctx is done.
func listenOnce(ctx context.Context, db *pgxpool.Pool, wake chan<- struct{}) error {
	conn, err := connect(ctx, db)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(ctx) // it ends either way
	}()
	for {
		// At the beginning, and again after every silence: on a connection that the network has lost it fails.
		if err := exec(ctx, conn, "LISTEN outbox_events"); err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		for heard := true; heard; {
			select {
			case wake <- struct{}{}: // also for what was committed before this connection listened
			default:
			}
			if heard, err = wait(ctx, conn); err != nil {
				return fmt.Errorf("listen: %w", err)
			}
		}
	}
}

func connect(ctx context.Context, db *pgxpool.Pool) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, statementFor)
	defer cancel()
	return pgx.ConnectConfig(ctx, db.Config().ConnConfig)
}

func exec(ctx context.Context, conn *pgx.Conn, sql string) error {
	ctx, cancel := context.WithTimeout(ctx, statementFor)
	defer cancel()
	_, err := conn.Exec(ctx, sql)
	return err
}

// wait reports whether a bell rang before the waiting grew too long.
func wait(ctx context.Context, conn *pgx.Conn) (heard bool, err error) {
	waiting, cancel := context.WithTimeout(ctx, listenFor)
	defer cancel()
	_, err = conn.WaitForNotification(waiting)
	if err != nil && ctx.Err() == nil && errors.Is(waiting.Err(), context.DeadlineExceeded) {
		return false, nil
	}
	return err == nil, err
}
