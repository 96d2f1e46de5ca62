package payments

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/pgtest"
)

// sqlTrace keeps every statement that a pool runs.
type sqlTrace struct{ statements []string }

func (s *sqlTrace) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	s.statements = append(s.statements, q.SQL)
	return ctx
}

func (s *sqlTrace) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// The claim, the sent mark and the outcome are one round trip and one commit each; a replay is one round trip and commits
// nothing. Counted on the wire, in the driver, and by the transaction ids that the database hands out.
func TestSettledPaymentIsThreeRoundTripsAndThreeCommits(t *testing.T) {
	h := setup(t)
	proxy := pgtest.NewProxy(t, h.pool.Config().ConnString())
	trace := &sqlTrace{}
	pool := pgtest.Open(t, proxy.URL(), func(c *pgxpool.Config) {
		c.MaxConns = 1
		c.ConnConfig.Tracer = trace
	})
	s := h.service(pool, nil)
	_, err := s.Create(t.Context(), h.command()) // prepares the statements
	require.NoError(t, err)

	xid := func() int { return h.count(`SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int`) }
	trips, commits := proxy.Requests(), xid()
	trace.statements = nil
	c := h.command()
	result, err := s.Create(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, 201, result.Answer.Status)
	require.EqualValues(t, 3, proxy.Requests()-trips, "round trips")
	require.Len(t, trace.statements, 3, "statements: each is its own transaction, so none begins or commits one")
	require.Equal(t, 3, xid()-commits, "transactions that wrote")

	trips, commits = proxy.Requests(), xid()
	again, err := s.Create(t.Context(), c)
	require.NoError(t, err)
	require.True(t, again.Replayed)
	require.EqualValues(t, 1, proxy.Requests()-trips, "round trips of a replay")
	require.Zero(t, xid()-commits, "a replay writes nothing")
}

// A commit that is lost on the wire, in both directions: the statement never arrived, or it was committed and the answer
// never came. Either way the payment is made once and answered.
func TestLostCommitsAreFoundAgain(t *testing.T) {
	for _, statement := range []string{"OpenPayments", "MovePayments"} {
		for _, skip := range []int{0, 1} {
			if statement == "OpenPayments" && skip > 0 {
				continue
			}
			for _, direction := range []string{"request", "reply"} {
				t.Run(statement+" "+direction, func(t *testing.T) {
					h := setup(t)
					proxy := pgtest.NewProxy(t, h.pool.Config().ConnString())
					pool := pgtest.Open(t, proxy.URL())
					s := h.service(pool, nil)
					_, err := s.Create(t.Context(), h.command())
					require.NoError(t, err)

					seen := 0
					nth := func(r pgtest.Request) bool {
						if !pgtest.Containing("name: " + statement)(r) {
							return false
						}
						seen++
						return seen > skip
					}
					drop := proxy.DropNextReply
					if direction == "request" {
						drop = proxy.DropNextRequest
					}
					cut := drop(nth)
					c := h.command()
					result, err := s.Create(t.Context(), c)
					require.NoError(t, err)
					require.True(t, cut.Fired())
					require.False(t, result.Pending)
					require.False(t, result.Replayed)
					require.Equal(t, 201, result.Answer.Status)
					require.Len(t, h.charges(c.Said.MerchantReference), 1)
					require.Equal(t, 1, h.posts(c.Said.MerchantReference))
					h.audit()
				})
			}
		}
	}
}
