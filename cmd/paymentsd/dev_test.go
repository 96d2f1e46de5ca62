package main

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// dev starts "paymentsd dev" on a data directory, with a private database unless url names one.
func dev(t *testing.T, dir, url string) *town {
	v := &town{t: t, bank: freeAddr(t)}
	v.settings = map[string]string{
		"PAYMENTSD_DATA_DIR": dir, "PAYMENTSD_HTTP_ADDR": freeAddr(t), "PAYMENTSD_PROVIDER_ADDR": v.bank, "PAYMENTSD_ADMIN_ADDR": freeAddr(t),
		"PAYMENTSD_LEASE": "1700ms", "PAYMENTSD_PROVIDER_TIMEOUT": "1s", "PAYMENTSD_RECOVERY_INTERVAL": "100ms",
		"PAYMENTSD_PROVIDER_LOOKUP_LAG": "200ms", "DATABASE_URL": url,
	}
	return v
}

func (v *town) addr() string { return v.settings["PAYMENTSD_HTTP_ADDR"] }

func (v *town) startDev() *process {
	p := start(v.t, v.settings, "dev")
	require.Eventually(v.t, func() bool { return reachable("http://" + v.addr() + "/readyz") }, time.Minute, 20*time.Millisecond, "%s", &p.out)
	return p
}

// The tour of README.md: what it says is what happens.
func TestTheTourOfTheReadme(t *testing.T) {
	v := newTown(t)
	v.role("recover")
	_, addr := v.api()
	ctx := t.Context()

	first := pay(ctx, addr, "order-1", bodyFor("invoice-1"))
	require.Equal(t, 201, first.status, first)
	require.Contains(t, first.body, `"status":"SETTLED"`)
	location := first.header.Get("Location")
	require.NotEmpty(t, location)

	again := pay(ctx, addr, "order-1", `{"currency":"eur","amount":"10","accountId":"acc_1","merchantReference":"invoice-1"}`)
	require.Equal(t, 201, again.status)
	require.Equal(t, first.body, again.body)
	require.Equal(t, "true", again.header.Get("Idempotent-Replayed"))
	require.Equal(t, location, again.header.Get("Location"))

	changed := pay(ctx, addr, "order-1", strings.Replace(bodyFor("invoice-1"), "10.00", "100.00", 1))
	require.Equal(t, 409, changed.status)
	require.Contains(t, changed.body, "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST")
	require.Equal(t, 1, v.charges("invoice-1"))

	stranger, err := http.NewRequest("POST", "http://"+addr+"/payments", strings.NewReader(bodyFor("invoice-1")))
	require.NoError(t, err)
	require.Equal(t, 401, send(stranger).status)

	v.control("PUT", "accounts/acc_2", `{"balances":{"EUR":"5.00"}}`)
	poor := strings.Replace(bodyFor("invoice-2"), "acc_1", "acc_2", 1)
	declined, declinedAgain := pay(ctx, addr, "order-2", poor), pay(ctx, addr, "order-2", poor)
	require.Equal(t, 402, declined.status)
	require.Contains(t, declined.body, `"errorCode":"INSUFFICIENT_FUNDS"`)
	require.Equal(t, declined.body, declinedAgain.body)
	require.Equal(t, "true", declinedAgain.header.Get("Idempotent-Replayed"))

	v.fault("invoice-3", "execute_then_drop", 0)
	lost := pay(ctx, addr, "order-3", bodyFor("invoice-3"))
	require.Equal(t, 202, lost.status)
	require.Contains(t, lost.body, `"status":"PENDING"`)
	require.NotEmpty(t, lost.header.Get("Retry-After"))
	v.settled(addr, "order-3", "invoice-3")
	require.Equal(t, 1, v.charges("invoice-3"))

	get, err := http.NewRequest("GET", "http://"+addr+location+"/history", nil)
	require.NoError(t, err)
	get.Header.Set("Authorization", "Bearer sk_demo_acme")
	history := send(get)
	require.Equal(t, 200, history.status)
	for _, state := range []string{"LOCAL_PAYMENT_CREATED", "PROVIDER_REQUEST_SENT", "PROVIDER_CONFIRMED", "COMPLETED"} {
		require.Contains(t, history.body, state)
	}
}

