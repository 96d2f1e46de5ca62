package inbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// story is three events of one thing, of which the first fails, and one of another.
func story() []Message {
	return []Message{
		order{Tenant: "acme", ID: "m1", About: "a1", Seq: 1, Do: "poison"}.message(),
		order{Tenant: "acme", ID: "m2", About: "a1", Seq: 2, Do: "apply"}.message(),
		order{Tenant: "acme", ID: "m3", About: "a1", Seq: 3, Do: "apply"}.message(),
		order{Tenant: "acme", ID: "other", About: "a2", Seq: 1, Do: "apply"}.message(),
		order{Tenant: "globex", ID: "m2", About: "a1", Seq: 2, Do: "apply"}.message(), // another tenant's a1
	}
}

func TestLaterMessagesOfADeadOneWaitAndFollowInOrder(t *testing.T) {
	h := setup(t)
	q := newQueue(story()...)
	c := h.consumer(h.pool, q)
	h.run(c, q, 5)
	require.ElementsMatch(t, []string{"other", "m2"}, h.effects())
	q.send(order{Tenant: "acme", ID: "m4", About: "a1", Seq: 4, Do: "apply"}.message())
	h.run(c, q, 6)

	letters := h.letters()
	require.Len(t, letters, 4)
	require.Equal(t, reasonPoison, letters[0].Reason)
	for _, l := range letters[1:] {
		require.Equal(t, reasonBehind, l.Reason)
		require.Equal(t, "m1", l.Behind)
		require.Zero(t, l.Attempts)
	}
	waiting, err := CountDeadLetters(t.Context(), h.pool)
	require.NoError(t, err)
	require.EqualValues(t, 4, waiting.Letters)

	gone, err := c.Redrive(t.Context(), Key{"acme", "m3"})
	require.Error(t, err, "nothing is repaired yet")
	require.Zero(t, gone)
	require.Equal(t, triesMax+1, h.letters()[0].Attempts)
	require.Zero(t, h.letters()[2].Attempts, "it was not its turn")

	h.repair()
	gone, err = c.Redrive(t.Context(), Key{"acme", "m3"})
	require.NoError(t, err)
	require.Equal(t, 4, gone)
	require.Equal(t, []string{"m1", "m2", "m3", "m4"}, h.column(`SELECT message_id FROM effects WHERE tenant_id = 'acme' AND message_id <> 'other' ORDER BY n`))
	require.Empty(t, h.letters())

	q.send(story()...)
	h.run(c, q, 11)
	require.Len(t, h.effects(), 6, "redelivered after all")
}

func TestRedrivenTwiceIsOneEffect(t *testing.T) {
	h := setup(t)
	q := newQueue(story()...)
	c := h.consumer(h.pool, q)
	h.run(c, q, 5)
	h.repair()
	var group sync.WaitGroup
	results := make(chan int, 8)
	for range 8 {
		group.Go(func() {
			gone, err := c.Redrive(context.Background(), Key{"acme", "m1"})
			if err != nil && !errors.Is(err, ErrNoLetter) {
				t.Error(err)
			}
			results <- gone
		})
	}
	group.Wait()
	close(results)
	total := 0
	for gone := range results {
		total += gone
	}
	require.Equal(t, 3, total)
	require.Len(t, h.effects(), 5)
	require.Empty(t, h.letters())
	_, err := c.Redrive(t.Context(), Key{"acme", "m1"})
	require.ErrorIs(t, err, ErrNoLetter)
}

// Redriven while the broker sends it again, and after the inbox has been purged.
func TestRedriveAndRedeliveryAreOneEffect(t *testing.T) {
	h := setup(t)
	q := newQueue(story()[0])
	c := h.consumer(h.pool, q)
	h.run(c, q, 1)
	h.repair()
	q.send(story()[0])
	h.run(c, q, 2)
	require.Empty(t, h.effects(), "a dead letter waits for a person, whatever comes again")
	_, err := c.Redrive(t.Context(), Key{"acme", "m1"})
	require.NoError(t, err)
	q.send(story()[0])
	h.run(c, q, 3)
	require.Len(t, h.effects(), 1)
}

