package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/outbox/internal/outboxsql"
	"github.com/paymentsd/paymentsd/internal/pgtest"
)

func dueOf(aggregates ...string) (batch []due) {
	for _, a := range aggregates {
		batch = append(batch, due{Recorded: Recorded{TenantID: "acme", Event: Event{ID: fmt.Sprintf("evt_%d", len(batch)), AggregateID: a}}})
	}
	return batch
}

func TestWavesHaveOneEventOfEachAggregateAndKeepTheirOrder(t *testing.T) {
	got := ""
	for _, wave := range waves(dueOf("a", "b", "a", "c", "a", "b")) {
		for _, e := range wave {
			got += e.AggregateID + e.ID[4:] + " "
		}
		got += "| "
	}
	require.Equal(t, "a0 b1 c3 | a2 b5 | a4 | ", got)
	require.Empty(t, waves(nil))
}

// What the answers of one wave mean, for each event and for the broker.
func TestAnswersAreJudgedByTheCompanyTheyCameIn(t *testing.T) {
	broken, late, no := errors.New("broken"), fmt.Errorf("waiting: %w", context.DeadlineExceeded), fmt.Errorf("%w: too large", ErrRefused)
	for _, c := range []struct {
		name              string
		errs              []error
		acked, held, away int // events acknowledged, held back, set aside
		outage, congested bool
	}{
		{"all taken", []error{nil, nil}, 2, 0, 0, false, false},
		{"nobody answers: an outage, and nothing is held against anybody", []error{broken, broken}, 0, 0, 0, true, false},
		{"nobody answers in time", []error{late, late, late}, 0, 0, 0, true, true},
		{"one fails beside another that is taken", []error{nil, broken}, 1, 1, 0, false, false},
		{"one is refused", []error{no, nil}, 1, 0, 1, false, false},
		{"refused in an outage is refused all the same, and the other waits", []error{no, broken}, 0, 0, 1, true, false},
		{"a few late among many: they are held back", []error{nil, nil, late}, 2, 1, 0, false, false},
		{"most are late: the broker is slow", []error{nil, late, late}, 1, 0, 0, false, true},
		{"the broker is slow, and one is broken besides", []error{nil, late, late, broken}, 1, 1, 0, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var d delivered
			congested, outage := d.judge(dueOf("a", "b", "c", "d")[:len(c.errs)], c.errs)
			require.Equal(t, c.outage, outage != nil)
			require.Equal(t, c.congested, congested)
			require.Len(t, d.acked, c.acked)
			held, aside := 0, 0
			for _, e := range d.failed {
				if e.refusal != "" {
					aside++
					continue
				}
				held++
				require.Positive(t, e.pause)
			}
			require.Equal(t, c.held, held)
			require.Equal(t, c.away, aside)
		})
	}
}

func TestTheLastAttemptSetsAside(t *testing.T) {
	batch := dueOf("a", "b")
	batch[1].attempts = attemptsMax - 2
	var d delivered
	d.judge(batch, []error{nil, errors.New("broken")})
	require.Empty(t, d.failed[0].refusal)
	require.LessOrEqual(t, d.failed[0].pause, holdMax)
	batch[1].attempts++
	d = delivered{}
	d.judge(batch, []error{nil, errors.New("broken")})
	require.NotEmpty(t, d.failed[0].refusal)
}

