package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/pgtest"
)

func ids(messages []Message) (ids []string) {
	for _, m := range messages {
		ids = append(ids, m.ID)
	}
	return ids
}

func TestMessagesTakeEffectOnceHoweverOftenTheyCome(t *testing.T) {
	h := setup(t)
	set := orders(10)
	q := newQueue(append(append(set, set[3], set[4]), set...)...)
	h.run(h.consumer(h.pool, q), q, 22)
	require.Equal(t, ids(set), h.effects())
	require.Equal(t, 10, h.count(`SELECT count(*) FROM consumer_inbox WHERE consumer_name = 'tester'`))

	q.send(set...)
	h.run(h.consumer(h.pool, q), q, 32)
	require.Len(t, h.effects(), 10)
	require.Empty(t, h.letters())
}

func TestConsumersOfOtherNamesAndOtherTenantsHaveTheirOwn(t *testing.T) {
	h := setup(t)
	one := order{Tenant: "acme", ID: "m1", About: "a1", Seq: 1, Do: "apply"}
	other := one
	other.Tenant = "globex"
	q := newQueue(one.message(), other.message())
	h.run(h.consumer(h.pool, q), q, 2)
	require.Len(t, h.effects(), 2)
	q = newQueue(one.message())
	c := h.consumer(h.pool, q)
	c.Name = "somebody else"
	h.run(c, q, 1)
	require.Len(t, h.effects(), 3)
}

// I2: the acknowledgement is lost, so the message comes again: it is acknowledged again, and nothing else.
func TestI2LostAcknowledgementChangesNothing(t *testing.T) {
	h := setup(t)
	q := newQueue(orders(5)...)
	q.failDone = 2
	h.run(h.consumer(h.pool, q), q, 5)
	require.Len(t, h.effects(), 5)
}

// I4: killed before the commit, in the commit, and between the commit and the acknowledgement.
func TestI4CutCommitLeavesOneEffect(t *testing.T) {
	for name, cut := range map[string]func(*pgtest.Proxy) *pgtest.Cut{
		"before the effect":   func(p *pgtest.Proxy) *pgtest.Cut { return p.DropNextRequest(pgtest.Containing("into effects")) },
		"after the effect":    func(p *pgtest.Proxy) *pgtest.Cut { return p.DropNextReply(pgtest.Containing("into effects")) },
		"after the mark":      func(p *pgtest.Proxy) *pgtest.Cut { return p.DropNextReply(pgtest.Containing("into consumer_inbox")) },
		"commit never came":   func(p *pgtest.Proxy) *pgtest.Cut { return p.DropNextRequest(pgtest.Containing("commit")) },
		"commit was not told": func(p *pgtest.Proxy) *pgtest.Cut { return p.DropNextReply(pgtest.Containing("commit")) },
		"begin":               func(p *pgtest.Proxy) *pgtest.Cut { return p.DropNextReply(pgtest.Containing("begin")) },
	} {
		t.Run(name, func(t *testing.T) {
			h := setup(t)
			proxy := pgtest.NewProxy(t, h.pool.Config().ConnString())
			planned := cut(proxy)
			q := newQueue(orders(3)...)
			h.run(h.consumer(pgtest.Open(t, proxy.URL()), q), q, 3)
			require.True(t, planned.Fired())
			require.Equal(t, ids(orders(3)), h.effects())
			require.Equal(t, 1, q.returned)
			require.Empty(t, h.letters())
		})
	}
}

// I4: one message to two instances at the same instant. The second waits for the first, and acts by what became of it.
func TestI4TwoInstancesAtTheSameInstantHaveOneEffect(t *testing.T) {
	for name, fate := range map[string]error{"the first commits": nil, "the first dies": context.Canceled} {
		t.Run(name, func(t *testing.T) {
			h := setup(t)
			entered, leave := make(chan struct{}), make(chan struct{})
			var first sync.Once
			h.hold = func(context.Context) error {
				err := error(nil)
				first.Do(func() {
					close(entered)
					<-leave
					err = fate
				})
				return err
			}
			one, two := newQueue(orders(1)...), newQueue(orders(1)...)
			stopOne := h.start(h.consumer(h.pool, one))
			defer stopOne()
			<-entered
			stopTwo := h.start(h.consumer(h.pool, two))
			defer stopTwo()
			h.eventually(func() bool {
				return h.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 1
			})
			require.Zero(t, two.ackedCount(), "acknowledged what is not durable")
			close(leave)
			h.eventually(func() bool { return one.ackedCount() == 1 && two.ackedCount() == 1 })
			require.Len(t, h.effects(), 1)
			require.Empty(t, h.letters())
		})
	}
}

