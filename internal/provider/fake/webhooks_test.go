package fake_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/provider/fake"
)

const (
	secretBytes = "a webhook secret of 32 bytes, yes"
	noAnswer    = 0
)

var secret = "whsec_" + base64.StdEncoding.EncodeToString([]byte(secretBytes))

// told is a webhook as the receiver got it.
type told struct {
	id, body  string
	timestamp time.Time
	genuine   bool
	at        time.Time
	Type      string
	Timestamp time.Time
	Data      map[string]any
}

// receiver takes webhooks, and answers as the test wants it: 204 once the statuses have run out.
type receiver struct {
	t        *testing.T
	url      string
	mu       sync.Mutex
	got      []told
	statuses []int
}

func receive(t *testing.T, statuses ...int) *receiver {
	t.Helper()
	r := &receiver{t: t, statuses: statuses}
	server := httptest.NewServer(http.HandlerFunc(r.take))
	t.Cleanup(server.Close)
	r.url = server.URL + "/hook"
	return r
}

// take checks the signature by the letter of the specification, not by the library that made it.
func (r *receiver) take(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	if err != nil {
		return
	}
	m := told{id: q.Header.Get("webhook-id"), body: string(body), at: time.Now()}
	seconds, _ := strconv.ParseInt(q.Header.Get("webhook-timestamp"), 10, 64)
	m.timestamp = time.Unix(seconds, 0)
	mac := hmac.New(sha256.New, []byte(secretBytes))
	fmt.Fprintf(mac, "%s.%d.%s", m.id, seconds, body)
	m.genuine = q.Header.Get("webhook-signature") == "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil))
	_ = json.Unmarshal(body, &m)

	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, m)
	status := http.StatusNoContent
	if len(r.statuses) > 0 {
		status, r.statuses = r.statuses[0], r.statuses[1:]
	}
	if status == noAnswer {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(status)
}

// takeAll ends the refusals, and says how many webhooks have come.
func (r *receiver) takeAll() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.statuses = nil
	return len(r.got)
}

func (r *receiver) all() []told {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]told{}, r.got...)
}

// wait gives what was received once there are n of them.
func (r *receiver) wait(n int) []told {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return len(r.all()) >= n }, patience, 5*time.Millisecond, "%d webhooks", n)
	return r.all()
}

// only is wait, and nothing more comes.
func (r *receiver) only(n int) []told {
	r.t.Helper()
	r.wait(n)
	time.Sleep(150 * time.Millisecond)
	require.Len(r.t, r.all(), n)
	return r.all()
}

func telling(t *testing.T, r *receiver) bench {
	t.Helper()
	return setup(t, fake.Config{WebhookURL: r.url, WebhookSecret: secret})
}

// ofTenant is an order that names its tenant.
func ofTenant(body string) string { return strings.TrimSuffix(body, "}") + `,"tenant":"acme"}` }

func TestEveryOrderIsToldOnce(t *testing.T) {
	r := receive(t)
	b := telling(t, r)
	b.script(`{"reference":"inv-2","on":"charge","fault":"decline","code":"LOST_CARD"}`)
	b.script(`{"reference":"inv-3","on":"charge","fault":"execute_then_drop"}`)
	b.script(`{"reference":"inv-4","on":"charge","fault":"error_before"}`)
	require.Equal(t, 201, b.post("k1", ofTenant(request("inv-1"))).status)
	require.Equal(t, 201, b.post("k1", ofTenant(request("inv-1"))).status, "repeated")
	first := r.wait(1)[0]
	require.Equal(t, 402, b.post("k2", request("inv-2")).status)
	second := r.wait(2)[1]
	require.Error(t, b.post("k3", request("inv-3")).err)
	require.Equal(t, 500, b.post("k4", request("inv-4")).status)
	r.wait(3)
	refund := b.ordering("refund").post("k5", ofTenant(refundOf("ch_000001", "inv-1", 400)))
	require.Equal(t, 201, refund.status, refund.body)
	all := r.only(4)

	require.Equal(t, "charge.succeeded", first.Type)
	require.Equal(t, map[string]any{"id": "ch_000001", "tenant": "acme", "paymentId": "pay_inv-1", "idempotencyKey": "k1",
		"amountMinor": 1000.0, "currency": "EUR"}, first.Data)
	require.Equal(t, "charge.declined", second.Type)
	require.Equal(t, map[string]any{"id": "ch_000002", "paymentId": "pay_inv-2", "idempotencyKey": "k2", "amountMinor": 1000.0,
		"currency": "EUR", "declineCode": "LOST_CARD"}, second.Data, "an order that names no tenant gets none")
	require.Equal(t, "refund.succeeded", all[3].Type)
	require.Equal(t, "ch_000001", all[3].Data["chargeId"])
	for _, m := range all {
		require.True(t, m.genuine)
		require.WithinDuration(t, time.Now(), m.timestamp, patience)
		require.WithinDuration(t, time.Now(), m.Timestamp, patience)
	}
	require.Equal(t, "acme", b.executed("inv-1")[0]["tenant"])
}

