package fake_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/provider/fake"
)

func TestChargeIsExecutedAndAnswered(t *testing.T) {
	b := setup(t, fake.Config{})

	a := b.post("k1", request("inv-1"))

	require.Equal(t, http.StatusCreated, a.status)
	m := a.members(t)
	require.NotEmpty(t, m["id"])
	require.NotEmpty(t, m["executedAt"])
	delete(m, "id")
	delete(m, "executedAt")
	require.Equal(t, map[string]any{
		"status": "succeeded", "account": "acc_1", "amountMinor": 1000.0, "currency": "EUR",
		"reference": "inv-1", "paymentId": "pay_inv-1", "idempotencyKey": "k1", "replayed": false,
	}, m)
	executed := b.executed("inv-1")
	require.Len(t, executed, 1)
	require.Equal(t, "k1", executed[0]["idempotencyKey"])
	require.Equal(t, "[]", b.control(http.MethodGet, "/control/charges?reference=inv-2", "").body)
}

func TestSameKeySameBytesIsReplayed(t *testing.T) {
	eachKind(t, fake.Config{}, func(t *testing.T, b bench) {
		first, again := b.post("k1", b.request("inv-1")), b.post("k1", b.request("inv-1"))
		require.Equal(t, first.status, again.status)
		require.Equal(t, strings.Replace(first.body, `"replayed":false`, `"replayed":true`, 1), again.body)
		require.Len(t, b.executed(""), 1)
	})
}

func TestSameKeyOtherBytesIsRefused(t *testing.T) {
	eachKind(t, fake.Config{}, func(t *testing.T, b bench) {
		b.post("k1", b.request("inv-1"))
		for _, other := range []string{b.requestOf("inv-1", 1001), b.request("inv-2"), b.request("inv-1") + " "} {
			a := b.post("k1", other)
			require.Equal(t, http.StatusUnprocessableEntity, a.status)
			require.Equal(t, "idempotency_key_reused", a.members(t)["error"])
		}
		require.Len(t, b.executed(""), 1)
	})
}

func TestFiftyAtOnceUnderOneKeyExecuteOnce(t *testing.T) {
	for name, script := range map[string]string{
		"undisturbed":             "",
		"while the first is slow": `"fault":"delay","times":1,"delayMs":300`,
		"while all are slow":      `"fault":"delay","times":-1,"delayMs":100`,
	} {
		t.Run(name, func(t *testing.T) {
			eachKind(t, fake.Config{}, func(t *testing.T, b bench) {
				if script != "" {
					b.spoil("*", script)
				}
				var answers sync.WaitGroup
				var created, busy atomic.Int64
				for range 50 {
					answers.Go(func() {
						switch b.post("k1", b.request("inv-1")).status {
						case http.StatusCreated:
							created.Add(1)
						case http.StatusConflict:
							busy.Add(1)
						}
					})
				}
				answers.Wait()
				require.EqualValues(t, 50, created.Load()+busy.Load())
				require.GreaterOrEqual(t, created.Load(), int64(1))
				require.Len(t, b.executed("inv-1"), 1)
				require.Len(t, b.received("inv-1"), 50)
			})
		})
	}
}

// TestSecondRequestMeetsTheFirstInProgress scripts both requests slow, so that it does not matter which is the first.
func TestSecondRequestMeetsTheFirstInProgress(t *testing.T) {
	eachKind(t, fake.Config{}, func(t *testing.T, b bench) {
		b.spoil("inv-1", `"fault":"delay","times":2,"delayMs":1500`)
		answers := make(chan answer)
		for range 2 {
			go func() { answers <- b.post("k1", b.request("inv-1")) }()
		}
		require.Equal(t, http.StatusConflict, (<-answers).status, "at once")
		require.Empty(t, b.executed("inv-1"))
		require.Equal(t, http.StatusCreated, (<-answers).status)
		require.Equal(t, http.StatusCreated, b.post("k1", b.request("inv-1")).status)
		require.Len(t, b.executed("inv-1"), 1)
	})
}

func TestForgottenKeyExecutesAgain(t *testing.T) {
	eachKind(t, fake.Config{}, func(t *testing.T, b bench) {
		b.post("k1", b.request("inv-1"))
		require.NotEqual(t, "[]", b.lookup("k1").body)

		b.control(http.MethodPost, "/control/forget-keys", "")

		require.Contains(t, b.lookup("k1").body, "inv-1", "money that moved stays on record")
		require.Equal(t, false, b.post("k1", b.request("inv-1")).members(t)["replayed"])
		require.Len(t, b.executed("inv-1"), 2, "that is the danger")
	})
}

func TestKeysAreForgottenAfterTheirWindow(t *testing.T) {
	eachKind(t, fake.Config{KeyWindow: 300 * time.Millisecond}, func(t *testing.T, b bench) {
		b.post("k1", b.request("inv-1"))
		require.Equal(t, true, b.post("k1", b.request("inv-1")).members(t)["replayed"])
		require.Eventually(t, func() bool {
			return b.post("k1", b.request("inv-1")).members(t)["replayed"] == false
		}, patience, 50*time.Millisecond)
		require.Len(t, b.executed("inv-1"), 2)
	})
}

