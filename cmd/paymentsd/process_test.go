package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/pgtest"
	"github.com/paymentsd/paymentsd/internal/tenants"
)

// These tests run the real program as real processes: this test binary, told by its environment to be paymentsd.
const beProgram = "PAYMENTSD_TEST_BE_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(beProgram) != "" {
		main()
		os.Exit(0)
	}
	if where := os.Getenv(beBroker); where != "" {
		runBroker(where)
	}
	pgtest.Main(m)
}

// process is one running role.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  lockedBuffer
	done chan struct{}
}

// lockedBuffer collects what a process prints while a test may already read it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// start runs a role with these settings on top of an environment that has none.
func start(t *testing.T, settings map[string]string, args ...string) *process {
	p := &process{t: t, cmd: exec.Command(os.Args[0], args...), done: make(chan struct{})}
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "PAYMENTSD_") && !strings.HasPrefix(e, "DATABASE_URL=") {
			p.cmd.Env = append(p.cmd.Env, e)
		}
	}
	if settings[beBroker] == "" {
		p.cmd.Env = append(p.cmd.Env, beProgram+"=1")
	}
	for name, value := range settings {
		p.cmd.Env = append(p.cmd.Env, name+"="+value)
	}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	require.NoError(t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.signal(syscall.SIGCONT)
		p.kill()
		if t.Failed() {
			t.Logf("%v printed:\n%s", args, p.out.String())
		}
	})
	return p
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// kill is kill -9.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// end is SIGTERM; it returns when the process is gone.
func (p *process) end() {
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(20 * time.Second):
		p.t.Fatal("the process does not end")
	}
}

// freeAddr is an address that nobody listens on. Its port is below those that systems give to outgoing connections, one of
// which could otherwise take it before the process that it is meant for.
func freeAddr(t *testing.T) string {
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", 20_000+rand.IntN(12_000))
		if l, err := net.Listen("tcp", addr); err == nil {
			require.NoError(t, l.Close())
			return addr
		}
	}
	t.Fatal("no port is free")
	return ""
}

// town is a database and the addresses of everything that runs on it.
type town struct {
	t        *testing.T
	pool     *pgxpool.Pool
	settings map[string]string
	bank     string
}

// newTown prepares a database and starts the fake provider on it, with times short enough to wait for.
func newTown(t *testing.T) *town {
	pool := pgtest.Pool(t)
	require.NoError(t, tenants.NewDirectory(pool).Demo(t.Context()))
	v := &town{t: t, pool: pool, bank: freeAddr(t)}
	v.settings = map[string]string{
		"DATABASE_URL": pool.Config().ConnString(), "PAYMENTSD_PROVIDER_ADDR": v.bank, "PAYMENTSD_DATA_DIR": t.TempDir(),
		"PAYMENTSD_LEASE": "1700ms", "PAYMENTSD_PROVIDER_TIMEOUT": "1s", "PAYMENTSD_RECOVERY_INTERVAL": "100ms",
		"PAYMENTSD_PROVIDER_LOOKUP_LAG": "200ms", "PAYMENTSD_DB_MAX_CONNS": "4",
	}
	v.role("provider")
	v.eventually("the provider", func() bool { return reachable("http://" + v.bank + "/control/charges") })
	return v
}

// role starts one more process of a role, on addresses of its own.
func (v *town) role(name string, more ...string) *process {
	settings := map[string]string{"PAYMENTSD_ADMIN_ADDR": freeAddr(v.t)}
	for k, value := range v.settings {
		settings[k] = value
	}
	for _, m := range more {
		k, value, _ := strings.Cut(m, "=")
		settings[k] = value
	}
	return start(v.t, settings, strings.Fields(name)...)
}

// api starts an API process, waits until it is ready, and returns its address.
func (v *town) api(more ...string) (*process, string) {
	addr := freeAddr(v.t)
	p := v.role("api", append(more, "PAYMENTSD_HTTP_ADDR="+addr)...)
	v.eventually("the API", func() bool { return reachable("http://" + addr + "/readyz") })
	return p, addr
}

