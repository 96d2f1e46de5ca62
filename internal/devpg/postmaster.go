package devpg

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// stopGrace is for a server that no longer has a choice (SIGQUIT, SIGKILL, a failed start): it needs well under a
	// second on a slow disk.
	stopGrace = 10 * time.Second

	// adoptFor bounds how long a server left behind may take to answer or to finish shutting down. A shutdown writes at
	// most shared_buffers (128 MB) to disk.
	adoptFor = time.Minute

	// readyFor bounds crash recovery at start; max_wal_size (1 GB) of log replays in less on anything that can build Go.
	readyFor = 3 * time.Minute

	// pollEvery is short against the second a start takes, and long against one connection attempt.
	pollEvery = 25 * time.Millisecond

	// launchAttempts: a port can be lost between choosing and using it, and a killed server's last backends may hold
	// its memory for a moment. Both are over at the next attempt; five in a row are something else.
	launchAttempts = 5
)

// crashedRetryPause grows to 4 s over launchAttempts, longer than a backend needs to notice that its postmaster is gone.
const crashedRetryPause = 250 * time.Millisecond

// postmaster is the server's first process: our child, or one that outlived the parent it had.
type postmaster struct {
	pid    int
	port   int
	exited chan struct{} // closed when it is gone
	dir    string
}

// launch starts the server and waits until it accepts connections.
func launch(ctx context.Context, cfg Config, files layout, progs programs, as account, password string) (*postmaster, error) {
	var err error
	for attempt := range launchAttempts {
		if attempt > 0 {
			pause := crashedRetryPause << (attempt - 1)
			select {
			case <-ctx.Done():
				return nil, fmt.Errorf("%w: %w", ErrNotStarted, ctx.Err())
			case <-time.After(pause):
			}
		}
		var port int
		if port, err = freePort(cfg.Port); err != nil {
			return nil, err
		}
		var pm *postmaster
		if pm, err = launchOn(ctx, cfg, files, progs, as, port); err != nil {
			return nil, err
		}
		if err = pm.waitReady(ctx, files, password); err == nil {
			return pm, nil
		}
		if !errors.Is(err, errExitedEarly) {
			stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
			defer cancel()
			return nil, errors.Join(err, pm.stop(stopCtx))
		}
	}
	return nil, err
}