// Everything in one process on its own database: killed while the provider is thinking, started again, one charge.
func TestDevSurvivesKill9(t *testing.T) {
	v := dev(t, dataDir(t), "")
	p := v.startDev()
	v.eventually("the greeting", func() bool { return strings.Contains(p.out.String(), "curl -i http://"+v.addr()+"/payments") })
	done := v.settled(v.addr(), "before", "inv-before")
	require.FileExists(t, filepath.Join(v.settings["PAYMENTSD_DATA_DIR"], "database-url"))
	v.fault("inv-1", "delay", 600)
	go pay(context.Background(), v.addr(), "k", bodyFor("inv-1"))
	v.eventually("the call", func() bool { return v.requests("inv-1") == 1 })
	p.kill()

	p = v.startDev()
	v.settled(v.addr(), "k", "inv-1")
	require.Equal(t, 1, v.charges("inv-1"))
	require.Equal(t, done.body, v.settled(v.addr(), "before", "inv-before").body, "the answer survived")
	require.Equal(t, 1, v.charges("inv-before"))
	p.end()
	require.False(t, strings.Contains(p.out.String(), "level=ERROR"), p.out.String())
}

// The curl that the greeting prints works as it stands.
func TestGreetingPrintsACurlThatWorks(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("no curl here")
	}
	v := newTown(t)
	d := dev(t, dataDir(t), v.settings["DATABASE_URL"])
	p := d.startDev()
	command := regexp.MustCompile(`(?m)^curl .*$`)
	d.eventually("the greeting", func() bool { return command.MatchString(p.out.String()) })
	out, err := exec.Command("sh", "-c", command.FindString(p.out.String())).Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "201 Created")
	require.Contains(t, string(out), `"status":"SETTLED"`)
}

// refused runs a role that must not start, and returns what it says.
func refused(t *testing.T, settings map[string]string, args ...string) string {
	p := start(t, settings, args...)
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		t.Fatalf("%v %v started", args, settings)
	}
	require.Equal(t, 1, p.cmd.ProcessState.ExitCode(), &p.out)
	return p.out.String()
}

func TestRefusalsAreOneSentenceThatNamesTheVariable(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, c := range []struct{ variable, value, says string }{
		{"PAYMENTSD_LEASE", "1200ms", "PAYMENTSD_LEASE is 1.2s"},
		{"PAYMENTSD_LEASE", "soon", "PAYMENTSD_LEASE"},
		{"PAYMENTSD_DB_MAX_CONNS", "0", "PAYMENTSD_DB_MAX_CONNS is 0"},
		{"PAYMENTSD_DB_MAX_CONNS", "many", "PAYMENTSD_DB_MAX_CONNS"},
		{"PAYMENTSD_LOG_LEVEL", "loud", "PAYMENTSD_LOG_LEVEL"},
		{"PAYMENTSD_HTTP_ADDR", taken.Addr().String(), "is taken by another program"},
		{"PAYMENTSD_ADMIN_ADDR", "nowhere", "PAYMENTSD_ADMIN_ADDR"},
		{"PAYMENTSD_DATA_DIR", filepath.Join(file, "data"), "PAYMENTSD_DATA_DIR"},
		{"PAYMENTSD_PROVIDER_URL", "ftp://provider", "PAYMENTSD_PROVIDER_URL"},
		{"DATABASE_URL", "not a url", "DATABASE_URL"},
	} {
		v := dev(t, dataDir(t), "")
		v.settings[c.variable] = c.value
		said := refused(t, v.settings, "dev")
		require.Contains(t, said, c.says, "%s=%s", c.variable, c.value)
		require.NotContains(t, said, "goroutine")
		require.LessOrEqual(t, strings.Count(said, "\n"), 3, said)
	}
	require.Contains(t, refused(t, nil, "api"), "DATABASE_URL is not set")
}

func TestOperatorsCommands(t *testing.T) {
	v := newTown(t)
	run := func(args ...string) string {
		p := start(t, map[string]string{"DATABASE_URL": v.settings["DATABASE_URL"]}, args...)
		<-p.done
		require.Zero(t, p.cmd.ProcessState.ExitCode(), &p.out)
		return strings.TrimSpace(p.out.String())
	}
	run("tenant", "create", "initech")
	run("tenant", "account", "initech", "acc_9")
	secret := run("apikey", "issue", "initech", "first")
	require.Regexp(t, `^sk_[A-Za-z0-9_-]{43}$`, secret)
	require.Contains(t, run("apikey", "list", "initech"), "first")
	require.NotContains(t, run("apikey", "list", "initech"), secret)
	require.Contains(t, refused(t, map[string]string{"DATABASE_URL": v.settings["DATABASE_URL"]}, "apikey", "issue", "nobody", "x"), "no such tenant")

	_, addr := v.api()
	as := func(key string) int {
		r, err := http.NewRequest("POST", "http://"+addr+"/payments", strings.NewReader(strings.Replace(bodyFor("inv-1"), "acc_1", "acc_9", 1)))
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+secret)
		r.Header.Set("Idempotency-Key", key)
		r.Header.Set("Content-Type", "application/json")
		return send(r).status
	}
	require.Equal(t, 201, as("k"))
	run("apikey", "revoke", "initech", "first")
	v.eventually("the revocation", func() bool { return as("k") == 401 })
	secret = run("apikey", "issue", "initech", "second")
	require.Equal(t, 201, as("k"), "the tenant owns the key, not the credential")

	v.fault("inv-2", "drop_before_execute", 0)
	require.Equal(t, 202, pay(t.Context(), addr, "unknown", bodyFor("inv-2")).status)
	listed := run("unknowns")
	require.Contains(t, listed, "acme")
	require.Regexp(t, `pay_[0-9a-f]{32}`, listed)
	require.NotContains(t, listed, "inv-2", "references are not for lists")
}

