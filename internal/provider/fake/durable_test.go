package fake_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/provider/fake"
)

func TestRestartKeepsChargesKeysAndBalances(t *testing.T) {
	dir := t.TempDir()
	b, stop := start(t, fake.Config{Dir: dir})
	b.control(http.MethodPut, "/control/accounts/acc_1", `{"balances":{"EUR":"25.00"}}`)
	b.script(`{"reference":"inv-2","on":"charge","fault":"error_forever"}`)
	b.script(`{"reference":"inv-3","on":"charge","fault":"decline","code":"LOST_CARD"}`)
	first := b.post("k1", request("inv-1"))
	b.post("k2", request("inv-2"))
	b.post("k3", request("inv-3"))
	executed, found := b.executed(""), b.lookup("k1").body
	stop()

	b = setup(t, fake.Config{Dir: dir})

	require.Equal(t, executed, b.executed(""))
	require.Equal(t, found, b.lookup("k1").body)
	require.Equal(t, strings.Replace(first.body, `"replayed":false`, `"replayed":true`, 1), b.post("k1", request("inv-1")).body)
	require.Equal(t, 500, b.post("k2", request("inv-2")).status)
	require.Equal(t, "LOST_CARD", b.post("k3", request("inv-3")).members(t)["declineCode"])
	require.Equal(t, 422, b.post("k1", requestOf("inv-1", 999)).status)
	require.Equal(t, 402, b.post("k4", request("inv-4")).status, "5.00 are left")
	require.Equal(t, 201, b.post("k5", requestOf("inv-5", 500)).status)
	require.Len(t, b.executed(""), 3)
	require.Len(t, b.received("inv-1"), 3, "one lookup by a key of before the restart among them")
}

func TestRestartKeepsThatKeysWereForgotten(t *testing.T) {
	dir := t.TempDir()
	b, stop := start(t, fake.Config{Dir: dir})
	b.post("k1", request("inv-1"))
	b.control(http.MethodPost, "/control/forget-keys", "")
	b.post("k2", request("inv-2"))
	stop()

	b = setup(t, fake.Config{Dir: dir})
	require.Len(t, b.executed(""), 2)
	require.Equal(t, true, b.post("k2", b.request("inv-2")).members(t)["replayed"])
	require.Equal(t, false, b.post("k1", b.request("inv-1")).members(t)["replayed"])
}

// TestKillKeepsWhatWasAnswered kills a real process while charges run.
func TestKillKeepsWhatWasAnswered(t *testing.T) {
	dir := t.TempDir()
	b, kill := startProcess(t, dir)
	answered := make(chan int)
	go func() {
		defer close(answered)
		for i := 0; ; i++ {
			if b.post(fmt.Sprintf("k%d", i), request(fmt.Sprintf("inv-%d", i))).status != 201 {
				return
			}
			answered <- i
		}
	}()
	last := -1
	for last = range answered {
		if last == 100 {
			go kill()
		}
	}
	require.GreaterOrEqual(t, last, 100)
	kill() // its journal is free once it is dead, not once it is silent

	b, _ = startProcess(t, dir)
	for i := range last + 1 {
		key, reference := fmt.Sprintf("k%d", i), fmt.Sprintf("inv-%d", i)
		require.Len(t, b.executed(reference), 1)
		require.Equal(t, true, b.post(key, request(reference)).members(t)["replayed"])
	}
	require.LessOrEqual(t, len(b.executed("")), last+2, "one may have been executed and not answered")
}

func TestTornLastLineIsCutOff(t *testing.T) {
	whole := func(dir string) []byte {
		journal, err := os.ReadFile(filepath.Join(dir, "journal.jsonl"))
		require.NoError(t, err)
		return journal
	}
	dir := t.TempDir()
	b, stop := start(t, fake.Config{Dir: dir})
	b.post("k1", request("inv-1"))
	before := whole(dir)
	b.post("k2", request("inv-2"))
	stop()
	after := whole(dir)

	for _, length := range []int{len(before) + 1, (len(before) + len(after)) / 2, len(after) - 1} {
		torn := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(torn, "journal.jsonl"), after[:length], 0o600))
		b, stop := start(t, fake.Config{Dir: torn})
		require.Equal(t, before, whole(torn))
		require.Len(t, b.executed(""), 1)
		require.Equal(t, false, b.post("k2", request("inv-2")).members(t)["replayed"], "nobody was told about it")
		stop()
		b, stop = start(t, fake.Config{Dir: torn})
		require.Len(t, b.executed(""), 2)
		stop()
	}
}

