package main

import (
	"fmt"
	"strings"
)

// barRow is one line of the bar: what the service is measured by.
type barRow struct {
	Line   string  `json:"line"`
	Figure float64 `json:"figure"`
	Must   string  `json:"must"`
	Goal   string  `json:"goal"`
	unit   string
}

// weigh compares what was measured with the floor of the same rounds.
func (r *results) weigh(all map[string]*series) {
	bestTo := func(floor string) float64 {
		best := float64(none)
		for _, sc := range scenarios {
			if !sc.isPayers || all[sc.name] == nil {
				continue
			}
			if ratio := all[sc.name].ratioTo(all[floor]); ratio > best {
				best = ratio
				if floor == "D1" {
					r.BestClients = sc.clients
				}
			}
		}
		return best
	}
	of := func(a, b string) float64 { return all[a].ratioTo(all[b]) }
	r.RatioToFloor = bestTo("D1")
	r.Bar = []barRow{
		{"1 settled payments/s, best number of clients ÷ D1", r.RatioToFloor, "2.5", "4.0", ""},
		{"2 settled payments/s, best number of clients ÷ D2", bestTo("D2"), "", "0.5", ""},
		{"3 8 clients, sets off ÷ D1", of("settled-no-sets", "D1"), "0.75", "0.95", ""},
		{"4 1 client ÷ pgbench, 1 client", of("settled-1", "D1-alone"), "0.6", "0.85", ""},
		{"5 replays/s, 8 clients ÷ pgbench replays", of("replays", "floor-replays"), "0.3", "0.45", ""},
		{"6 alone: round trips of a settled payment", r.Counts.of(countAlone).RoundTrips, "3", "3", ""},
		{"6 alone: commits of a settled payment", r.Counts.of(countAlone).Commits, "3", "3", ""},
		{"7 64 clients: commits of a payment", r.Counts.of(countLoad).Commits, "0.2", "0.1", ""},
		{"8 WAL records of a payment", r.Counts.of(countAlone).WALRecords, "30", "18", ""},
		{"8 WAL record bytes of a payment", r.Counts.of(countAlone).WALBytes, "4000", "2600", ""},
		{"9 HOT share of completions, key rows", r.hot("idempotency_requests"), "", "0.9", ""},
		{"9 HOT share of completions, payment rows", r.hot("payments"), "", "0.9", ""},
		{"10 payments/s with filled tables ÷ with none", of("filled", "settled-32"), "0.9", "1.0", ""},
		{"11 payments/s beside relay, consumers, cleanup and recovery ÷ without", of("workers", "settled-32"), "0.8", "0.9", ""},
		{"12 resident memory at 256 concurrent requests", r.Counts.PeakMiB, "100", "60", " MiB"},
	}
}

func (r *results) hot(table string) float64 {
	if share, ok := r.Counts.HOT[table]; ok {
		return share
	}
	return none
}

func barTable(rows []barRow) string {
	var b strings.Builder
	b.WriteString("| measure | figure | must | goal |\n|---|---|---|---|\n")
	for _, row := range rows {
		fmt.Fprintf(&b, "| %s | %s%s | %s | %s |\n", row.Line, figure(row.Figure, 2), row.unit, dash(row.Must), dash(row.Goal))
	}
	return b.String()
}

// figure prints a number, or a dash for what was not measured.
func figure(v float64, places int) string {
	if v == none {
		return "–"
	}
	return fmt.Sprintf("%.*f", places, v)
}

func dash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}
