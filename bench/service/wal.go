package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
)

// The write-ahead log says what writing really cost: how many records, how many bytes, how many commits. Full-page images are
// left out everywhere: they depend on when the last checkpoint was.

// walLine is one kind of record, "Heap/HOT_UPDATE".
type walLine struct {
	Kind    string
	Records int64
	Bytes   int64 // without full-page images
}

// walStats is what was written between two places of the log.
type walStats []walLine

func (s walStats) records() (n int64) {
	for _, l := range s {
		n += l.Records
	}
	return n
}

func (s walStats) bytes() (n int64) {
	for _, l := range s {
		n += l.Bytes
	}
	return n
}

// commits counts transactions that wrote something, and so made the log durable. One that only reads costs none.
func (s walStats) commits() (n int64) {
	for _, l := range s {
		if l.Kind == "Transaction/COMMIT" {
			n += l.Records
		}
	}
	return n
}

// byManager sums the kinds of each resource manager, the most bytes first.
func (s walStats) byManager() walStats {
	sums := map[string]walLine{}
	for _, l := range s {
		manager, _, _ := strings.Cut(l.Kind, "/")
		sum := sums[manager]
		sums[manager] = walLine{manager, sum.Records + l.Records, sum.Bytes + l.Bytes}
	}
	return slices.SortedFunc(maps.Values(sums), func(a, b walLine) int { return int(b.Bytes - a.Bytes) })
}

// walPlace is where the log is durable up to. Every payment that was answered is before it.
func walPlace(ctx context.Context, pool *pgxpool.Pool) (place string, err error) {
	err = pool.QueryRow(ctx, "SELECT pg_current_wal_flush_lsn()::text").Scan(&place)
	return place, err
}

// walBetween reads what was written between two places, by pg_waldump.
func (w *world) walBetween(ctx context.Context, from, to string) (walStats, error) {
	if from == to {
		return nil, nil
	}
	c := exec.CommandContext(ctx, filepath.Join(w.tools, "pg_waldump"), "--stats=record",
		"--path", filepath.Join(w.dir, "postgres", "cluster", "pg_wal"), "--start", from, "--end", to)
	var trouble bytes.Buffer
	c.Stderr = &trouble
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("read write-ahead log: %w: %s", err, bytes.TrimSpace(trouble.Bytes()))
	}
	return parseWAL(string(out))
}

// walRow is a line of pg_waldump --stats=record: kind, N, (%), record size, (%), …
var walRow = regexp.MustCompile(`^(\w+/\S+)\s+(\d+)\s+\([^)]*\)\s+(\d+)\s+\(`)

func parseWAL(report string) (walStats, error) {
	var s walStats
	for line := range strings.Lines(report) {
		m := walRow.FindStringSubmatch(line)
		if m == nil {
			continue // headings and totals
		}
		records, err1 := strconv.ParseInt(m[2], 10, 64)
		bytes, err2 := strconv.ParseInt(m[3], 10, 64)
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("read write-ahead log: %q", line)
		}
		if records > 0 {
			s = append(s, walLine{m[1], records, bytes})
		}
	}
	if len(s) == 0 {
		return nil, fmt.Errorf("read write-ahead log: no statistics in: %s", report)
	}
	slices.SortFunc(s, func(a, b walLine) int { return int(b.Bytes - a.Bytes) })
	return s, nil
}
