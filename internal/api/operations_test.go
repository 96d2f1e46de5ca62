package api

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"
)

// Every operation is asked in every version; the harness holds each answer against the contract.
func TestEveryOperationKeepsTheContract(t *testing.T) {
	for _, version := range []string{version20260501, version20261101} {
		t.Run(version, func(t *testing.T) {
			b := setup(t)
			ask := with("Api-Version", version)
			json := with("Content-Type", "application/json")
			paid := b.settles("k", b0With("channel", "pos"), ask)
			location := paid.header.Get("Location")
			b.settles("described", `{"description":"two coffees",`+bodyFor("described")[1:], ask)
			require.Equal(t, string(paid.body), string(b.get(location, ask).body))

			refunded := b.do(b.request("POST", location+"/refunds", `{"amount":"4","currency":"eur"}`, with("Idempotency-Key", "k"), json, ask))
			require.Equal(t, http.StatusCreated, refunded.status, "%s", refunded.body)
			require.Equal(t, string(refunded.body), string(b.get(refunded.header.Get("Location"), ask).body))

			b.fault("lost", "charge", "execute_then_drop", nil)
			require.Equal(t, http.StatusAccepted, b.pay("lost", bodyFor("lost"), ask).status)
			b.fault("refused", "charge", "decline", nil)
			require.Equal(t, http.StatusPaymentRequired, b.pay("refused", bodyFor("refused"), ask).status)

			for path, status := range map[string]int{
				location + "/history": 200, location + "/refunds": 200, "/payments": 200, "/payments?limit=1": 200, "/payments?status=DECLINED&accountId=acc_1": 200,
				"/payments?merchantReference=" + url.QueryEscape("inv-1"): 200, "/payments?limit=0": 422, "/payments?acountId=acc_1": 422,
				"/idempotency-keys/create_payment/k": 200, "/idempotency-keys/create_refund/k": 200, "/idempotency-keys/create_payment/%22k%22": 200,
				"/idempotency-keys/create_payment/lost": 200, "/idempotency-keys/create_payment/refused": 200, "/idempotency-keys/create_payment/none": 404,
				"/idempotency-keys/other/k": 404, "/idempotency-keys/create_payment/k%20k": 400, "/accounts/acc_1": 200, "/accounts/acc_9": 404,
			} {
				require.Equal(t, status, b.get(path, ask).status, path)
			}
			for _, put := range []struct {
				path, body string
				status     int
			}{
				{"/accounts/acc_3", `{"status":"OPEN"}`, 201}, {"/accounts/acc_3", `{"status":"OPEN"}`, 200}, {"/accounts/acc_3", `{"status":"BLOCKED"}`, 200},
				{"/accounts/acc_3", `{"status":"open"}`, 422}, {"/accounts/acc_3", `{}`, 422}, {"/accounts/acc_3", `{`, 400}, {"/accounts/acc%203", `{"status":"OPEN"}`, 404},
				{"/accounts/acc_1/settings/default-currency", `{"currency":"usd"}`, 200}, {"/accounts/acc_9/settings/default-currency", `{"currency":"USD"}`, 404},
				{"/accounts/acc_1/settings/default-currency", `{"currency":"HRK"}`, 422},
			} {
				require.Equal(t, put.status, b.do(b.request("PUT", put.path, put.body, json)).status, put)
			}
			b.settles("default", `{"accountId":"acc_1","amount":"1","merchantReference":"default"}`, ask)
		})
	}
}

func TestPagesShowEveryPaymentOnce(t *testing.T) {
	b := setup(t)
	var made, seen []string
	for _, reference := range []string{"a", "b", "c", "d", "e"} {
		made = append([]string{b.settles(reference, bodyFor(reference)).payment(t).PaymentID}, made...)
	}
	b.settles("other", bodyFor("other"), ofTenant("globex"))
	for path := "/payments?limit=2"; path != ""; {
		var page struct {
			Payments []payment20260501 `json:"payments"`
			Next     string            `json:"nextCursor"`
		}
		require.NoError(t, json.Unmarshal(b.get(path).body, &page))
		require.LessOrEqual(t, len(page.Payments), 2)
		for _, p := range page.Payments {
			seen = append(seen, p.PaymentID)
		}
		path = ""
		if page.Next != "" {
			path = "/payments?limit=2&cursor=" + url.QueryEscape(page.Next)
		}
	}
	require.Equal(t, made, seen)
}

func TestPreferencesShapeTheExchangeAndNothingElse(t *testing.T) {
	b := setup(t)
	minimal := b.settles("k", b0, with("Prefer", "return=minimal"))
	require.Empty(t, minimal.body)
	require.Equal(t, []string{"return=minimal"}, minimal.header.Values("Preference-Applied"))
	whole := b.pay("k", b0)
	require.True(t, whole.replayed())
	require.Equal(t, minimal.header.Get("Location"), "/payments/"+whole.payment(t).PaymentID, "stored with its body")

	b.slow("async", 300)
	async := b.pay("async", bodyFor("async"), with("Prefer", "respond-async"))
	require.Equal(t, http.StatusAccepted, async.status)
	waited := b.pay("async", bodyFor("async"), with("Prefer", "wait=10"))
	require.Equal(t, http.StatusCreated, waited.status, "%s", waited.body)
	require.True(t, waited.replayed())
	require.Equal(t, []string{"wait=10"}, waited.header.Values("Preference-Applied"))
	require.Len(t, b.charges("async"), 1)
}
