package payments

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/pgtest"
)

// gatedDB holds up the statements of one name until its gate opens, and counts them.
type gatedDB struct {
	Database
	statement string
	gate      chan struct{}

	mu    sync.Mutex
	count int
}

func (d *gatedDB) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if strings.Contains(sql, "name: "+d.statement) {
		d.mu.Lock()
		d.count++
		d.mu.Unlock()
		<-d.gate
	}
	return d.Database.Query(ctx, sql, args...)
}

func (d *gatedDB) seen() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.count
}

// crowded is a service both of whose openings under way are held up, so that whoever comes next gathers.
func crowded(h *house, statement string) (*Service, *gatedDB, *sync.WaitGroup) {
	db := &gatedDB{Database: h.pool, statement: statement, gate: make(chan struct{})}
	s, done := h.service(db, nil), &sync.WaitGroup{}
	for i := range setsUnderWayMax {
		c := h.command()
		done.Go(func() { _, _ = s.Create(context.Background(), c) })
		require.Eventually(h.t, func() bool { return db.seen() == i+1 }, 10*time.Second, time.Millisecond)
	}
	return s, db, done
}

func waitsFor(h *house, waiting func() int, n int) {
	h.t.Helper()
	require.Eventually(h.t, func() bool { return waiting() == n }, 10*time.Second, time.Millisecond)
}

// told is what one request of a set was told, in words.
func told(f found, err error) string {
	if err != nil {
		return err.Error()
	}
	return f.verdict.String()
}

// One set holds a request for everything that a key can mean and a rule can refuse. Each is told what it would be told
// alone, and each that may be opened is.
func TestASetHoldsEveryVerdictAtOnce(t *testing.T) {
	h := setup(t)
	plain := h.service(nil, nil)
	create := func(c Command) Result {
		r, err := plain.Create(t.Context(), c)
		require.NoError(t, err)
		return r
	}
	finished, reused, declined := h.command(), h.command(), h.command()
	h.fault(declined.Said.MerchantReference, "charge", "decline", 1)
	paid := create(finished).Payment.ID
	create(reused)
	create(declined)
	reused.Said.Amount = "11"

	held, abandoned, expired, retryable := h.command(), h.command(), h.command(), h.command()
	for _, c := range []Command{held, abandoned, expired, retryable} {
		_, err := plain.open(t.Context(), h.openingOf(plain, c))
		require.NoError(t, err)
	}
	set := func(what string, c Command) {
		tag, err := h.pool.Exec(t.Context(), `UPDATE idempotency_requests SET `+what+` WHERE idempotency_key = $1`, string(c.Scope.Key))
		require.NoError(t, err)
		require.EqualValues(t, 1, tag.RowsAffected())
	}
	set(`locked_until = now() - interval '1 s'`, abandoned)
	set(`status = 'EXPIRED', locked_until = NULL, next_attempt_at = NULL, expires_at = now() - interval '1 h'`, expired)
	set(`status = 'FAILED_RETRYABLE', locked_until = NULL, next_attempt_at = NULL`, retryable)

	first, blocked, duplicate, twice := h.command(), h.command(), h.command(), h.command()
	_, err := h.pool.Exec(t.Context(), `INSERT INTO accounts (tenant_id, account_id, status) VALUES ('acme', 'acc_blocked', 'BLOCKED')`)
	require.NoError(t, err)
	blocked.Said.AccountID = "acc_blocked"
	duplicate.Said.MerchantReference = finished.Said.MerchantReference
	tooMuch, ofNothing, refund := h.refundOf(paid, "99"), h.refundOf("pay_none", "1"), h.refundOf(paid, "1")

	cases := []struct {
		name string
		c    Command
		want string
	}{
		{"first", first, idempotency.First.String()}, {"replay", finished, idempotency.Replay.String()}, {"replay of a refusal", declined, idempotency.Replay.String()}, {"mismatch", reused, idempotency.Mismatch.String()},
		{"in flight", held, idempotency.InFlight.String()}, {"abandoned", abandoned, idempotency.Abandoned.String()}, {"told to retry", retryable, idempotency.Abandoned.String()}, {"expired", expired, idempotency.Lapsed.String()},
		{"blocked account", blocked, ErrAccountBlocked.Error()}, {"duplicate reference", duplicate, (&DuplicateReferenceError{paid}).Error()},
		{"refund", refund, idempotency.First.String()}, {"refund of too much", tooMuch, ErrRefundTooLarge.Error()}, {"refund of nothing", ofNothing, ErrNotFound.Error()},
		{"twice", twice, ""}, {"the same again", twice, ""},
	}
	openings := make([]opening, len(cases))
	for i, c := range cases {
		r, err := plain.resolve(t.Context(), c.c)
		if err != nil { // what is refused before the one transaction: give it a parent that the statement has to judge
			r = resolved{kind: KindRefund, accountID: "acc_1", reference: "inv", amount: openings[0].resolved.amount}
		}
		openings[i], err = plain.newOpening(c.c, r)
		require.NoError(t, err)
	}
	s, db, done := crowded(h, "OpenPayments")
	got := make([]string, len(cases))
	for i := range cases {
		done.Go(func() { got[i] = told(s.open(context.Background(), openings[i])) })
		waitsFor(h, s.openings.Waiting, i+1)
	}
	close(db.gate)
	done.Wait()
	for i, c := range cases[:len(cases)-2] {
		require.Equal(t, c.want, got[i], c.name)
	}
	require.ElementsMatch(t, []string{idempotency.First.String(), idempotency.InFlight.String()}, got[len(cases)-2:], "the same key twice in a set")
	require.LessOrEqual(t, db.seen(), setsUnderWayMax+3, "one set, one for the refund of the same payment, one to judge again")
	require.Equal(t, 3, h.count(`SELECT count(*) FROM payments WHERE state = 'LOCAL_PAYMENT_CREATED' AND payment_id = ANY ($1)`,
		[]string{openings[0].paymentID, openings[10].paymentID, h.ownerOf(twice)}))
}

