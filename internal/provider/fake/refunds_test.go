package fake_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/provider/fake"
)

// What refunds share with charges is tested with eachKind, in the files of that. Here is what only refunds do.

// refunds is a bench for refunds with two charges of acc_1: ch_000001 of 10.00 EUR and ch_000002 of 5.00 EUR.
func refunds(t *testing.T, cfg fake.Config) bench {
	b := setup(t, cfg).ordering("refund")
	b.charged("c1", requestOf("paid-1", 1000))
	b.charged("c2", requestOf("paid-2", 500))
	return b
}

func (b bench) declines(code string, a answer) {
	b.t.Helper()
	require.Equal(b.t, http.StatusPaymentRequired, a.status, a.body)
	m := a.members(b.t)
	require.Equal(b.t, "declined", m["status"])
	require.Equal(b.t, code, m["declineCode"])
}

func TestRefundIsExecutedAndAnswered(t *testing.T) {
	b := refunds(t, fake.Config{})

	a := b.post("k1", refundOf("ch_000001", "back-1", 400))

	require.Equal(t, http.StatusCreated, a.status)
	m := a.members(t)
	require.NotEmpty(t, m["executedAt"])
	delete(m, "executedAt")
	require.Equal(t, map[string]any{
		"id": "re_000001", "status": "succeeded", "account": "acc_1", "amountMinor": 400.0, "currency": "EUR",
		"reference": "back-1", "paymentId": "pay_back-1", "chargeId": "ch_000001", "idempotencyKey": "k1", "replayed": false,
	}, m)
	require.Equal(t, "["+a.body+"]", b.lookup("k1").body)

	executed := b.executed("back-1")
	require.Len(t, executed, 1)
	delete(m, "status")
	delete(m, "replayed")
	delete(executed[0], "executedAt")
	require.Equal(t, m, executed[0])

	charges := b.ordering("charge")
	require.Empty(t, charges.executed("back-1"), "it is no charge")
	require.Len(t, charges.executed(""), 2)
	for _, c := range charges.executed("") {
		require.NotContains(t, c, "chargeId")
	}
	require.Equal(t, "/v1/refunds", b.received("back-1")[0]["path"])
	require.Equal(t, "/v1/refunds?idempotency_key=k1", b.received("back-1")[1]["path"])
}

func TestRefundIsExecutedOnceUnderItsKey(t *testing.T) {
	b := refunds(t, fake.Config{})
	first := b.post("k1", refundOf("ch_000001", "back-1", 600))
	for range 5 {
		again := b.post("k1", refundOf("ch_000001", "back-1", 600))
		require.Equal(t, http.StatusCreated, again.status, "it was refunded once, so that it never exceeds")
		require.Equal(t, strings.Replace(first.body, `"replayed":false`, `"replayed":true`, 1), again.body)
	}
	require.Len(t, b.executed(""), 1)
	require.Equal(t, http.StatusCreated, b.post("k2", refundOf("ch_000001", "back-2", 400)).status, "nor did it cost more than once")
}

func TestRefundsNeverExceedTheirCharge(t *testing.T) {
	b := refunds(t, fake.Config{})
	require.Equal(t, 201, b.post("k1", refundOf("ch_000001", "back-1", 999)).status)
	b.declines("REFUND_EXCEEDS_CHARGE", b.post("k2", refundOf("ch_000001", "back-2", 2)))
	require.Equal(t, 201, b.post("k3", refundOf("ch_000001", "back-3", 1)).status, "down to nothing, and a decline took nothing")
	b.declines("REFUND_EXCEEDS_CHARGE", b.post("k4", refundOf("ch_000001", "back-4", 1)))
	b.declines("REFUND_EXCEEDS_CHARGE", b.post("k5", refundOf("ch_000002", "back-5", 501)))
	require.Equal(t, 201, b.post("k6", refundOf("ch_000002", "back-6", 500)).status, "the other charge is another sum")

	b.declines("REFUND_EXCEEDS_CHARGE", b.post("k2", refundOf("ch_000001", "back-2", 2)))
	require.Contains(t, b.lookup("k2").body, "REFUND_EXCEEDS_CHARGE", "a decline is remembered under its key")
	require.Len(t, b.executed(""), 3)
}

