package api

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/accounts"
	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/payments"
	"github.com/paymentsd/paymentsd/internal/pgtest"
	"github.com/paymentsd/paymentsd/internal/provider"
	"github.com/paymentsd/paymentsd/internal/provider/fake"
	"github.com/paymentsd/paymentsd/internal/tenants"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// b0 is the body that the field cases start from.
const b0 = `{"accountId":"acc_1","amount":"10.00","currency":"EUR","merchantReference":"inv-1"}`

// noPayment is an id that no payment has.
const noPayment = "pay_00000000000000000000000000000000"

// bench is the real thing: a database, a provider behind HTTP, and the API behind HTTP. Everything that is said to it is
// said over a connection, and every answer that comes back is held against openapi.yaml.
type bench struct {
	t        *testing.T
	pool     *pgxpool.Pool
	tenants  *tenants.Directory
	keys     *idempotency.Keys
	service  *payments.Service
	bank     *fake.Server
	hook     *hook // nil without webhooks
	handler  http.Handler
	url      string
	logs     *logBuffer
	settings settings
}

// settings are what a test may want otherwise.
type settings struct {
	lease, providerTimeout, readTimeout time.Duration
	render                              payments.Render
	limits                              Limits
	background                          int                     // payments driven in the background at once
	rule                                string                  // by which fingerprints are made; "" is the newest
	through                             func(url string) string // the way from the API to the database
	webhooks                            bool                    // the provider tells the API about every order
}

func setup(t *testing.T, tune ...func(*settings)) *bench {
	t.Helper()
	b := &bench{t: t, pool: pgtest.Pool(t), logs: &logBuffer{}, settings: settings{
		lease: 30 * time.Second, providerTimeout: 5 * time.Second, readTimeout: 15 * time.Second, render: Answer,
	}}
	for _, change := range tune {
		change(&b.settings)
	}
	if b.settings.webhooks {
		b.hook = openHook(b)
	}
	b.openBank()
	require.NoError(t, tenants.NewDirectory(b.pool).Demo(t.Context()))
	b.open()
	t.Cleanup(b.audit) // the first of the clean-ups to run: everything is still there
	return b
}

// beside is another instance of the API, perhaps of another build, on the same database and provider.
func (b *bench) beside(tune ...func(*settings)) *bench {
	other := *b
	for _, change := range tune {
		change(&other.settings)
	}
	other.open()
	return &other
}

// open builds the service and serves it.
func (b *bench) open() {
	t := b.t
	db, log := b.pool, slog.New(slog.NewJSONHandler(b.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if b.settings.through != nil {
		db = pgtest.Open(t, b.settings.through(b.pool.Config().ConnString()))
	}
	client, err := provider.NewClient("http://"+b.bank.Addr(), b.settings.providerTimeout)
	require.NoError(t, err)
	b.tenants = tenants.NewDirectory(db)
	b.keys = idempotency.NewKeys(db, b.settings.lease)
	b.service = payments.New(db, b.keys, client, b.settings.render, payments.Config{
		KeyWindow: 24 * time.Hour, ProviderKeyWindow: 24 * time.Hour, RecoveryPause: time.Second, FingerprintRule: b.settings.rule,
		BackgroundMax: b.settings.background,
	}, log)
	webhooks, err := provider.NewWebhooks(webhookSecret)
	require.NoError(t, err)
	b.handler = NewHandler(Parts{Payments: b.service, Accounts: accounts.NewRegister(db), Tenants: b.tenants, Webhooks: webhooks, Ledger: db,
		Ready: db.Ping, Limits: b.settings.limits, Log: log})
	b.serve()
}

func (b *bench) openBank() {
	cfg := fake.Config{Addr: "127.0.0.1:0", Dir: b.t.TempDir(), WebhookSecret: webhookSecret}
	if b.hook != nil {
		cfg.WebhookURL = b.hook.url
	}
	bank, err := fake.Open(cfg)
	require.NoError(b.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- bank.Serve(ctx) }()
	b.bank = bank
	b.t.Cleanup(func() {
		cancel()
		<-done
		_ = bank.Close()
	})
}

// headerBytesMax lets a key of 60,000 characters reach the code that refuses it.
const headerBytesMax = 64 << 10

func (b *bench) serve() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b.t, err)
	server := &http.Server{Handler: b.handler, MaxHeaderBytes: headerBytesMax, ReadTimeout: b.settings.readTimeout}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l) // ends with the Close below
	}()
	b.url = "http://" + l.Addr().String()
	b.t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
}