// I4: while it runs, it is delivered again, to many.
func TestI4ManyInstancesShareTheWork(t *testing.T) {
	h := setup(t)
	set := orders(600)
	var queues []*queue
	for range 3 {
		q := newQueue(set...)
		queues = append(queues, q)
		defer h.start(h.consumer(h.pool, q))()
	}
	for _, q := range queues {
		h.eventually(func() bool { return q.ackedCount() == 600 })
	}
	require.ElementsMatch(t, ids(set), h.effects())
	require.Empty(t, h.letters())
}

// Everything that can be in a batch, at once: each message gets what it deserves, and the good ones get it.
func TestBatchWithEveryKindOfMessage(t *testing.T) {
	h := setup(t)
	special := []string{"poison", "refuse", "panic", "nil pointer", "bad data", "swallow", "skip", "newer", "panic in read"}
	var set []Message
	for i := range batchMax - 4 {
		o := order{Tenant: "acme", ID: fmt.Sprintf("m%03d", i), About: fmt.Sprintf("a%03d", i), Seq: 1, Do: "apply"}
		if i%20 == 7 && i/20 < len(special) {
			o.Do, o.Secret = special[i/20], "s3cret"
		}
		set = append(set, o.message())
	}
	set = append(set, set[0], // a duplicate
		Message{ID: "m\x00\xff", Reference: "test:\x00\xff", Body: []byte("\x00\xffs3cret")},
		Message{ID: "oversized", Reference: "test:oversized", Body: []byte(strings.Repeat("s3cret", bodyBytesMax))},
		order{Tenant: "ac\x00me", ID: "m1", Do: "apply", Secret: "s3cret"}.message())
	require.Len(t, set, batchMax)
	q := newQueue(set...)
	h.run(h.consumer(h.pool, q), q, batchMax)
	require.Zero(t, q.returned)
	require.Len(t, h.effects(), batchMax-4-len(special))

	reasons := map[string]int{}
	for _, l := range h.letters() {
		reasons[l.Reason]++
		require.NotContains(t, l.Error+l.Reference+l.MessageID, "s3cret")
		require.Equal(t, l.Reason != reasonOversized, l.Kept)
		if l.Reason == reasonPoison && l.TenantID != "" {
			require.Equal(t, triesMax, l.Attempts)
			require.Equal(t, "test:"+l.MessageID, l.Reference)
		}
	}
	require.Equal(t, map[string]int{reasonPoison: 6, "contradiction": 1, reasonUnknownVersion: 1, reasonMalformed: 2, reasonOversized: 1}, reasons)
	require.NotContains(t, h.log.String(), "s3cret", "H7: the log repeats a message")
	require.Contains(t, h.log.String(), "the database refuses it: SQLSTATE 22P02")
	require.Contains(t, h.log.String(), "panic: runtime error: invalid memory address")

	q.send(set...)
	h.run(h.consumer(h.pool, q), q, 2*batchMax)
	require.Len(t, h.effects(), batchMax-4-len(special), "redelivered, dead ones included")
	require.Len(t, h.letters(), 11)
}

// A message that only fails while another one is there must not die with it.
func TestWhatPassesByItselfIsNotPoison(t *testing.T) {
	h := setup(t)
	failures := 0
	h.hold = func(context.Context) error {
		if failures++; failures < triesMax {
			return errors.New("not yet")
		}
		return nil
	}
	q := newQueue(orders(1)...)
	h.run(h.consumer(h.pool, q), q, 1)
	require.Len(t, h.effects(), 1)
	require.Empty(t, h.letters())
}

