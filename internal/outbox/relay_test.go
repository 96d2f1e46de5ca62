package outbox_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/propagation"

	"github.com/paymentsd/paymentsd/internal/outbox"
	"github.com/paymentsd/paymentsd/internal/pgtest"
)

func TestWhatIsCommittedIsPublishedAsItWasRecordedAndMarked(t *testing.T) {
	h := newHouse(t, pgtest.Pool(t))
	h.append("pay_1", 1)
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	ctx := propagation.TraceContext{}.Extract(t.Context(), propagation.MapCarrier{"traceparent": trace})
	require.NoError(t, pgx.BeginFunc(ctx, h.pool, func(tx pgx.Tx) error { return appendEvent(ctx, tx, "pay_1", 2) }))
	h.append("pay_1", 3)
	h.relay(h.tape)
	h.untilPublished(0)
	stored := h.tape.all()
	require.Len(t, stored, 3)
	requireInOrder(t, stored)
	require.Equal(t, outbox.Recorded{TenantID: "acme", TraceParent: trace, Event: outbox.Event{ID: "evt_pay_1_2", AggregateID: "pay_1",
		Sequence: 2, Type: "PaymentCreated", Payload: []byte(`{"b":1,  "a":1.0}`)}}, stored[1])
	h.append("pay_1", 4)
	h.untilPublished(0)
}

// Positions are given out before commits: never an id high-water mark.
func TestTransactionThatCommitsLateLosesNoEvent(t *testing.T) {
	h := newHouse(t, pgtest.Pool(t))
	late, err := h.pool.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, appendEvent(t.Context(), late, "pay_late", 1))
	h.relay(h.tape)
	for n := range 100 {
		h.append(fmt.Sprintf("pay_%d", n), 1)
	}
	h.untilPublished(0)
	require.Len(t, h.tape.all(), 100)
	require.NoError(t, late.Commit(t.Context()))
	h.untilPublished(0)
	require.Equal(t, 1, h.tape.times()["evt_pay_late_1"])
}

// I2, I4: any number of relays, each event once in normal running, also while relays come and go; and in order.
func TestRelaysBesideEachOtherPublishEachEventOnceAndInOrder_I2_I4(t *testing.T) {
	h := newHouse(t, pgtest.Pool(t))
	h.tape.gates(func(context.Context) { time.Sleep(3 * time.Millisecond) })
	const payments, each = 400, 3
	stops := []func(){h.relay(h.tape), h.relay(h.tape), h.relay(h.tape)}
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for p := range payments / 4 {
				for n := 1; n <= each; n++ {
					h.append(fmt.Sprintf("pay_%d_%d", w, p), n)
				}
			}
		})
	}
	time.Sleep(50 * time.Millisecond)
	stops[0]()
	h.relay(h.tape)
	time.Sleep(50 * time.Millisecond)
	stops[1]()
	writers.Wait()
	h.untilPublished(0)
	stored := h.tape.all()
	requireInOrder(t, stored)
	require.Len(t, stored, payments*each)
	for id, times := range h.tape.times() {
		require.Equal(t, 1, times, id)
	}
	require.NotContains(t, h.log.String(), "overtaken")
}

func TestRelaysShareTheShardsEvenlyAndLetThemGoWhenTheyEnd(t *testing.T) {
	h := newHouse(t, pgtest.Pool(t))
	held := func() string {
		var shares string
		require.NoError(t, h.pool.QueryRow(t.Context(), `SELECT coalesce(string_agg(n::text, ' ' ORDER BY n), '') FROM
			(SELECT count(*) AS n FROM outbox_shards WHERE relay_id IS NOT NULL GROUP BY relay_id) s`).Scan(&shares))
		return shares
	}
	hour := leaseFor(time.Hour) // nothing here happens because a lease is over
	first := h.relay(h.tape, hour)
	h.eventually("one has all", func() bool { return held() == "16" })
	second := h.relay(h.tape, hour)
	h.eventually("two", func() bool { return held() == "8 8" })
	third := h.relay(h.tape, hour)
	h.eventually("three", func() bool { return held() == "5 5 6" })
	first()
	h.eventually("two of them", func() bool { return held() == "8 8" })
	second()
	h.append("pay_1", 1, 2)
	h.untilPublished(0)
	h.eventually("the last has all", func() bool { return held() == "16" })
	third()
	require.Empty(t, held())
	require.Zero(t, h.count(`SELECT count(*) FROM outbox_relays`))
}

