package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/paymentsd/paymentsd/internal/devpg"
)

// world is everything that is measured, each part a process of its own: a PostgreSQL with the durable settings that it comes
// with, the provider, and the service in as many instances and on as many databases as a measurement needs.
type world struct {
	bin     string
	dir     string
	server  *devpg.Server
	tools   string // where the server's programs are
	env     []string
	tenants int

	provider  *process
	broker    string // address, once there is one
	databases map[string]*database
	running   []*process
}

// database is one database of the server, with the service's schema and the callers of the benchmark.
type database struct {
	name string
	url  string
	pool *pgxpool.Pool
}

// process is one role of the service that runs.
type process struct {
	role  string
	addr  string // of an API
	admin string
	cmd   *exec.Cmd
	log   string
	ended chan struct{}
}

const (
	// A start takes half a second; one that competes with a compiler takes longer.
	readyWithin = 30 * time.Second
	// A role that was asked to end drains for at most 30 s itself.
	endWithin = 40 * time.Second
)

// settings for every process. The slow scenarios need a provider that may be slow for longer than the default allows.
var settings = []string{"PAYMENTSD_LOG_LEVEL=error", "PAYMENTSD_PROVIDER_TIMEOUT=60s", "PAYMENTSD_LEASE=90s"}

// openWorld starts PostgreSQL and the provider.
func openWorld(ctx context.Context, bin string, tenants int) (*world, error) {
	dir, err := os.MkdirTemp("", "paymentsd-bench-")
	if err != nil {
		return nil, err
	}
	w := &world{bin: bin, dir: dir, tenants: tenants, databases: map[string]*database{}}
	if err := w.open(ctx); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

func (w *world) open(ctx context.Context) (err error) {
	if w.server, err = devpg.Start(ctx, devpg.Config{Dir: filepath.Join(w.dir, "postgres"), Log: slog.Default()}); err != nil {
		return err
	}
	if w.tools, err = programsOf(w.server.PID()); err != nil {
		return err
	}
	providerAddr, err := freeAddr()
	if err != nil {
		return err
	}
	w.env = append(os.Environ(), append(settings, "PAYMENTSD_DATA_DIR="+w.dir, "PAYMENTSD_PROVIDER_ADDR="+providerAddr)...)
	w.provider, err = w.start(ctx, []string{"provider"})
	if err == nil {
		w.provider.addr = providerAddr
	}
	return err
}

// close ends everything and removes its directory.
func (w *world) close() error {
	for _, p := range slices.Backward(slices.Clone(w.running)) {
		w.end(p)
	}
	for _, db := range w.databases {
		db.pool.Close()
	}
	var err error
	if w.server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), endWithin)
		defer cancel()
		err = w.server.Stop(ctx)
	}
	return errors.Join(err, os.RemoveAll(w.dir))
}

// database gives the database of this name; at first it makes it.
func (w *world) database(ctx context.Context, name string) (*database, error) {
	if db := w.databases[name]; db != nil {
		return db, nil
	}
	url, err := w.createDatabase(ctx, name)
	if err != nil {
		return nil, err
	}
	db := &database{name: name, url: url}
	if db.pool, err = pgxpool.New(ctx, db.url); err != nil {
		return nil, err
	}
	w.databases[name] = db
	migrate := exec.CommandContext(ctx, w.bin, "migrate")
	migrate.Env = append(slices.Clone(w.env), "DATABASE_URL="+db.url)
	if out, err := migrate.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("migrate: %w: %s", err, bytes.TrimSpace(out))
	}
	return db, w.makeCallers(ctx, db)
}

// makeCallers makes the tenants that pay, each with accounts and an API key.
func (w *world) makeCallers(ctx context.Context, db *database) error {
	for _, sql := range []string{
		`INSERT INTO tenants (tenant_id) SELECT 'bench_' || n FROM generate_series(0, $1::int - 1) n`,
		`INSERT INTO api_keys (tenant_id, api_key_id, secret_hash) SELECT 'bench_' || n, 'bench', sha256(convert_to('sk_bench_' || n, 'UTF8'))
		 FROM generate_series(0, $1::int - 1) n`,
		fmt.Sprintf(`INSERT INTO accounts (tenant_id, account_id) SELECT 'bench_' || n, 'acc_' || a
		 FROM generate_series(0, $1::int - 1) n, generate_series(0, %d) a`, accounts-1),
	} {
		if _, err := db.pool.Exec(ctx, sql, w.tenants); err != nil {
			return fmt.Errorf("make tenants: %w", err)
		}
	}
	return nil
}

