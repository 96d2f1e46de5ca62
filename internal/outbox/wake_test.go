package outbox_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/outbox"
	"github.com/paymentsd/paymentsd/internal/pgtest"
)

func TestBellWakesTheRelay(t *testing.T) {
	h := newHouse(t, pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 2 }))
	h.relay(h.tape, interval(time.Hour))
	bell := outbox.NewBell(h.pool, slog.New(slog.NewTextHandler(h.log, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go bell.Run(ctx)
	for n := 1; n <= 3; n++ {
		h.append("pay_1", n)
		h.eventually("it listens", func() bool {
			return h.count(`SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()`) == 1
		})
		bell.Ring()
		h.untilPublished(0)
	}
}

// Behind a pooler of transactions nothing can listen, and with a broken network nobody is heard: the interval is enough.
func TestRelayThatNobodyWakesLooksByItself(t *testing.T) {
	h := newHouse(t, pgtest.Pool(t))
	h.relay(h.tape)
	for n := 1; n <= 3; n++ {
		h.append("pay_1", n)
		h.untilPublished(0)
	}
}

func TestRingingNeverBlocksAndNeedsNobody(t *testing.T) {
	var none *outbox.Bell
	none.Ring()
	unheard := outbox.NewBell(pgtest.Pool(t), slog.Default())
	for range 1000 {
		unheard.Ring()
	}
}

func TestListenerThatWasCutOffListensAgain(t *testing.T) {
	h := newHouse(t, pgtest.Pool(t))
	h.relay(h.tape, interval(time.Hour))
	listener := `FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()`
	h.eventually("it listens", func() bool { return h.count(`SELECT count(*) `+listener) == 1 })
	h.append("pay_1", 1)
	require.Equal(t, 1, h.count(`SELECT count(pg_terminate_backend(pid)) `+listener))
	h.untilPublished(0) // listening again, it looks for what it did not hear
}
