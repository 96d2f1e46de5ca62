package main

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// window is a place between two instructions at which a process is killed.
type window struct {
	name string
	// where is the condition under which the database holds the process's write; "" when the provider holds its call.
	where string
	// commits says what becomes of the write that was held when its process was killed: it is rolled back, or it commits
	// and nobody is there to hear of it.
	commits bool
}

var windows = []window{
	{"before the claim", `TG_OP = 'INSERT'`, false},
	{"after the claim", `TG_OP = 'INSERT'`, true},
	{"before the sent mark", `TG_OP = 'UPDATE' AND NEW.state = 'PROVIDER_REQUEST_SENT'`, false},
	{"after the sent mark", `TG_OP = 'UPDATE' AND NEW.state = 'PROVIDER_REQUEST_SENT'`, true},
	{"during the provider's call", "", false},
	{"after the provider's yes", `TG_OP = 'UPDATE' AND NEW.state = 'COMPLETED'`, false},
	{"after the outcome", `TG_OP = 'UPDATE' AND NEW.state = 'COMPLETED'`, true},
}

const gate = 4711

// hold makes the database stop a write where the window says, until the returned function is called.
func (v *town) hold(w window) (release func()) {
	for _, sql := range []string{
		fmt.Sprintf(`CREATE OR REPLACE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN IF %s THEN PERFORM pg_advisory_xact_lock_shared(%d); END IF; RETURN NEW; END $$`, w.where, gate),
		`CREATE OR REPLACE TRIGGER gate BEFORE INSERT OR UPDATE ON payments FOR EACH ROW EXECUTE FUNCTION wait_at_gate()`,
	} {
		_, err := v.pool.Exec(v.t.Context(), sql)
		require.NoError(v.t, err)
	}
	keeper, err := v.pool.Acquire(v.t.Context())
	require.NoError(v.t, err)
	_, err = keeper.Exec(v.t.Context(), `SELECT pg_advisory_lock($1)`, gate)
	require.NoError(v.t, err)
	return func() {
		_, err := keeper.Exec(v.t.Context(), `SELECT pg_advisory_unlock($1)`, gate)
		require.NoError(v.t, err)
		keeper.Release()
		_, err = v.pool.Exec(v.t.Context(), `DROP TRIGGER gate ON payments`)
		require.NoError(v.t, err)
	}
}

const waiting = `SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.locktype = 'advisory' AND NOT l.granted AND a.datname = current_database()`

// A real process is killed with SIGKILL in every window, and what it left is brought to its end on both ways back.
func TestKill9InEveryWindow(t *testing.T) {
	v := newTown(t)
	payments := 0
	for _, back := range []string{"client retry", "recovery worker"} {
		for _, w := range windows {
			t.Run(w.name+", "+back, func(t *testing.T) {
				v := &town{t, v.pool, v.settings, v.bank}
				payments++
				reference := fmt.Sprintf("inv-%d", payments)
				victim, addr := v.api()
				release := func() {}
				if w.where == "" {
					v.fault(reference, "delay", 400)
				} else {
					release = v.hold(w)
				}
				go pay(context.Background(), addr, reference, bodyFor(reference))
				v.eventually("the window", func() bool {
					return w.where == "" && v.requests(reference) == 1 || w.where != "" && v.count(waiting) == 1
				})
				victim.kill()
				if !w.commits && w.where != "" {
					_, err := v.pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted`)
					require.NoError(t, err)
					v.eventually("the rollback", func() bool { return v.count(waiting) == 0 })
				}
				release()

				if back == "recovery worker" {
					worker := v.role("recover")
					v.eventually("recovery", func() bool {
						return v.count(`SELECT count(*) FROM idempotency_requests WHERE status IN ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY')`) == 0
					})
					defer worker.end()
				}
				_, addr = v.api()
				v.settled(addr, reference, reference)
				require.Equal(t, 1, v.charges(reference))
			})
		}
	}
	v.audit(payments)
}

// A process is stopped with the provider's answer on its way, for longer than its lease. Recovery finishes its payment. When
// it goes on it writes nothing, and its client gets the answer that is stored.
func TestStoppedProcessWritesNothingWhenItGoesOn(t *testing.T) {
	v := newTown(t)
	victim, addr := v.api()
	v.role("recover")
	v.fault("inv-1", "delay", 300)
	first := make(chan answer, 1)
	go func() { first <- pay(context.Background(), addr, "k", bodyFor("inv-1")) }()
	v.eventually("the call", func() bool { return v.requests("inv-1") == 1 })
	victim.signal(syscall.SIGSTOP)
	v.eventually("recovery", func() bool { return v.count(`SELECT count(*) FROM payments WHERE state = 'COMPLETED'`) == 1 })
	moves := v.count(`SELECT count(*) FROM payment_moves`)
	victim.signal(syscall.SIGCONT)
	a := <-first
	require.NoError(t, a.err)
	require.Equal(t, 201, a.status, a)
	require.Equal(t, moves, v.count(`SELECT count(*) FROM payment_moves`))
	require.Equal(t, 1, v.charges("inv-1"))
	v.audit(1)
}

