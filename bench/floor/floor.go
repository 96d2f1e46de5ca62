// Package floor is what PostgreSQL can do for the writes of a payment when nothing else is in the way: the same rows, sent by
// pgbench, with no service, no provider and no HTTP. A service is measured against it in the same run, because absolute
// figures of one machine move by a factor of two within a day.
package floor

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

var (
	//go:embed schema.sql
	schema string
	//go:embed single.sql
	single string
	//go:embed sets.sql
	sets string
	//go:embed replay.sql
	replay string
)

// Script is one shape of the floor.
type Script struct {
	Name    string
	Clients int
	Each    int // operations that one run of the script does
	text    string
}

// The shapes. D1 and D2 are the names that they have in documents.
var (
	D1       = Script{"D1: pgbench, one statement a transaction, 8 clients", 8, 1, single}
	D1Alone  = Script{"pgbench, one statement a transaction, 1 client", 1, 1, single}
	D2       = Script{"D2: pgbench, sets of 50, 2 clients", 2, setSize, sets}
	Replayed = Script{"pgbench, replay by primary key, 8 clients", 8, 1, replay}
)

const setSize = 50 // as sets.sql has it

// ErrNoPgbench is returned when pgbench is not there, neither beside the server nor in the PATH.
var ErrNoPgbench = errors.New("pgbench is not installed (Debian: postgresql-contrib or postgresql)")

// Bench runs scripts on one database, which is its own.
type Bench struct {
	program string
	env     []string
	runs    int64
}

// Open makes the tables in the database, which must hold no others of these names. serverDir is where the server's programs
// are; pgbench is usually beside them. It returns ErrNoPgbench.
func Open(ctx context.Context, serverDir, url string) (*Bench, error) {
	program, err := exec.LookPath(filepath.Join(serverDir, "pgbench"))
	if err != nil {
		program, err = exec.LookPath("pgbench")
	}
	if err != nil {
		return nil, ErrNoPgbench
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("open floor: %w", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, schema); err != nil {
		return nil, fmt.Errorf("open floor: make its tables: %w", err)
	}
	if _, err := conn.Exec(ctx, "VACUUM ANALYZE"); err != nil {
		return nil, fmt.Errorf("open floor: %w", err)
	}
	c := conn.Config()
	return &Bench{program: program, runs: time.Now().Unix(), env: append(withoutPG(os.Environ()), "PGHOST="+c.Host, "PGPORT="+strconv.Itoa(int(c.Port)),
		"PGUSER="+c.User, "PGPASSWORD="+c.Password, "PGDATABASE="+c.Database, "PGSSLMODE=disable")}, nil
}

// withoutPG drops what a developer's shell says about another server.
func withoutPG(env []string) []string {
	var kept []string
	for _, v := range env {
		if !strings.HasPrefix(v, "PG") {
			kept = append(kept, v)
		}
	}
	return kept
}

// For runs the script for a time, at least a second, and returns operations a second.
func (b *Bench) For(ctx context.Context, s Script, d time.Duration) (float64, error) {
	return b.run(ctx, s, d+time.Minute, "-T", strconv.Itoa(max(1, int(d.Seconds()))))
}

// Times runs the script n times on every client, and returns operations a second.
func (b *Bench) Times(ctx context.Context, s Script, n int) (float64, error) {
	return b.run(ctx, s, 5*time.Minute, "-t", strconv.Itoa(n))
}

func (b *Bench) run(ctx context.Context, s Script, within time.Duration, until ...string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	b.runs++ // names the rows of this run
	c := exec.CommandContext(ctx, b.program, append(until, "-n", "-M", "prepared", "-j", "1", "-c", strconv.Itoa(s.Clients),
		"-D", "n=0", "-D", "base="+strconv.FormatInt(b.runs, 10), "-f", "-")...)
	c.Env, c.Stdin = b.env, strings.NewReader(s.text)
	var out, trouble bytes.Buffer
	c.Stdout, c.Stderr = &out, &trouble
	if err := c.Run(); err != nil {
		return 0, fmt.Errorf("run pgbench: %w: %s", err, bytes.TrimSpace(trouble.Bytes()))
	}
	return perSecond(out.String(), s.Each)
}

var (
	tps    = regexp.MustCompile(`(?m)^tps = ([0-9.]+)`)
	failed = regexp.MustCompile(`(?m)^number of failed transactions: ([0-9]+)`)
)

// perSecond reads pgbench's report. A floor with failures is none.
func perSecond(report string, each int) (float64, error) {
	if m := failed.FindStringSubmatch(report); m != nil && m[1] != "0" {
		return 0, fmt.Errorf("run pgbench: %s transactions failed", m[1])
	}
	m := tps.FindStringSubmatch(report)
	if m == nil {
		return 0, fmt.Errorf("run pgbench: no rate in its report: %s", report)
	}
	rate, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return 0, fmt.Errorf("run pgbench: %w", err)
	}
	return rate * float64(each), nil
}
