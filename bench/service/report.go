package main

import (
	"debug/buildinfo"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
)

// results are every figure of a run.
type results struct {
	Program      string       `json:"program"` // the commit that it was built from, if it knows
	Floor        bool         `json:"floor"`   // whether there was one to compare with
	RatioToFloor float64      `json:"ratio_to_floor"`
	BestClients  int          `json:"best_clients"`
	Counts       counts       `json:"counts"`
	Series       []summary    `json:"series"`
	Bar          []barRow     `json:"bar"`
	Latencies    []latencyRow `json:"latencies"`
	Lag          []int        `json:"unpublished"` // events, at the end of each slice beside workers
	Problems     []string     `json:"problems"`
}

// summary is one scenario over all rounds.
type summary struct {
	Name      string `json:"name"`
	what      string
	Clients   int     `json:"clients"`
	PerSecond float64 `json:"perSecond"` // median
	Least     float64 `json:"least"`
	Most      float64 `json:"most"`
	ToFloor   float64 `json:"toFloor"` // median of the rounds' ratios to D1
	P50       float64 `json:"p50Milliseconds"`
	P99       float64 `json:"p99Milliseconds"`
	Micros    micros  `json:"processorMicroseconds"`
	MiB       float64 `json:"residentMiB"`
}

// latencyRow is an open loop.
type latencyRow struct {
	What     string  `json:"what"`
	Rate     float64 `json:"perSecond"`
	Requests int     `json:"requests"`
	P50      float64 `json:"p50Milliseconds"`
	P99      float64 `json:"p99Milliseconds"`
	P999     float64 `json:"p999Milliseconds"`
	Max      float64 `json:"maxMilliseconds"`
}

func summarize(s series, all map[string]*series) summary {
	of := func(value func(sample) float64) float64 {
		var values []float64
		for _, x := range s.samples {
			values = append(values, value(x))
		}
		return median(values)
	}
	rates := s.rates()
	return summary{
		Name: s.name, what: s.what, Clients: s.clients, PerSecond: median(rates), Least: slices.Min(rates), Most: slices.Max(rates),
		ToFloor: s.ratioTo(all["D1"]),
		P50:     of(func(x sample) float64 { return millis(x.p50) }), P99: of(func(x sample) float64 { return millis(x.p99) }),
		Micros: micros{of(func(x sample) float64 { return x.used.Service }), of(func(x sample) float64 { return x.used.Postgres }),
			of(func(x sample) float64 { return x.used.Provider }), of(func(x sample) float64 { return x.used.Generator })},
		MiB: of(func(x sample) float64 { return x.memMB }),
	}
}

// print shows the tables, and the JSON line if it was asked for.
func (r *results) print(out io.Writer, o options) error {
	var b strings.Builder
	fmt.Fprintf(&b, "paymentsd %s, %d processors, %s/%s\n", r.Program, runtime.NumCPU(), runtime.GOOS, runtime.GOARCH)
	b.WriteString("\n## Counts over fixed work, of one operation\n\n")
	b.WriteString(countsTable(r.Counts.Costs))
	b.WriteString("\nWAL records and bytes are without full-page images. HOT share of updates:")
	for _, table := range []string{"idempotency_requests", "payments"} {
		fmt.Fprintf(&b, " %s %s%%", table, figure(percent(r.hot(table)), 0))
	}
	fmt.Fprintf(&b, ". Resident memory of the service: %.0f MiB idle, at most %.0f MiB at 256 requests.\n", r.Counts.IdleMiB, r.Counts.PeakMiB)
	b.WriteString("\n## Round trips by statement, of one operation\n\n")
	b.WriteString(tripsTable(r.Counts.Costs))
	b.WriteString("\n## WAL by resource manager, of one operation\n\n")
	b.WriteString(walTable(r.Counts))
	if o.short {
		b.WriteString("\n## Limits\n\n" + limitsTable(r.Counts))
	} else {
		fmt.Fprintf(&b, "\n## Rates, medians of %d rounds of %v\n\n", o.rounds, o.slice)
		b.WriteString(seriesTable(r.Series))
		if len(r.Latencies) > 0 {
			b.WriteString("\n## Latency at a constant rate, from when a request was due\n\n" + latencyTable(r.Latencies))
		}
		if len(r.Lag) > 0 {
			fmt.Fprintf(&b, "\nEvents not yet published at the end of each slice beside workers: %v\n", r.Lag)
		}
		b.WriteString("\n## The bar\n\n" + barTable(r.Bar))
	}
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "\n**%s**\n", p)
	}
	if _, err := io.WriteString(out, b.String()); err != nil || !o.json {
		return err
	}
	line, err := json.Marshal(r, json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("print JSON: %w", err)
	}
	_, err = fmt.Fprintf(out, "\n%s\n", line)
	return err
}

