package main

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emersion/go-smtp"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/broker"
	"github.com/paymentsd/paymentsd/internal/events"
	"github.com/paymentsd/paymentsd/internal/pgtest"
	"github.com/paymentsd/paymentsd/internal/tenants"
)

// beBroker tells this test binary to be a NATS server, at the address and in the directory that follow, so that it can be
// killed like any other.
const beBroker = "PAYMENTSD_TEST_BE_BROKER"

func runBroker(where string) {
	addr, dir, _ := strings.Cut(where, " ")
	if _, err := broker.StartNATS(dir, addr, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	select {} // until it is killed
}

// postOffice is a mail server that counts what it has taken.
type postOffice struct {
	addr string
	mu   sync.Mutex
	took map[string]int // by Message-ID
}

func openPostOffice(t *testing.T) *postOffice {
	o := &postOffice{took: map[string]int{}}
	server := smtp.NewServer(smtp.BackendFunc(func(*smtp.Conn) (smtp.Session, error) { return counter{o}, nil }))
	server.Domain = "localhost"
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	o.addr = l.Addr().String()
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return o
}

type counter struct{ office *postOffice }

func (counter) Mail(string, *smtp.MailOptions) error { return nil }
func (counter) Rcpt(string, *smtp.RcptOptions) error { return nil }
func (counter) Reset()                               {}
func (counter) Logout() error                        { return nil }

func (c counter) Data(r io.Reader) error {
	mail, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	_, id, _ := bytes.Cut(mail, []byte("Message-ID:"))
	id, _, _ = bytes.Cut(bytes.TrimLeft(id, " \r\n"), []byte("\r\n"))
	c.office.mu.Lock()
	defer c.office.mu.Unlock()
	c.office.took[string(id)]++
	return nil
}

// chain is everything behind the API: the database, the broker, and the processes between and behind them, each of which can be
// killed and comes back.
type chain struct {
	*town
	database *pgtest.Dedicated
	office   *postOffice
	links    map[string]*link
	dead     sync.Mutex // the database is started again by one at a time
}

// link is a process that is started again whenever it was killed.
type link struct {
	start func() *process
	mu    sync.Mutex
	now   *process
}

func (l *link) killAndStart(pause time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now.kill()
	time.Sleep(pause)
	l.now = l.start()
}

func newChain(t *testing.T) *chain {
	c := prepareChain(t)
	c.startLinks()
	return c
}

// prepareChain starts the database and the provider, and nothing that uses the database yet.
func prepareChain(t *testing.T) *chain {
	database := pgtest.Server(t, nil)
	pool, err := pgxpool.New(t.Context(), database.URL())
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	require.NoError(t, tenants.NewDirectory(pool).Demo(t.Context()))
	c := &chain{database: database, office: openPostOffice(t), links: map[string]*link{}}
	c.town = &town{t: t, pool: pool, bank: freeAddr(t)}
	nats := freeAddr(t)
	c.settings = map[string]string{
		"DATABASE_URL": database.URL(), "PAYMENTSD_PROVIDER_ADDR": c.bank, "PAYMENTSD_DATA_DIR": t.TempDir(), "PAYMENTSD_DB_MAX_CONNS": "6",
		"PAYMENTSD_LEASE": "3s", "PAYMENTSD_PROVIDER_TIMEOUT": "2s", "PAYMENTSD_RECOVERY_INTERVAL": "100ms", "PAYMENTSD_PROVIDER_LOOKUP_LAG": "200ms",
		"PAYMENTSD_NATS_URL": "nats://" + nats, "PAYMENTSD_ACK_WAIT": "2s", "PAYMENTSD_RELAY_LEASE": "1s", "PAYMENTSD_RELAY_INTERVAL": "200ms",
		"PAYMENTSD_SMTP_URL": "smtp://" + c.office.addr, "PAYMENTSD_LOG_LEVEL": "warn",
	}
	c.role("provider")
	c.eventually("the provider", func() bool { return reachable("http://" + c.bank + "/control/charges") })
	return c
}

func (c *chain) startLinks() {
	where := strings.TrimPrefix(c.settings["PAYMENTSD_NATS_URL"], "nats://") + " " + filepath.Join(c.t.TempDir(), "nats")
	c.link("broker", func() *process { return start(c.t, map[string]string{beBroker: where}) })
	for _, role := range []string{"relay", "consume ledger", "consume receipts", "send-receipts"} {
		for n := range 2 {
			c.link(fmt.Sprintf("%s %d", role, n+1), func() *process { return c.role(role) })
		}
	}
	c.link("recover 1", func() *process { return c.role("recover") })
}

func (c *chain) link(name string, start func() *process) {
	c.links[name] = &link{start: start, now: start()}
}

// crash kills the database with everything it was doing, and starts it again.
func (c *chain) crash(pause time.Duration) {
	c.dead.Lock()
	defer c.dead.Unlock()
	require.NoError(c.t, c.database.Crash())
	time.Sleep(pause)
	c.database.Start(c.t)
}

// stuck counts what has not arrived yet; -1 while nobody can tell.
func (c *chain) stuck() (n int) {
	err := c.pool.QueryRow(c.t.Context(), `SELECT (SELECT count(*) FROM payments WHERE state NOT IN ('COMPLETED', 'DECLINED', 'CANCELED'))
		+ (SELECT count(*) FROM outbox_events WHERE published_at IS NULL)
		+ (SELECT count(*) FROM payments p WHERE state = 'COMPLETED' AND NOT EXISTS (SELECT FROM ledger_entries l WHERE l.source_payment_id = p.payment_id))
		+ (SELECT count(*) FROM payments p WHERE state = 'COMPLETED' AND NOT EXISTS (SELECT FROM receipts r WHERE r.payment_id = p.payment_id))
		+ (SELECT count(*) FROM receipts WHERE status IN ('PENDING', 'SENDING'))`).Scan(&n)
	if err != nil {
		return -1
	}
	return n
}

// chainAudit checks what must hold of every payment, in the tables, at the broker and at the mail server.
func (c *chain) chainAudit(payments int) {
	c.audit(payments)
	for what, query := range map[string]string{
		"a settled payment without exactly one balanced pair": `SELECT count(*) FROM payments p WHERE state = 'COMPLETED' AND
			(SELECT (count(*), sum(amount_minor)) FROM ledger_entries l WHERE l.source_payment_id = p.payment_id) IS DISTINCT FROM (2::bigint, 0::numeric)`,
		"an entry of another amount": `SELECT count(*) FROM payments p JOIN ledger_entries l ON l.source_payment_id = p.payment_id WHERE abs(l.amount_minor) <> p.amount_minor`,
		"a settled payment without exactly one receipt": `SELECT count(*) FROM payments p WHERE state = 'COMPLETED' AND
			1 <> (SELECT count(*) FROM receipts r WHERE r.payment_id = p.payment_id)`,
		"a receipt that nobody sends": `SELECT count(*) FROM receipts WHERE status NOT IN ('SENT', 'UNKNOWN')`,
		"a dead letter":               `SELECT count(*) FROM dead_letters`,
		"a refused event":             `SELECT count(*) FROM outbox_events WHERE refused_at IS NOT NULL`,
	} {
		require.Zero(c.t, c.count(query), what)
	}
	c.office.mu.Lock()
	defer c.office.mu.Unlock()
	for id, n := range c.office.took {
		require.Equal(c.t, 1, n, "receipt %s was sent twice", id)
	}
	require.GreaterOrEqual(c.t, len(c.office.took), c.count(`SELECT count(*) FROM receipts WHERE status = 'SENT'`))
	c.auditStream(c.count(`SELECT count(*) FROM outbox_events`))
}

// auditStream reads the whole stream and checks that the events of each payment came in order, all of them.
func (c *chain) auditStream(events int) {
	seen := map[string]int{}
	repeated, total := 0, 0
	c.readStream(func(subject string, sequence int) {
		switch total++; {
		case sequence == seen[subject]+1:
			seen[subject]++
		case sequence <= seen[subject]:
			repeated++
		default:
			require.Failf(c.t, "out of order", "%s: event %d after %d", subject, sequence, seen[subject])
		}
	})
	sum := 0
	for _, n := range seen {
		sum += n
	}
	require.Equal(c.t, events, sum)
	c.t.Logf("the stream has %d messages, %d of them repetitions", total, repeated)
}

// readStream reads all there is, from the beginning.
func (c *chain) readStream(each func(subject string, sequence int)) {
	b, err := broker.Open(broker.Config{Kind: "nats", NATSURL: c.settings["PAYMENTSD_NATS_URL"], NATSReplicas: 1, Log: slog.New(slog.DiscardHandler)})
	require.NoError(c.t, err)
	defer b.Close()
	source := b.Source(fmt.Sprintf("audit-%d", rand.Int64()))
	for empty := 0; empty < 2; {
		batch, err := source.Fetch(c.t.Context(), 1000)
		if err != nil {
			continue // the broker may still be starting
		}
		if len(batch.Messages) == 0 {
			empty++
			continue
		}
		for _, m := range batch.Messages {
			e, err := events.Read(m.Body)
			require.NoError(c.t, err)
			each(e.Subject, e.Sequence)
		}
		require.NoError(c.t, batch.Done(c.t.Context()))
	}
}

// Everything behind the API is killed with SIGKILL, one at a time and then together, the database and the broker included,
// while thousands of payments are made. Nothing is lost, nothing happens twice, and nothing is stuck.
func TestKill9OfEverythingBehindTheAPIUnderLoad(t *testing.T) {
	c := newChain(t)
	_, addr := c.api()
	payments, clients := int64(5000), 32
	if testing.Short() { // under the race detector everything is ten times slower
		payments = 1000
	}
	var next, settled atomic.Int64
	var load, trouble sync.WaitGroup
	for range clients {
		load.Go(func() {
			for n := next.Add(1); n <= payments; n = next.Add(1) {
				reference := fmt.Sprintf("inv-%d", n)
				for t.Context().Err() == nil {
					if a := pay(t.Context(), addr, reference, bodyFor(reference)); a.status == http.StatusCreated {
						settled.Add(1)
						break
					}
					time.Sleep(50 * time.Millisecond) // as a client that retries well, only faster
				}
			}
		})
	}
	trouble.Go(func() {
		for settled.Load() < payments*9/10 && t.Context().Err() == nil {
			for name, l := range c.links {
				t.Logf("%d settled: kill %s", settled.Load(), name)
				l.killAndStart(200 * time.Millisecond)
			}
			c.crash(200 * time.Millisecond)
			t.Logf("%d settled: kill everything", settled.Load())
			var all sync.WaitGroup
			for _, l := range c.links {
				all.Go(func() { l.killAndStart(time.Duration(rand.IntN(1000)) * time.Millisecond) })
			}
			all.Go(func() { c.crash(500 * time.Millisecond) })
			all.Wait()
			time.Sleep(time.Second)
		}
	})
	load.Wait()
	trouble.Wait()
	require.Equal(t, payments, settled.Load())
	require.Eventually(t, func() bool { return c.stuck() == 0 }, 2*time.Minute, 200*time.Millisecond, "everything arrives without hands")
	c.chainAudit(int(payments))
}

// The broker loses its disk with events that no consumer has seen. Nothing else can know that; "paymentsd republish" repairs it,
// and gives nobody anything twice.
func TestWhatTheBrokerLostIsRepublished(t *testing.T) {
	c := prepareChain(t)
	c.startLinks()
	_, addr := c.api()
	for n := range 20 {
		if n == 10 { // the second half meets no consumer
			c.eventually("the first half", func() bool { return c.stuck() == 0 })
			for name, l := range c.links {
				if strings.HasPrefix(name, "consume") {
					l.now.kill()
				}
			}
		}
		c.settled(addr, fmt.Sprintf("inv-%d", n), fmt.Sprintf("inv-%d", n))
	}
	c.eventually("everything is published", func() bool { return c.count(`SELECT count(*) FROM outbox_events WHERE published_at IS NULL`) == 0 })
	c.links["broker"].now.kill()
	where := strings.TrimPrefix(c.settings["PAYMENTSD_NATS_URL"], "nats://") + " " + filepath.Join(t.TempDir(), "another disk")
	c.link("broker", func() *process { return start(t, map[string]string{beBroker: where}) })
	for _, role := range []string{"consume ledger", "consume receipts"} {
		c.link(role+" again", func() *process { return c.role(role) })
	}
	republish := c.role("republish")
	<-republish.done
	require.Contains(t, republish.out.String(), "to be published again: 40")
	c.eventually("everything arrives", func() bool { return c.stuck() == 0 })
	c.chainAudit(20)
}