// I2: a relay that stalls in a send, past its lease, and wakes. What it was told by the broker is true, but it is not the one
// to write it down any more.
func TestRelayThatWasOvertakenCanMarkNothing_I2(t *testing.T) {
	h := newHouse(t, pgtest.Pool(t))
	h.append("pay_1", 1)
	stalled, wake := make(chan struct{}), make(chan struct{})
	slow := &tape{}
	slow.gates(func(context.Context) { // a whole process that stands still: it looks at no deadline
		slow.gates(nil)
		close(stalled)
		<-wake
	})
	slow.answers(func(outbox.Recorded) error {
		slow.answer = away // what it sends after that is no matter of this test
		return nil
	})
	stop := h.relay(slow, leaseFor(300*time.Millisecond))
	<-stalled
	h.tape.answers(away)
	h.relay(h.tape, leaseFor(time.Hour))
	h.eventually("the other has the shards", func() bool {
		return h.count(`SELECT count(*) FROM outbox_shards WHERE leased_until > now() + interval '1 min'`) == 16
	})
	close(wake)
	h.eventually("the mark is refused and that is said", func() bool { return strings.Contains(h.log.String(), "relay was overtaken") })
	require.Len(t, slow.all(), 1, "it had been sent")
	require.Equal(t, 1, h.unpublished(), "and is not marked by who lost the lease")

	stop()
	h.append("pay_1", 2)
	h.tape.answers(nil)
	h.untilPublished(0)
	requireInOrder(t, h.tape.all())
	require.Len(t, h.tape.all(), 2, "it is sent again by who has the lease")
	require.Equal(t, slow.all()[0], h.tape.all()[0], "with the same id and bytes")
}

// I4: of what it had read, a relay that finds its shard taken sends no more: the other is further than that.
func TestRelayThatFindsItsShardTakenSendsNoMoreOfWhatItRead_I4(t *testing.T) {
	h := newHouse(t, pgtest.Pool(t))
	h.append("pay_1", 1, 2)
	stalled, wake := make(chan struct{}), make(chan struct{})
	slow := &tape{}
	slow.gates(func(context.Context) {
		slow.gates(nil)
		close(stalled)
		<-wake
	})
	h.relay(slow, leaseFor(300*time.Millisecond))
	<-stalled
	h.relay(h.tape, leaseFor(time.Hour))
	h.untilPublished(0)
	close(wake)
	h.eventually("its mark is refused", func() bool { return strings.Contains(h.log.String(), "relay was overtaken") })
	require.Len(t, slow.all(), 1)
}

// A relay that cannot ask whether it still holds its lease stops when it may be over, by a clock of its own.
func TestRelayThatCannotRenewSendsNothingAfterItsLease_I2(t *testing.T) {
	url := pgtest.URL(t)
	proxy := pgtest.NewProxy(t, url)
	h := newHouse(t, pgtest.Open(t, url))
	h.append("pay_1", 1, 2)
	const lease = 300 * time.Millisecond
	cutOff, sending := &tape{}, make(chan struct{})
	cutOff.gates(func(ctx context.Context) {
		cutOff.gates(nil)
		close(sending)
		deadline, _ := ctx.Deadline()
		if time.Until(deadline) >= lease {
			t.Error("a wave may take longer than the lease")
		}
		proxy.Down()
		time.Sleep(lease)
	})
	stop := h.relayOn(pgtest.Open(t, proxy.URL()), cutOff, leaseFor(lease))
	<-sending
	h.relay(h.tape)
	h.untilPublished(0)
	stop()
	require.Len(t, cutOff.all(), 1, "the second was the other's to send")
	requireInOrder(t, h.tape.all())
	require.Len(t, h.tape.all(), 2)
}