func reachable(url string) bool {
	r, err := http.Get(url)
	if err != nil {
		return false
	}
	r.Body.Close()
	return r.StatusCode == http.StatusOK
}

func (v *town) eventually(what string, ok func() bool) {
	v.t.Helper()
	require.Eventually(v.t, ok, 20*time.Second, 10*time.Millisecond, what)
}

type answer struct {
	status int
	header http.Header
	body   string
	err    error
}

func (a answer) String() string { return fmt.Sprintf("%d %s %v", a.status, a.body, a.err) }

func bodyFor(reference string) string {
	return fmt.Sprintf(`{"accountId":"acc_1","amount":"10.00","currency":"EUR","merchantReference":%q}`, reference)
}

func pay(ctx context.Context, addr, key, body string) (a answer) {
	r, err := http.NewRequestWithContext(ctx, "POST", "http://"+addr+"/payments", strings.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	r.Header.Set("Authorization", "Bearer sk_demo_acme")
	r.Header.Set("Idempotency-Key", key)
	r.Header.Set("Content-Type", "application/json")
	return send(r)
}

func send(r *http.Request) (a answer) {
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return answer{err: err}
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, string(content), err}
}

// settled pays until there is an answer, as a client that retries well does, and checks that it stays the same.
func (v *town) settled(addr, key, reference string) answer {
	var a answer
	v.eventually("the answer to "+key, func() bool {
		a = pay(v.t.Context(), addr, key, bodyFor(reference))
		require.True(v.t, a.err != nil || a.status == 201 || a.status == 202 || a.status == 409 || a.status == 503, "%v", a)
		return a.status == 201
	})
	again := pay(v.t.Context(), addr, key, bodyFor(reference))
	require.Equal(v.t, a.body, again.body)
	require.Equal(v.t, "true", again.header.Get("Idempotent-Replayed"))
	return a
}

func (v *town) control(method, path, body string) string {
	r, err := http.NewRequest(method, "http://"+v.bank+"/control/"+path, strings.NewReader(body))
	require.NoError(v.t, err)
	a := send(r)
	require.NoError(v.t, a.err)
	require.Less(v.t, a.status, 300, a.body)
	return a.body
}

func (v *town) fault(reference, fault string, delayMS int) {
	v.control("POST", "faults", fmt.Sprintf(`{"reference":%q,"on":"charge","fault":%q,"times":1,"delayMs":%d}`, reference, fault, delayMS))
}

func (v *town) listed(path string) []map[string]any {
	var list []map[string]any
	require.NoError(v.t, json.Unmarshal([]byte(v.control("GET", path, "")), &list))
	return list
}

func (v *town) charges(reference string) int { return len(v.listed("charges?reference=" + reference)) }

func (v *town) requests(reference string) int {
	return len(v.listed("requests?reference=" + reference))
}

func (v *town) count(query string, args ...any) (n int) {
	require.NoError(v.t, v.pool.QueryRow(v.t.Context(), query, args...).Scan(&n))
	return n
}

// audit checks what must hold whatever died: nothing stuck, one charge a payment, the right events.
func (v *town) audit(payments int) {
	v.t.Helper()
	require.Equal(v.t, payments, v.count(`SELECT count(*) FROM payments WHERE state = 'COMPLETED'`))
	require.Zero(v.t, v.count(`SELECT count(*) FROM payments WHERE state <> 'COMPLETED'`))
	require.Zero(v.t, v.count(`SELECT count(*) FROM idempotency_requests WHERE status <> 'COMPLETED'`))
	require.Equal(v.t, payments, v.count(`SELECT count(*) FROM outbox_events WHERE event_type = 'PaymentCreated'`))
	require.Equal(v.t, payments, v.count(`SELECT count(*) FROM outbox_events WHERE event_type = 'PaymentSettled'`))
	charged := map[any]int{}
	for _, c := range v.listed("charges") {
		charged[c["paymentId"]]++
	}
	require.Len(v.t, charged, payments)
	for id, n := range charged {
		require.Equal(v.t, 1, n, id)
	}
}

func dataDir(t *testing.T) string { return filepath.Join(t.TempDir(), "data") }
