package api

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/payments"
	"github.com/paymentsd/paymentsd/internal/tenants"
)

// A1: the client lost the answer, and minted a new key for the same purchase. The business key catches it, one after the
// other and both at once, and the second key is not burnt.
func TestA1_NewKeyForTheSamePurchase(t *testing.T) {
	b := setup(t)
	b.slow("inv-1", 400)
	first := b.start(b.paying("k-1", b0))
	b.untilSent("inv-1")
	second := b.pay("k-2", b0).problem(t)
	require.Equal(t, "DUPLICATE_MERCHANT_REFERENCE", second.ErrorCode)
	require.False(t, second.SafeNewKey)
	paid := first()
	require.Equal(t, paid.payment(t).PaymentID, second.PaymentID)
	require.Equal(t, http.StatusNotFound, b.get("/idempotency-keys/create_payment/k-2").status)
	b.settles("k-2", bodyFor("inv-2"))

	for round := range 10 {
		reference := "both-" + string(rune('a'+round))
		one, two := b.start(b.paying(reference+"-1", bodyFor(reference))), b.start(b.paying(reference+"-2", bodyFor(reference)))
		statuses := []int{one().status, two().status}
		require.ElementsMatch(t, []int{http.StatusCreated, http.StatusConflict}, statuses)
		require.Len(t, b.charges(reference), 1)
	}
}

// A declined payment frees its reference: it can be paid under a new key, and its own key still replays the decline.
func TestDeclinedPaymentCanBePaidUnderANewKey(t *testing.T) {
	b := setup(t)
	b.fault("inv-1", "charge", "decline", map[string]any{"code": "INSUFFICIENT_FUNDS"})
	declined := b.pay("k-1", b0)
	require.True(t, declined.problem(t).SafeNewKey)
	b.settles("k-2", b0)
	b.replays(declined, b.paying("k-1", b0))
	require.Len(t, b.charges("inv-1"), 1)
}

// H3: a stored answer stays as it was made: after a refund, after the tenant's pin moved, and by a build that reads it later.
func TestH3_StoredAnswersOutliveWhatTheyAreAbout(t *testing.T) {
	b := setup(t)
	first := b.settles("k", b0)
	require.Contains(t, string(first.body), `"paymentId"`)
	refund := b.do(b.request("POST", first.header.Get("Location")+"/refunds", `{"amount":"10"}`, with("Idempotency-Key", "r"), with("Content-Type", "application/json")))
	require.Equal(t, http.StatusCreated, refund.status)
	b.replays(first, b.paying("k", b0))

	require.NoError(t, b.tenants.PinAPIVersion(t.Context(), "acme", version20261101))
	require.Eventually(t, func() bool { // the pin is remembered for a second, like the API key
		return strings.Contains(string(b.get(first.header.Get("Location")).body), `"id"`)
	}, 5*time.Second, 50*time.Millisecond)
	b.replays(first, b.paying("k", b0))
	second := b.settles("k2", bodyFor("inv-2"))
	require.Contains(t, string(second.body), `"createdAt"`)
	named := b.settles("k3", bodyFor("inv-3"), with("Api-Version", version20260501))
	require.Contains(t, string(named.body), `"paymentId"`)
	b.conflicts("k3", b.paying("k3", bodyFor("inv-3"))) // to name no version is another command than to name one
}

// H3: an unknown outcome is answered in the version its first request asked for, whoever finds it out later.
func TestH3_LateOutcomeIsAnsweredInItsOwnVersion(t *testing.T) {
	b := setup(t)
	b.fault("inv-1", "charge", "execute_then_drop", nil)
	require.Equal(t, http.StatusAccepted, b.pay("k", b0, with("Api-Version", version20261101)).status)
	b.leaseOver()
	_, err := b.service.Recover(t.Context())
	require.NoError(t, err)
	require.Contains(t, string(b.pay("k", b0, with("Api-Version", version20261101)).body), `"state":"SETTLED"`)
}

// H3: an older build meets a payment whose answer is due in a version it does not know. It says so, and stores nothing; the
// newer build beside it answers.
func TestH3_UnknownVersionIsAControlledError(t *testing.T) {
	b := setup(t)
	b.fault("inv-1", "charge", "execute_then_drop", nil)
	require.Equal(t, http.StatusAccepted, b.pay("k", b0).status)
	b.exec(`UPDATE idempotency_requests SET response_schema_version = '2099-01-01'`)
	b.leaseOver()
	require.Equal(t, "STORED_REQUEST_UNREADABLE", b.pay("k", b0).problem(t).ErrorCode)
	b.exec(`UPDATE idempotency_requests SET response_schema_version = $1`, version20260501) // as the newer build knows it
	b.leaseOver()
	require.Equal(t, http.StatusCreated, b.pay("k", b0).status)
	require.Len(t, b.charges("inv-1"), 1)
}