// I2: the process dies between the broker's acknowledgement and the mark.
func TestRelayKilledBeforeItsMarkIsReplacedAndTheEventIsSentAgainUnchanged_I2(t *testing.T) {
	url := pgtest.URL(t)
	proxy := pgtest.NewProxy(t, url)
	h := newHouse(t, pgtest.Open(t, url))
	h.append("pay_1", 1, 2)
	h.append("pay_2", 1)
	cut := proxy.DropNextRequest(pgtest.Containing("MarkPublished"))
	dying := &tape{}
	stop := h.relayOn(pgtest.Open(t, proxy.URL()), dying, leaseFor(time.Second))
	<-cut.Done()
	proxy.Down() // it can neither mark, nor renew, nor let go
	stop()
	require.Len(t, dying.all(), 3)
	require.Equal(t, 3, h.unpublished())

	h.relay(h.tape, leaseFor(time.Second))
	h.untilPublished(0)
	require.ElementsMatch(t, dying.all(), h.tape.all())
	requireInOrder(t, h.tape.all())
}

// The database went away after the acknowledgement, and the relay did not: it knows what was sent.
func TestMarkThatWasLostIsRepeatedAndTheEventIsNot(t *testing.T) {
	for name, lose := range map[string]func(*pgtest.Proxy) *pgtest.Cut{
		"the request": func(p *pgtest.Proxy) *pgtest.Cut { return p.DropNextRequest(pgtest.Containing("MarkPublished")) },
		"the answer":  func(p *pgtest.Proxy) *pgtest.Cut { return p.DropNextReply(pgtest.Containing("MarkPublished")) },
	} {
		t.Run(name, func(t *testing.T) {
			url := pgtest.URL(t)
			proxy := pgtest.NewProxy(t, url)
			h := newHouse(t, pgtest.Open(t, url))
			cut := lose(proxy)
			h.append("pay_1", 1, 2)
			h.relayOn(pgtest.Open(t, proxy.URL()), h.tape)
			<-cut.Done()
			h.append("pay_1", 3)
			h.untilPublished(0)
			require.Len(t, h.tape.all(), 3)
			require.NotContains(t, h.log.String(), "overtaken")
		})
	}
}

// Thirty minutes of outage, shortened: what counts is that the number of tries means nothing.
func TestOutageUsesUpNoAttemptsAndEndsWithoutHands(t *testing.T) {
	h := newHouse(t, pgtest.Pool(t))
	var tries atomic.Int64
	h.tape.answers(func(outbox.Recorded) error {
		tries.Add(1)
		return errAway
	})
	for n := range 20 {
		h.append(fmt.Sprintf("pay_%d", n), 1, 2)
	}
	h.relay(h.tape, leaseFor(60*time.Millisecond)) // which also bounds the pauses
	h.eventually("it was tried more often than an event may fail", func() bool { return tries.Load() > 20*30 })
	require.Equal(t, 1, strings.Count(h.log.String(), "relay cannot go on"), "and said once")
	h.tape.answers(nil)
	h.untilPublished(0)
	requireInOrder(t, h.tape.all())
	require.Len(t, h.tape.all(), 40)
	require.Zero(t, h.count(`SELECT count(*) FROM outbox_events WHERE attempts > 0 OR held_until IS NOT NULL`))
	require.Contains(t, h.log.String(), "relay goes on")
}

