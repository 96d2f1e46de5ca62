// Package devpg keeps one private PostgreSQL for a paymentsd that was given none: it starts with the process, ends with
// the process, and what was committed in it outlives both.
//
// The directory holds everything: the cluster, a random password only its owner can read, the server's log, and a lock
// that lets one process at a time own it. The server listens on 127.0.0.1 alone, on a port that was free.
//
// Where the programs come from differs (installed, installed by us, fetched by us); how they are started does not.
package devpg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Database and User name what a started server holds; User owns Database.
const (
	Database = "paymentsd"
	User     = "paymentsd"
)

// Config says where the server lives. Only Dir is required.
type Config struct {
	// Dir is made when it is missing. Its file names are described at layout.
	Dir string

	// Log receives progress that a person waits for (installing, creating); nil is silent.
	Log *slog.Logger

	// Port is the TCP port on 127.0.0.1; 0 takes any free one, a new one at each start.
	Port int

	// Fast trades durability against a crash of the machine for speed. It keeps every promise PostgreSQL makes about
	// transactions, and survives a killed server; it is for tests.
	Fast bool

	// Settings are added to the server's command line and win over those of this package.
	Settings map[string]string

	// places is where programs are looked for and how missing ones are had; tests replace it.
	places places
}

// Server is a running PostgreSQL. Its methods may be called from several goroutines.
type Server struct {
	files    layout
	lock     *dirLock
	pm       *postmaster
	url      string
	stopOnce sync.Once
	stopErr  error
}

// Start returns a server that accepts connections, with an empty Database if the directory held none. A server that
// outlived its killed parent is adopted instead of started.
//
// Errors are one sentence that says what to do. Returned when, among others: ErrNotWritable the directory refuses us,
// ErrInUse another process owns it, ErrNoPrograms there is no PostgreSQL here and no way to get one, ErrOtherVersion
// the directory was made by a major version that is not here, ErrPortTaken the port asked for is not free.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	files, err := openLayout(cfg.Dir)
	if err != nil {
		return nil, err
	}
	lock, err := lockDir(files)
	if err != nil {
		return nil, err
	}
	s := &Server{files: files, lock: lock}
	if err := s.start(ctx, cfg); err != nil {
		lock.release()
		return nil, err
	}
	return s, nil
}

func (s *Server) start(ctx context.Context, cfg Config) error {
	password, err := s.files.password()
	if err != nil {
		return err
	}
	adopted, err := adopt(ctx, s.files, password)
	if err != nil {
		return err
	}
	if adopted != nil {
		cfg.Log.Info("found the private PostgreSQL still running", "dir", cfg.Dir)
		s.pm = adopted
	} else if s.pm, err = startNew(ctx, cfg, s.files, password); err != nil {
		return err
	}
	s.url = connURL(password, s.pm.port, Database)
	if err := createDatabase(ctx, connURL(password, s.pm.port, "postgres")); err != nil {
		err = fmt.Errorf("create database %s: %w", Database, err)
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
		defer cancel()
		return errors.Join(err, s.pm.stop(stopCtx))
	}
	return nil
}

// startNew brings up a server on a directory that no server uses.
func startNew(ctx context.Context, cfg Config, files layout, password string) (*postmaster, error) {
	major, err := files.major()
	if err != nil {
		return nil, err
	}
	if cfg.places.isZero() {
		cfg.places = usualPlaces()
	}
	progs, err := findPrograms(ctx, cfg, files, major)
	if err != nil {
		return nil, err
	}
	as, err := accountFor(files) // after the programs: their package makes the user postgres
	if err != nil {
		return nil, err
	}
	if major == 0 {
		cfg.Log.Info("creating a private PostgreSQL", "dir", cfg.Dir, "version", progs.version)
		if err := initCluster(ctx, cfg, files, progs, as, password); err != nil {
			return nil, err
		}
	}
	return launch(ctx, cfg, files, progs, as, password)
}

// URL connects to Database as its owner. It contains the password: do not log it.
func (s *Server) URL() string { return s.url }

// Port is the TCP port on 127.0.0.1.
func (s *Server) Port() int { return s.pm.port }

// PID is the process id of the postmaster.
func (s *Server) PID() int { return s.pm.pid }

// Done is closed when the server has ended, whether or not Stop was called.
func (s *Server) Done() <-chan struct{} { return s.pm.exited }

// Stop ends the server: running transactions are rolled back, clients are disconnected, everything committed is on disk.
// When ctx ends first the server is stopped the hard way, which loses nothing committed either and makes the next start
// replay its log. Further calls return what the first returned.
func (s *Server) Stop(ctx context.Context) error {
	s.stopOnce.Do(func() {
		s.stopErr = s.pm.stop(ctx)
		s.lock.release()
	})
	return s.stopErr
}

// Crash ends the server as a power cut would end it for its clients: no farewell, no checkpoint. Tests start it again
// with the same Config and find what was committed.
func (s *Server) Crash() error {
	err := s.pm.signal(syscall.SIGKILL)
	s.stopOnce.Do(func() {
		select {
		case <-s.pm.exited:
		case <-time.After(stopGrace):
			err = errors.Join(err, errors.New("crash private PostgreSQL: it is still there"))
		}
		s.lock.release()
	})
	return err
}

const lockName = "lock"

// layout is the directory's file names.
type layout struct {
	dir     string
	cluster string // PostgreSQL's data directory; belongs to the account the server runs as
	fresh   string // a cluster being made; it is renamed when complete, so an interrupted one is never started
	secret  string
	log     string
	lock    string
}

func openLayout(dir string) (layout, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return layout{}, fmt.Errorf("private PostgreSQL in %q: %w", dir, err)
	}
	if err := os.MkdirAll(abs, 0o755); err != nil {
		return layout{}, notWritable(dir, err)
	}
	return layout{
		dir:     abs,
		cluster: filepath.Join(abs, "cluster"),
		fresh:   filepath.Join(abs, "cluster.new"),
		secret:  filepath.Join(abs, "password"),
		log:     filepath.Join(abs, "postgres.log"),
		lock:    filepath.Join(abs, lockName),
	}, nil
}