// H5: rows of the old rule beside rows of the new one, read by instances that write either.
func TestH5_RowsAreComparedWithTheRuleThatWroteThem(t *testing.T) {
	b := setup(t, func(s *settings) { s.rule = payments.RuleV1 })
	old := b.settles("old", b0)
	require.Contains(t, b.keyRow("old"), "v1:")
	newer := b.beside(func(s *settings) { s.rule = payments.RuleV2 })
	made := newer.settles("new", bodyFor("inv-2"))
	require.Contains(t, b.keyRow("new"), "v2:")

	described := `{"description":"two coffees",` + b0[1:]
	for _, instance := range []*bench{b, newer} {
		instance.replays(old, instance.paying("old", b0))
		instance.replays(made, instance.paying("new", bodyFor("inv-2")))
		instance.conflicts("old", instance.paying("old", described))
		instance.conflicts("old", instance.paying("old", b0With("amount", "11")))
		instance.conflicts("new", instance.paying("new", b0))
	}
	b.exec(`UPDATE idempotency_requests SET request_hash = replace(request_hash, 'v1:', 'v3:') WHERE idempotency_key = 'old'`)
	require.Equal(t, "STORED_REQUEST_UNREADABLE", b.pay("old", b0).problem(t).ErrorCode, "a rule of the future is neither equal nor different")
	require.Len(t, b.charges("inv-1"), 1)
}

// H4: which outcomes are remembered. What leaves no trace can be sent again, corrected, with the same key.
func TestH4_OnlyDefiniteOutcomesAreRemembered(t *testing.T) {
	b := setup(t)
	require.Equal(t, http.StatusBadRequest, b.pay("k", `{`).status)
	require.Equal(t, http.StatusUnprocessableEntity, b.pay("k", b0With("amount", "0")).status)
	require.Equal(t, http.StatusUnauthorized, b.pay("k", b0, bearing("nobody")).status)
	require.Equal(t, "ACCOUNT_NOT_FOUND", b.pay("k", b0With("accountId", "acc_9")).problem(t).ErrorCode)
	b.control("POST", "/control/down", map[string]any{"forMs": 300})
	unreachable := b.pay("k", b0).problem(t)
	require.Equal(t, "PROVIDER_UNAVAILABLE", unreachable.ErrorCode)
	require.True(t, unreachable.Retryable)
	var paid answer
	require.Eventually(t, func() bool { paid = b.pay("k", b0); return paid.status == http.StatusCreated }, 5*time.Second, 50*time.Millisecond)
	require.Equal(t, unreachable.PaymentID, paid.payment(t).PaymentID, "the same payment")
	b.replays(paid, b.paying("k", b0))

	b.control("PUT", "/control/accounts/acc_2", map[string]any{"balances": map[string]string{"EUR": "5.00"}})
	poor := b0With("accountId", "acc_2")
	declined := b.pay("poor", poor)
	require.Equal(t, "INSUFFICIENT_FUNDS", declined.problem(t).ErrorCode)
	b.control("PUT", "/control/accounts/acc_2", map[string]any{"balances": map[string]string{"EUR": "500.00"}})
	b.replays(declined, b.paying("poor", poor))
	b.settles("rich", poor)
}

// Expiry over HTTP: published, then 409 with the payment; the key's own page says the same.
func TestExpiryIsPartOfTheContract(t *testing.T) {
	b := setup(t)
	first := b.settles("k", b0)
	expires, err := time.Parse(time.RFC3339, first.header.Get("Idempotency-Key-Expires"))
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(24*time.Hour), expires, time.Minute)
	require.Equal(t, first.header.Get("Idempotency-Key-Expires"), b.pay("k", b0).header.Get("Idempotency-Key-Expires"))

	b.exec(`UPDATE idempotency_requests SET expires_at = now() - interval '1 s'`)
	late := b.pay("k", b0)
	require.Equal(t, "IDEMPOTENCY_KEY_EXPIRED", late.problem(t).ErrorCode)
	require.Equal(t, first.payment(t).PaymentID, late.problem(t).PaymentID)
	require.Contains(t, string(b.get("/idempotency-keys/create_payment/k").body), `"state":"EXPIRED"`)
}

