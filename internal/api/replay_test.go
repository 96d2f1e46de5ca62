package api

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"
)

func TestH1_ReplayIsTheFirstAnswerAndSaysSo(t *testing.T) {
	b := setup(t)
	b.fault("declined", "charge", "decline", map[string]any{"code": "INSUFFICIENT_FUNDS"})
	for reference, status := range map[string]int{"settled": http.StatusCreated, "declined": http.StatusPaymentRequired} {
		t.Run("H1 "+reference, func(t *testing.T) {
			first := b.pay(reference, bodyFor(reference))
			require.Equal(t, status, first.status, "%s", first.body)
			for name, changes := range map[string][]change{"plain": nil, "gzip": {with("Accept-Encoding", "gzip")}, "other client": {with("User-Agent", "another/2")}} {
				again := b.pay(reference, bodyFor(reference), changes...)
				require.Equal(t, first.status, again.status, name)
				require.Equal(t, string(first.body), string(again.body), name)

				expected := first.header.Clone()
				expected.Set("Idempotent-Replayed", "true")
				expected.Del("Date") // of this exchange
				again.header.Del("Date")
				require.Equal(t, expected, again.header, name)
			}
			require.Empty(t, first.header.Get("Idempotent-Replayed"))
			require.NotEmpty(t, first.header.Get("Location"))

			var headers string
			var body []byte
			require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT response_headers::text, response_body FROM idempotency_requests
				WHERE idempotency_key = $1`, reference).Scan(&headers, &body))
			require.Equal(t, string(first.body), string(body), "stored as it was sent, uncompressed")
			var stored map[string]string
			require.NoError(t, json.Unmarshal([]byte(headers), &stored))
			require.Equal(t, map[string]string{"Location": first.header.Get("Location")}, stored)
			require.Len(t, b.received(reference), 1)
		})
	}
}

func TestH1_LocationIsThePayment(t *testing.T) {
	b := setup(t)
	first := b.settles("k", b0)
	location := first.header.Get("Location")
	read := b.get(location)
	require.Equal(t, http.StatusOK, read.status)
	require.Equal(t, string(first.body), string(read.body))
	require.False(t, read.replayed())

	head := b.do(b.request("HEAD", location, ""))
	require.Equal(t, http.StatusOK, head.status)
	read.header.Del("Date")
	head.header.Del("Date")
	require.Equal(t, read.header, head.header)

	// GET ignores keys, whatever they look like.
	require.Equal(t, http.StatusOK, b.get(location, with("Idempotency-Key", "k")).status)
	require.Equal(t, http.StatusOK, b.get(location, with("Idempotency-Key", "no key at all")).status)

	require.Equal(t, http.StatusNotFound, b.do(b.request("HEAD", "/payments/"+noPayment, "")).status)
	require.Equal(t, http.StatusBadRequest, b.do(b.request("HEAD", location, "", with("Api-Version", "1999-01-01"))).status)
	require.Equal(t, http.StatusUnauthorized, b.do(b.request("HEAD", location, "", without("Authorization"))).status)
}

func TestHistoryShowsEveryMove(t *testing.T) {
	b := setup(t)
	a := b.get(b.settles("k", b0).header.Get("Location") + "/history")
	var history struct {
		PaymentID string     `json:"paymentId"`
		Moves     []moveView `json:"moves"`
	}
	require.NoError(t, json.Unmarshal(a.body, &history))
	var walked []string
	for i, m := range history.Moves {
		require.Equal(t, i+1, m.Version)
		walked = append(walked, m.To)
	}
	require.Equal(t, []string{"LOCAL_PAYMENT_CREATED", "PROVIDER_REQUEST_SENT", "PROVIDER_CONFIRMED", "COMPLETED"}, walked)
}

// An unknown outcome is neither success nor failure, and the same key learns how it ended.
func TestUnknownOutcomeIsPendingAndThenSettled(t *testing.T) {
	b := setup(t)
	b.fault("inv-1", "charge", "execute_then_drop", nil)
	b.fault("inv-1", "lookup", "lookup_error", nil)
	pending := b.pay("k", b0)
	require.Equal(t, http.StatusAccepted, pending.status, "%s", pending.body)
	require.Equal(t, "PENDING", string(pending.payment(t).Status))
	require.NotEmpty(t, pending.header.Get("Retry-After"))

	require.Equal(t, "PENDING", string(b.get(pending.header.Get("Location")).payment(t).Status))
	again := b.pay("k", b0) // asks the provider at once, and gets no answer
	require.Equal(t, http.StatusAccepted, again.status)
	require.False(t, again.replayed())

	settled := b.settles("k", b0)
	require.Equal(t, pending.header.Get("Location"), settled.header.Get("Location"))
	require.Equal(t, pending.header.Get("Idempotency-Key-Expires"), settled.header.Get("Idempotency-Key-Expires"))
	b.replays(settled, b.paying("k", b0))
	require.Len(t, b.charges("inv-1"), 1)
}

// A client that hangs up does not turn a good charge into an unknown one.
func TestHangingUpDoesNotStopThePayment(t *testing.T) {
	b := setup(t)
	b.slow("inv-1", 700)
	ctx, hangUp := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := exchange(b.paying("k", b0).WithContext(ctx))
		gone <- err
	}()
	b.untilSent("inv-1")
	hangUp()
	require.ErrorIs(t, <-gone, context.Canceled)
	require.Eventually(t, func() bool { return b.count(`SELECT count(*) FROM payments WHERE state = 'COMPLETED'`) == 1 }, 10*time.Second, 20*time.Millisecond)
	require.True(t, b.pay("k", b0).replayed())
	require.Len(t, b.charges("inv-1"), 1)
}