func TestOutageInTheMiddleOfABatchCostsNoAttempts(t *testing.T) {
	h := setup(t)
	proxy := pgtest.NewProxy(t, h.pool.Config().ConnString())
	entered, again := make(chan struct{}), make(chan struct{})
	var first sync.Once
	h.hold = func(context.Context) error {
		first.Do(func() { close(entered); <-again })
		return nil
	}
	set := orders(50)
	set[25] = order{Tenant: "acme", ID: "m025", About: "a025", Seq: 1, Do: "poison"}.message()
	q := newQueue(set...)
	stop := h.start(h.consumer(pgtest.Open(t, proxy.URL()), q))
	defer stop()
	<-entered // it is in the middle of going one by one
	proxy.Down()
	close(again)
	h.eventually(func() bool { return q.fetchCount() > 4 })
	require.Zero(t, q.ackedCount())
	require.Empty(t, h.letters())
	proxy.Up(t)
	h.eventually(func() bool { return q.ackedCount() == 50 })
	require.Len(t, h.effects(), 49)
	letters := h.letters()
	require.Len(t, letters, 1)
	require.Equal(t, triesMax, letters[0].Attempts)
}

func (q *queue) fetchCount() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.fetches
}

// A consumer may hide what the driver said; a connection that is gone says it all the same.
func TestLostConnectionIsAnOutageWhateverApplyMakesOfIt(t *testing.T) {
	h := setup(t)
	lost := 0
	c := h.consumer(h.pool, nil)
	c.Apply = func(ctx context.Context, tx pgx.Tx, fresh []Received[order]) error {
		if lost++; lost <= 2*triesMax {
			_, _ = tx.Exec(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
			return errors.New("something failed")
		}
		return h.apply(ctx, tx, fresh)
	}
	q := newQueue(orders(2)...)
	c.Source = q
	for range 2 * triesMax {
		require.Error(t, c.take(t.Context(), orders(2)))
	}
	h.run(c, q, 2)
	require.Len(t, h.effects(), 2)
	require.Empty(t, h.letters())
}

func TestBrokerOutageEndsByItself(t *testing.T) {
	h := setup(t)
	q := newQueue(orders(3)...)
	q.failFetch = errors.New("no broker")
	stop := h.start(h.consumer(h.pool, q))
	defer stop()
	h.eventually(func() bool { return q.fetchCount() > 2 })
	q.mu.Lock()
	q.failFetch = nil
	q.mu.Unlock()
	h.eventually(func() bool { return q.ackedCount() == 3 })
	require.Len(t, h.effects(), 3)
}

// Told to end in the middle of a batch, it ends what it has begun and gives back the rest.
func TestShutdownGivesBackWhatIsNotDone(t *testing.T) {
	h := setup(t)
	set := orders(50)
	set[0] = order{Tenant: "acme", ID: "m000", About: "a000", Seq: 1, Do: "poison"}.message() // so that they go one by one
	entered, leave := make(chan struct{}), make(chan struct{})
	var once sync.Once
	h.hold = func(context.Context) error {
		once.Do(func() { close(entered); <-leave })
		return nil
	}
	q := newQueue(set...)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.consumer(h.pool, q).Run(ctx) }()
	<-entered
	cancel()
	close(leave)
	require.NoError(t, <-done)
	require.Equal(t, []string{"m001"}, h.effects())
	require.Equal(t, 1, q.returned)
	require.Zero(t, q.ackedCount())

	h.run(h.consumer(h.pool, q), q, 50)
	require.Len(t, h.effects(), 49)
}

// A source that has nothing and does not wait either is not asked in a hot loop.
func TestConsumerNeverLoopsHot(t *testing.T) {
	h := setup(t)
	q := newQueue()
	stop := h.start(h.consumer(h.pool, q))
	time.Sleep(200 * time.Millisecond)
	stop()
	require.LessOrEqual(t, q.fetchCount(), 12)
	require.Less(t, outagePause(1000), outagePauseMax+1)
	require.GreaterOrEqual(t, outagePause(1), outagePauseMin/2)
}
