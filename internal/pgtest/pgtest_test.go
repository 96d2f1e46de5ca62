package pgtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestEveryTestHasADatabaseOfItsOwnWithTheSchema(t *testing.T) {
	ctx := context.Background()
	one, two := pgtest.Pool(t), pgtest.Pool(t)
	_, err := one.Exec(ctx, "CREATE TABLE only_here (id int)")
	require.NoError(t, err)

	var here, there, schema bool
	const exists = "SELECT to_regclass('only_here') IS NOT NULL, to_regclass('payments') IS NOT NULL"
	require.NoError(t, one.QueryRow(ctx, exists).Scan(&here, &schema))
	require.True(t, here)
	require.True(t, schema)
	require.NoError(t, two.QueryRow(ctx, exists).Scan(&there, &schema))
	require.False(t, there)
	require.True(t, schema)
}

func TestCrashedServerComesBackWithWhatWasCommittedAtTheSameURL(t *testing.T) {
	ctx := context.Background()
	server := pgtest.Server(t, nil)
	url := server.URL()
	exec(t, url, "CREATE TABLE kept (id int)")
	exec(t, url, "INSERT INTO kept VALUES (1)")

	require.NoError(t, server.Crash())
	_, err := pgx.Connect(ctx, url)
	require.Error(t, err)

	server.Start(t)
	require.Equal(t, url, server.URL())
	require.Equal(t, 1, count(t, url, "kept"))
}

func TestDroppedReplyLosesTheAnswerAndNotTheWork(t *testing.T) {
	ctx := context.Background()
	proxy, direct := proxied(t)
	conn := connect(t, proxy.URL())
	tx, err := conn.Begin(ctx)
	require.NoError(t, err)
	_, err = tx.Exec(ctx, "INSERT INTO kept VALUES ($1)", 1)
	require.NoError(t, err)

	cut := proxy.DropNextReply(pgtest.Containing("commit"))
	require.Error(t, tx.Commit(ctx))
	require.True(t, cut.Fired())
	require.Equal(t, 1, count(t, direct, "kept"))
}

func TestDroppedReplyOfABatchLosesAllOfIt(t *testing.T) {
	ctx := context.Background()
	proxy, direct := proxied(t)
	conn := connect(t, proxy.URL())

	batch := func() *pgx.Batch {
		b := &pgx.Batch{}
		b.Queue("BEGIN")
		b.Queue("INSERT INTO kept VALUES ($1)", 7)
		b.Queue("COMMIT")
		return b
	}
	before := proxy.Requests()
	require.NoError(t, conn.SendBatch(ctx, batch()).Close())
	require.EqualValues(t, 1, proxy.Requests()-before, "a batch is one request, and preparing it is none")

	cut := proxy.DropNextReply(pgtest.Containing("insert into kept")) // prepared by now: only its name is on the wire
	require.Error(t, conn.SendBatch(ctx, batch()).Close())
	require.True(t, cut.Fired())
	require.Equal(t, 2, count(t, direct, "kept"))
}

func TestDroppedRequestNeverReachesTheServer(t *testing.T) {
	ctx := context.Background()
	proxy, direct := proxied(t)
	conn := connect(t, proxy.URL())
	require.NoError(t, conn.Ping(ctx))

	cut := proxy.DropNextRequest()
	require.NoError(t, conn.Ping(ctx), "a ping is no request")
	_, err := conn.Exec(ctx, "INSERT INTO kept VALUES (1)")
	require.Error(t, err)
	require.True(t, cut.Fired())
	require.Equal(t, 0, count(t, direct, "kept"))
}

func TestHangingUpDoesNotHideTheLossOfAReply(t *testing.T) {
	proxy, direct := proxied(t)
	conn := connect(t, proxy.URL())
	cut := proxy.DropNextReply(pgtest.Containing("pg_sleep"))
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, err := conn.Exec(ctx, "INSERT INTO kept SELECT 1 FROM pg_sleep(0.5)")
	require.Error(t, err)
	select {
	case <-cut.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the reply was never seen")
	}
	require.LessOrEqual(t, count(t, direct, "kept"), 1)
}

func TestDownRefusesAndUpServesAgain(t *testing.T) {
	ctx := context.Background()
	proxy, _ := proxied(t)
	conn := connect(t, proxy.URL())
	proxy.Down()
	_, err := conn.Exec(ctx, "SELECT 1")
	require.Error(t, err)
	_, err = pgx.Connect(ctx, proxy.URL())
	require.Error(t, err)
	proxy.Up(t)
	_, err = connect(t, proxy.URL()).Exec(ctx, "SELECT 1")
	require.NoError(t, err)
}

func proxied(t *testing.T) (proxy *pgtest.Proxy, direct string) {
	t.Helper()
	direct = pgtest.URL(t)
	exec(t, direct, "CREATE TABLE kept (id int)")
	return pgtest.NewProxy(t, direct), direct
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func exec(t *testing.T, url, sql string) {
	t.Helper()
	_, err := connect(t, url).Exec(context.Background(), sql)
	require.NoError(t, err)
}

func count(t *testing.T, url, table string) int {
	t.Helper()
	var n int
	require.NoError(t, connect(t, url).QueryRow(context.Background(), "SELECT count(*) FROM "+table).Scan(&n))
	return n
}