// SIGTERM lets what runs end: the client of a call under way gets its answer.
func TestTermLetsTheCallUnderWayEnd(t *testing.T) {
	v := newTown(t)
	p, addr := v.api()
	v.fault("inv-1", "delay", 500)
	first := make(chan answer, 1)
	go func() { first <- pay(context.Background(), addr, "k", bodyFor("inv-1")) }()
	v.eventually("the call", func() bool { return v.requests("inv-1") == 1 })
	p.end()
	a := <-first
	require.NoError(t, a.err)
	require.Equal(t, 201, a.status, a)
	v.audit(1)
}

// Fifty equal requests at once through two API processes, fifty rounds.
func TestF1_EqualRequestsThroughTwoProcesses(t *testing.T) {
	v := newTown(t)
	_, one := v.api()
	_, two := v.api()
	addrs := []string{one, two}
	const rounds, requests = 50, 50
	for round := range rounds {
		reference := fmt.Sprintf("inv-%d", round)
		got := map[int]int{}
		var mu sync.Mutex
		var start, end sync.WaitGroup
		start.Add(1)
		for i := range requests {
			end.Go(func() {
				start.Wait()
				a := pay(context.Background(), addrs[i%2], reference, bodyFor(reference))
				mu.Lock()
				defer mu.Unlock()
				got[a.status]++
				assert.NoError(t, a.err)
				assert.Equal(t, a.status == 409, a.header.Get("Retry-After") != "")
			})
		}
		start.Done()
		end.Wait()
		require.Equal(t, requests, got[201]+got[409], "%v", got)
		require.NotZero(t, got[201])
	}
	v.audit(rounds)
}

// One connection to the database is enough for everything at once.
func TestOneConnectionIsEnough(t *testing.T) {
	v := newTown(t)
	v.settings["PAYMENTSD_DB_MAX_CONNS"] = "1"
	v.role("recover")
	_, addr := v.api()
	var all sync.WaitGroup
	const payments = 30
	for i := range payments {
		reference := fmt.Sprintf("inv-%d", i)
		if i%3 == 0 {
			v.fault(reference, "execute_then_drop", 0)
		}
		all.Go(func() { pay(context.Background(), addr, reference, bodyFor(reference)) })
	}
	all.Wait()
	began := time.Now()
	for i := range payments {
		v.settled(addr, fmt.Sprintf("inv-%d", i), fmt.Sprintf("inv-%d", i))
	}
	t.Logf("all settled after %v", time.Since(began))
	v.audit(payments)
}

// A process is killed while a set of payments is being opened, or moved to its end, in one transaction: either the whole set was
// committed and nobody heard of it, or none of it was. Every payment is brought to its end, once.
func TestKill9InsideASet(t *testing.T) {
	v := newTown(t)
	const crowd = 150
	total := 0
	for _, w := range []window{
		{"while it is opened", `TG_OP = 'INSERT' AND NEW.merchant_reference LIKE '%-100'`, false},
		{"after it was opened", `TG_OP = 'INSERT' AND NEW.merchant_reference LIKE '%-100'`, true},
		{"while it is settled", `TG_OP = 'UPDATE' AND NEW.state = 'COMPLETED' AND NEW.merchant_reference LIKE '%-100'`, false},
		{"after it was settled", `TG_OP = 'UPDATE' AND NEW.state = 'COMPLETED' AND NEW.merchant_reference LIKE '%-100'`, true},
	} {
		t.Run(w.name, func(t *testing.T) {
			v := &town{t, v.pool, v.settings, v.bank}
			total += crowd
			victim, addr := v.api()
			release := v.hold(w)
			for i := range crowd {
				reference := fmt.Sprintf("%d-%d", total, i)
				go pay(context.Background(), addr, reference, bodyFor(reference))
			}
			v.eventually("the window", func() bool { return v.count(waiting) == 1 })
			victim.kill()
			if !w.commits {
				_, err := v.pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted`)
				require.NoError(t, err)
				v.eventually("the rollback", func() bool { return v.count(waiting) == 0 })
			}
			release()

			worker := v.role("recover")
			defer worker.end()
			_, addr = v.api()
			var all sync.WaitGroup
			for i := range crowd {
				reference := fmt.Sprintf("%d-%d", total, i)
				all.Go(func() { v.settled(addr, reference, reference) })
			}
			all.Wait()
		})
	}
	v.audit(total)
}