// What was handled before an earlier message failed is done, and does not wait for it when it comes again.
func TestHandledMessageIsNotStoppedAfterwards(t *testing.T) {
	h := setup(t)
	q := newQueue(story()[1])
	c := h.consumer(h.pool, q)
	h.run(c, q, 1)
	q.send(story()[0], story()[1], story()[2])
	h.run(c, q, 4)
	require.Equal(t, []string{"m2"}, h.effects())
	letters := h.letters()
	require.Len(t, letters, 2)
	require.Equal(t, []string{"m1", "m3"}, []string{letters[0].MessageID, letters[1].MessageID})
}

func TestRedriveAllGoesOnBehindWhatStillFails(t *testing.T) {
	h := setup(t)
	var set []Message
	for i := range 250 { // more than a page
		set = append(set, order{Tenant: "acme", ID: fmt.Sprintf("m%03d", i), About: fmt.Sprintf("a%03d", i/2), Seq: i%2 + 1, Do: "poison"}.message())
	}
	q := newQueue(set...)
	c := h.consumer(h.pool, q)
	h.run(c, q, 250)
	require.Len(t, h.letters(), 250)
	gone, failed, err := c.RedriveAll(t.Context())
	require.NoError(t, err)
	require.Zero(t, gone)
	require.Equal(t, 125, failed, "the first of each, and not those behind it")
	h.repair()
	gone, failed, err = c.RedriveAll(t.Context())
	require.NoError(t, err)
	require.Equal(t, 250, gone)
	require.Zero(t, failed)
	require.Len(t, h.effects(), 250)
}

func TestDiscardedLetterStopsNothingAndIsNeverHandled(t *testing.T) {
	h := setup(t)
	q := newQueue(story()...)
	c := h.consumer(h.pool, q)
	h.run(c, q, 5)
	require.Error(t, Discard(t.Context(), h.pool, "tester", Key{"acme", "m1"}, "", ""), "without who and why")
	require.NoError(t, Discard(t.Context(), h.pool, "tester", Key{"acme", "m1"}, "ada", "was a test"))
	require.ErrorIs(t, Discard(t.Context(), h.pool, "tester", Key{"acme", "m1"}, "ada", "again"), ErrNoLetter)
	require.ErrorIs(t, Discard(t.Context(), h.pool, "tester", Key{"acme", "nobody"}, "ada", "x"), ErrNoLetter)
	_, err := c.Redrive(t.Context(), Key{"acme", "m1"})
	require.ErrorIs(t, err, ErrDiscarded)

	h.repair()
	gone, failed, err := c.RedriveAll(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int{2, 0}, []int{gone, failed})
	q.send(story()...)
	h.run(c, q, 10)
	require.NotContains(t, h.effects(), "m1")
	letters := h.letters()
	require.Len(t, letters, 1)
	require.Equal(t, "ada", letters[0].Discarded.By)
	waiting, err := ListDeadLetters(t.Context(), h.pool, Query{Max: 10})
	require.NoError(t, err)
	require.Empty(t, waiting)
}

// What could not be read can be read by a newer build, and is then handled under its real name, behind what it is behind.
func TestUnreadableMessagesAreHandledWhenTheyCanBeRead(t *testing.T) {
	h := setup(t)
	newer := order{Tenant: "acme", ID: "m1", About: "a1", Seq: 1, Do: "newer"}.message()
	q := newQueue(newer, newer, Message{ID: "m1", Body: []byte("nonsense")}, Message{})
	c := h.consumer(h.pool, q)
	h.run(c, q, 4)
	letters := h.letters()
	require.Len(t, letters, 3)
	for _, l := range letters {
		require.Empty(t, l.TenantID)
		require.True(t, strings.HasPrefix(l.MessageID, "sha256:"))
		require.True(t, l.Kept)
	}
	gone, failed, err := c.RedriveAll(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int{0, 3}, []int{gone, failed})

	c.Read = func(m Message) (Head, order, error) {
		head, o, err := readOrder(m)
		if errors.Is(err, errNewer) {
			err = nil
		}
		return head, o, err
	}
	gone, failed, err = c.RedriveAll(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int{1, 2}, []int{gone, failed})
	require.Equal(t, []string{"m1"}, h.effects())
	require.Equal(t, 1, h.count(`SELECT count(*) FROM consumer_inbox WHERE tenant_id = 'acme' AND message_id = 'm1'`))
}