func TestLookupsLagBehind(t *testing.T) {
	eachKind(t, fake.Config{LookupLag: 200 * time.Millisecond}, func(t *testing.T, b bench) {
		b.post("k1", b.request("inv-1"))
		require.Equal(t, "[]", b.lookup("k1").body)
		require.Len(t, b.executed("inv-1"), 1)
		require.Eventually(t, func() bool { return strings.Contains(b.lookup("k1").body, `"reference":"inv-1"`) }, patience, 10*time.Millisecond)
	})
}

func TestBalancesPayAndRunOut(t *testing.T) {
	b := setup(t, fake.Config{})
	b.control(http.MethodPut, "/control/accounts/acc_1", `{"balances":{"EUR":"25.00","JPY":"0"}}`)
	require.Equal(t, http.StatusCreated, b.post("k1", request("inv-1")).status)
	require.Equal(t, http.StatusCreated, b.post("k2", request("inv-2")).status)
	require.Equal(t, http.StatusCreated, b.post("k2", request("inv-2")).status, "a replay costs nothing")
	for range 2 {
		a := b.post("k3", request("inv-3"))
		require.Equal(t, http.StatusPaymentRequired, a.status)
		require.Equal(t, "INSUFFICIENT_FUNDS", a.members(t)["declineCode"])
	}
	require.Empty(t, b.executed("inv-3"))
	require.Equal(t, http.StatusCreated, b.post("k4", requestOf("inv-4", 500)).status, "down to nothing")
	require.Equal(t, http.StatusPaymentRequired, b.post("k5", requestOf("inv-5", 1)).status)

	b.control(http.MethodPut, "/control/accounts/acc_1", `{"balances":{"JPY":"0"}}`)
	require.Equal(t, http.StatusPaymentRequired, b.post("k3", request("inv-3")).status, "a decline is remembered under its key")
	require.Equal(t, http.StatusCreated, b.post("k6", request("inv-6")).status, "EUR is unlimited again")
}

func TestRequestsThatAreNoChargeHaveNoEffect(t *testing.T) {
	b := setup(t, fake.Config{})
	good := request("inv-1")
	for name, body := range map[string]string{
		"empty":             "",
		"no JSON":           "amount=10",
		"null":              "null",
		"an array":          "[" + good + "]",
		"twice":             good + good,
		"member missing":    strings.Replace(good, `"account":"acc_1",`, "", 1),
		"member unknown":    strings.Replace(good, `{`, `{"channel":"web",`, 1),
		"member twice":      strings.Replace(good, `{`, `{"account":"acc_2",`, 1),
		"amount a string":   strings.Replace(good, "1000", `"1000"`, 1),
		"amount a fraction": strings.Replace(good, "1000", "10.5", 1),
		"amount zero":       requestOf("inv-1", 0),
		"amount negative":   requestOf("inv-1", -1),
		"amount too large":  requestOf("inv-1", 1e12),
		"currency lower":    strings.Replace(good, "EUR", "eur", 1),
		"currency unknown":  strings.Replace(good, "EUR", "XXX", 1),
		"too long":          strings.Replace(good, "inv-1", strings.Repeat("x", 64<<10), 1),
	} {
		require.Equal(t, http.StatusBadRequest, b.post("k1", body).status, name)
	}
	require.Equal(t, http.StatusBadRequest, b.post("", good).status, "no key")
	require.Equal(t, http.StatusBadRequest, b.lookup("").status, "no key to look up")
	require.Empty(t, b.executed(""))
	require.Equal(t, http.StatusCreated, b.post("k1", good).status, "and no key was burnt")
}

func TestReceivedRequestsAreKeptAsTheyCame(t *testing.T) {
	b := setup(t, fake.Config{})
	body := " " + request("inv-1")
	b.post("k1", body)
	b.lookup("k1")
	b.post("k1", `{"account`)
	b.lookup("never-seen")
	b.post("k2", request("inv-2"))

	received := b.received("inv-1")
	require.Len(t, received, 3, "the second has the key only, and so has the third")
	require.Equal(t, "POST", received[0]["method"])
	require.Equal(t, "/v1/charges", received[0]["path"])
	require.Equal(t, body, received[0]["body"])
	require.Equal(t, []any{"k1"}, received[0]["headers"].(map[string]any)["Idempotency-Key"])
	_, err := time.Parse(time.RFC3339Nano, received[0]["time"].(string))
	require.NoError(t, err)
	require.Equal(t, "/v1/charges?idempotency_key=k1", received[1]["path"])
	require.Equal(t, `{"account`, received[2]["body"])
	require.Len(t, b.received(""), 5)
	require.Equal(t, "[]", b.control(http.MethodGet, "/control/requests?reference=inv-3", "").body)
}

func TestManyReferencesStayApart(t *testing.T) {
	b := setup(t, fake.Config{})
	for i := range 20 {
		b.post(fmt.Sprintf("k%d", i), request(fmt.Sprintf("inv-%d", i)))
	}
	require.Len(t, b.executed(""), 20)
	ids := map[any]bool{}
	for i := range 20 {
		found := b.executed(fmt.Sprintf("inv-%d", i))
		require.Len(t, found, 1)
		ids[found[0]["id"]] = true
	}
	require.Len(t, ids, 20)
}
