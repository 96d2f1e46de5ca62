package payments

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/pgtest"
	"github.com/paymentsd/paymentsd/internal/provider"
	"github.com/paymentsd/paymentsd/internal/provider/fake"
	"github.com/paymentsd/paymentsd/internal/tenants"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const testLease = 30 * time.Second

// house is a database, a provider, and as many services on them as a test wants processes.
type house struct {
	t         *testing.T
	pool      *pgxpool.Pool
	bank      *fake.Server
	timeout   time.Duration
	cfg       Config
	log       *slog.Logger
	reference atomic.Int64
}

func setup(t *testing.T) *house {
	t.Helper()
	h := &house{
		t: t, pool: pgtest.Pool(t), timeout: 2 * time.Second, log: testLog(),
		cfg: Config{KeyWindow: 24 * time.Hour, TombstoneFor: 30 * 24 * time.Hour, FingerprintRule: RuleV2, ProviderKeyWindow: 24 * time.Hour, RecoveryPause: time.Second},
	}
	h.openBank(fake.Config{Addr: "127.0.0.1:0", Dir: t.TempDir()})
	require.NoError(t, tenants.NewDirectory(h.pool).Demo(t.Context()))
	return h
}

// testLog is silent unless PAYMENTSD_TEST_LOG is set.
func testLog() *slog.Logger {
	if os.Getenv("PAYMENTSD_TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, nil))
}

func (h *house) openBank(cfg fake.Config) {
	bank, err := fake.Open(cfg)
	require.NoError(h.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- bank.Serve(ctx) }()
	h.bank = bank
	h.t.Cleanup(func() {
		cancel()
		<-done
		_ = bank.Close()
	})
}

// service is one process's service, on the given connections and provider; nil for the real ones.
func (h *house) service(db Database, p provider.Provider) *Service {
	if db == nil {
		db = h.pool
	}
	if p == nil {
		p = h.client()
	}
	return New(db, idempotency.NewKeys(db, testLease), p, testRender, h.cfg, h.log)
}

func (h *house) client() provider.Provider {
	client, err := provider.NewClient("http://"+h.bank.Addr(), h.timeout)
	require.NoError(h.t, err)
	return client
}

func testRender(p Payment, version string) (idempotency.Answer, error) {
	a := idempotency.Answer{Status: 201, ContentType: "application/json", Location: "/payments/" + p.ID,
		Body: fmt.Appendf(nil, `{"paymentId":%q,"status":%q,"version":%q}`, p.ID, p.State.Public(), version)}
	if p.State != Completed {
		a.Status, a.ErrorCode = 402, p.DeclineCode
	}
	return a, nil
}

// command is a new payment's command: a key and a reference that nobody has used.
func (h *house) command() Command {
	n := h.reference.Add(1)
	return commandFor(fmt.Sprintf("key-%d", n), fmt.Sprintf("inv-%d", n))
}

func commandFor(key, reference string) Command {
	return Command{
		Scope:         idempotency.Scope{TenantID: "acme", Operation: OperationCreate, Key: idempotency.Key(key)},
		SchemaVersion: "2026-05-01",
		Said:          Said{AccountID: "acc_1", MerchantReference: reference, Channel: "web", Amount: "10", Currency: "EUR"},
	}
}

// refundOf is a new refund's command.
func (h *house) refundOf(paymentID, amount string) Command {
	key := fmt.Sprintf("refund-%d", h.reference.Add(1))
	return Command{
		Scope:         idempotency.Scope{TenantID: "acme", Operation: OperationRefund, Key: idempotency.Key(key)},
		SchemaVersion: "2026-05-01", Said: Said{PaymentID: paymentID, Amount: amount},
	}
}

// openingOf is a command's opening.
func (h *house) openingOf(s *Service, c Command) opening {
	r, err := s.resolve(h.t.Context(), c)
	require.NoError(h.t, err)
	o, err := s.newOpening(c, r)
	require.NoError(h.t, err)
	return o
}

// leaseOver makes every lease end and every pause pass now, as if time had gone by.
func (h *house) leaseOver() {
	_, err := h.pool.Exec(h.t.Context(), `UPDATE idempotency_requests SET
		next_attempt_at = CASE WHEN next_attempt_at IS NOT NULL THEN now() - interval '1 s' END,
		locked_until = CASE WHEN locked_until IS NOT NULL THEN now() - interval '1 s' END
		WHERE status IN ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY')`)
	require.NoError(h.t, err)
}

// recoverAll is the worker's work until nothing is due, with all pauses skipped.
func (h *house) recoverAll(s *Service) {
	for range 20 {
		h.leaseOver()
		found, err := s.Recover(h.t.Context())
		require.NoError(h.t, err)
		if !found {
			return
		}
	}
	h.t.Fatal("recovery does not come to an end")
}

func (h *house) control(method, path string, body any) []byte {
	h.t.Helper()
	encoded, err := json.Marshal(body)
	require.NoError(h.t, err)
	r, err := http.NewRequest(method, "http://"+h.bank.Addr()+path, bytes.NewReader(encoded))
	require.NoError(h.t, err)
	answer, err := http.DefaultClient.Do(r)
	require.NoError(h.t, err)
	defer answer.Body.Close()
	content, err := io.ReadAll(answer.Body)
	require.NoError(h.t, err)
	require.Less(h.t, answer.StatusCode, 300, string(content))
	return content
}

func (h *house) fault(reference, on, name string, times int, more ...func(map[string]any)) {
	f := map[string]any{"reference": reference, "on": on, "fault": name, "times": times}
	for _, m := range more {
		m(f)
	}
	h.control("POST", "/control/faults", f)
}

func delayMS(ms int) func(map[string]any) { return func(f map[string]any) { f["delayMs"] = ms } }

// list reads a list of the provider's control API.
func (h *house) list(path string) (list []map[string]any) {
	require.NoError(h.t, json.Unmarshal(h.control("GET", path, nil), &list))
	return list
}

// charges is what the provider really executed for a reference.
func (h *house) charges(reference string) []map[string]any {
	return h.list("/control/charges?reference=" + url.QueryEscape(reference))
}

// posts is how many charge requests the provider received for a reference.
func (h *house) posts(reference string) int {
	n := 0
	for _, r := range h.list("/control/requests?reference=" + url.QueryEscape(reference)) {
		if r["method"] == "POST" {
			n++
		}
	}
	return n
}

// eventsOf lists a payment's event types in order, and checks that their sequence has no gap.
func (h *house) eventsOf(paymentID string) []string {
	rows, err := h.pool.Query(h.t.Context(), `SELECT event_type, sequence FROM outbox_events WHERE aggregate_id = $1 ORDER BY sequence`, paymentID)
	require.NoError(h.t, err)
	defer rows.Close()
	var types []string
	for rows.Next() {
		var eventType string
		var sequence int
		require.NoError(h.t, rows.Scan(&eventType, &sequence))
		types = append(types, eventType)
		require.Equal(h.t, len(types), sequence, "events of %s have a gap", paymentID)
	}
	require.NoError(h.t, rows.Err())
	return types
}

// count runs a query that returns one number.
func (h *house) count(query string, args ...any) (n int) {
	require.NoError(h.t, h.pool.QueryRow(h.t.Context(), query, args...).Scan(&n))
	return n
}

// audit checks what must hold for all payments, whatever happened to them.
func (h *house) audit() {
	h.t.Helper()
	for what, query := range map[string]string{
		"a history that does not lead to the payment's state": `SELECT count(*) FROM payments p LEFT JOIN payment_moves m
			ON (m.tenant_id, m.payment_id, m.version) = (p.tenant_id, p.payment_id, p.version) WHERE p.version > 1 AND m.to_state IS DISTINCT FROM p.state`,
		"a history with a gap":                      `SELECT count(*) FROM payments p WHERE version <> (SELECT 1 + count(*) + count(via_state) FROM payment_moves m WHERE m.payment_id = p.payment_id)`,
		"a key in progress that recovery misses":    `SELECT count(*) FROM idempotency_requests k LEFT JOIN idempotency_in_progress i USING (tenant_id, operation_name, idempotency_key) WHERE k.status = 'IN_PROGRESS' AND i.tenant_id IS NULL`,
		"a key among those in progress that is not": `SELECT count(*) FROM idempotency_in_progress i LEFT JOIN idempotency_requests k USING (tenant_id, operation_name, idempotency_key) WHERE k.status IS DISTINCT FROM 'IN_PROGRESS'`,
		"a transition without its event":            `SELECT count(*) FROM payments p WHERE events <> (SELECT count(*) FROM outbox_events e WHERE e.aggregate_id = p.payment_id)`,
		"a key without its payment":                 `SELECT count(*) FROM idempotency_requests k LEFT JOIN payments p ON p.payment_id = k.resource_id WHERE p.payment_id IS NULL`,
		"a payment without its key":                 `SELECT count(*) FROM payments p LEFT JOIN idempotency_requests k ON k.resource_id = p.payment_id WHERE k.resource_id IS NULL`,
		"a finished payment with unfinished key":    `SELECT count(*) FROM payments p JOIN idempotency_requests k ON k.resource_id = p.payment_id WHERE (p.state IN ('COMPLETED', 'DECLINED', 'CANCELED')) <> (k.status IN ('COMPLETED', 'FAILED_REPLAYABLE'))`,
		"a settled payment without PaymentSettled":  `SELECT count(*) FROM payments p WHERE state = 'COMPLETED' AND 1 <> (SELECT count(*) FROM outbox_events e WHERE e.aggregate_id = p.payment_id AND event_type IN ('PaymentSettled', 'RefundSettled'))`,
	} {
		require.Zero(h.t, h.count(query), what)
	}
	charged := map[string]int{}
	for _, c := range append(h.list("/control/charges"), h.list("/control/refunds")...) {
		id, _ := c["paymentId"].(string)
		charged[id]++
		require.Equal(h.t, 1, charged[id], "payment %s was charged twice", id)
		minor, _ := c["amountMinor"].(float64)
		require.Equal(h.t, h.count(`SELECT amount_minor FROM payments WHERE payment_id = $1`, id), int(minor), "payment %s was charged another amount", id)
	}
	rows, err := h.pool.Query(h.t.Context(), `SELECT payment_id FROM payments WHERE state = 'COMPLETED'`)
	require.NoError(h.t, err)
	defer rows.Close()
	for rows.Next() {
		var id string
		require.NoError(h.t, rows.Scan(&id))
		require.Equal(h.t, 1, charged[id], "payment %s is settled but was not charged", id)
	}
	require.NoError(h.t, rows.Err())
}