func TestDamagedJournalIsNotGuessedAt(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "journal.jsonl"), []byte("{\"forgetKeys\":true}\nhello\n{\"forgetKeys\":true}\n"), 0o600))
	_, err := fake.Open(fake.Config{Dir: dir})
	require.ErrorContains(t, err, "line 2 is damaged")
}

func TestOneProcessAtATimeUsesAJournal(t *testing.T) {
	dir := t.TempDir()
	first, err := fake.Open(fake.Config{Dir: dir})
	require.NoError(t, err)
	_, err = fake.Open(fake.Config{Dir: dir})
	require.ErrorContains(t, err, "in use by another provider")
	require.NoError(t, first.Close())
	second, err := fake.Open(fake.Config{Dir: dir})
	require.NoError(t, err)
	require.NoError(t, second.Close())
}

func TestDownRefusesConnectionsAndComesBack(t *testing.T) {
	dir := t.TempDir()
	b := setup(t, fake.Config{Dir: dir})
	require.Equal(t, 201, b.post("k1", request("inv-1")).status)
	b.script(`{"reference":"inv-2","on":"charge","fault":"delay","delayMs":200}`)
	cut := make(chan answer)
	go func() { cut <- b.post("k2", request("inv-2")) }()
	require.Eventually(t, func() bool { return len(b.received("inv-2")) == 1 }, patience, time.Millisecond)

	for range 3 {
		require.Equal(t, http.StatusAccepted, b.control(http.MethodPost, "/control/down", `{"forMs":300}`).status)
		begun := time.Now()
		require.ErrorIs(t, b.post("k3", request("inv-3")).err, syscall.ECONNREFUSED, "from the moment it is answered")
		require.Eventually(t, func() bool { return b.post("k3", request("inv-3")).status == 201 }, patience, 5*time.Millisecond)
		require.GreaterOrEqual(t, time.Since(begun), 250*time.Millisecond)
	}

	require.Error(t, (<-cut).err)
	require.Len(t, b.executed("inv-1"), 1)
	require.Len(t, b.executed("inv-2"), 1, "it was received in full before the cut")
	require.Len(t, b.executed("inv-3"), 1)
}

func TestServeEndsWithItsContext(t *testing.T) {
	server, err := fake.Open(fake.Config{Addr: "127.0.0.1:0", Dir: t.TempDir()})
	require.NoError(t, err)
	for range 2 { // also while down
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- server.Serve(ctx) }()
		b := bench{t, "http://" + server.Addr(), "charge"}
		require.Eventually(t, func() bool { return b.lookup("k").status == 200 }, patience, time.Millisecond)
		b.control(http.MethodPost, "/control/down", `{"forMs":600000}`)
		cancel()
		require.NoError(t, <-done)
	}
	require.NoError(t, server.Close())
	require.NoError(t, server.Close(), "twice is no harm")
	require.NoError(t, server.Serve(t.Context()), "nothing to serve")
}

func TestTakenPortIsReported(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	dir := t.TempDir()
	_, err = fake.Open(fake.Config{Addr: listener.Addr().String(), Dir: dir})
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	server, err := fake.Open(fake.Config{Dir: dir})
	require.NoError(t, err, "the journal was let go")
	require.NoError(t, server.Close())
}

func TestCloseKillsDelayedRequests(t *testing.T) {
	dir := t.TempDir()
	b, stop := start(t, fake.Config{Dir: dir})
	b.script(`{"reference":"*","on":"charge","fault":"delay","delayMs":60000}`)
	cut := make(chan answer)
	go func() { cut <- b.post("k1", request("inv-1")) }()
	require.Eventually(t, func() bool { return len(b.received("inv-1")) == 1 }, patience, time.Millisecond)
	stop()
	require.Error(t, (<-cut).err)
	require.Empty(t, setup(t, fake.Config{Dir: dir}).executed(""))
}