// A rule became stricter after the payment: the currency was withdrawn, the account blocked, the reference is too long now. The
// stored answer is replayed all the same, another command is still a conflict, and a new payment is refused.
func TestStricterRulesStopNoReplay(t *testing.T) {
	b := setup(t)
	first := b.settles("k", b0)
	json := with("Content-Type", "application/json")
	require.Equal(t, http.StatusOK, b.do(b.request("PUT", "/accounts/acc_1", `{"status":"BLOCKED"}`, json)).status)
	b.replays(first, b.paying("k", b0))
	require.Equal(t, "ACCOUNT_BLOCKED", b.pay("k2", bodyFor("inv-2")).problem(t).ErrorCode)
	require.Equal(t, http.StatusOK, b.do(b.request("PUT", "/accounts/acc_1", `{"status":"OPEN"}`, json)).status)

	for member, value := range map[string]string{"currency": "HRK", "merchantReference": "two\nlines", "channel": "Web", "amount": "99999999999.99", "accountId": "acc 1"} {
		body := b0With(member, value)
		object, err := parseObject([]byte(body))
		require.NoError(t, err)
		command, err := parseCreate(object)
		require.NoError(t, err)
		require.Error(t, command.Refusal, member)
		command.Scope.Operation = payments.OperationCreate
		fingerprint, err := command.Fingerprint(payments.RuleV2)
		require.NoError(t, err)
		b.exec(`UPDATE idempotency_requests SET request_hash = $1 WHERE idempotency_key = 'k'`, string(fingerprint))
		again := exchanged(t, b.paying("k", body)) // the contract of today does not know such a request
		require.True(t, again.replayed(), "%s: %s", member, again.body)
		require.Equal(t, string(first.body), string(again.body))
		b.conflicts("k", b.paying("k", b0With("amount", "12")))
		require.Equal(t, http.StatusUnprocessableEntity, b.pay("unused", body).status)
		require.Equal(t, http.StatusNotFound, b.get("/idempotency-keys/create_payment/unused").status)
	}
}

// The default currency is resolved, not said: the account's default may move, the fingerprint does not.
func TestOmittedCurrencyIsTheAccountsAndNotInTheFingerprint(t *testing.T) {
	b := setup(t)
	body := `{"accountId":"acc_1","amount":"10","merchantReference":"inv-1"}`
	json := with("Content-Type", "application/json")
	b.rejectsField(b.paying("k", body), "currency", "REQUIRED")
	set := func(currency string) answer {
		return b.do(b.request("PUT", "/accounts/acc_1/settings/default-currency", `{"currency":"`+currency+`"}`, json))
	}
	events := func() int { return b.count(`SELECT count(*) FROM outbox_events WHERE event_type = 'AccountChanged'`) }
	before := events()
	require.Equal(t, http.StatusOK, set("EUR").status)
	written := b.count(`SELECT xmin::text::bigint FROM accounts WHERE tenant_id = 'acme' AND account_id = 'acc_1'`)
	for range 3 {
		require.Equal(t, http.StatusOK, set("eur").status)
	}
	require.Equal(t, before+1, events(), "a repeat announces nothing")
	require.Equal(t, written, b.count(`SELECT xmin::text::bigint FROM accounts WHERE tenant_id = 'acme' AND account_id = 'acc_1'`), "and writes nothing")

	first := b.settles("k", body)
	require.Equal(t, "EUR", first.payment(t).Currency)
	require.Equal(t, http.StatusOK, set("JPY").status)
	b.replays(first, b.paying("k", body))
	b.conflicts("k", b.paying("k", b0With("amount", "10")))
	require.Equal(t, "JPY", b.settles("k2", strings.Replace(body, "inv-1", "inv-2", 1)).payment(t).Currency)
}