func TestMetricsAndProfilesOnTheAdminAddress(t *testing.T) {
	v := newTown(t)
	admin := freeAddr(t)
	_, addr := v.api("PAYMENTSD_ADMIN_ADDR=" + admin)
	v.settled(addr, "sentinel-key", "sentinel-reference")
	pay(t.Context(), addr, "sentinel-key", bodyFor("another-reference"))
	get := func(path string) answer {
		r, err := http.NewRequest("GET", "http://"+admin+path, nil)
		require.NoError(t, err)
		return send(r)
	}
	metrics := get("/metrics").body
	for _, name := range []string{"idempotency_replay_count", "idempotency_conflict_different_request_count", "idempotency_in_progress_age_max",
		"idempotency_unknown_state_count", "outbox_unpublished_count", "payments_provider_outcome_count", "http_server_request_duration"} {
		require.Contains(t, metrics, name)
	}
	require.NotContains(t, metrics, "sentinel")
	require.Equal(t, 200, get("/debug/pprof/goroutine?debug=1").status)
	require.Equal(t, 200, get("/readyz").status)
}

// The clients in examples come through a lost answer with one charge.
func TestExampleClientsRetryWell(t *testing.T) {
	v := newTown(t)
	v.role("recover")
	_, addr := v.api()
	for name, command := range map[string]*exec.Cmd{
		"go":   exec.Command("go", "run", "../../examples/retryclient", "-url", "http://"+addr, "-key", "k-go", "-reference", "inv-go"),
		"curl": exec.Command("../../examples/pay.sh", "k-curl", "inv-curl", "10.00"),
	} {
		v.fault("inv-"+name, "execute_then_drop", 0)
		command.Env = append(os.Environ(), "PAYMENTSD_URL=http://"+addr)
		out, err := command.CombinedOutput()
		require.NoError(t, err, string(out))
		require.Contains(t, string(out), "201 ", name)
		require.Contains(t, string(out), "SETTLED", name)
		require.Equal(t, 1, v.charges("inv-"+name))
	}
}

// A database that hangs, rather than refuses, is told of in bounded time, and hurts nobody when it goes on.
func TestHangingDatabaseIsAnsweredInTime(t *testing.T) {
	v := dev(t, dataDir(t), "")
	v.startDev()
	v.settled(v.addr(), "before", "inv-before")
	postmaster := func(s syscall.Signal) {
		content, err := os.ReadFile(filepath.Join(v.settings["PAYMENTSD_DATA_DIR"], "postgres", "cluster", "postmaster.pid"))
		require.NoError(t, err)
		first, _, _ := strings.Cut(string(content), "\n")
		root, err := strconv.Atoi(first)
		require.NoError(t, err)
		children, _ := exec.Command("pgrep", "-P", strconv.Itoa(root)).Output()
		for _, pid := range append(strings.Fields(string(children)), strconv.Itoa(root)) {
			n, err := strconv.Atoi(pid)
			require.NoError(t, err)
			_ = syscall.Kill(n, s) // a backend may have ended meanwhile
		}
	}
	postmaster(syscall.SIGSTOP)
	began := time.Now()
	a := pay(t.Context(), v.addr(), "k", bodyFor("inv-1"))
	took := time.Since(began)
	postmaster(syscall.SIGCONT)
	require.NoError(t, a.err)
	require.Equal(t, 503, a.status, a)
	require.Contains(t, a.body, "SERVICE_UNAVAILABLE")
	require.Less(t, took, 25*time.Second)
	v.settled(v.addr(), "k", "inv-1")
	require.Equal(t, 1, v.charges("inv-1"))
}