func TestOversizedMessageSaysThatItWasNotKept(t *testing.T) {
	h := setup(t)
	q := newQueue(Message{ID: "big", Reference: "nats:7", Body: make([]byte, bodyBytesMax+1)})
	c := h.consumer(h.pool, q)
	h.run(c, q, 1)
	letters := h.letters()
	require.Len(t, letters, 1)
	require.Equal(t, "nats:7", letters[0].Reference)
	_, err := c.Redrive(t.Context(), Key{"", letters[0].MessageID})
	require.ErrorIs(t, err, ErrNotKept)
	require.Len(t, h.letters(), 1)
}

func TestOutagesAreToldFromPoisonByType(t *testing.T) {
	pg := func(code string) error { return fmt.Errorf("apply: %w", &pgconn.PgError{Code: code}) }
	for _, err := range []error{
		pg("08006"), pg("53100"), pg("53300"), pg("57014"), pg("57P01"), pg("57P03"), pg("58030"), pg("40001"), pg("40P01"), pg("55P03"), pg("25006"),
		pg("42P01"), pg("42501"), pg("28P01"), pg("3D000"), context.DeadlineExceeded, context.Canceled, io.ErrUnexpectedEOF, &outage{errors.New("x")},
		&outage{pg("XX000")}, fmt.Errorf("x: %w", &net.OpError{Err: errors.New("refused")}),
	} {
		require.True(t, isOutage(err), "%v", err)
	}
	for _, err := range []error{
		pg("22003"), pg("22021"), pg("23505"), pg("23514"), pg("23001"), pg("P0001"), pg("21000"), pg("54000"), pg("XX000"), pg("25P02"), pgx.ErrTxClosed, pgx.ErrTxCommitRollback,
		pgx.ErrNoRows, errors.New("connection reset by peer"), &Refusal{"x", "y"}, &panicked{"z"},
	} {
		require.False(t, isOutage(err), "%v", err)
	}
}

func TestWhatIsStoredIsTextOfBoundedLength(t *testing.T) {
	require.Equal(t, "a?b?", storable("a\x00b\xff", 10))
	require.Equal(t, "éé", storable("ééé", 5))
	require.Equal(t, "", storable("é", 1))
}

// J3: handled messages are forgotten in small batches, beside a reader with an old snapshot and another cleaner.
func TestJ3HandledMessagesAreForgottenInSmallBatches(t *testing.T) {
	h := setup(t)
	_, err := h.pool.Exec(t.Context(), `INSERT INTO consumer_inbox (tenant_id, consumer_name, message_id, processed_at)
		SELECT 'acme', 'tester', 'm' || n, now() - n * interval '1 minute' FROM generate_series(1, 5000) n`)
	require.NoError(t, err)
	old, err := h.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	defer func() { _ = old.Rollback(t.Context()) }()
	_, err = old.Exec(t.Context(), `SELECT count(*) FROM consumer_inbox`)
	require.NoError(t, err)

	var group sync.WaitGroup
	var mu sync.Mutex
	total, rests := int64(0), 0
	for range 2 {
		group.Go(func() {
			n, err := Forget(context.Background(), h.pool, 1000*time.Minute, 100, func(context.Context) { mu.Lock(); rests++; mu.Unlock() })
			mu.Lock()
			defer mu.Unlock()
			total += n
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	n, err := Forget(t.Context(), h.pool, 1000*time.Minute, 100, func(context.Context) {}) // what one skipped because the other held it
	require.NoError(t, err)
	require.EqualValues(t, 4001, total+n)
	require.GreaterOrEqual(t, rests, 30)
	require.Equal(t, 999, h.count(`SELECT count(*) FROM consumer_inbox`))
}

func TestOnceDiesWithItsCaller(t *testing.T) {
	h := setup(t)
	failing := errors.New("the caller changes its mind")
	keys := []Key{{"acme", "m2"}, {"acme", "m1"}, {"acme", "m2"}}
	for _, fate := range []error{failing, nil, failing} {
		var isNew []bool
		err := pgx.BeginFunc(t.Context(), h.pool, func(tx pgx.Tx) (err error) {
			isNew, err = Once(t.Context(), tx, "tester", keys)
			require.NoError(t, err)
			return fate
		})
		require.ErrorIs(t, err, fate)
		if h.count(`SELECT count(*) FROM consumer_inbox`) == 0 || fate == nil {
			require.Equal(t, []bool{true, true, false}, isNew)
		} else {
			require.Equal(t, []bool{false, false, false}, isNew)
		}
	}
}
