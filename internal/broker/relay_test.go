package broker_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/paymentsd/paymentsd/internal/broker"
	"github.com/paymentsd/paymentsd/internal/events"
	"github.com/paymentsd/paymentsd/internal/outbox"
	"github.com/paymentsd/paymentsd/internal/pgtest"
)

// runRelay runs a relay until the test ends or stop is called.
func runRelay(t *testing.T, pool *pgxpool.Pool, b broker.Broker) (stop func()) {
	r := outbox.NewRelay(pool, b.Publisher(), outbox.RelayConfig{Interval: 20 * time.Millisecond, LeaseFor: time.Second, Log: quiet})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(stop)
	return stop
}

// announce commits the n-th event of a payment.
func announce(t *testing.T, pool *pgxpool.Pool, paymentID string, n int) {
	e := recorded(paymentID, n)
	err := pgx.BeginFunc(context.Background(), pool, func(tx pgx.Tx) error { return outbox.Append(context.Background(), tx, e.TenantID, e.Event) })
	if err != nil {
		t.Errorf("announce: %v", err)
	}
}

func announceMany(t *testing.T, pool *pgxpool.Pool, prefix string, payments, each int) {
	var writers sync.WaitGroup
	const atOnce = 4
	for w := range atOnce {
		writers.Go(func() {
			for p := w; p < payments; p += atOnce {
				for n := 1; n <= each; n++ {
					announce(t, pool, fmt.Sprintf("pay_%s%d", prefix, p), n)
				}
			}
		})
	}
	writers.Wait()
}

func untilPublished(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	require.Eventually(t, func() bool {
		backlog, err := outbox.Unpublished(t.Context(), pool)
		require.NoError(t, err)
		return backlog.Events == 0
	}, patience, 10*time.Millisecond)
}

// requireInOrder reads so many messages, in the order in which the broker stored them: all events are among them, and what
// comes for the first time comes in order.
func requireInOrder(t *testing.T, b broker.Broker, messages, distinct int) {
	t.Helper()
	reached, first := map[string]int{}, 0
	for _, m := range collect(t, b.Source("reader"), messages) {
		e, err := events.Read(m.Body)
		require.NoError(t, err)
		require.LessOrEqual(t, e.Sequence, reached[e.Subject]+1, "%s overtook", e.ID)
		if e.Sequence == reached[e.Subject]+1 {
			reached[e.Subject]++
			first++
		}
	}
	require.Equal(t, distinct, first)
}

// I2: counted at the broker, which knows no duplicates here: what a relay sends twice is there twice.
func TestThreeRelaysPutEachEventIntoTheStreamOnceAndInOrder_I2(t *testing.T) {
	h := newNATS(t)
	_, err := h.raw().CreateStream(t.Context(), jetstream.StreamConfig{Name: stream, Subjects: []string{"paymentsd.v1.>"},
		Storage: jetstream.FileStorage, AllowAtomicPublish: true, Duplicates: 100 * time.Millisecond})
	require.NoError(t, err)
	pool := pgtest.Pool(t)
	for range 3 {
		runRelay(t, pool, h.dial())
	}
	announceMany(t, pool, "", 500, 3)
	untilPublished(t, pool)
	require.EqualValues(t, 1500, h.info().State.Msgs)
	requireInOrder(t, h.dial(), 1500, 1500)
}

// The broker is killed again and again under load, and then stays away for a while. Nobody does anything about it.
func TestBrokerThatGoesAndComesBackGetsEverythingInOrder_I4(t *testing.T) {
	h := newNATS(t)
	pool := pgtest.Pool(t)
	runRelay(t, pool, h.dial())
	runRelay(t, pool, h.dial())
	var load sync.WaitGroup
	load.Go(func() { announceMany(t, pool, "a", 300, 3) })
	for range 3 {
		time.Sleep(50 * time.Millisecond)
		h.stop()
		h.start()
	}
	load.Wait()
	h.stop()
	announceMany(t, pool, "b", 100, 3)
	time.Sleep(time.Second) // longer than a lease
	backlog, err := outbox.Unpublished(t.Context(), pool)
	require.NoError(t, err)
	require.GreaterOrEqual(t, backlog.Events, int64(300))
	h.start()
	untilPublished(t, pool)
	requireInOrder(t, h.dial(), int(h.info().State.Msgs), 1200)
	var blamed int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM outbox_events WHERE refused_at IS NOT NULL`).Scan(&blamed))
	require.Zero(t, blamed)
}

// I2: killed between the acknowledgement and the mark. What the next relay sends is in the stream already and stays there once.
func TestEventOfAKilledRelayIsInTheStreamOnce_I2(t *testing.T) {
	h := newNATS(t)
	url := pgtest.URL(t)
	proxy := pgtest.NewProxy(t, url)
	pool := pgtest.Open(t, url)
	announceMany(t, pool, "", 20, 2)
	cut := proxy.DropNextRequest(pgtest.Containing("MarkPublished"))
	stop := runRelay(t, pgtest.Open(t, proxy.URL()), h.dial())
	<-cut.Done()
	proxy.Down()
	stop()
	require.EqualValues(t, 40, h.info().State.Msgs)
	runRelay(t, pool, h.dial())
	untilPublished(t, pool)
	require.EqualValues(t, 40, h.info().State.Msgs)
	requireInOrder(t, h.dial(), 40, 40)
}

func TestEventThatTheBrokerNeverTakesIsSetAsideAndTheOthersArrive(t *testing.T) {
	h := newNATS(t)
	pool := pgtest.Pool(t)
	large := recorded("pay_large", 1)
	large.Payload = []byte(`{"note":"` + strings.Repeat("x", 2<<20) + `"}`)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return outbox.Append(t.Context(), tx, "acme", large.Event) }))
	announceMany(t, pool, "", 10, 1)
	runRelay(t, pool, h.dial())
	require.Eventually(t, func() bool {
		list, err := outbox.ListRefused(t.Context(), pool, 10)
		return err == nil && len(list) == 1 && list[0].EventID == large.ID
	}, patience, 10*time.Millisecond)
	requireInOrder(t, h.dial(), 10, 10)
}

func TestRelaysPublishToKafkaOnceAndInOrder_I2_I4(t *testing.T) {
	c := newKafka(t, kfake.SeedTopics(4, topic))
	pool := pgtest.Pool(t)
	for range 3 {
		runRelay(t, pool, dialKafka(t, c))
	}
	announceMany(t, pool, "", 200, 3)
	untilPublished(t, pool)
	require.EqualValues(t, 600, stored(c))
	requireInOrder(t, dialKafka(t, c), 600, 600)
}