func countsTable(costs []cost) string {
	var b strings.Builder
	b.WriteString("| | round trips | lookups, rings | commits | WAL records | WAL bytes | PostgreSQL, µs | service, µs | provider, µs | load and wire, µs | allocations | allocated bytes |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, c := range costs {
		fmt.Fprintf(&b, "| %s | %s | %s | %.3f | %.1f | %.0f | %.0f | %s | %s | %s | %s | %s |\n", c.Name, orDash(c.RoundTrips, 3), orDash(c.Apart, 3), c.Commits, c.WALRecords,
			c.WALBytes, c.Micros.Postgres, orDash(c.Micros.Service, 0), orDash(c.Micros.Provider, 0), orDash(c.Micros.Generator, 0),
			orDash(c.Objects, 0), orDash(c.Bytes, 0))
	}
	return b.String()
}

func tripsTable(costs []cost) string {
	var b strings.Builder
	b.WriteString("| | statement | round trips |\n|---|---|---|\n")
	for _, c := range costs {
		for _, statement := range slices.Sorted(maps.Keys(c.trips)) {
			fmt.Fprintf(&b, "| %s | `%s` | %.3f |\n", c.Name, statement, c.trips[statement])
		}
	}
	return b.String()
}

// orDash is for what is either there or nothing.
func orDash(v float64, places int) string {
	if v == 0 {
		return "–"
	}
	return figure(v, places)
}

func percent(share float64) float64 {
	if share == none {
		return none
	}
	return 100 * share
}

// walTable says where the records come from, for the operations whose cost is asked for most.
func walTable(c counts) string {
	var b strings.Builder
	b.WriteString("| | record | records | bytes |\n|---|---|---|---|\n")
	for _, name := range []string{countAlone, countLoad, countFloor} {
		one := c.of(name)
		for _, l := range one.wal.byManager() {
			if each := float64(l.Records) / float64(one.Operations); each >= 0.005 {
				fmt.Fprintf(&b, "| %s | %s | %.2f | %.0f |\n", name, l.Kind, each, float64(l.Bytes)/float64(one.Operations))
			}
		}
	}
	b.WriteString("\n| settled payment, alone: kind of record | records | bytes |\n|---|---|---|\n")
	one := c.of(countAlone)
	for _, l := range one.wal {
		if each := float64(l.Records) / float64(one.Operations); each >= 0.005 {
			fmt.Fprintf(&b, "| %s | %.2f | %.0f |\n", l.Kind, each, float64(l.Bytes)/float64(one.Operations))
		}
	}
	return b.String()
}

func seriesTable(rows []summary) string {
	var b strings.Builder
	b.WriteString("| | what | clients | /s | least to most | ÷ D1 | p50, ms | p99, ms | PostgreSQL, µs | service, µs | provider, µs | load, µs | MiB |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, s := range rows {
		fmt.Fprintf(&b, "| %s | %s | %d | %.0f | %.0f to %.0f | %s | %s | %s | %.0f | %s | %s | %s | %s |\n", s.Name, s.what, s.Clients, s.PerSecond,
			s.Least, s.Most, figure(s.ToFloor, 2), orDash(s.P50, 1), orDash(s.P99, 1), s.Micros.Postgres, orDash(s.Micros.Service, 0),
			orDash(s.Micros.Provider, 0), orDash(s.Micros.Generator, 0), orDash(s.MiB, 0))
	}
	return b.String()
}

func latencyTable(rows []latencyRow) string {
	var b strings.Builder
	b.WriteString("| | /s | requests | p50, ms | p99, ms | p99.9, ms | max, ms |\n|---|---|---|---|---|---|---|\n")
	for _, l := range rows {
		fmt.Fprintf(&b, "| %s | %.0f | %d | %.1f | %.1f | %.1f | %.1f |\n", l.What, l.Rate, l.Requests, l.P50, l.P99, l.P999, l.Max)
	}
	return b.String()
}

// programVersion is the commit that the measured program was built from.
func programVersion(bin string) string {
	info, err := buildinfo.ReadFile(bin)
	if err != nil {
		return "(unknown)"
	}
	set := map[string]string{}
	for _, s := range info.Settings {
		set[s.Key] = s.Value
	}
	revision := set["vcs.revision"]
	if revision == "" {
		return "(unknown)"
	}
	revision = revision[:min(len(revision), 12)]
	if set["vcs.modified"] == "true" {
		revision += " with changes"
	}
	if at, err := time.Parse(time.RFC3339, set["vcs.time"]); err == nil {
		revision += " of " + at.Format(time.DateOnly)
	}
	return revision
}