// createDatabase makes an empty database and returns its URL.
func (w *world) createDatabase(ctx context.Context, name string) (string, error) {
	u, err := url.Parse(w.server.URL())
	if err != nil {
		return "", err
	}
	conn, err := pgx.Connect(ctx, u.String())
	if err != nil {
		return "", fmt.Errorf("make database: %w", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "CREATE DATABASE bench_"+name); err != nil {
		return "", fmt.Errorf("make database: %w", err)
	}
	u.Path = "/bench_" + name
	return u.String(), nil
}

// startAPI starts an instance of the service on a database.
func (w *world) startAPI(ctx context.Context, databaseURL string, settings ...string) (*process, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	p, err := w.start(ctx, []string{"api"}, append(settings, "DATABASE_URL="+databaseURL, "PAYMENTSD_HTTP_ADDR="+addr)...)
	if err == nil {
		p.addr = addr
	}
	return p, err
}

// start starts a role and waits until it is ready.
func (w *world) start(ctx context.Context, args []string, settings ...string) (*process, error) {
	admin, err := freeAddr()
	if err != nil {
		return nil, err
	}
	role := strings.Join(args, " ")
	p := &process{role: role, admin: admin, ended: make(chan struct{}), log: filepath.Join(w.dir, fmt.Sprintf("%s-%d.log", strings.Join(args, "-"), len(w.running)))}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(w.bin, args...) // not with ctx, which would kill it: it ends in good order, in close
	p.cmd.Env = append(slices.Clone(w.env), append(settings, "PAYMENTSD_ADMIN_ADDR="+admin)...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C is for us, who then ends it
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", role, err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // how it ended is in its log
	}()
	w.running = append(w.running, p)
	if err := p.waitReady(ctx); err != nil {
		return nil, fmt.Errorf("start %s: %w", role, err)
	}
	return p, nil
}

func (p *process) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	for {
		if _, err := get(ctx, "http://"+p.admin+"/readyz"); err == nil {
			return nil
		}
		select {
		case <-p.ended:
			text, err := os.ReadFile(p.log)
			return errors.Join(fmt.Errorf("it ended: %s", bytes.TrimSpace(text)), err)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// end ends a process in good order, or else at once.
func (w *world) end(p *process) {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	select {
	case <-p.ended:
	case <-time.After(endWithin):
		_ = p.cmd.Process.Kill() // as above
		<-p.ended
	}
	w.running = slices.DeleteFunc(w.running, func(r *process) bool { return r == p })
}

// roles lists what the program can be, by its own help.
func (w *world) roles(ctx context.Context) ([]string, error) {
	help, err := exec.CommandContext(ctx, w.bin, "--help").Output()
	if err != nil {
		return nil, fmt.Errorf("ask for the roles: %w", err)
	}
	return rolesIn(string(help)), nil
}

func rolesIn(help string) []string {
	var roles []string
	for _, m := range helpLine.FindAllStringSubmatch(help, -1) {
		roles = append(roles, m[1])
	}
	return roles
}

var helpLine = regexp.MustCompile(`(?m)^  ([a-z]+(?: [a-z]+)?)  `)

// script tells the provider what goes wrong from now on, instead of what went wrong before. Empty: nothing.
func (w *world) script(ctx context.Context, fault string) error {
	send := func(method, body string) error {
		r, err := http.NewRequestWithContext(ctx, method, "http://"+w.provider.addr+"/control/faults", strings.NewReader(body))
		if err != nil {
			return err
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return fmt.Errorf("script the provider: %w", err)
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusNoContent {
			return fmt.Errorf("script the provider: %s", answer.Status)
		}
		return nil
	}
	err := send(http.MethodDelete, "")
	if err == nil && fault != "" {
		err = send(http.MethodPost, fault)
	}
	return err
}

func get(ctx context.Context, url string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, 16<<20))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("get %s: %s", url, answer.Status)
	}
	return string(body), err
}

// freeAddr is an address that nobody listens on. Its port is below those that systems give to outgoing connections, of which
// a benchmark makes thousands.
func freeAddr() (string, error) {
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", 20_000+rand.IntN(12_000))
		if l, err := net.Listen("tcp", addr); err == nil {
			return addr, l.Close()
		}
	}
	return "", errors.New("no port of 127.0.0.1 between 20000 and 32000 is free")
}