func (h *house) ownerOf(c Command) (paymentID string) {
	require.NoError(h.t, h.pool.QueryRow(h.t.Context(), `SELECT resource_id FROM idempotency_requests WHERE idempotency_key = $1`,
		string(c.Scope.Key)).Scan(&paymentID))
	return paymentID
}

// together makes n new payments that gather into one set, and returns what each was told.
func together(h *house, s *Service, db *gatedDB, done *sync.WaitGroup, commands []Command) []string {
	got := make([]string, len(commands))
	for i, c := range commands {
		done.Go(func() { got[i] = kind(s.Create(context.Background(), c)) })
	}
	waitsFor(h, s.openings.Waiting, len(commands))
	close(db.gate)
	done.Wait()
	return got
}

func (h *house) commands(n int) []Command {
	list := make([]Command, n)
	for i := range list {
		list[i] = h.command()
	}
	return list
}

func TestAPoisonedRowInASetOfAHundredSpoilsNobody(t *testing.T) {
	h := setup(t)
	commands := h.commands(100)
	for _, sql := range []string{
		`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'poisoned'; END $$`,
		fmt.Sprintf(`CREATE TRIGGER poison BEFORE INSERT ON payments FOR EACH ROW WHEN (NEW.merchant_reference = '%s') EXECUTE FUNCTION refuse()`,
			commands[50].Said.MerchantReference),
	} {
		_, err := h.pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	s, db, done := crowded(h, "OpenPayments")
	got := together(h, s, db, done, commands)
	for i, g := range got {
		if i == 50 {
			require.Equal(t, "unavailable", g)
		} else {
			require.Equal(t, "first", g, i)
		}
	}
	require.Zero(t, h.count(`SELECT count(*) FROM idempotency_requests WHERE idempotency_key = $1`, string(commands[50].Scope.Key)), "nothing is left of it")
	require.Equal(t, 101, h.count(`SELECT count(*) FROM payments WHERE state = 'COMPLETED'`))
	h.audit()
}

// A row that somebody else has locked makes its own request late, and nobody else's fail.
func TestALockedRowInASetIsItsOwnTrouble(t *testing.T) {
	h := setup(t)
	commands := h.commands(20)
	tx, err := h.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }() // it has been rolled back already when all went well
	_, err = tx.Exec(t.Context(), `INSERT INTO idempotency_requests (tenant_id, operation_name, idempotency_key, request_hash, status, resource_type,
		resource_id, response_schema_version, locked_until, next_attempt_at, expires_at, cleanup_at)
		SELECT 'acme', 'create_payment', $1, 'v2:' || repeat('0', 64), 'IN_PROGRESS', 'payment', 'pay_other', 'v', now(), now(), now(), now()`, string(commands[7].Scope.Key))
	require.NoError(t, err)
	impatient := pgtest.Open(t, h.pool.Config().ConnString()+"&lock_timeout=100ms")
	db := &gatedDB{Database: impatient, statement: "OpenPayments", gate: make(chan struct{})}
	s, done := h.service(db, nil), &sync.WaitGroup{}
	for i := range setsUnderWayMax {
		c := h.command()
		done.Go(func() { _, _ = s.Create(context.Background(), c) })
		waitsFor(h, db.seen, i+1)
	}
	got := together(h, s, db, done, commands)
	for i, g := range got {
		if i == 7 {
			require.Equal(t, "unavailable", g)
		} else {
			require.Equal(t, "first", g, i)
		}
	}
	require.NoError(t, tx.Rollback(t.Context()))
	h.audit()
}

