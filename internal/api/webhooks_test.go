package api

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/pgtest"
)

// There is no recovery in these tests, and no client asks again: what a payment comes to, it comes to by its first request or
// by webhooks.

func withWebhooks(s *settings) { s.webhooks = true }

// tell scripts the next webhook about a reference.
func (b *bench) tell(reference, on, name string, more map[string]any) {
	b.t.Helper()
	b.fault(reference, on, name, more)
}

func (b *bench) eventsOf(id string) (types []string) {
	b.t.Helper()
	rows, err := b.pool.Query(b.t.Context(), `SELECT event_type FROM outbox_events WHERE aggregate_id = $1 ORDER BY sequence`, id)
	require.NoError(b.t, err)
	defer rows.Close()
	for rows.Next() {
		var eventType string
		require.NoError(b.t, rows.Scan(&eventType))
		types = append(types, eventType)
	}
	return types
}

// lookups is how often the provider was asked about a reference.
func (b *bench) lookups(reference string) int {
	return len(slices.DeleteFunc(b.received(reference), func(r received) bool { return r.Method != http.MethodGet }))
}

// becomes waits until a payment or refund shows a status.
func (b *bench) becomes(location, status string) {
	b.t.Helper()
	var a answer
	if !within(10*time.Second, func() bool { a = b.get(location); return strings.Contains(string(a.body), `"status":"`+status+`"`) }) {
		b.t.Fatalf("%s does not become %s: %s", location, status, a.body)
	}
}

// loses pays, and the answer of the provider is lost.
func (b *bench) loses(reference string) (location, id string) {
	b.t.Helper()
	b.fault(reference, "charge", "execute_then_drop", nil)
	a := b.pay(reference, bodyFor(reference))
	require.Equal(b.t, http.StatusAccepted, a.status, "%s", a.body)
	location = a.header.Get("Location")
	return location, strings.TrimPrefix(location, "/payments/")
}

var (
	settledAtOnce = []string{"PaymentCreated", "PaymentSettled"}
	settledLater  = []string{"PaymentCreated", "PaymentRecoveryRequired", "PaymentSettled"}
)

func TestG11_SuccessWhileTheCallIsStillWaiting(t *testing.T) {
	b := setup(t, withWebhooks)
	b.tell("inv-1", "webhook", "early", nil)
	a := b.settles("k", b0)
	b.told("NO_EFFECT")
	require.Equal(t, []int{204}, b.hook.answers())
	require.Equal(t, settledAtOnce, b.eventsOf(a.payment(t).PaymentID))
	require.Contains(t, string(b.get(a.header.Get("Location")+"/history").body), `"reason":"answered"`)
	require.True(t, b.pay("k", b0).replayed())

	// The same, and the answer is lost.
	b.tell("lost", "webhook", "early", nil)
	location, id := b.loses("lost")
	b.becomes(location, "SETTLED")
	b.told("NO_EFFECT", "APPLIED")
	require.Equal(t, settledLater, b.eventsOf(id))
	require.Zero(t, b.lookups("lost"))
}

func TestG11_LostAnswerIsSettledByTheWebhook(t *testing.T) {
	b := setup(t, withWebhooks)
	location, id := b.loses("inv-1")
	b.becomes(location, "SETTLED")
	b.told("APPLIED")
	require.Equal(t, settledLater, b.eventsOf(id))
	require.Zero(t, b.lookups("inv-1"), "nobody had to ask")
	require.Contains(t, string(b.get(location+"/history").body), `"reason":"webhook"`)
	require.True(t, b.pay("inv-1", bodyFor("inv-1")).replayed())

	b.control("PUT", "/control/accounts/acc_1", map[string]any{"balances": map[string]string{"EUR": "0"}})
	location, id = b.loses("poor")
	b.becomes(location, "DECLINED")
	require.Equal(t, []string{"PaymentCreated", "PaymentRecoveryRequired", "PaymentDeclined"}, b.eventsOf(id))
	refused := b.pay("poor", bodyFor("poor"))
	require.Equal(t, http.StatusPaymentRequired, refused.status)
	require.Equal(t, "INSUFFICIENT_FUNDS", refused.problem(t).ErrorCode)
	require.Zero(t, b.lookups("poor"))
}

