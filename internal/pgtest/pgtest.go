// Package pgtest gives every test a PostgreSQL database of its own, with the schema in it. For tests only.
//
// A package opts in with
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
//
// and then asks for a Pool or a URL. The server is the one PAYMENTSD_TEST_DATABASE_URL names (its user must be allowed to
// create databases), else one this process starts, on first use, in a temporary directory. Migrations run once for each
// process, into a template that the tests' databases are copied from.
package pgtest

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/devpg"
	"github.com/paymentsd/paymentsd/migrations"
)

// EnvURL names a server to use instead of starting one.
const EnvURL = "PAYMENTSD_TEST_DATABASE_URL"

// adminFor bounds one administrative step. Copying a database takes well under a second; a machine that also compiles
// the other packages' tests may stall for several.
const adminFor = time.Minute

// shared is the one server of this process.
var shared struct {
	inMain   bool
	once     sync.Once
	err      error
	adminURL string
	admin    *pgxpool.Pool // a new connection costs as much as copying the template
	template string
	server   *devpg.Server // nil when EnvURL gave it
	dir      string
	kept     atomic.Bool // a failed test's database is in it
}

// Main runs a package's tests and ends the server they used. It does not return.
func Main(m *testing.M) {
	shared.inMain = true
	code := m.Run()
	if err := stopShared(); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// URL returns a fresh, migrated database. It is dropped when the test ends, and kept when the test failed.
func URL(t testing.TB) string {
	t.Helper()
	require.True(t, shared.inMain, "pgtest: give the package a TestMain that calls pgtest.Main")
	shared.once.Do(func() { shared.err = startShared() })
	require.NoError(t, shared.err)

	name := databaseName(t.Name())
	require.NoError(t, admin(`CREATE DATABASE `+name+` TEMPLATE `+shared.template+` STRATEGY wal_log`))
	made := withDatabase(shared.adminURL, name)
	t.Cleanup(func() {
		if t.Failed() {
			keep(t, name, made)
			return
		}
		if err := admin(`DROP DATABASE IF EXISTS ` + name + ` WITH (FORCE)`); err != nil {
			t.Errorf("drop the test's database: %v", err)
		}
	})
	return made
}

// Pool returns a pool on a fresh, migrated database; its URL is pool.Config().ConnString(). It is closed before the
// database is dropped. Each tune changes the pool's configuration before it opens.
func Pool(t testing.TB, tune ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	return Open(t, URL(t), tune...)
}

// Open is Pool for a database that exists: a second process's view of it, or one seen through a Proxy.
func Open(t testing.TB, url string, tune ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	for _, f := range tune {
		f(cfg)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func startShared() error {
	if given := os.Getenv(EnvURL); given != "" {
		shared.adminURL = given
	} else {
		sweep()
		dir, err := os.MkdirTemp("", dirPattern)
		if err != nil {
			return err
		}
		server, err := devpg.Start(context.Background(), devpg.Config{Dir: dir, Fast: true})
		if err != nil {
			return err
		}
		shared.dir, shared.server, shared.adminURL = dir, server, server.URL()
	}
	var err error
	if shared.admin, err = pgxpool.New(context.Background(), shared.adminURL); err != nil {
		return fmt.Errorf("%s: %w", EnvURL, err)
	}
	shared.template = databaseName("template")
	if err := admin(`CREATE DATABASE ` + shared.template); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), adminFor)
	defer cancel()
	return migrations.Up(ctx, withDatabase(shared.adminURL, shared.template))
}

func stopShared() error {
	if shared.admin == nil {
		return nil
	}
	defer shared.admin.Close()
	if shared.server == nil {
		return admin(`DROP DATABASE IF EXISTS ` + shared.template + ` WITH (FORCE)`)
	}
	ctx, cancel := context.WithTimeout(context.Background(), adminFor)
	defer cancel()
	if err := shared.server.Stop(ctx); err != nil {
		return err
	}
	if shared.kept.Load() {
		return nil
	}
	return os.RemoveAll(shared.dir)
}

// keep says where a failed test's rows are.
func keep(t testing.TB, name, url string) {
	shared.kept.Store(true)
	if shared.server == nil {
		t.Logf("database %s is kept: %s", name, url)
		return
	}
	if err := os.WriteFile(filepath.Join(shared.dir, keptMark), nil, 0o600); err != nil {
		t.Logf("mark %s as kept: %v", shared.dir, err)
	}
	t.Logf("database %s is kept in %s for a day; look at it with: postgres -D %s -p 5433 (as the directory's owner), user %s, password in %s",
		name, shared.dir, filepath.Join(shared.dir, "cluster"), devpg.User, filepath.Join(shared.dir, "password"))
}

func admin(sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), adminFor)
	defer cancel()
	if _, err := shared.admin.Exec(ctx, sql); err != nil {
		return fmt.Errorf("pgtest: %s: %w", sql, err)
	}
	return nil
}

// databaseName is a plain identifier that still shows the test: 40 characters of its name and 64 bits at random, within
// PostgreSQL's 63.
func databaseName(test string) string {
	plain := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + ('a' - 'A')
		default:
			return '_'
		}
	}, test)
	return "t_" + plain[:min(len(plain), 40)] + "_" + strings.ToLower(rand.Text()[:13])
}

func withDatabase(serverURL, name string) string {
	u, err := url.Parse(serverURL)
	if err != nil {
		panic(fmt.Sprintf("pgtest: %s must be a URL: %v", EnvURL, err))
	}
	u.Path = "/" + name
	return u.String()
}