func TestFiftyRefundsAtOnceNeverExceedTheirCharge(t *testing.T) {
	for name, script := range map[string]string{
		"undisturbed":                   "",
		"while all are slow":            `"fault":"delay","times":-1,"delayMs":100`,
		"while no answer comes through": `"fault":"execute_then_drop","times":-1`,
	} {
		t.Run(name, func(t *testing.T) {
			b := refunds(t, fake.Config{})
			if script != "" {
				b.spoil("*", script)
			}
			var answers sync.WaitGroup
			for i := range 50 {
				answers.Go(func() { b.post(fmt.Sprintf("k%d", i), refundOf("ch_000001", "back", 300)) })
			}
			answers.Wait()
			require.Len(t, b.executed("back"), 3, "of 10.00, as 3.00 each")
			found := map[bool]int{}
			for i := range 50 {
				found[strings.Contains(b.lookup(fmt.Sprintf("k%d", i)).body, "REFUND_EXCEEDS_CHARGE")]++
			}
			require.Equal(t, map[bool]int{true: 47, false: 3}, found)
		})
	}
}

func TestOnlyAChargeThatWasExecutedIsGivenBack(t *testing.T) {
	b := refunds(t, fake.Config{})
	b.ordering("charge").spoil("lost", `"fault":"decline"`)
	declined := b.ordering("charge").post("c3", request("lost")).members(t)["id"].(string)
	require.Equal(t, 201, b.post("k0", refundOf("ch_000001", "back-0", 1)).status)
	good := refundOf("ch_000001", "back-1", 100)
	for name, body := range map[string]string{
		"no such charge":  refundOf("ch_999999", "back-1", 100),
		"a declined one":  refundOf(declined, "back-1", 100),
		"a refund":        refundOf("re_000001", "back-1", 1),
		"another account": strings.Replace(good, "acc_1", "acc_2", 1),
		"other currency":  strings.Replace(good, "EUR", "USD", 1),
	} {
		b.declines("CHARGE_NOT_FOUND", b.post(name, body))
		b.declines("CHARGE_NOT_FOUND", b.post(name, body))
	}
	require.Len(t, b.executed(""), 1)
	require.Equal(t, 201, b.post("k1", good).status)
}

func TestChargeWhoseAnswerWasSpoiledCanBeGivenBack(t *testing.T) {
	b := refunds(t, fake.Config{})
	charges := b.ordering("charge")
	for i, fault := range []string{"execute_then_drop", "error_forever", "wrong_amount"} {
		reference := fmt.Sprintf("paid-%d", i+3)
		charges.spoil(reference, fmt.Sprintf(`"fault":%q`, fault))
		charges.post(reference, request(reference))
		id := charges.executed(reference)[0]["id"].(string)
		b.declines("REFUND_EXCEEDS_CHARGE", b.post(fault+"1", refundOf(id, "back", 1001)))
		require.Equal(t, 201, b.post(fault+"2", refundOf(id, "back", 1000)).status)
	}
}

// TestRefundWithoutAnswerIsFoundByLookup: these moved money, whatever their client saw.
func TestRefundWithoutAnswerIsFoundByLookup(t *testing.T) {
	for _, fault := range []string{"execute_then_drop", "error_after", "error_forever", "truncated_body"} {
		b := refunds(t, fake.Config{})
		b.spoil("back-1", fmt.Sprintf(`"fault":%q`, fault))
		b.post("k1", refundOf("ch_000001", "back-1", 700))
		require.Contains(t, b.lookup("k1").body, `"status":"succeeded"`, fault)
		require.Len(t, b.executed("back-1"), 1)
		b.declines("REFUND_EXCEEDS_CHARGE", b.post("k2", refundOf("ch_000001", "back-2", 301)))
	}
}

func TestScriptedDeclineTakesNothingFromTheCharge(t *testing.T) {
	b := refunds(t, fake.Config{})
	b.spoil("back-1", `"fault":"decline","code":"REFUND_WINDOW_CLOSED"`)
	b.declines("REFUND_WINDOW_CLOSED", b.post("k1", refundOf("ch_000001", "back-1", 1000)))
	require.Equal(t, 201, b.post("k2", refundOf("ch_000001", "back-1", 1000)).status)
	b.declines("REFUND_WINDOW_CLOSED", b.post("k1", refundOf("ch_000001", "back-1", 1000)))
}

func TestFaultsOfOneKindLeaveTheOtherAlone(t *testing.T) {
	b := refunds(t, fake.Config{})
	charges := b.ordering("charge")
	for _, kind := range []bench{b, charges} {
		kind.spoil("*", `"fault":"error_before"`)
		kind.spoilLookup("*", `"fault":"lookup_error"`)
	}
	back, paid := refundOf("ch_000001", "same", 1), request("same")

	require.Equal(t, 500, b.post("k1", back).status)
	require.Equal(t, 201, b.post("k1", back).status)
	require.Equal(t, 500, b.lookup("k1").status)
	require.Equal(t, 200, b.lookup("k1").status)

	require.Equal(t, 500, charges.post("k2", paid).status, "the other faults are still there")
	require.Equal(t, 201, charges.post("k2", paid).status)
	require.Equal(t, 500, charges.lookup("k2").status)
	require.Equal(t, 200, charges.lookup("k2").status)
	require.Len(t, b.received("same"), 8)
}

