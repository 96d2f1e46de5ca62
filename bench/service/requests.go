package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	vegeta "github.com/tsenart/vegeta/v12/lib"
)

// accounts is how many accounts each tenant has; payments are spread over them.
const accounts = 100

// references numbers the invoices of a run, as merchants do.
var references atomic.Int64

func init() { uuid.EnableRandPool() } // the keys are for uniqueness, not for secrecy

// order is a payment that is asked for.
type order struct {
	tenant    int
	key       string
	account   int
	reference string
	amount    string
}

// newOrder is one that nobody has asked for yet.
func newOrder(tenants int) order {
	n := references.Add(1)
	return order{int(n) % tenants, uuid.NewString(), rand.IntN(accounts), fmt.Sprintf("invoice-%d", n), "10.00"}
}

func (o order) body() []byte {
	return fmt.Appendf(nil, `{"accountId":"acc_%d","amount":"%s","currency":"EUR","merchantReference":"%s"}`, o.account, o.amount, o.reference)
}

// post fills in a request to an instance of the service.
func post(t *vegeta.Target, addr, path string, tenant int, key string, body []byte) {
	t.Method, t.URL, t.Body = http.MethodPost, "http://"+addr+path, body
	t.Header = http.Header{
		"Authorization":   {"Bearer sk_bench_" + strconv.Itoa(tenant)},
		"Idempotency-Key": {key},
		"Content-Type":    {"application/json"},
	}
}

func (o order) fill(t *vegeta.Target, addr string) {
	post(t, addr, "/payments", o.tenant, o.key, o.body())
}

// newPayments asks for payments that nobody has asked for yet. Each must settle.
func newPayments(addr string, tenants int) load {
	return load{
		next: func(t *vegeta.Target) error {
			newOrder(tenants).fill(t, addr)
			return nil
		},
		judge: settles,
	}
}

// again asks for payments that have been made. Each must be answered with what it was answered with then.
func again(addr string, made []order) load {
	return load{
		next: func(t *vegeta.Target) error {
			made[rand.IntN(len(made))].fill(t, addr)
			return nil
		},
		judge: replays,
	}
}

// others uses the keys of payments that have been made for other payments. Each must be refused.
func others(addr string, made []order) load {
	return load{
		next: func(t *vegeta.Target) error {
			o := made[rand.IntN(len(made))]
			o.amount = "99.00"
			o.fill(t, addr)
			return nil
		},
		judge: refuses("IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"),
	}
}

// duplicates asks for payments that are being made at this moment. Each must be told so.
func duplicates(addr string, running []order) load {
	l := again(addr, running)
	l.judge = refuses("IDEMPOTENCY_REQUEST_IN_PROGRESS")
	return l
}

// mixed is new payments with retries among them: retries of 100, of payments that have been made.
func mixed(addr string, tenants int, made []order, retries int) load {
	fresh, retry := newPayments(addr, tenants), again(addr, made)
	return load{
		next: func(t *vegeta.Target) error {
			if rand.IntN(100) < retries {
				return retry.next(t)
			}
			return fresh.next(t)
		},
		judge: func(r *vegeta.Result) verdict { return max(settles(r), replays(r)) },
	}
}

// refundsOf gives a cent of one payment after the other back. Each must settle.
func refundsOf(addr string, payments []paid) load {
	var n atomic.Int64
	return load{
		next: func(t *vegeta.Target) error {
			p := payments[int(n.Add(1))%len(payments)]
			post(t, addr, "/payments/"+p.id+"/refunds", p.tenant, uuid.NewString(), []byte(`{"amount":"0.01","currency":"EUR"}`))
			return nil
		},
		judge: settles,
	}
}

var (
	settledStatus = []byte(`"status":"SETTLED"`)
	replayMark    = "Idempotent-Replayed"
)

func settles(r *vegeta.Result) verdict {
	if r.Code == http.StatusCreated && r.Headers.Get(replayMark) == "" && bytes.Contains(r.Body, settledStatus) {
		return settled
	}
	return wrong
}

func replays(r *vegeta.Result) verdict {
	if r.Code == http.StatusCreated && r.Headers.Get(replayMark) == "true" && bytes.Contains(r.Body, settledStatus) {
		return replayed
	}
	return wrong
}

func refuses(code string) func(*vegeta.Result) verdict {
	want := []byte(`"` + code + `"`)
	return func(r *vegeta.Result) verdict {
		if r.Code == http.StatusConflict && bytes.Contains(r.Body, want) {
			return refused
		}
		return wrong
	}
}

// paid is a payment that has settled.
type paid struct {
	id     string
	tenant int
}

// madePayments are payments that a load can build on: their orders, and what they became.
type madePayments struct {
	orders []order
	paid   []paid
}

// makePayments makes n settled payments of the first tenant.
func makePayments(ctx context.Context, client *http.Client, addr string, clients, n int) (madePayments, *tally, error) {
	var made madePayments
	var mu sync.Mutex
	l := newPayments(addr, 1)
	l.next = func(t *vegeta.Target) error {
		o := newOrder(1)
		mu.Lock()
		made.orders = append(made.orders, o)
		mu.Unlock()
		o.fill(t, addr)
		return nil
	}
	l.judge = func(r *vegeta.Result) verdict {
		if id, ok := strings.CutPrefix(r.Headers.Get("Location"), "/payments/"); ok { // results come one by one
			made.paid = append(made.paid, paid{id: id})
		}
		return settles(r)
	}
	t := closedLoop(ctx, client, clients, until{n, fixedWorkWithin}, l)
	if err := t.err(); err != nil {
		return made, t, err
	}
	if len(made.paid) < n {
		return made, t, errors.Join(fmt.Errorf("make %d payments: made %d in %v", n, len(made.paid), t.Took.Round(time.Second)), ctx.Err())
	}
	return made, t, nil
}
