package api

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"
)

// What a test looks at besides the answer: what the provider executed and received, and what is in the database.

// executed is a charge that the provider really made.
type executed struct {
	ID             string `json:"id"`
	PaymentID      string `json:"paymentId"`
	Reference      string `json:"reference"`
	AmountMinor    int64  `json:"amountMinor"`
	Currency       string `json:"currency"`
	IdempotencyKey string `json:"idempotencyKey"`
}

func (b *bench) charges(reference string) (list []executed) {
	b.t.Helper()
	require.NoError(b.t, json.Unmarshal(b.control("GET", "/control/charges?reference="+url.QueryEscape(reference), nil), &list))
	return list
}

// received is a request that the provider got.
type received struct {
	Method  string              `json:"method"`
	Path    string              `json:"path"`
	Headers map[string][]string `json:"headers"`
	Body    string              `json:"body"`
}

func (b *bench) received(reference string) (list []received) {
	b.t.Helper()
	require.NoError(b.t, json.Unmarshal(b.control("GET", "/control/requests?reference="+url.QueryEscape(reference), nil), &list))
	return list
}

// wire is the one charge request that the provider received for a reference, as it came over the wire.
func (b *bench) wire(reference string) (sent struct {
	Account     string `json:"account"`
	AmountMinor int64  `json:"amountMinor"`
	Currency    string `json:"currency"`
	Reference   string `json:"reference"`
	PaymentID   string `json:"paymentId"`
	Tenant      string `json:"tenant"`
}) {
	b.t.Helper()
	var posts []received
	for _, r := range b.received(reference) {
		if r.Method == http.MethodPost {
			posts = append(posts, r)
		}
	}
	require.Len(b.t, posts, 1, "charge requests for %q", reference)
	require.NoError(b.t, json.Unmarshal([]byte(posts[0].Body), &sent, json.RejectUnknownMembers(true)))
	return sent
}

func (b *bench) fault(reference, on, name string, more map[string]any) {
	b.t.Helper()
	f := map[string]any{"reference": reference, "on": on, "fault": name, "times": 1}
	for k, v := range more {
		f[k] = v
	}
	b.control("POST", "/control/faults", f)
}

// slow makes the provider's next charge for a reference take its time.
func (b *bench) slow(reference string, ms int) {
	b.t.Helper()
	b.fault(reference, "charge", "delay", map[string]any{"delayMs": ms})
}

func (b *bench) control(method, path string, body any) []byte {
	b.t.Helper()
	encoded, err := json.Marshal(body)
	require.NoError(b.t, err)
	r, err := http.NewRequest(method, "http://"+b.bank.Addr()+path, bytes.NewReader(encoded))
	require.NoError(b.t, err)
	response, err := http.DefaultClient.Do(r)
	require.NoError(b.t, err)
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	require.NoError(b.t, err)
	require.Less(b.t, response.StatusCode, 300, "%s", content)
	return content
}

func (b *bench) exec(sql string, args ...any) {
	b.t.Helper()
	_, err := b.pool.Exec(context.Background(), sql, args...)
	require.NoError(b.t, err)
}

// count runs a query that returns one number.
func (b *bench) count(query string, args ...any) (n int) {
	b.t.Helper()
	require.NoError(b.t, b.pool.QueryRow(context.Background(), query, args...).Scan(&n))
	return n
}

// leaseOver makes every lease end and every pause pass now, as if time had gone by.
func (b *bench) leaseOver() {
	b.t.Helper()
	b.exec(`UPDATE idempotency_requests SET
		next_attempt_at = CASE WHEN next_attempt_at IS NOT NULL THEN now() - interval '1 s' END,
		locked_until = CASE WHEN locked_until IS NOT NULL THEN now() - interval '1 s' END
		WHERE status IN ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY')`)
}

// keyRow is everything about a key that another command must not change.
func (b *bench) keyRow(key string) (row string) {
	b.t.Helper()
	require.NoError(b.t, b.pool.QueryRow(context.Background(), `SELECT to_jsonb(k)::text FROM idempotency_requests k
		WHERE tenant_id = 'acme' AND idempotency_key = $1`, key).Scan(&row))
	return row
}

// traces is everything that a request can leave behind.
type traces struct{ Keys, Payments, Moves, Events, ProviderRequests int }

func (b *bench) traces() (t traces) {
	b.t.Helper()
	require.NoError(b.t, b.pool.QueryRow(context.Background(), `SELECT (SELECT count(*) FROM idempotency_requests),
		(SELECT count(*) FROM payments), (SELECT count(*) FROM payment_moves), (SELECT count(*) FROM outbox_events)`).
		Scan(&t.Keys, &t.Payments, &t.Moves, &t.Events))
	t.ProviderRequests = len(b.received(""))
	return t
}