// answer is a whole answer, read to its end.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) replayed() bool { return a.header.Get("Idempotent-Replayed") == "true" }

func (a answer) problem(t *testing.T) (p Problem) {
	t.Helper()
	require.NoError(t, json.Unmarshal(a.body, &p, json.RejectUnknownMembers(true)), "%s", a.body)
	return p
}

func (a answer) payment(t *testing.T) (p payment20260501) {
	t.Helper()
	require.NoError(t, json.Unmarshal(a.body, &p, json.RejectUnknownMembers(true)), "%s", a.body)
	return p
}

// change makes a request different from the ordinary one.
type change func(*http.Request)

func with(name, value string) change  { return func(r *http.Request) { r.Header.Add(name, value) } }
func without(name string) change      { return func(r *http.Request) { r.Header.Del(name) } }
func ofTenant(tenantID string) change { return bearing("sk_demo_" + tenantID) }
func bearing(secret string) change {
	return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+secret) }
}

// streaming is a body that is sent in chunks, without a length in front.
func streaming(body io.Reader) change {
	return func(r *http.Request) { r.Body, r.GetBody, r.ContentLength = io.NopCloser(body), nil, -1 }
}

// request makes an ordinary request of tenant acme, and then what the changes make of it.
func (b *bench) request(method, path, body string, changes ...change) *http.Request {
	b.t.Helper()
	r, err := http.NewRequest(method, b.url+path, strings.NewReader(body))
	require.NoError(b.t, err)
	ofTenant("acme")(r)
	for _, c := range changes {
		c(r)
	}
	return r
}

func (b *bench) paying(key, body string, changes ...change) *http.Request {
	b.t.Helper()
	ordinary := []change{with("Idempotency-Key", key), with("Content-Type", "application/json")}
	return b.request("POST", "/payments", body, append(ordinary, changes...)...)
}

// pay is POST /payments, with its answer checked against the contract.
func (b *bench) pay(key, body string, changes ...change) answer {
	b.t.Helper()
	return b.do(b.paying(key, body, changes...))
}

func (b *bench) get(path string, changes ...change) answer {
	b.t.Helper()
	return b.do(b.request("GET", path, "", changes...))
}

func (b *bench) do(r *http.Request) answer {
	b.t.Helper()
	return b.start(r)()
}

// start sends a request and lets the test go on. What it returns waits for the answer and checks it.
func (b *bench) start(r *http.Request) func() answer {
	b.t.Helper()
	var sent bytes.Buffer
	if r.GetBody != nil {
		body, err := r.GetBody()
		require.NoError(b.t, err)
		_, err = sent.ReadFrom(body)
		require.NoError(b.t, err)
	}
	var a answer
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		a, err = exchange(r)
	}()
	return func() answer {
		b.t.Helper()
		<-done
		require.NoError(b.t, err)
		checkContract(b.t, r, sent.String(), a)
		return a
	}
}

// client follows no redirects, unpacks nothing and repeats nothing.
var client = &http.Client{Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}, Timeout: time.Minute}

func exchange(r *http.Request) (answer, error) {
	response, err := client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, body}, err
}

// logBuffer keeps what the service logged.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// bodyFor is b0 with another reference.
func bodyFor(reference string) string { return b0With("merchantReference", reference) }

// b0With is b0 with one member changed, or added, to a string.
func b0With(member, value string) string {
	encoded, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return b0WithRaw(member, string(encoded))
}

// b0WithRaw is b0 with one member changed, or added, to any JSON text, well-formed or not; "" leaves the member out.
func b0WithRaw(member, value string) string {
	raw := map[string]string{"accountId": `"acc_1"`, "amount": `"10.00"`, "currency": `"EUR"`, "merchantReference": `"inv-1"`}
	raw[member] = value
	var parts []string
	for _, name := range []string{"accountId", "amount", "currency", "merchantReference", "channel", "chanel"} {
		if v := raw[name]; v != "" {
			parts = append(parts, fmt.Sprintf("%q:%s", name, v))
		}
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func paymentBody(reference, amount, currency string) string {
	return fmt.Sprintf(`{"accountId":"acc_1","amount":%q,"currency":%q,"merchantReference":%q}`, amount, currency, reference)
}
