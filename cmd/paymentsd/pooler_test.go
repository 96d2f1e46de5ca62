package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// pooled puts a pgbouncer in transaction mode, with few connections, between the services and their database.
func (c *chain) pooled() {
	program, err := exec.LookPath("pgbouncer")
	if err != nil && os.Getenv("CI") == "" {
		c.t.Skip("pgbouncer is not installed")
	}
	require.NoError(c.t, err)
	direct, err := url.Parse(c.settings["DATABASE_URL"])
	require.NoError(c.t, err)
	password, _ := direct.User.Password()
	addr := freeAddr(c.t)
	_, port, err := net.SplitHostPort(addr)
	require.NoError(c.t, err)
	dir, err := os.MkdirTemp("", "paymentsd-pgbouncer-") // t.TempDir is below a directory that only its owner may enter
	require.NoError(c.t, err)
	c.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(c.t, os.Chmod(dir, 0o755))
	ini := filepath.Join(dir, "pgbouncer.ini")
	require.NoError(c.t, os.WriteFile(ini, fmt.Appendf(nil, `[databases]
* = host=127.0.0.1 port=%s user=%s password=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %s
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
max_client_conn = 200
`, direct.Port(), direct.User.Username(), password, port), 0o644))
	args := []string{"-q", ini}
	if os.Geteuid() == 0 {
		args = append([]string{"-u", "nobody"}, args...) // it refuses to be root
	}
	p := exec.Command(program, args...)
	require.NoError(c.t, p.Start())
	c.t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
	})
	through := *direct
	through.Host = addr
	c.settings["DATABASE_URL"] = through.String()
	c.eventually("pgbouncer", func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

// Everything works through a pooler in transaction mode: no statement depends on what another one left in a session.
func TestF7_ThroughAPoolerInTransactionMode(t *testing.T) {
	c := prepareChain(t)
	c.pooled()
	c.settings["PAYMENTSD_DB_POOLER"] = "transaction"
	c.startLinks()
	_, one := c.api()
	_, two := c.api()
	addrs := []string{one, two}
	const payments = 300
	var all sync.WaitGroup
	atOnce := make(chan struct{}, 20)
	for i := range payments {
		reference := fmt.Sprintf("inv-%d", i)
		if i%20 == 0 {
			c.fault(reference, "execute_then_drop", 0)
		}
		for _, addr := range addrs { // the same request on both
			all.Go(func() {
				atOnce <- struct{}{}
				pay(context.Background(), addr, reference, bodyFor(reference))
				<-atOnce
			})
		}
	}
	all.Wait()
	for i := range payments {
		c.settled(addrs[i%2], fmt.Sprintf("inv-%d", i), fmt.Sprintf("inv-%d", i))
	}
	require.Eventually(t, func() bool { return c.stuck() == 0 }, 30*time.Second, 100*time.Millisecond)
	for name, l := range c.links {
		require.NotContains(t, l.now.out.String(), "prepared statement", name)
	}
	c.chainAudit(payments)
}

// A service that is not told of the pooler does not start, and says what to do.
func TestF7_PoolerThatNobodyMentionedIsRefused(t *testing.T) {
	c := prepareChain(t)
	c.pooled()
	p := c.role("api")
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
		t.Fatal("it runs on")
	}
	require.True(t, strings.Contains(p.out.String(), "PAYMENTSD_DB_POOLER=transaction"), p.out.String())
}
