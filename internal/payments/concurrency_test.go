package payments

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/pgtest"
)

// kind sorts what a call got.
func kind(r Result, err error) string {
	_, busy := errors.AsType[*InProgressError](err)
	_, duplicate := errors.AsType[*DuplicateReferenceError](err)
	switch {
	case busy:
		return "busy"
	case duplicate:
		return "duplicate"
	case errors.Is(err, ErrUnavailable):
		return "unavailable"
	case err != nil:
		return "error: " + err.Error()
	case r.Replayed:
		return "replay"
	case r.Pending:
		return "pending"
	default:
		return "first"
	}
}

// atOnce makes n calls together and counts what they got.
func atOnce(n int, call func(i int) string) map[string]int {
	var mu sync.Mutex
	got := map[string]int{}
	var start, end sync.WaitGroup
	start.Add(1)
	for i := range n {
		end.Go(func() {
			start.Wait()
			k := call(i)
			mu.Lock()
			defer mu.Unlock()
			got[k]++
		})
	}
	start.Done()
	end.Wait()
	return got
}

func TestF1_EqualRequestsAtOnceMakeOnePayment(t *testing.T) {
	h := setup(t)
	services := []*Service{h.service(nil, nil), h.service(pgtest.Open(t, h.pool.Config().ConnString()), nil)}
	const rounds, requests = 20, 50
	for range rounds {
		c := h.command()
		h.fault(c.Said.MerchantReference, "charge", "delay", 1, delayMS(20))
		got := atOnce(requests, func(i int) string { return kind(services[i%2].Create(t.Context(), c)) })
		require.Equal(t, 1, got["first"], got)
		require.Equal(t, requests, got["first"]+got["busy"]+got["replay"], got)
		require.Len(t, h.charges(c.Said.MerchantReference), 1)
		require.Equal(t, 1, h.posts(c.Said.MerchantReference))
	}
	got := atOnce(requests, func(int) string { return kind(services[0].Create(t.Context(), h.command())) })
	require.Equal(t, requests, got["first"], "different keys do not hinder each other: %v", got)
	h.audit()
}

// One purchase under fifty keys: the business key lets one through, the others learn its payment, and burn no key.
func TestF2_OneReferenceUnderManyKeysMakesOneCall(t *testing.T) {
	h := setup(t)
	s := h.service(nil, nil)
	for range 10 {
		c := h.command()
		h.fault(c.Said.MerchantReference, "charge", "delay", 1, delayMS(50))
		got := atOnce(30, func(i int) string {
			mine := c
			mine.Scope.Key = idempotency.Key(string(c.Scope.Key) + "-" + string(rune('a'+i)))
			return kind(s.Create(t.Context(), mine))
		})
		require.Equal(t, map[string]int{"first": 1, "duplicate": 29}, got)
		require.Equal(t, 1, h.posts(c.Said.MerchantReference))
		require.Equal(t, 1, h.count(`SELECT count(*) FROM idempotency_requests WHERE idempotency_key LIKE $1`, string(c.Scope.Key)+"-%"))
	}
	h.audit()
}

// The provider has the request and has not answered. Nobody else may call: not the same key, not another key for the same
// purchase, not the recovery worker.
func TestF2_NoProviderIDYetIsNoPermissionToCall(t *testing.T) {
	h := setup(t)
	c := h.command()
	var got []string
	s := h.service(nil, slowProvider{h.client(), func() {
		other := h.service(nil, nil)
		got = append(got, kind(other.Create(t.Context(), c)))
		again := c
		again.Scope.Key = "another-key"
		got = append(got, kind(other.Create(t.Context(), again)))
		found, err := other.Recover(t.Context())
		require.NoError(t, err)
		require.False(t, found)
	}})
	require.Equal(t, "first", kind(s.Create(t.Context(), c)))
	require.Equal(t, []string{"busy", "duplicate"}, got)
	require.Equal(t, 1, h.posts(c.Said.MerchantReference))
	h.audit()
}

// brokenDB answers the nth statement with an SQLSTATE, without running it.
type brokenDB struct {
	Database
	code string
	at   int64
	seen *atomic.Int64
}

func (d brokenDB) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if d.seen.Add(1) == d.at {
		return nil, &pgconn.PgError{Code: d.code, Message: "injected"}
	}
	return d.Database.Query(ctx, sql, args...)
}

func TestF4_SQLSTATEsAreNoAnswers(t *testing.T) {
	h := setup(t)
	for _, code := range []string{"23505", "40001", "40P01", "55P03", "57014", "25006", "53300", "XX000"} {
		for at := int64(1); at <= 3; at++ {
			t.Run(code, func(t *testing.T) {
				h := h.in(t)
				c := h.command()
				broken := h.service(brokenDB{h.pool, code, at, new(atomic.Int64)}, nil)
				got := kind(broken.Create(t.Context(), c))
				switch {
				case code == "40001" || code == "40P01":
					require.Equal(t, "first", got, "the whole transaction is tried again")
				case at == 1:
					require.Equal(t, "unavailable", got)
				default:
					require.Equal(t, "pending", got, "the payment is durable: it is pending, and nobody says failed")
				}
				require.Zero(t, h.count(`SELECT count(*) FROM idempotency_requests WHERE status = 'FAILED_REPLAYABLE'`))
				h.leaseOver()
				require.Contains(t, []string{"first", "replay"}, kind(h.service(nil, nil).Create(t.Context(), c)))
				require.Len(t, h.charges(c.Said.MerchantReference), 1)
				require.Equal(t, 1, h.posts(c.Said.MerchantReference))
			})
		}
	}
	h.audit()
}

// While a provider call hangs, no transaction is open, retries are answered at once, and other keys are not delayed, on a
// pool of one connection.
func TestF5_TheLoserAnswersInsteadOfWaiting(t *testing.T) {
	h := setup(t)
	pool := pgtest.Open(t, h.pool.Config().ConnString(), func(c *pgxpool.Config) { c.MaxConns = 1 })
	c := h.command()
	const hangs = 1500 * time.Millisecond
	h.fault(c.Said.MerchantReference, "charge", "delay", 1, delayMS(int(hangs.Milliseconds())))
	s := h.service(pool, nil)
	first := make(chan string, 1)
	go func() { first <- kind(s.Create(context.Background(), c)) }()
	require.Eventually(t, func() bool { return h.posts(c.Said.MerchantReference) == 1 }, 5*time.Second, 5*time.Millisecond)

	began := time.Now()
	require.Equal(t, map[string]int{"busy": 20}, atOnce(20, func(int) string { return kind(s.Create(t.Context(), c)) }))
	require.Equal(t, "first", kind(s.Create(t.Context(), h.command())))
	require.Zero(t, h.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'`))
	require.Zero(t, h.count(`SELECT count(*) FROM pg_locks WHERE NOT granted`))
	require.Empty(t, first, "all that happened while the provider call was hanging")
	require.Less(t, time.Since(began), hangs)
	require.Equal(t, "first", <-first)
	h.audit()
}