// rejects is REJECT of the field cases: a stable code, and no trace of the request anywhere.
func (b *bench) rejects(r *http.Request, status int, code string) Problem {
	b.t.Helper()
	before := b.traces()
	a := b.do(r)
	require.Equal(b.t, status, a.status, "%s", a.body)
	p := a.problem(b.t)
	require.Equal(b.t, code, p.ErrorCode, "%s", a.body)
	require.Equal(b.t, before, b.traces(), "a refused request left a trace")
	return p
}

// rejectsField is REJECT for a rule of one field.
func (b *bench) rejectsField(r *http.Request, field, code string) {
	b.t.Helper()
	p := b.rejects(r, http.StatusUnprocessableEntity, "VALIDATION_FAILED")
	require.Len(b.t, p.Errors, 1)
	require.Equal(b.t, FieldProblem{field, code, p.Errors[0].Message}, p.Errors[0])
}

// replays is REPLAY of the field cases: the first answer, marked, and nothing happened.
func (b *bench) replays(first answer, r *http.Request) {
	b.t.Helper()
	before := b.traces()
	again := b.do(r)
	require.Equal(b.t, first.status, again.status, "%s", again.body)
	require.Equal(b.t, string(first.body), string(again.body))
	require.True(b.t, again.replayed())
	require.Equal(b.t, before, b.traces(), "a replay did something")
}

// conflicts is CONFLICT of the field cases: refused, and the first record is untouched.
func (b *bench) conflicts(key string, r *http.Request) Problem {
	b.t.Helper()
	before := b.keyRow(key)
	p := b.rejects(r, http.StatusConflict, "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST")
	require.Equal(b.t, before, b.keyRow(key))
	return p
}

// settles pays and requires that it worked.
func (b *bench) settles(key, body string, changes ...change) answer {
	b.t.Helper()
	a := b.pay(key, body, changes...)
	require.Equal(b.t, http.StatusCreated, a.status, "%s", a.body)
	require.False(b.t, a.replayed())
	return a
}

// audit checks what must hold for all payments, whatever happened to them.
func (b *bench) audit() {
	if b.t.Failed() {
		return // it would only say so again
	}
	for what, query := range map[string]string{
		"a history that does not lead to the payment's state": `SELECT count(*) FROM payments p LEFT JOIN payment_moves m
			ON (m.tenant_id, m.payment_id, m.version) = (p.tenant_id, p.payment_id, p.version) WHERE m.to_state IS DISTINCT FROM p.state`,
		"events with a gap": `SELECT count(*) FROM payments p WHERE ARRAY(SELECT sequence FROM outbox_events e
			WHERE (e.tenant_id, e.aggregate_id) = (p.tenant_id, p.payment_id) ORDER BY 1) <> ARRAY(SELECT generate_series(1, p.events))`,
		"a finished key without its answer": `SELECT count(*) FROM idempotency_requests
			WHERE status IN ('COMPLETED', 'FAILED_REPLAYABLE') AND coalesce(octet_length(response_body), 0) = 0`,
		"a key without its payment":              `SELECT count(*) FROM idempotency_requests k LEFT JOIN payments p ON (p.tenant_id, p.payment_id) = (k.tenant_id, k.resource_id) WHERE p.payment_id IS NULL`,
		"a payment without its key":              `SELECT count(*) FROM payments p LEFT JOIN idempotency_requests k ON (k.tenant_id, k.resource_id) = (p.tenant_id, p.payment_id) WHERE k.resource_id IS NULL`,
		"a finished payment with unfinished key": `SELECT count(*) FROM payments p JOIN idempotency_requests k ON k.resource_id = p.payment_id WHERE (p.state IN ('COMPLETED', 'DECLINED', 'CANCELED')) <> (k.status IN ('COMPLETED', 'FAILED_REPLAYABLE', 'EXPIRED'))`,
	} {
		require.Zero(b.t, b.count(query), what)
	}
	var charged []string
	for _, c := range b.charges("") {
		require.NotContains(b.t, charged, c.PaymentID, "charged twice")
		charged = append(charged, c.PaymentID)
		require.Equal(b.t, 1, b.count(`SELECT count(*) FROM payments WHERE payment_id = $1 AND amount_minor = $2 AND currency = $3
			AND merchant_reference = $4`, c.PaymentID, c.AmountMinor, c.Currency, c.Reference), "charge %s is not what the payment says", c.ID)
	}
	require.Zero(b.t, b.count(`SELECT count(*) FROM payments WHERE kind = 'PAYMENT' AND state = 'COMPLETED' AND NOT payment_id = ANY($1)`, charged),
		"a payment is settled but was not charged")
	require.NotContains(b.t, b.logs.String(), "sk_demo_", "an API key was logged")
	require.NotContains(b.t, b.logs.String(), strings.TrimPrefix(webhookSecret, "whsec_"), "the webhook secret was logged")
	if b.hook != nil {
		b.hook.check(b.t)
	}
}

// untilSent waits until the provider has the charge request for a reference.
func (b *bench) untilSent(reference string) {
	b.t.Helper()
	require.Eventually(b.t, func() bool { return len(b.received(reference)) > 0 }, 10*time.Second, 10*time.Millisecond)
}