func TestFaultThatNamesNoCallIsMeantForCharges(t *testing.T) {
	b := refunds(t, fake.Config{})
	b.script(`{"reference":"*","fault":"rate_limited"}`)
	require.Equal(t, 201, b.post("k1", refundOf("ch_000001", "back-1", 1)).status)
	require.Equal(t, 429, b.ordering("charge").post("k2", request("inv-1")).status)
}

func TestKeysAreOneSpaceForBothRoutes(t *testing.T) {
	b := refunds(t, fake.Config{})
	charges := b.ordering("charge")
	reused := func(a answer) {
		t.Helper()
		require.Equal(t, http.StatusUnprocessableEntity, a.status, a.body)
		require.Equal(t, "idempotency_key_reused", a.members(t)["error"])
	}
	require.Equal(t, 201, b.post("k1", refundOf("ch_000001", "same", 100)).status)

	reused(b.post("c1", refundOf("ch_000001", "paid-1", 1000)))
	reused(charges.post("k1", requestOf("same", 100)))
	require.Equal(t, "[]", b.lookup("c1").body, "a charge is no refund")
	require.Equal(t, "[]", charges.lookup("k1").body)
	require.Len(t, b.executed(""), 1)
}

func TestRefundGoesBackToTheBalance(t *testing.T) {
	b := refunds(t, fake.Config{})
	charges := b.ordering("charge")
	b.control(http.MethodPut, "/control/accounts/acc_1", `{"balances":{"EUR":"1.00"}}`)
	b.declines("INSUFFICIENT_FUNDS", charges.post("c3", requestOf("inv-3", 500)))

	require.Equal(t, 201, b.post("k1", refundOf("ch_000001", "back-1", 400)).status)
	require.Equal(t, 201, b.post("k1", refundOf("ch_000001", "back-1", 400)).status, "a replay gives nothing")
	b.declines("REFUND_EXCEEDS_CHARGE", b.post("k2", refundOf("ch_000001", "back-2", 601)))

	b.declines("INSUFFICIENT_FUNDS", charges.post("c4", requestOf("inv-4", 501)))
	require.Equal(t, 201, charges.post("c5", requestOf("inv-5", 500)).status, "1.00 and the 4.00 that came back")
	require.Equal(t, 201, b.post("k3", refundOf("ch_000001", "back-3", 600)).status, "an empty account can be paid back")

	b.control(http.MethodPut, "/control/accounts/acc_1", `{"balances":{}}`)
	require.Equal(t, 201, b.post("k4", refundOf("ch_000002", "back-4", 500)).status)
	require.Equal(t, 201, charges.post("c6", requestOf("inv-6", 1e9)).status, "an account without balance did not get one")
}

func TestRestartKeepsRefunds(t *testing.T) {
	dir := t.TempDir()
	b, stop := start(t, fake.Config{Dir: dir})
	b.control(http.MethodPut, "/control/accounts/acc_1", `{"balances":{"EUR":"10.00"}}`)
	b.charged("c1", request("paid-1"))
	b = b.ordering("refund")
	b.spoil("back-2", `"fault":"error_forever"`)
	first := b.post("k1", refundOf("ch_000001", "back-1", 300))
	b.post("k2", refundOf("ch_000001", "back-2", 300))
	b.declines("REFUND_EXCEEDS_CHARGE", b.post("k3", refundOf("ch_000001", "back-3", 401)))
	executed, found := b.executed(""), b.lookup("k1").body
	stop()

	b = setup(t, fake.Config{Dir: dir}).ordering("refund")

	require.Equal(t, executed, b.executed(""))
	require.Len(t, b.ordering("charge").executed(""), 1)
	require.Equal(t, found, b.lookup("k1").body)
	require.Len(t, b.received("back-1"), 1, "a lookup by a key of before the restart")
	require.Equal(t, strings.Replace(first.body, `"replayed":false`, `"replayed":true`, 1), b.post("k1", refundOf("ch_000001", "back-1", 300)).body)
	require.Equal(t, 500, b.post("k2", refundOf("ch_000001", "back-2", 300)).status)
	b.declines("REFUND_EXCEEDS_CHARGE", b.post("k3", refundOf("ch_000001", "back-3", 401)))
	require.Equal(t, 422, b.post("k1", refundOf("ch_000001", "back-1", 301)).status)
	b.declines("REFUND_EXCEEDS_CHARGE", b.post("k4", refundOf("ch_000001", "back-4", 401)))
	last := b.post("k5", refundOf("ch_000001", "back-5", 400))
	require.Equal(t, "re_000005", last.members(t)["id"], "ids go on where they were")
	require.Equal(t, 201, b.ordering("charge").post("c2", request("inv-2")).status, "all of it is back on the account")
	require.Equal(t, 402, b.ordering("charge").post("c3", requestOf("inv-3", 1)).status)
}