// The commit of a whole set is lost on the wire, in both directions, when it is opened and when it is moved.
func TestASetWhoseCommitIsLostIsFoundAgain(t *testing.T) {
	for _, statement := range []string{"OpenPayments", "MovePayments"} {
		for _, direction := range []string{"request", "reply"} {
			t.Run(statement+" "+direction, func(t *testing.T) {
				h := setup(t)
				proxy := pgtest.NewProxy(t, h.pool.Config().ConnString())
				db := &gatedDB{Database: pgtest.Open(t, proxy.URL()), statement: "OpenPayments", gate: make(chan struct{})}
				s, done := h.service(db, nil), &sync.WaitGroup{}
				for i := range setsUnderWayMax {
					c := h.command()
					done.Go(func() { _, _ = s.Create(context.Background(), c) })
					waitsFor(h, db.seen, i+1)
				}
				commands := h.commands(40)
				for _, c := range commands {
					h.fault(c.Said.MerchantReference, "charge", "delay", 1, delayMS(30)) // so that outcomes gather too
				}
				seen := 0
				big := func(r pgtest.Request) bool {
					if !pgtest.Containing("name: " + statement)(r) {
						return false
					}
					seen++
					return seen == setsUnderWayMax+1
				}
				drop := proxy.DropNextReply
				if direction == "request" {
					drop = proxy.DropNextRequest
				}
				cut := drop(big)
				for i, g := range together(h, s, db, done, commands) {
					require.Equal(t, "first", g, i)
				}
				require.True(t, cut.Fired())
				for _, c := range commands {
					require.Equal(t, 1, h.posts(c.Said.MerchantReference))
				}
				h.audit()
			})
		}
	}
}

func TestAThousandClientsWithOneKeyMakeOnePayment(t *testing.T) {
	h := setup(t)
	s, db, done := crowded(h, "OpenPayments")
	c := h.command()
	commands := make([]Command, 1000)
	for i := range commands {
		commands[i] = c
	}
	got := map[string]int{}
	for _, g := range together(h, s, db, done, commands) {
		got[g]++
	}
	require.Equal(t, 1, got["first"], got)
	require.Equal(t, 1000, got["first"]+got["busy"]+got["replay"], got)
	require.Less(t, db.seen(), 100, "they share transactions")
	require.Equal(t, 1, h.posts(c.Said.MerchantReference))
	h.audit()
}

// Two keys for one business key, and refunds that together are too much, in one crowd: one of each gets through.
func TestWhatACrowdMayHaveOnlyOnceItGetsOnce(t *testing.T) {
	h := setup(t)
	paid, err := h.service(nil, nil).Create(t.Context(), h.command())
	require.NoError(t, err)
	s, db, done := crowded(h, "OpenPayments")
	commands := h.commands(20)
	for i := range commands {
		commands[i].Said.MerchantReference = "the same invoice"
	}
	for range 20 {
		commands = append(commands, h.refundOf(paid.Payment.ID, "6"))
	}
	got := map[string]int{}
	for _, g := range together(h, s, db, done, commands) {
		got[g]++
	}
	require.Equal(t, map[string]int{"first": 2, "duplicate": 19, "error: " + ErrRefundTooLarge.Error(): 19}, got)
	h.audit()
}

// A client that hangs up while its request waits for a set changes nothing: its payment is made like the others.
func TestAClientThatHangsUpInTheCrowdIsServedAllTheSame(t *testing.T) {
	h := setup(t)
	s, db, done := crowded(h, "OpenPayments")
	c := h.command()
	client, hangUp := context.WithCancel(t.Context())
	done.Go(func() { _, _ = s.Create(client, c) })
	waitsFor(h, s.openings.Waiting, 1)
	hangUp()
	close(db.gate)
	done.Wait()
	require.Len(t, h.charges(c.Said.MerchantReference), 1)
	h.audit()
}

// The owner that was overtaken and the one that overtook it move the same payment at the same time: never in one set, and only
// the second writes.
func TestTwoOwnersInACrowdAreFencedAsEverywhere(t *testing.T) {
	h := setup(t)
	s := h.service(nil, nil)
	c := h.command()
	f, err := s.open(t.Context(), h.openingOf(s, c))
	require.NoError(t, err)
	h.leaseOver()
	newer, ok, err := s.keys.TakeOver(t.Context(), f.record.Lease)
	require.NoError(t, err)
	require.True(t, ok)
	p, err := s.Get(t.Context(), "acme", newer.ResourceID)
	require.NoError(t, err)

	crowd, db, done := crowded(h, "MovePayments")
	results := make([]error, 2)
	for i, lease := range []idempotency.Lease{f.record.Lease, newer} {
		done.Go(func() {
			_, results[i] = crowd.move(context.Background(), lease, p, step{to: []State{ProviderRequestSent}, sends: 1, reason: "first_send", hold: true})
		})
		waitsFor(h, crowd.moves.Waiting, i+1)
	}
	close(db.gate)
	done.Wait()
	require.ErrorIs(t, results[0], errLeaseLost)
	require.NoError(t, results[1])
	require.Equal(t, 1, h.count(`SELECT provider_sends FROM payments WHERE payment_id = $1`, p.ID))
}

func TestOnlyWhatMayBeOneMembersFaultIsDivided(t *testing.T) {
	for code, want := range map[string]bool{"23505": true, "23514": true, "22003": true, "55P03": true, "40P01": true, "P0001": true, "54000": true,
		"57P01": false, "08006": false, "53300": false, "25006": false, "57014": false, "XX000": false} {
		require.Equal(t, want, isOnesFault(fmt.Errorf("x: %w", &pgconn.PgError{Code: code})), code)
	}
	require.False(t, isOnesFault(errors.New("no answer")))
}
