package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// parents are the trace contexts of a payment's events, in order; "" where there is none.
func (b *bench) parents(id string) (parents []string) {
	b.t.Helper()
	rows, err := b.pool.Query(b.t.Context(), `SELECT coalesce(trace_parent, '') FROM outbox_events WHERE aggregate_id = $1 ORDER BY sequence`, id)
	require.NoError(b.t, err)
	defer rows.Close()
	for rows.Next() {
		var p string
		require.NoError(b.t, rows.Scan(&p))
		parents = append(parents, p)
	}
	return parents
}

// I2, its beginning: what a request causes belongs to its caller's trace.
func TestEventsBelongToTheTraceOfTheirRequest(t *testing.T) {
	const trace, other = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
	b := setup(t)
	traced := b.settles("k", b0, with("traceparent", trace), with("tracestate", "x=y"))
	require.Equal(t, []string{trace, trace}, b.parents(traced.payment(t).PaymentID))
	require.True(t, b.pay("k", b0, with("traceparent", other)).replayed(), "it is no part of the command")

	refunded := b.do(b.request("POST", traced.header.Get("Location")+"/refunds", `{"amount":"1"}`, with("Idempotency-Key", "r"),
		with("Content-Type", "application/json"), with("traceparent", other)))
	require.Equal(t, []string{other, other}, b.parents(refunded.payment(t).PaymentID))

	async := b.pay("async", bodyFor("async"), with("traceparent", trace), with("Prefer", "respond-async"))
	require.Equal(t, http.StatusAccepted, async.status)
	b.becomes(async.header.Get("Location"), "SETTLED")
	require.Equal(t, []string{trace, trace}, b.parents(async.payment(t).PaymentID))

	for i, invalid := range []string{
		"", "hello", strings.ToUpper(trace), "00-00000000000000000000000000000000-00f067aa0ba902b7-01", trace + "-more",
		"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", strings.Repeat("0", 10_000),
	} {
		reference := "invalid-" + string(rune('a'+i))
		a := b.settles(reference, bodyFor(reference), with("traceparent", invalid))
		require.Equal(t, []string{"", ""}, b.parents(a.payment(t).PaymentID), invalid)
	}
	twice := b.settles("twice", bodyFor("twice"), with("traceparent", trace), with("traceparent", trace))
	require.Equal(t, []string{"", ""}, b.parents(twice.payment(t).PaymentID))

	// Recovery has no caller.
	b.fault("lost", "charge", "execute_then_drop", nil)
	lost := b.pay("lost", bodyFor("lost"), with("traceparent", trace))
	b.leaseOver()
	_, err := b.service.Recover(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{trace, trace, ""}, b.parents(lost.payment(t).PaymentID))
}