func TestG11_LostAnswerOfARefundIsSettledByTheWebhook(t *testing.T) {
	b := setup(t, withWebhooks)
	paid := b.settles("k", b0)
	b.told("NO_EFFECT")
	b.fault("inv-1", "refund", "execute_then_drop", nil)
	a := b.refund("r", paid.header.Get("Location"), `{"amount":"4.00"}`)
	require.Equal(t, http.StatusAccepted, a.status)
	b.becomes(a.header.Get("Location"), "SETTLED")
	b.told("NO_EFFECT", "APPLIED")
	require.Equal(t, []string{"RefundCreated", "RefundRecoveryRequired", "RefundSettled"}, b.eventsOf(a.payment(t).PaymentID))
	require.Zero(t, b.lookups("inv-1"))
}

func TestG11_FailureOfAnOlderAttemptAfterSuccess(t *testing.T) {
	b := setup(t, withWebhooks)
	b.tell("inv-1", "webhook", "stale_decline", nil)
	a := b.settles("k", b0)
	b.told("NO_EFFECT", "NO_EFFECT")
	require.Equal(t, settledAtOnce, b.eventsOf(a.payment(t).PaymentID))

	b.tell("lost", "webhook", "stale_decline", nil)
	location, id := b.loses("lost")
	b.becomes(location, "SETTLED")
	b.told("NO_EFFECT", "NO_EFFECT", "APPLIED", "NO_EFFECT")
	require.Equal(t, settledLater, b.eventsOf(id))
	require.True(t, b.pay("k", b0).replayed())
}