// The mark is what fences a relay that was overtaken, so each part of its condition is tried by itself.
func TestMarkNeedsTheShardTheRelayAndTheEpoch(t *testing.T) {
	pool := pgtest.Pool(t)
	_, err := pool.Exec(t.Context(), `INSERT INTO outbox_events (tenant_id, event_id, aggregate_id, sequence, event_type, payload)
		VALUES ('acme', 'evt_1', 'pay_1', 1, 'PaymentCreated', '{}')`)
	require.NoError(t, err)
	var shard int16
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT shard FROM outbox_events`).Scan(&shard))
	_, err = pool.Exec(t.Context(), `UPDATE outbox_shards SET relay_id = 'relay_1', epoch = 7, leased_until = now() - interval '1 h'`)
	require.NoError(t, err)
	mark := func(shard int16, relay string, epoch int64) (marked int64) {
		row, err := outboxsql.New().MarkPublished(t.Context(), pool, outboxsql.MarkPublishedParams{
			Shards: []int16{shard}, Epochs: []int64{epoch}, RelayID: relay, TenantIds: []string{"acme"}, AggregateIds: []string{"pay_1"}, Sequences: []int32{1}})
		require.NoError(t, err)
		back, err := outboxsql.New().HoldEventsBack(t.Context(), pool, outboxsql.HoldEventsBackParams{Shards: []int16{shard}, Epochs: []int64{epoch}, RelayID: relay,
			TenantIds: []string{"acme"}, AggregateIds: []string{"pay_1"}, Sequences: []int32{1}, Pauses: []time.Duration{0}, Refusals: []string{""}})
		require.NoError(t, err)
		require.Equal(t, len(row.Held), len(back.Held))
		if row.Marked == 0 {
			require.Zero(t, back.HeldBack)
		}
		return row.Marked
	}
	require.Zero(t, mark((shard+1)%16, "relay_1", 7))
	require.Zero(t, mark(shard, "relay_2", 7))
	require.Zero(t, mark(shard, "relay_1", 6))
	require.Zero(t, mark(shard, "relay_1", 8))
	require.EqualValues(t, 1, mark(shard, "relay_1", 7), "also when the lease is over and nobody has taken over: the epoch fences, not the time")
	require.Zero(t, mark(shard, "relay_1", 7), "once")
}

// J3: rows that an old snapshot keeps in the index are stepped over once an interval, or less often, and not at every reading.
func TestReadingsBeginAtTheHorizonAndGoBackToTheBeginningNowAndThen_J3(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	h := newHorizon(time.Second)
	reading := func(after time.Duration, took time.Duration, last, next int64) (from int64) {
		now = now.Add(after)
		from = h.from(now)
		h.read(now, took, from, last, next)
		return from
	}
	require.EqualValues(t, 0, reading(0, 0, 1000, 1001), "the first begins at the beginning")
	require.EqualValues(t, 1001, reading(time.Millisecond, 0, 2000, 2001), "one that was cut short is gone on with")
	require.EqualValues(t, 2001, reading(time.Millisecond, 0, 2500, 0))
	require.EqualValues(t, 0, reading(time.Millisecond, 0, 2600, 0), "nothing is settled yet: who was given a lower position may still commit")
	require.EqualValues(t, 0, reading(time.Second, 0, 2700, 0), "the beginning is due")
	require.EqualValues(t, 0, reading(settleFor, 0, 5000, 0))
	require.EqualValues(t, 1000, reading(time.Millisecond, 0, 5100, 0), "what was the newest then is the floor now")
	require.EqualValues(t, 0, reading(settleFor, 500*time.Millisecond, 9000, 0))
	require.EqualValues(t, 5000, reading(time.Second, 0, 9100, 0), "after a long one from the beginning a longer rest")
	require.EqualValues(t, 0, reading(4*time.Second, 0, 9200, 9201))
}

// A reading that begins behind an unpublished event must not send what comes after it: the horizon is a matter of speed alone.
func TestEventBelowTheHorizonIsWaitedForByThoseAboveIt_I4(t *testing.T) {
	pool := pgtest.Pool(t)
	_, err := pool.Exec(t.Context(), `INSERT INTO outbox_events (tenant_id, event_id, aggregate_id, sequence, event_type, payload)
		SELECT 'acme', id, substr(id, 1, 1), substr(id, 2)::int, 'PaymentCreated', '{}' FROM unnest('{a1,b1,a2,b2,c1,a3}'::text[]) id`)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `UPDATE outbox_events SET published_at = now() WHERE event_id = 'b1'`)
	require.NoError(t, err)
	var sent []string
	r := NewRelay(pool, publisherFunc(func(wave []Recorded) []error {
		for _, e := range wave {
			sent = append(sent, e.ID)
		}
		return make([]error, len(wave))
	}), RelayConfig{Interval: time.Hour, LeaseFor: time.Hour, Log: slog.Default()})
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT position FROM outbox_events WHERE event_id = 'a2'`).Scan(&r.horizon.floor))
	r.horizon.fromZero = time.Now().Add(time.Hour)
	_, err = r.pass(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"b2", "c1"}, sent)
	r.horizon.fromZero = time.Time{}
	_, err = r.pass(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"b2", "c1", "a1", "a2", "a3"}, sent)
}

