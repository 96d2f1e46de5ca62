package payments

import (
	"context"
	"runtime"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/paymentsd/paymentsd/internal/provider"
)

// tripwire stands at every boundary of a process: each statement to the database and each call to the provider. It counts
// them, and at the one it is told, the process "dies": the goroutine ends there, before the call or after the call had its
// whole effect, and nothing that would have followed runs.
type tripwire struct {
	at    int // boundary to die at, counted from 1; 0 never
	after bool
	seen  int
	names []string
}

func (w *tripwire) cross(name string, call func()) {
	w.seen++
	w.names = append(w.names, name)
	if w.seen == w.at && !w.after {
		runtime.Goexit()
	}
	call()
	if w.seen == w.at {
		runtime.Goexit()
	}
}

// die runs work as a process that the tripwire may kill, and reports whether it lived.
func die(work func()) (lived bool) {
	done := make(chan bool, 1)
	go func() {
		finished := false
		defer func() { done <- finished }()
		work()
		finished = true
	}()
	return <-done
}

// wiredDB is a pool with a tripwire at every statement.
type wiredDB struct {
	Database
	wire *tripwire
}

// Begin hands out a transaction whose statements are boundaries too, and so is its commit.
func (d wiredDB) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := d.Database.Begin(ctx)
	return wiredTx{tx, wiredDB{txDatabase{tx}, d.wire}}, err
}

// wiredTx dies with its process: what it has not committed is rolled back.
type wiredTx struct {
	pgx.Tx
	statements wiredDB
}

func (t wiredTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return t.statements.Exec(ctx, sql, args...)
}

func (t wiredTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return t.statements.QueryRow(ctx, sql, args...)
}

func (t wiredTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return t.statements.Query(ctx, sql, args...)
}

func (t wiredTx) Commit(ctx context.Context) (err error) {
	t.statements.wire.cross("commit", func() { err = t.Tx.Commit(ctx) })
	return err
}

type txDatabase struct{ pgx.Tx }

func (d wiredDB) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	d.wire.cross("exec", func() { tag, err = d.Database.Exec(ctx, sql, args...) })
	return tag, err
}

func (d wiredDB) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return wiredRow{func(into []any) (err error) {
		d.wire.cross("query row", func() { err = d.Database.QueryRow(ctx, sql, args...).Scan(into...) })
		return err
	}}
}

type wiredRow struct{ scan func([]any) error }

func (r wiredRow) Scan(into ...any) error { return r.scan(into) }

// Query hands out rows that cross the boundary when they are first read: with everything else a statement is one call.
func (d wiredDB) Query(ctx context.Context, sql string, args ...any) (rows pgx.Rows, err error) {
	d.wire.seen++
	d.wire.names = append(d.wire.names, "query")
	deadly := d.wire.seen == d.wire.at
	if deadly && !d.wire.after {
		runtime.Goexit()
	}
	rows, err = d.Database.Query(ctx, sql, args...)
	if deadly && err == nil {
		for rows.Next() { // the statement is over, and committed, when its last row is read
		}
		rows.Close()
		runtime.Goexit()
	}
	return rows, err
}

// wiredProvider is a provider with a tripwire at every call.
type wiredProvider struct {
	provider.Provider
	wire *tripwire
}

func (p wiredProvider) Send(ctx context.Context, o provider.Order) (r provider.Result) {
	p.wire.cross("send", func() { r = p.Provider.Send(ctx, o) })
	return r
}

func (p wiredProvider) Lookup(ctx context.Context, o provider.Order) (r provider.Result) {
	p.wire.cross("lookup", func() { r = p.Provider.Lookup(ctx, o) })
	return r
}

func TestTripwireKillsWhereItIsTold(t *testing.T) {
	for _, after := range []bool{false, true} {
		wire, called := &tripwire{at: 2, after: after}, 0
		lived := die(func() {
			for range 3 {
				wire.cross("call", func() { called++ })
			}
		})
		if lived || (called == 2) != after {
			t.Fatalf("after=%v: lived=%v, called=%d", after, lived, called)
		}
	}
}