// Scopes, and rotation in the middle of a retry.
func TestAPIKeysAreForWhatTheyWereIssuedFor(t *testing.T) {
	b := setup(t)
	issue := func(name string, scopes ...tenants.Scope) string {
		secret, err := b.tenants.IssueAPIKey(t.Context(), "acme", name, scopes...)
		require.NoError(t, err)
		return secret
	}
	reader, payer, refunder := issue("reader", tenants.Read), issue("payer", tenants.Pay), issue("refunder", tenants.Refund)
	require.Equal(t, "FORBIDDEN", b.rejects(b.paying("k", b0, bearing(reader)), http.StatusForbidden, "FORBIDDEN").ErrorCode)
	first := b.settles("k", b0, bearing(payer))
	b.replays(first, b.paying("k", b0))
	require.Equal(t, http.StatusForbidden, b.pay("k", b0, bearing(reader)).status, "replays are authorised like fresh calls")
	location := first.header.Get("Location")
	require.Equal(t, http.StatusOK, b.get(location, bearing(reader)).status)
	require.Equal(t, http.StatusForbidden, b.get(location, bearing(payer)).status)
	refund := func(secret string) answer {
		return b.do(b.request("POST", location+"/refunds", `{"amount":"1"}`, bearing(secret), with("Idempotency-Key", "r"), with("Content-Type", "application/json")))
	}
	require.Equal(t, http.StatusForbidden, refund(payer).status)
	require.Equal(t, http.StatusCreated, refund(refunder).status)

	b.fault("inv-2", "charge", "execute_then_drop", nil)
	require.Equal(t, http.StatusAccepted, b.pay("k2", bodyFor("inv-2"), bearing(payer)).status)
	require.NoError(t, b.tenants.RevokeAPIKey(t.Context(), "acme", "payer"))
	require.Eventually(t, func() bool { return b.pay("k2", bodyFor("inv-2"), bearing(payer)).status == http.StatusUnauthorized }, 5*time.Second, 50*time.Millisecond)
	b.leaseOver()
	require.Equal(t, http.StatusCreated, b.pay("k2", bodyFor("inv-2"), bearing(issue("payer-2", tenants.Pay))).status)
	require.Len(t, b.charges("inv-2"), 1)
}

// A key is decoded once, whatever it holds.
func TestKeysInPathsAreDecodedOnce(t *testing.T) {
	b := setup(t)
	for i, key := range []string{"X/b", "X%2Fb", "%41", "A", "a+b", "a;b?c#d"} {
		reference := "odd-" + string(rune('a'+i))
		made := b.settles(key, bodyFor(reference))
		found := exchanged(t, b.request("GET", "/idempotency-keys/create_payment/"+url.PathEscape(key), "")) // the validator decodes twice
		require.Equal(t, http.StatusOK, found.status, key)
		require.Contains(t, string(found.body), made.payment(t).PaymentID, key)
	}
}

// What a provider calls its refusal is not taken for one of our own.
func TestDeclineCodeCannotPassForOurs(t *testing.T) {
	b := setup(t)
	for i, code := range []string{"VALIDATION_FAILED", "PAYMENT_CANCELED", "IDEMPOTENCY_KEY_EXPIRED"} {
		reference := "code-" + string(rune('a'+i))
		b.fault(reference, "charge", "decline", map[string]any{"code": code})
		require.Equal(t, "DECLINED", b.pay(reference, bodyFor(reference)).problem(t).ErrorCode)
	}
}

// A pending payment is shown in the version its key is answered in, although the tenant's pin has moved.
func TestPendingAnswerKeepsItsVersion(t *testing.T) {
	b := setup(t)
	b.fault("inv-1", "charge", "execute_then_drop", nil)
	b.fault("inv-1", "lookup", "lookup_error", map[string]any{"times": 100})
	require.Contains(t, string(b.pay("k", b0).body), `"paymentId"`)
	require.NoError(t, b.tenants.PinAPIVersion(t.Context(), "acme", version20261101))
	require.Eventually(t, func() bool { return strings.Contains(string(b.get("/payments").body), `"id"`) }, 5*time.Second, 50*time.Millisecond)
	pending := b.pay("k", b0)
	require.Equal(t, http.StatusAccepted, pending.status)
	require.Contains(t, string(pending.body), `"paymentId"`)
}

func TestFiltersAreReadStrictly(t *testing.T) {
	b := setup(t)
	for _, query := range []string{"merchantReference=%FF", "merchantReference=%ed%a0%80", "accountId=", "merchantReference=", "status=", "limit=", "cursor=", "status=settled", "status=SETTLED&status=PENDING"} {
		require.Equal(t, http.StatusUnprocessableEntity, b.get("/payments?"+query).status, query)
	}
}

// A preference for answering early is not a way around the limit.
func TestBackgroundIsBounded(t *testing.T) {
	b := setup(t, func(s *settings) { s.background = 2 })
	var asked []func() answer
	for i := range 6 {
		reference := "bg-" + string(rune('a'+i))
		b.slow(reference, 300)
		asked = append(asked, b.start(b.paying(reference, bodyFor(reference), with("Prefer", "respond-async, return=minimal"))))
	}
	got := map[string]int{}
	for _, a := range asked {
		got[a().header.Get("Preference-Applied")]++
	}
	require.Equal(t, map[string]int{"respond-async, return=minimal": 2, "return=minimal": 4}, got)
	b.service.Drain()
}