type publisherFunc func([]Recorded) []error

func (p publisherFunc) Publish(_ context.Context, wave []Recorded) []error { return p(wave) }

func TestReadingThatWasCutShortIsGoneOnWithWhereItMissesNothing(t *testing.T) {
	reading := func(positionsOfShard ...int64) (rows []outboxsql.DueEventsRow) { // position, shard, position, shard, …
		for i := 0; i < len(positionsOfShard); i += 2 {
			rows = append(rows, outboxsql.DueEventsRow{Position: positionsOfShard[i], Shard: int16(positionsOfShard[i+1])})
		}
		return rows
	}
	for _, c := range []struct {
		rows       []outboxsql.DueEventsRow
		last, next int64
	}{
		{reading(), 0, 0},
		{reading(5, 0, 7, 1), 7, 0},
		{reading(5, 0, 6, 0, 7, 1, 9, 2), 9, 7}, // shard 0 may have more from 7 on
		{reading(5, 0, 6, 1, 7, 2, 8, 3, 9, 4), 9, 10},
		{reading(5, 0, 6, 1, 7, 1, 8, 0, 9, 2), 9, 8},
	} {
		last, next := ends(c.rows, 2, 5)
		require.Equal(t, c.last, last)
		require.Equal(t, c.next, next)
	}
}

// J3: after an outage the statistics are still those of a good day. A plan that collects and sorts the backlog does so for
// every thousand events of it.
func TestReadingWalksTheIndexWhateverTheStatisticsSay_J3(t *testing.T) {
	pool := pgtest.Pool(t)
	generated, err := os.ReadFile("internal/outboxsql/outbox.sql.go")
	require.NoError(t, err)
	query := regexp.MustCompile("(?s)const dueEvents = `(.*?)`").FindSubmatch(generated)
	require.NotNil(t, query)
	for _, sql := range []string{
		`INSERT INTO outbox_events (tenant_id, event_id, aggregate_id, sequence, event_type, payload)
			SELECT 'acme', 'evt_' || g, 'pay_' || g, 1, 'PaymentCreated', '{}' FROM generate_series(1, 20000) g`,
		`UPDATE outbox_events SET published_at = now() WHERE position % 100 > 0`,
		`ANALYZE outbox_events`,
	} {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	plan := func(begin string) (plan string) {
		require.NoError(t, pgx.BeginTxFunc(t.Context(), pool, pgx.TxOptions{BeginQuery: begin}, func(tx pgx.Tx) error {
			lines, err := tx.Query(t.Context(), "EXPLAIN "+string(query[1]), int64(7), []int16{0, 1, 2, 3}, int32(rowsMax), int32(rowsMax))
			require.NoError(t, err)
			texts, err := pgx.CollectRows(lines, pgx.RowTo[string])
			plan = strings.Join(texts, "\n")
			return err
		}))
		return plan
	}
	require.Contains(t, plan("BEGIN"), "Bitmap", "else this test shows nothing")
	require.NotContains(t, plan(beginReading), "Bitmap")
	require.NotContains(t, plan(beginReading), "Seq Scan")
	require.Contains(t, plan(beginReading), "Index Scan using outbox_events_unpublished")
}
