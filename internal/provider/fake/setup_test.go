package fake_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/provider/fake"
)

// dirVariable makes the test binary a fake provider of its own, which a test can kill.
const dirVariable = "FAKE_PROVIDER_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(dirVariable); dir != "" {
		serveUntilKilled(dir)
		return
	}
	os.Exit(m.Run())
}

func serveUntilKilled(dir string) {
	server, err := fake.Open(fake.Config{Addr: "127.0.0.1:0", Dir: dir})
	if err != nil {
		panic(err)
	}
	fmt.Println(server.Addr())
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := server.Serve(ctx); err != nil {
		panic(err)
	}
}

// startProcess gives a fake provider in a process of its own, and the way to kill -9 it, once.
func startProcess(t *testing.T, dir string) (b bench, kill func()) {
	t.Helper()
	process := exec.Command(os.Args[0])
	process.Env = append(os.Environ(), dirVariable+"="+dir)
	process.Stderr = os.Stderr
	stdout, err := process.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, process.Start())
	kill = sync.OnceFunc(func() { // whoever calls it as well waits for the death
		_ = process.Process.Kill()
		_ = process.Wait() // it was killed, and says so
	})
	t.Cleanup(kill)
	var addr string
	_, err = fmt.Fscanln(stdout, &addr)
	require.NoError(t, err)
	return bench{t, "http://" + addr, "charge"}, kill
}

// bench is a fake provider that is listening, and what the test orders there: charges, unless it says otherwise.
type bench struct {
	t    *testing.T
	base string
	kind string // charge or refund, as fault scripts say it
}

func setup(t *testing.T, cfg fake.Config) bench {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	b, stop := start(t, cfg)
	t.Cleanup(stop)
	return b
}

func start(t *testing.T, cfg fake.Config) (b bench, stop func()) {
	t.Helper()
	if cfg.Addr == "" {
		cfg.Addr = "127.0.0.1:0"
	}
	server, err := fake.Open(cfg)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- server.Serve(context.Background()) }()
	return bench{t, "http://" + server.Addr(), "charge"}, func() {
		require.NoError(t, server.Close())
		require.NoError(t, <-done)
	}
}

type answer struct {
	status int
	header http.Header
	body   string
	err    error // no answer, or only a part of one
}

// members is the answer as a JSON object.
func (a answer) members(t *testing.T) map[string]any {
	t.Helper()
	var m map[string]any
	require.NoError(t, json.Unmarshal([]byte(a.body), &m), a.body)
	return m
}

// A connection for each call: a test of one fault must not trip over the connection that the fault before it broke.
var transport = &http.Transport{DisableKeepAlives: true}

func (b bench) call(method, path, key, body string) answer {
	req, err := http.NewRequest(method, b.base+path, io.NopCloser(strings.NewReader(body))) // without GetBody: sent once
	require.NoError(b.t, err)
	req.ContentLength = int64(len(body))
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(text), err}
}

func (b bench) post(key, body string) answer {
	return b.call(http.MethodPost, "/v1/"+b.kind+"s", key, body)
}

func (b bench) lookup(key string) answer {
	return b.call(http.MethodGet, "/v1/"+b.kind+"s?idempotency_key="+key, "", "")
}

// control calls the control API, which has to agree.
func (b bench) control(method, path, body string) answer {
	b.t.Helper()
	a := b.call(method, path, "", body)
	require.NoError(b.t, a.err)
	require.Less(b.t, a.status, 300, a.body)
	return a
}

func (b bench) script(fault string) {
	b.t.Helper()
	b.control(http.MethodPost, "/control/faults", fault)
}

func (b bench) list(path string) []map[string]any {
	b.t.Helper()
	var found []map[string]any
	require.NoError(b.t, json.Unmarshal([]byte(b.control(http.MethodGet, path, "").body), &found))
	return found
}

func (b bench) executed(reference string) []map[string]any {
	b.t.Helper()
	return b.list("/control/" + b.kind + "s?reference=" + reference)
}

func (b bench) received(reference string) []map[string]any {
	b.t.Helper()
	return b.list("/control/requests?reference=" + reference)
}

// request is a charge of 10.00 EUR.
func request(reference string) string { return requestOf(reference, 1000) }

func requestOf(reference string, minor int64) string {
	return fmt.Sprintf(`{"account":"acc_1","amountMinor":%d,"currency":"EUR","reference":%q,"paymentId":"pay_%s"}`, minor, reference, reference)
}

// refundOf gives back a part of a charge.
func refundOf(chargeID, reference string, minor int64) string {
	return strings.TrimSuffix(requestOf(reference, minor), "}") + fmt.Sprintf(`,"chargeId":%q}`, chargeID)
}

// charged makes a charge and gives its id.
func (b bench) charged(key, body string) string {
	b.t.Helper()
	a := b.ordering("charge").post(key, body)
	require.Equal(b.t, http.StatusCreated, a.status, a.body)
	return a.members(b.t)["id"].(string)
}

// ordering is the same provider for orders of another kind.
func (b bench) ordering(kind string) bench { return bench{b.t, b.base, kind} }

// eachKind tests a promise that charges and refunds share. Refunds give back ch_000001, a charge that is there for that.
func eachKind(t *testing.T, cfg fake.Config, test func(t *testing.T, b bench)) {
	t.Run("charge", func(t *testing.T) { test(t, setup(t, cfg)) })
	t.Run("refund", func(t *testing.T) {
		b := setup(t, cfg).ordering("refund")
		require.Equal(t, "ch_000001", b.charged("paid", requestOf("paid", 1_000_00)))
		test(t, b)
	})
}

// request is an order of 10.00 EUR, of the bench's kind.
func (b bench) request(reference string) string { return b.requestOf(reference, 1000) }

func (b bench) requestOf(reference string, minor int64) string {
	if b.kind == "refund" {
		return refundOf("ch_000001", reference, minor)
	}
	return requestOf(reference, minor)
}

// spoil scripts a fault for an order, spoilLookup one for a lookup. The rest of the script are its other members.
func (b bench) spoil(reference, rest string) {
	b.t.Helper()
	b.script(fmt.Sprintf(`{"reference":%q,"on":%q,%s}`, reference, b.kind, rest))
}

func (b bench) spoilLookup(reference, rest string) {
	b.t.Helper()
	on := map[string]string{"charge": "lookup", "refund": "refund_lookup"}[b.kind]
	b.script(fmt.Sprintf(`{"reference":%q,"on":%q,%s}`, reference, on, rest))
}

const patience = 5 * time.Second