// TestKillKeepsRefundsThatWereAnswered kills a real process while refunds run.
func TestKillKeepsRefundsThatWereAnswered(t *testing.T) {
	dir := t.TempDir()
	b, kill := startProcess(t, dir)
	b.charged("c1", requestOf("paid", 1e9))
	b = b.ordering("refund")
	answered := 0
	for ; b.post(fmt.Sprintf("k%d", answered), refundOf("ch_000001", "back", 1)).status == 201; answered++ {
		if answered == 50 {
			go kill()
		}
	}
	require.Greater(t, answered, 50)
	kill() // see TestKillKeepsWhatWasAnswered

	b, _ = startProcess(t, dir)
	b = b.ordering("refund")
	for i := range answered {
		require.Equal(t, true, b.post(fmt.Sprintf("k%d", i), refundOf("ch_000001", "back", 1)).members(t)["replayed"])
	}
	require.LessOrEqual(t, len(b.executed("")), answered+1, "one may have been executed and not answered")
	b.declines("REFUND_EXCEEDS_CHARGE", b.post("all", refundOf("ch_000001", "back", int64(1e9-answered+1))))
}

// TestJournalFromBeforeRefundsHoldsCharges reads a line as the fake wrote it when charges were all there was.
func TestJournalFromBeforeRefundsHoldsCharges(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "journal.jsonl"), []byte(`{"attempt":{"id":"ch_000001","status":"succeeded",`+
		`"account":"acc_1","amountMinor":1000,"currency":"EUR","reference":"inv-1","paymentId":"pay_1","idempotencyKey":"c1",`+
		`"executedAt":"2026-01-02T03:04:05Z","requestSha256":"00","answerStatus":201}}`+"\n"), 0o600))
	b := setup(t, fake.Config{Dir: dir})
	require.Len(t, b.executed("inv-1"), 1)
	require.Contains(t, b.lookup("c1").body, `"id":"ch_000001"`)
	require.Equal(t, 201, b.ordering("refund").post("k1", refundOf("ch_000001", "back-1", 1000)).status)
}

func TestRequestsThatAreNoRefundHaveNoEffect(t *testing.T) {
	b := refunds(t, fake.Config{})
	good := refundOf("ch_000001", "back-1", 100)
	for name, body := range map[string]string{
		"a charge":          requestOf("back-1", 100),
		"no charge named":   refundOf("", "back-1", 100),
		"charge null":       strings.Replace(good, `"ch_000001"`, "null", 1),
		"charge a number":   strings.Replace(good, `"ch_000001"`, "1", 1),
		"charge twice":      strings.Replace(good, `{`, `{"chargeId":"ch_000002",`, 1),
		"member missing":    strings.Replace(good, `"account":"acc_1",`, "", 1),
		"member unknown":    strings.Replace(good, `{`, `{"reason":"broken",`, 1),
		"amount zero":       refundOf("ch_000001", "back-1", 0),
		"amount negative":   refundOf("ch_000001", "back-1", -1),
		"currency unknown":  strings.Replace(good, "EUR", "XXX", 1),
		"member upper case": strings.Replace(good, "chargeId", "chargeID", 1),
	} {
		a := b.post("k1", body)
		require.Equal(t, http.StatusBadRequest, a.status, name)
		require.Contains(t, a.body, `"error":"invalid_request"`)
	}
	for _, chargeID := range []string{"ch_000001", ""} {
		require.Equal(t, http.StatusBadRequest, b.ordering("charge").post("k1", refundOf(chargeID, "back-1", 100)).status, "a charge names no charge")
	}
	require.Equal(t, http.StatusBadRequest, b.post("", good).status, "no key")
	require.Equal(t, http.StatusBadRequest, b.lookup("").status, "no key to look up")
	require.Empty(t, b.executed(""))
	require.Equal(t, http.StatusCreated, b.post("k1", good).status, "and no key was burnt")
}