func TestWebhookIsRepeatedUntilItIsTaken(t *testing.T) {
	r := receive(t, 503, 302, noAnswer, 204)
	b := telling(t, r)
	b.post("k1", request("inv-1"))
	all := r.only(4)
	for _, m := range all {
		require.Equal(t, all[0].id, m.id)
		require.Equal(t, all[0].body, m.body)
		require.True(t, m.genuine, "signed anew")
	}
	require.Greater(t, all[3].at.Sub(all[2].at), all[1].at.Sub(all[0].at), "pauses grow")
	var statuses []float64
	for _, d := range b.list("/control/webhooks?reference=inv-1") {
		require.Equal(t, "ch_000001", d["order"])
		statuses = append(statuses, d["status"].(float64))
	}
	require.Equal(t, []float64{503, 302, 0, 204}, statuses)
	require.Empty(t, b.list("/control/webhooks?reference=inv-2"))
}

func TestWebhookFaults(t *testing.T) {
	eachKindTold := func(t *testing.T, test func(t *testing.T, b bench, r *receiver, before int)) {
		t.Run("charge", func(t *testing.T) {
			r := receive(t)
			test(t, telling(t, r), r, 0)
		})
		t.Run("refund", func(t *testing.T) {
			r := receive(t)
			b := telling(t, r).ordering("refund")
			b.charged("paid", requestOf("paid", 1_000_00))
			r.wait(1)
			test(t, b, r, 1)
		})
	}
	tell := func(b bench, reference, rest string) {
		on := map[string]string{"charge": "webhook", "refund": "refund_webhook"}[b.kind]
		b.script(fmt.Sprintf(`{"reference":%q,"on":%q,%s}`, reference, on, rest))
	}
	order := func(b bench, reference string) answer { return b.post("k_"+reference, b.request(reference)) }

	t.Run("early", func(t *testing.T) {
		eachKindTold(t, func(t *testing.T, b bench, r *receiver, before int) {
			tell(b, "inv-1", `"fault":"early"`)
			order(b, "inv-1")
			require.Len(t, r.all(), before+1, "there before the answer")
			r.only(before + 1)
		})
	})
	t.Run("delay", func(t *testing.T) {
		eachKindTold(t, func(t *testing.T, b bench, r *receiver, before int) {
			tell(b, "inv-1", `"fault":"delay","delayMs":400`)
			answered := time.Now()
			order(b, "inv-1")
			require.GreaterOrEqual(t, r.wait(before + 1)[before].at.Sub(answered), 400*time.Millisecond)
		})
	})
	t.Run("repeat", func(t *testing.T) {
		eachKindTold(t, func(t *testing.T, b bench, r *receiver, before int) {
			tell(b, "inv-1", `"fault":"repeat","copies":5`)
			order(b, "inv-1")
			for _, m := range r.only(before + 5)[before:] {
				require.Equal(t, r.all()[before].id, m.id)
			}
		})
	})
	t.Run("never", func(t *testing.T) {
		eachKindTold(t, func(t *testing.T, b bench, r *receiver, before int) {
			tell(b, "inv-1", `"fault":"never"`)
			order(b, "inv-1")
			r.only(before)
		})
	})
	t.Run("out_of_order", func(t *testing.T) {
		eachKindTold(t, func(t *testing.T, b bench, r *receiver, before int) {
			tell(b, "inv-1", `"fault":"out_of_order"`)
			order(b, "inv-1")
			r.only(before)
			b.post("another", b.requestOf("inv-1", 200))
			all := r.only(before + 2)
			require.EqualValues(t, 200, all[before].Data["amountMinor"])
			require.EqualValues(t, 1000, all[before+1].Data["amountMinor"])
		})
	})
	t.Run("stale_decline", func(t *testing.T) {
		eachKindTold(t, func(t *testing.T, b bench, r *receiver, before int) {
			tell(b, "inv-1", `"fault":"stale_decline"`)
			order(b, "inv-1")
			all := r.only(before + 2)[before:]
			require.Equal(t, b.kind+".succeeded", all[0].Type)
			require.Equal(t, b.kind+".declined", all[1].Type)
			require.Equal(t, all[0].Data["paymentId"], all[1].Data["paymentId"])
			require.NotEqual(t, all[0].Data["id"], all[1].Data["id"])
			require.NotEqual(t, all[0].id, all[1].id)
			require.True(t, all[1].Timestamp.Before(all[0].Timestamp))
			require.Equal(t, "CARD_DECLINED", all[1].Data["declineCode"])
		})
	})
	t.Run("spoiled content", func(t *testing.T) {
		eachKindTold(t, func(t *testing.T, b bench, r *receiver, before int) {
			for i, name := range []string{"wrong_amount", "lower_case_currency", "unknown_payment"} {
				tell(b, "inv-1", fmt.Sprintf(`"fault":%q`, name))
				b.post(name, b.request("inv-1"))
				m := r.wait(before + i + 1)[before+i]
				require.True(t, m.genuine)
				require.Equal(t, name == "wrong_amount", m.Data["amountMinor"] == 1001.0)
				require.Equal(t, name == "lower_case_currency", m.Data["currency"] == "eur")
				require.Equal(t, name == "unknown_payment", m.Data["paymentId"] != "pay_inv-1")
			}
		})
	})
	t.Run("spoiled signature", func(t *testing.T) {
		eachKindTold(t, func(t *testing.T, b bench, r *receiver, before int) {
			tell(b, "inv-1", `"fault":"bad_signature"`)
			tell(b, "inv-1", `"fault":"old_timestamp"`)
			order(b, "inv-1")
			require.False(t, r.wait(before + 1)[before].genuine)
			b.post("another", b.requestOf("inv-1", 200))
			m := r.wait(before + 2)[before+1]
			require.True(t, m.genuine)
			require.Greater(t, time.Since(m.timestamp), 9*time.Minute)
		})
	})
}