// freePort asks the kernel. With a port given it only proves that the port can be had, because the sentence then names it.
func freePort(wanted int) (int, error) {
	l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(wanted)))
	if err != nil && wanted != 0 {
		return 0, fmt.Errorf("%w: the private PostgreSQL cannot listen on 127.0.0.1:%d (%w); stop what listens there", ErrPortTaken, wanted, err)
	}
	if err != nil {
		return 0, fmt.Errorf("%w: no free port on 127.0.0.1 for the private PostgreSQL (%w); end some programs that hold ports, or set DATABASE_URL",
			ErrPortTaken, err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// launchOn starts the process. A goroutine stays with it on a thread of its own: Linux sends the signal that ends an
// orphaned server when the *thread* that started it ends, and Go ends threads when it likes.
func launchOn(ctx context.Context, cfg Config, files layout, progs programs, as account, port int) (*postmaster, error) {
	if err := forgetStalePID(files.cluster); err != nil {
		return nil, notWritable(files.dir, err)
	}
	log, err := openLog(files.log)
	if err != nil {
		return nil, notWritable(files.dir, err)
	}
	defer log.Close()
	// The server must survive the context that only bounds its start.
	cmd, done, err := clusterCommand(context.WithoutCancel(ctx), filepath.Join(progs.dir, "postgres"), files.cluster, as, settings(cfg, port), nil)
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = log, log
	pm := &postmaster{port: port, exited: make(chan struct{}), dir: files.cluster}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		done()
		started <- err
		if err == nil {
			_ = cmd.Wait() //nolint:errcheck // the log says why it ended
			close(pm.exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("%w: run %s as user id %d: %w; start paymentsd as an ordinary user, or set DATABASE_URL",
			ErrNotStarted, cmd.Path, as.uid, err)
	}
	pm.pid = cmd.Process.Pid
	return pm, nil
}

// settings is the server's command line. Nothing is written to postgresql.conf, so a start never depends on the last one.
func settings(cfg Config, port int) []string {
	set := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    strconv.Itoa(port),
		"unix_socket_directories": "", // one door, with a password
		"max_connections":         "100",
		"timezone":                "UTC",
		"log_timezone":            "UTC",
		"log_line_prefix":         "%m [%p] %q%d ",
		"log_lock_waits":          "on",
	}
	if cfg.Fast {
		fast := map[string]string{
			"fsync":            "off",
			"full_page_writes": "off",
			"shared_buffers":   "64MB",
			"max_connections":  "200", // many tests at once, each with a pool
			"autovacuum":       "off", // no database lives long enough to need it
			"jit":              "off",
		}
		for k, v := range fast {
			set[k] = v
		}
	}
	for k, v := range cfg.Settings {
		set[k] = v
	}
	var args []string
	for k, v := range set {
		args = append(args, "--"+k+"="+v)
	}
	slices.Sort(args)
	return args
}

// logBytesMax is about a month of daily development; one older file is kept.
const logBytesMax = 10 << 20

func openLog(name string) (*os.File, error) {
	if info, err := os.Stat(name); err == nil && info.Size() > logBytesMax {
		if err := os.Rename(name, name+".old"); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
}

var errExitedEarly = errors.New("it ended while starting")

func (pm *postmaster) waitReady(ctx context.Context, files layout, password string) error {
	ctx, cancel := context.WithTimeout(ctx, readyFor)
	defer cancel()
	for {
		err := ping(ctx, password, pm.port)
		if err == nil {
			return nil
		}
		select {
		case <-pm.exited:
			return fmt.Errorf("%w: %w: %s; all of it is in %s", ErrNotStarted, errExitedEarly, tail(files.log), files.log)
		case <-ctx.Done():
			return fmt.Errorf("%w: no connection after waiting (%w); see %s", ErrNotStarted, err, files.log)
		case <-time.After(pollEvery):
		}
	}
}

// ping proves that our server accepts connections. Nobody else knows the password, and SCRAM makes the server prove that
// it does: another server on the same port cannot pass.
func ping(ctx context.Context, password string, port int) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // on loopback; an unresponsive server is asked again
	defer cancel()
	conn, err := pgx.Connect(ctx, connURL(password, port, "postgres"))
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// adopt returns the server that a killed parent left running on this directory, or nil when there is none. One that is
// just shutting down is waited for.
func adopt(ctx context.Context, files layout, password string) (*postmaster, error) {
	ctx, cancel := context.WithTimeout(ctx, adoptFor)
	defer cancel()
	for {
		pid, port, ok := readPIDFile(files.cluster)
		if !ok || !runsIn(pid, files.cluster) {
			return nil, nil
		}
		err := ping(ctx, password, port)
		if err == nil {
			pm := &postmaster{pid: pid, port: port, exited: make(chan struct{}), dir: files.cluster}
			go pm.watch()
			return pm, nil
		}
		var refused *pgconn.PgError
		if errors.As(err, &refused) && refused.Code == "28P01" { // invalid_password
			return nil, fmt.Errorf("%w: a PostgreSQL (process %d) runs on %s with another password than %s; stop it",
				ErrInUse, pid, files.cluster, files.secret)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: a PostgreSQL (process %d) runs on %s and does not answer (%w); stop it", ErrInUse, pid, files.cluster, err)
		case <-time.After(pollEvery):
		}
	}
}

// watch stands in for Wait, which works for children only.
func (pm *postmaster) watch() {
	for runsIn(pm.pid, pm.dir) {
		time.Sleep(pollEvery)
	}
	close(pm.exited)
}

// stop is PostgreSQL's fast shutdown, and the immediate one when that takes too long.
func (pm *postmaster) stop(ctx context.Context) error {
	if err := pm.signal(syscall.SIGINT); err != nil {
		return err
	}
	select {
	case <-pm.exited:
		return nil
	case <-ctx.Done():
	}
	if err := pm.signal(syscall.SIGQUIT); err != nil {
		return err
	}
	select {
	case <-pm.exited:
		return fmt.Errorf("stop private PostgreSQL: it had to be stopped at once: %w", ctx.Err())
	case <-time.After(stopGrace):
		return fmt.Errorf("stop private PostgreSQL: process %d does not end", pm.pid)
	}
}

// signal treats a server that is already gone as signalled.
func (pm *postmaster) signal(sig syscall.Signal) error {
	select {
	case <-pm.exited:
		return nil
	default:
	}
	if err := syscall.Kill(pm.pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal private PostgreSQL (process %d): %w", pm.pid, err)
	}
	return nil
}

// readPIDFile returns the process and port that postmaster.pid names; its lines are PostgreSQL's documented ones.
func readPIDFile(cluster string) (pid, port int, ok bool) {
	text, err := os.ReadFile(filepath.Join(cluster, "postmaster.pid"))
	if err != nil {
		return 0, 0, false
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) < 4 {
		return 0, 0, false
	}
	pid, pidErr := strconv.Atoi(strings.TrimSpace(lines[0]))
	port, portErr := strconv.Atoi(strings.TrimSpace(lines[3]))
	return pid, port, pidErr == nil && portErr == nil && pid > 1
}

// forgetStalePID lets the server start when its process id was given to another program, or is a zombie's: PostgreSQL
// asks only whether the id exists. The file is not removed but told that the server was us. PostgreSQL knows that its
// parent is not a server, and still does its other check, whether an old backend holds the cluster's memory.
func forgetStalePID(cluster string) error {
	pid, _, ok := readPIDFile(cluster)
	if !ok || runsIn(pid, cluster) {
		return nil
	}
	name := filepath.Join(cluster, "postmaster.pid")
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(string(text), "\n")
	return os.WriteFile(name, []byte(strconv.Itoa(os.Getpid())+"\n"+rest), 0o600)
}

// tail is the end of the log, for an error message.
func tail(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	return lastLines(string(text))
}

// lastLines keeps what fits an error message: the last five lines, on one. A failed initdb needs five to show its reason.
func lastLines(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], " | ")
}