func TestG11_TheSameEventFiveTimesInParallel(t *testing.T) {
	b := setup(t, withWebhooks)
	b.tell("inv-1", "webhook", "repeat", map[string]any{"copies": 5})
	location, id := b.loses("inv-1")
	b.becomes(location, "SETTLED")
	b.told("APPLIED")
	require.True(t, within(10*time.Second, func() bool { return len(b.hook.answers()) == 5 }))
	require.Equal(t, []int{204, 204, 204, 204, 204}, b.hook.answers())
	require.Equal(t, settledLater, b.eventsOf(id))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM consumer_inbox WHERE consumer_name = 'provider-webhooks'`))
}

func TestG11_AnUnknownPayment(t *testing.T) {
	b := setup(t, withWebhooks)
	b.tell("inv-1", "webhook", "unknown_payment", nil)
	b.settles("k", b0)
	b.told("UNMATCHED")
	require.Equal(t, []int{204}, b.hook.answers())
	require.Equal(t, 1, b.count(`SELECT count(*) FROM payments`), "nobody made one of it")
}

func TestG11_AWrongAmountIsNotBelieved(t *testing.T) {
	b := setup(t, withWebhooks)
	b.tell("inv-1", "webhook", "wrong_amount", nil)
	location, id := b.loses("inv-1")
	b.told("CONTRADICTS")
	require.Equal(t, http.StatusAccepted, func() int {
		b.fault("inv-1", "lookup", "lookup_error", nil)
		return b.pay("inv-1", bodyFor("inv-1")).status
	}())
	require.Contains(t, string(b.get(location).body), "PENDING", "an amount that is wrong settles nothing")
	require.Equal(t, http.StatusCreated, b.pay("inv-1", bodyFor("inv-1")).status, "asked, the provider says it right")
	require.Equal(t, settledLater, b.eventsOf(id))
	require.Equal(t, 2, b.lookups("inv-1"))
}

func TestG11_OutOfOrderAndLate(t *testing.T) {
	b := setup(t, withWebhooks)
	b.tell("inv-1", "webhook", "out_of_order", nil)
	paid := b.settles("k", b0)
	b.fault("inv-1", "refund", "execute_then_drop", nil)
	a := b.refund("r", paid.header.Get("Location"), `{"amount":"4.00"}`)
	b.becomes(a.header.Get("Location"), "SETTLED")
	b.told("APPLIED", "NO_EFFECT") // the refund's, and then the charge's
	require.Equal(t, settledAtOnce, b.eventsOf(paid.payment(t).PaymentID))

	b.tell("late", "webhook", "delay", map[string]any{"delayMs": 700})
	location, id := b.loses("late")
	require.Equal(t, http.StatusCreated, b.pay("late", bodyFor("late")).status, "the client's retry was first")
	b.told("APPLIED", "NO_EFFECT", "NO_EFFECT")
	require.Equal(t, settledLater, b.eventsOf(id))
	require.Contains(t, string(b.get(location).body), "SETTLED")

	b.tell("silent", "webhook", "never", nil)
	location, _ = b.loses("silent")
	require.Contains(t, string(b.get(location).body), "PENDING")
	charge := b.charges("silent")[0].ID
	b.control("POST", "/control/webhooks", map[string]any{"order": charge})
	b.becomes(location, "SETTLED")
}

// Two instances get the same webhooks, and neither is the one that made the payment.
func TestG11_AnyInstanceTakesAnyWebhook(t *testing.T) {
	b := setup(t, withWebhooks)
	b.beside()
	maker := b.beside()
	b.tell("inv-1", "webhook", "repeat", map[string]any{"copies": 4})
	b.tell("inv-2", "webhook", "early", nil)
	location, _ := maker.loses("inv-1")
	b.becomes(location, "SETTLED")
	maker.settles("inv-2", bodyFor("inv-2"))
	b.told("APPLIED", "NO_EFFECT")
}

// The database is away when the webhook comes. The provider is told, says it again, and nothing was lost.
func TestG11_WebhookOutlastsTheDatabase(t *testing.T) {
	var proxy *pgtest.Proxy
	b := setup(t, withWebhooks, func(s *settings) {
		s.through = func(url string) string {
			proxy = pgtest.NewProxy(t, url)
			return proxy.URL()
		}
	})
	b.tell("inv-1", "webhook", "delay", map[string]any{"delayMs": 500})
	location, _ := b.loses("inv-1")
	proxy.Down()
	require.True(t, within(10*time.Second, func() bool { return len(b.hook.answers()) >= 2 }))
	proxy.Up(t)
	b.becomes(location, "SETTLED")
	b.told("APPLIED")
	statuses := b.hook.answers()
	require.Equal(t, 503, statuses[0])
	require.Equal(t, 204, statuses[len(statuses)-1])
}

const aboutNobody = `{"type":"charge.succeeded","timestamp":"2026-05-01T10:00:00Z","data":{"id":"ch_1","tenant":"acme","paymentId":"` + noPayment +
	`","idempotencyKey":"provider_payment_` + noPayment + `","amountMinor":1000,"currency":"EUR"}}`

// callbackTraces is everything that a webhook can leave behind.
func (b *bench) callbackTraces() string {
	return fmt.Sprint(b.traces(), b.count(`SELECT count(*) FROM provider_callbacks`), b.count(`SELECT count(*) FROM consumer_inbox`))
}

func TestOnlySignedWebhooksAreTaken(t *testing.T) {
	b := setup(t)
	other := "whsec_" + strings.Repeat("AAAA", 8)
	before := b.callbackTraces()
	for name, r := range map[string]*http.Request{
		"unsigned":         b.webhook("msg_1", aboutNobody, without("Webhook-Signature")),
		"with an API key":  b.webhook("msg_1", aboutNobody, without("Webhook-Signature"), ofTenant("acme")),
		"without an id":    b.webhook("msg_1", aboutNobody, without("Webhook-Id")),
		"without a time":   b.webhook("msg_1", aboutNobody, without("Webhook-Timestamp")),
		"another secret":   b.webhook("msg_1", aboutNobody, signedWith(other, "msg_1", time.Now(), aboutNobody)),
		"other bytes":      b.webhook("msg_1", aboutNobody, signedWith(webhookSecret, "msg_1", time.Now(), aboutNobody+" ")),
		"old":              b.webhook("msg_1", aboutNobody, signedWith(webhookSecret, "msg_1", time.Now().Add(-6*time.Minute), aboutNobody)),
		"from the future":  b.webhook("msg_1", aboutNobody, signedWith(webhookSecret, "msg_1", time.Now().Add(6*time.Minute), aboutNobody)),
		"no JSON, nor any": b.webhook("msg_1", "{", without("Webhook-Signature")),
	} {
		a := b.do(r)
		require.Equal(t, http.StatusUnauthorized, a.status, name)
		require.Equal(t, "WEBHOOK_SIGNATURE_INVALID", a.problem(t).ErrorCode, name)
		require.Equal(t, `Webhook-Signature realm="paymentsd"`, a.header.Get("WWW-Authenticate"))
		require.Equal(t, before, b.callbackTraces(), name)
	}
	for name, row := range map[string]struct {
		r      *http.Request
		status int
		code   string
	}{
		"no document":  {b.webhook("msg_1", "{"), 400, "WEBHOOK_MALFORMED"},
		"another one":  {b.webhook("msg_1", strings.Replace(aboutNobody, `"EUR"`, `5`, 1)), 400, "WEBHOOK_MALFORMED"},
		"too large":    {b.webhook("msg_1", strings.Repeat(" ", bodyBytesMax+1)), 413, "BODY_TOO_LARGE"},
		"not said so":  {b.webhook("msg_1", aboutNobody, without("Content-Type")), 415, "UNSUPPORTED_MEDIA_TYPE"},
		"compressed":   {b.webhook("msg_1", aboutNobody, with("Content-Encoding", "gzip")), 415, "UNSUPPORTED_MEDIA_TYPE"},
		"another verb": {b.request("GET", "/provider/webhooks", ""), 405, "METHOD_NOT_ALLOWED"},
	} {
		a := b.do(row.r)
		require.Equal(t, row.status, a.status, name)
		require.Equal(t, row.code, a.problem(t).ErrorCode, name)
		require.Equal(t, before, b.callbackTraces(), name)
	}
	for name, body := range map[string]string{
		"another event":    strings.Replace(aboutNobody, "charge.succeeded", "payout.created", 1),
		"without a tenant": strings.Replace(aboutNobody, `"tenant":"acme",`, "", 1),
	} {
		a := b.do(b.webhook("msg_1", body))
		require.Equal(t, http.StatusNoContent, a.status, name)
		require.Empty(t, a.body)
		require.Equal(t, before, b.callbackTraces(), name)
	}
	for range 2 {
		require.Equal(t, http.StatusNoContent, b.do(b.webhook("msg_1", aboutNobody)).status)
		b.told("UNMATCHED")
	}
}

// H7, for webhooks: the secret and the signatures are nowhere, and what a webhook says is not logged.
func TestH7_WebhookSecretsStayWhereTheyBelong(t *testing.T) {
	b := setup(t, withWebhooks)
	var answers []string
	signature := ""
	for i, body := range []string{aboutNobody, "{", strings.Replace(aboutNobody, `"EUR"`, `"sentinel-currency"`, 1), strings.Replace(aboutNobody, "ch_1", "sentinel-charge", 1)} {
		r := b.webhook(fmt.Sprintf("msg_%d", i), body)
		signature = r.Header.Get("Webhook-Signature")
		answers = append(answers, string(b.do(r).body))
		r = b.webhook("msg_9", body)
		r.Header.Set("Webhook-Signature", "v1,sentinel-signature")
		answers = append(answers, string(b.do(r).body))
	}
	b.exec(`ALTER TABLE provider_callbacks RENAME TO provider_callbacks_away`)
	answers = append(answers, string(b.do(b.webhook("msg_7", aboutNobody)).body))
	b.exec(`ALTER TABLE provider_callbacks_away RENAME TO provider_callbacks`)
	for _, text := range append(answers, b.logs.String()) {
		require.NotContains(t, text, "sentinel")
		require.NotContains(t, text, strings.TrimPrefix(signature, "v1,"))
		require.NotContains(t, text, strings.TrimPrefix(webhookSecret, "whsec_"))
	}
	require.Contains(t, b.logs.String(), "callback does not fit", "operators learn what they need")
}