func TestWebhookOnDemand(t *testing.T) {
	r := receive(t)
	b := telling(t, r)
	b.script(`{"reference":"inv-2","on":"charge","fault":"decline"}`)
	b.post("k1", request("inv-1"))
	own := r.wait(1)[0].id
	b.post("k2", request("inv-2"))
	r.wait(2)

	again := b.control(http.MethodPost, "/control/webhooks", `{"order":"ch_000001","again":true}`)
	require.Equal(t, own, again.members(t)["webhookId"])
	require.Equal(t, own, r.wait(3)[2].id)
	fresh := b.control(http.MethodPost, "/control/webhooks", `{"order":"ch_000002","fault":"repeat","copies":3}`)
	for _, m := range r.only(6)[3:] {
		require.Equal(t, fresh.members(t)["webhookId"], m.id)
		require.Equal(t, "charge.declined", m.Type)
	}
	b.control(http.MethodPost, "/control/webhooks", `{"order":"ch_000001","fault":"wrong_amount"}`)
	require.EqualValues(t, 1001, r.wait(7)[6].Data["amountMinor"])

	for body, status := range map[string]int{
		`{"order":"ch_000099"}`:                                          404,
		`{"order":"ch_000001","fault":"never"}`:                          400,
		`{"order":"ch_000001","fault":"decline"}`:                        400,
		`{"order":"ch_000001","fault":"delay"}`:                          400,
		`{"order":"ch_000001","fault":"repeat","copies":101}`:            400,
		`{"order":"ch_000001","fault":"repeat","copies":2,"when":"now"}`: 400,
	} {
		require.Equal(t, status, b.call(http.MethodPost, "/control/webhooks", "", body).status, body)
	}
	silent := setup(t, fake.Config{})
	silent.post("k1", request("inv-1"))
	require.Equal(t, 409, silent.call(http.MethodPost, "/control/webhooks", "", `{"order":"ch_000001"}`).status)
	require.Empty(t, silent.list("/control/webhooks"))
}

func TestRestartTellsWhatWasNotTaken(t *testing.T) {
	r := receive(t, append([]int{204}, slices.Repeat([]int{503}, 100)...)...)
	cfg := fake.Config{Dir: t.TempDir(), WebhookURL: r.url, WebhookSecret: secret}
	b, stop := start(t, cfg)
	b.post("k1", request("inv-1"))
	r.wait(1)
	b.post("k2", request("inv-2"))
	b.script(`{"reference":"inv-3","on":"webhook","fault":"never"}`)
	b.post("k3", request("inv-3"))
	refused := r.wait(2)[1]
	stop()
	known := r.takeAll()

	_, stop = start(t, cfg)
	again := r.only(known + 1)[known]
	require.Equal(t, refused.id, again.id)
	require.Equal(t, refused.body, again.body)
	stop()
	_, stop = start(t, cfg)
	r.only(known + 1)
	stop()
}

func TestWebhookConfigurationIsChecked(t *testing.T) {
	for _, cfg := range []fake.Config{
		{WebhookURL: "localhost", WebhookSecret: secret}, {WebhookURL: "http://127.0.0.1:1/"},
		{WebhookURL: "http://127.0.0.1:1/", WebhookSecret: "whsec_?"}, {WebhookURL: "http://127.0.0.1:1/", WebhookSecret: "whsec_"},
	} {
		cfg.Dir = t.TempDir()
		_, err := fake.Open(cfg)
		require.ErrorContains(t, err, "the webhook")
		_, err = fake.Open(fake.Config{Dir: cfg.Dir})
		require.NoError(t, err, "the journal was let go")
	}
}