// A broker that takes some and is too slow for the rest: no event is to blame, and the waves grow smaller. Three relays,
// each send takes a while, and a full wave would outlive the lease.
func TestSlowBrokerGetsSmallerWavesAndNoEventIsBlamed_I2(t *testing.T) {
	h := newHouse(t, pgtest.Pool(t))
	h.fill("pay_", 120, 1)
	slow := publisher(func(ctx context.Context, wave []outbox.Recorded) []error {
		errs := make([]error, len(wave))
		for i := range wave {
			select {
			case <-time.After(10 * time.Millisecond):
				errs[i] = h.tape.Publish(ctx, wave[i:i+1])[0]
			case <-ctx.Done():
				errs[i] = ctx.Err()
			}
		}
		return errs
	})
	for range 3 {
		h.relay(slow, leaseFor(300*time.Millisecond))
	}
	h.untilPublished(0)
	require.Zero(t, h.count(`SELECT count(*) FROM outbox_events WHERE refused_at IS NOT NULL`))
	for id, times := range h.tape.times() {
		require.Equal(t, 1, times, id)
	}
}

type publisher func(context.Context, []outbox.Recorded) []error

func (p publisher) Publish(ctx context.Context, wave []outbox.Recorded) []error { return p(ctx, wave) }

// An event is only sent when the one before it is acknowledged, so no wave has two of one aggregate.
func TestNoTwoEventsOfAnAggregateAreOnTheirWayTogether_I4(t *testing.T) {
	h := newHouse(t, pgtest.Pool(t))
	for n := range 5 {
		h.append(fmt.Sprintf("pay_%d", n), 1, 2, 3, 4)
	}
	waves := 0
	h.relay(publisher(func(ctx context.Context, wave []outbox.Recorded) []error {
		waves++
		seen := map[string]bool{}
		for _, e := range wave {
			if seen[e.AggregateID] {
				t.Errorf("%s is sent together with an earlier one", e.ID)
			}
			seen[e.AggregateID] = true
		}
		return h.tape.Publish(ctx, wave)
	}))
	h.untilPublished(0)
	require.GreaterOrEqual(t, waves, 4)
	requireInOrder(t, h.tape.all())
}

// I4: the first event of a payment is lost on its way while everything behind it gets through.
func TestLaterEventWaitsForTheOneThatWasNotAcknowledged_I4(t *testing.T) {
	h := newHouse(t, pgtest.Pool(t))
	h.append("pay_1", 1, 2)
	h.append("pay_2", 1, 2)
	lost := true
	h.tape.answers(func(e outbox.Recorded) error {
		if e.ID == "evt_pay_1_1" && lost {
			lost = false
			return errAway
		}
		return nil
	})
	h.relay(h.tape)
	h.untilPublished(0)
	requireInOrder(t, h.tape.all())
	require.Equal(t, 1, h.count(`SELECT attempts FROM outbox_events WHERE event_id = 'evt_pay_1_1'`))
}

func TestShardsAreOnlyAcquiredFromWhoLetThemGoOrIsOver(t *testing.T) {
	h := newHouse(t, pgtest.Pool(t))
	_, err := h.pool.Exec(t.Context(), `UPDATE outbox_shards SET relay_id = 'relay_dead', epoch = 7, leased_until = now() + interval '400 ms'`)
	require.NoError(t, err)
	h.append("pay_1", 1)
	h.relay(h.tape)
	h.untilPublished(0)
	require.NoError(t, pgx.BeginFunc(t.Context(), h.pool, func(tx pgx.Tx) error {
		var early int
		require.NoError(t, tx.QueryRow(t.Context(), `SELECT count(*) FROM outbox_shards WHERE epoch <> 8`).Scan(&early))
		require.Zero(t, early, "the epoch grows at every acquisition")
		return nil
	}))
}

// J3: a snapshot that stays open keeps every published row in the index.
func TestRelayGoesOnUnderAnOldSnapshot_J3(t *testing.T) {
	h := newHouse(t, pgtest.Pool(t))
	old, err := h.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	defer func() { _ = old.Rollback(t.Context()) }()
	_, err = old.Exec(t.Context(), `SELECT count(*) FROM outbox_events`)
	require.NoError(t, err)
	h.relay(h.tape)
	for n := 1; n <= 5; n++ {
		h.fill("pay_", 2000, n)
		h.untilPublished(0)
	}
	requireInOrder(t, h.tape.all())
	require.Len(t, h.tape.all(), 10_000)
}
