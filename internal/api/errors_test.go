package api

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/payments"
	"github.com/paymentsd/paymentsd/internal/pgtest"
	"github.com/paymentsd/paymentsd/internal/tenants"
)

// causes makes every error of the table happen, over HTTP.
var causes = map[string]func(*bench) answer{
	"UNAUTHENTICATED":          func(b *bench) answer { return b.pay("k", b0, without("Authorization")) },
	"NOT_FOUND":                func(b *bench) answer { return b.get("/nothing") },
	"METHOD_NOT_ALLOWED":       func(b *bench) answer { return b.do(b.request("DELETE", "/payments/"+noPayment, "")) },
	"IDEMPOTENCY_KEY_REQUIRED": func(b *bench) answer { return b.pay("", b0) },
	"IDEMPOTENCY_KEY_INVALID":  func(b *bench) answer { return b.pay("k k", b0) },
	"API_VERSION_UNKNOWN":      func(b *bench) answer { return b.pay("k", b0, with("Api-Version", "1999-01-01")) },
	"UNSUPPORTED_MEDIA_TYPE":   func(b *bench) answer { return b.pay("k", b0, without("Content-Type")) },
	"BODY_TOO_LARGE":           func(b *bench) answer { return b.pay("k", strings.Repeat(" ", bodyBytesMax+1)) },
	"BODY_TIMEOUT":             func(b *bench) answer { return b.pay("k", "", streaming(&never{lasting: 2 * b.settings.readTimeout})) },
	"BODY_INVALID":             func(b *bench) answer { return b.pay("k", "{") },
	"VALIDATION_FAILED":        func(b *bench) answer { return b.pay("k", "{}") },
	"PAYMENT_NOT_FOUND":        func(b *bench) answer { return b.get("/payments/" + noPayment) },
	"IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST": func(b *bench) answer {
		b.settles("reused", bodyFor("reused"))
		return b.pay("reused", bodyFor("reused-otherwise"))
	},
	"IDEMPOTENCY_KEY_EXPIRED": func(b *bench) answer {
		b.settles("old", bodyFor("old"))
		b.exec(`UPDATE idempotency_requests SET expires_at = now() WHERE idempotency_key = 'old'`)
		return b.pay("old", bodyFor("old"))
	},
	"IDEMPOTENCY_REQUEST_IN_PROGRESS": func(b *bench) answer {
		b.slow("slow", 1000)
		first := b.start(b.paying("slow", bodyFor("slow")))
		defer func() { first() }()
		b.untilSent("slow")
		return b.pay("slow", bodyFor("slow"))
	},
	"DUPLICATE_MERCHANT_REFERENCE": func(b *bench) answer {
		b.settles("one", bodyFor("duplicate"))
		return b.pay("two", bodyFor("duplicate"))
	},
	"ACCOUNT_NOT_FOUND":     func(b *bench) answer { return b.pay("k", b0With("accountId", "acc_9")) },
	"404 ACCOUNT_NOT_FOUND": func(b *bench) answer { return b.get("/accounts/acc_9") },
	"ACCOUNT_BLOCKED": func(b *bench) answer {
		b.exec(`UPDATE accounts SET status = 'BLOCKED' WHERE account_id = 'acc_2' AND tenant_id = 'acme'`)
		return b.pay("k", b0With("accountId", "acc_2"))
	},
	"FORBIDDEN": func(b *bench) answer {
		secret, err := b.tenants.IssueAPIKey(b.t.Context(), "acme", "reader", tenants.Read)
		require.NoError(b.t, err)
		return b.pay("k", b0, bearing(secret))
	},
	"IDEMPOTENCY_KEY_NOT_FOUND": func(b *bench) answer { return b.get("/idempotency-keys/create_payment/k") },
	"PAYMENT_NOT_REFUNDABLE": func(b *bench) answer {
		b.fault("refused", "charge", "decline", nil)
		declined := b.pay("refused", bodyFor("refused"))
		return b.refund("k", declined.header.Get("Location"), `{"amount":"1.00"}`)
	},
	"PAYMENT_NOT_SETTLED": func(b *bench) answer {
		b.fault("unknown", "charge", "drop_before_execute", nil)
		pending := b.pay("unknown", bodyFor("unknown"))
		return b.refund("k", pending.header.Get("Location"), `{"amount":"1.00"}`)
	},
	"REFUND_EXCEEDS_PAYMENT": func(b *bench) answer {
		return b.refund("k", b.settles("paid", bodyFor("paid")).header.Get("Location"), `{"amount":"10.01"}`)
	},
	"PROVIDER_UNAVAILABLE": func(b *bench) answer {
		b.control("POST", "/control/down", map[string]any{"forMs": 1000})
		defer b.untilProviderIsBack()
		return b.pay("unsent", bodyFor("unsent"))
	},
	"SERVICE_UNAVAILABLE": func(b *bench) answer {
		b.exec(`ALTER TABLE outbox_events RENAME TO outbox_events_away`)
		defer b.exec(`ALTER TABLE outbox_events_away RENAME TO outbox_events`)
		return b.pay("k", b0)
	},
	"WEBHOOK_SIGNATURE_INVALID": func(b *bench) answer { return b.do(b.webhook("msg_1", "{}", without("Webhook-Signature"))) },
	"WEBHOOK_MALFORMED":         func(b *bench) answer { return b.do(b.webhook("msg_1", "{}")) },
	"STORED_REQUEST_UNREADABLE": func(b *bench) answer {
		b.settles("newer", bodyFor("newer"))
		b.exec(`UPDATE idempotency_requests SET request_hash = regexp_replace(request_hash, '^v[0-9]+', 'v99') WHERE idempotency_key = 'newer'`)
		return b.pay("newer", bodyFor("newer"))
	},
}

func TestEveryErrorOfTheTable(t *testing.T) {
	b := setup(t, func(s *settings) { s.readTimeout = 3 * time.Second })
	for _, r := range rules {
		cause, ok := causes[strconv.Itoa(r.status)+" "+r.code]
		if !ok {
			cause, ok = causes[r.code]
		}
		switch r.code {
		case "INTERNAL":
			continue // panics_test.go
		case "RATE_LIMITED", "OVERLOADED":
			continue // TestLimitsLeaveNoTrace
		}
		require.True(t, ok, "nothing causes %s", r.code)
		t.Run(r.code, func(t *testing.T) {
			a := cause(b)
			p := a.problem(t)
			require.Equal(t, r.code, p.ErrorCode)
			require.Equal(t, r.status, a.status)
			require.Equal(t, r.status, p.Status)
			require.Equal(t, r.retryable, p.Retryable)
			require.Equal(t, r.safeNewKey, p.SafeNewKey)
			require.Equal(t, r.retryAfter, a.header.Get("Retry-After") != "")
			require.Equal(t, problemContentType, a.header.Get("Content-Type"))
			if r.key == keyUntouched {
				require.Zero(t, b.count(`SELECT count(*) FROM idempotency_requests WHERE idempotency_key IN ('k', 'two')`), "the key was touched")
			}
		})
	}
	require.Equal(t, http.StatusCreated, b.pay("unsent", bodyFor("unsent")).status, "what was not sent is sent by the retry")
	b.settles("k", b0)
}

// never is a body that does not come.
type never struct{ lasting time.Duration }

func (n *never) Read(p []byte) (int, error) {
	time.Sleep(n.lasting)
	return 0, errors.New("the client gave up")
}

func (b *bench) refund(key, payment, body string) answer {
	b.t.Helper()
	return b.do(b.request("POST", payment+"/refunds", body, with("Idempotency-Key", key), with("Content-Type", "application/json")))
}

func TestLimitsLeaveNoTrace(t *testing.T) {
	t.Run("RATE_LIMITED", func(t *testing.T) {
		b := setup(t, func(s *settings) { s.limits = Limits{RequestsPerSec: 0.01, RequestsAtOnce: 1} })
		b.settles("k", b0)
		b.rejects(b.paying("k-2", bodyFor("inv-2")), http.StatusTooManyRequests, "RATE_LIMITED")
		b.rejects(b.request("GET", "/payments", ""), http.StatusTooManyRequests, "RATE_LIMITED") // the rate is the tenant's, not a route's
		b.settles("k", b0, ofTenant("globex"))                                                   // one tenant's haste is not another's
	})
	t.Run("OVERLOADED", func(t *testing.T) {
		b := setup(t, func(s *settings) { s.limits = Limits{InFlightMax: 1} })
		b.slow("inv-1", 1000)
		first := b.start(b.paying("k", b0))
		b.untilSent("inv-1")
		b.rejects(b.paying("k-2", bodyFor("inv-2")), http.StatusServiceUnavailable, "OVERLOADED")
		b.rejects(b.request("GET", "/payments", ""), http.StatusServiceUnavailable, "OVERLOADED") // the places are the process's, not a route's
		b.rejects(b.webhook("msg_1", "{}"), http.StatusServiceUnavailable, "OVERLOADED")
		require.Equal(t, http.StatusOK, b.get("/healthz").status)
		require.Equal(t, http.StatusCreated, first().status)
	})
}

func (b *bench) untilProviderIsBack() {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		response, err := http.Get("http://" + b.bank.Addr() + "/control/charges")
		if err == nil {
			_ = response.Body.Close()
		}
		return err == nil
	}, 10*time.Second, 20*time.Millisecond)
}

// Everything that can be wrong with one request, taken away one by one: what is found first is part of the contract.
func TestErrorsAreFoundInOrder(t *testing.T) {
	b := setup(t)
	b.settles("used", bodyFor("used"))
	all := []change{without("Authorization"), with("Idempotency-Key", "a second one"), with("Api-Version", "1999-01-01"), without("Content-Type")}
	large, broken := strings.Repeat("{", bodyBytesMax+1), "{"
	b.rejects(b.paying("", large, all...), http.StatusUnauthorized, "UNAUTHENTICATED")
	b.rejects(b.paying("", large, all[1:]...), http.StatusBadRequest, "IDEMPOTENCY_KEY_INVALID")
	b.rejects(b.paying("", large, all[2:]...), http.StatusBadRequest, "IDEMPOTENCY_KEY_REQUIRED")
	b.rejects(b.paying("used", large, all[2:]...), http.StatusBadRequest, "API_VERSION_UNKNOWN")
	b.rejects(b.paying("used", large, all[3:]...), http.StatusUnsupportedMediaType, "UNSUPPORTED_MEDIA_TYPE")
	b.rejects(b.paying("used", large), http.StatusRequestEntityTooLarge, "BODY_TOO_LARGE")
	b.rejects(b.paying("used", broken), http.StatusBadRequest, "BODY_INVALID")
	b.rejects(b.paying("used", b0With("amount", "1e2")), http.StatusUnprocessableEntity, "VALIDATION_FAILED") // who knows what it means
	b.rejects(b.paying("used", b0With("amount", "0")), http.StatusConflict, "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST")
	b.rejects(b.paying("free", b0With("amount", "0")), http.StatusUnprocessableEntity, "VALIDATION_FAILED")
	b.rejects(b.paying("used", b0With("accountId", "acc_9")), http.StatusConflict, "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST")
	b.rejects(b.paying("free", strings.Replace(b0With("accountId", "acc_9"), "inv-1", "used", 1)), http.StatusUnprocessableEntity, "ACCOUNT_NOT_FOUND")
	b.rejects(b.paying("free", bodyFor("used")), http.StatusConflict, "DUPLICATE_MERCHANT_REFERENCE")

	b.exec(`UPDATE accounts SET status = 'BLOCKED'`)
	b.rejects(b.paying("free", bodyFor("used")), http.StatusUnprocessableEntity, "ACCOUNT_BLOCKED")
	b.rejects(b.paying("used", bodyFor("another")), http.StatusConflict, "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST")
	require.True(t, b.pay("used", bodyFor("used")).replayed(), "a stricter rule hides no stored answer")
}

func TestEveryFieldThatIsWrongIsNamedAtOnce(t *testing.T) {
	b := setup(t)
	p := b.rejects(b.paying("k", `{"accountId":"a b","amount":"1e2","currency":"HRK","merchantReference":"","channel":"WEB","extra":1}`),
		http.StatusUnprocessableEntity, "VALIDATION_FAILED")
	var found []string
	for _, e := range p.Errors {
		found = append(found, e.Field+" "+e.Code)
	}
	require.Equal(t, []string{"accountId INVALID", "amount AMOUNT_MALFORMED", "channel INVALID", "currency CURRENCY_NOT_ACTIVE",
		"extra UNKNOWN_MEMBER", "merchantReference INVALID"}, found)
}

func TestLengthsOfIdentifiers(t *testing.T) {
	b := setup(t)
	longest := strings.Repeat("é", 255) // characters, not bytes
	require.Equal(t, longest, b.settles("longest", bodyFor(longest)).payment(t).MerchantReference)
	require.Equal(t, longest, b.wire(longest).Reference)
	b.rejectsField(b.paying("k", bodyFor(longest+"é")), "merchantReference", "INVALID")
	b.rejectsField(b.paying("k", bodyFor("")), "merchantReference", "INVALID")
	b.settles("emoji", bodyFor(strings.Repeat("\U0001F9FE", 255)))
	for _, accountID := range []string{"", strings.Repeat("a", 65), "acc 1", "acc/1", "acc_é", "acc_1\n"} {
		b.rejectsField(b.paying("k", b0With("accountId", accountID)), "accountId", "INVALID")
	}
	for _, channel := range []string{"", "Web", "1web", "we b", strings.Repeat("w", 33)} {
		b.rejectsField(b.paying("k", b0With("channel", channel)), "channel", "INVALID")
	}
	b.settles("channel", `{"channel":"`+strings.Repeat("w", 32)+`",`+b0[1:])
}

func TestUnknownPathsAndMethods(t *testing.T) {
	b := setup(t)
	for _, path := range []string{"/", "/payment", "/payments/", "/payments/" + noPayment + "/", "/payments/" + noPayment + "/moves", "//payments", "/healthz/x"} {
		require.Equal(t, "NOT_FOUND", b.get(path, without("Authorization")).problem(t).ErrorCode, path)
	}
	for path, allowed := range map[string][]string{"/payments": {"GET", "HEAD", "POST"}, "/payments/" + noPayment: {"GET", "HEAD"}, "/openapi.yaml": {"GET", "HEAD"}, "/healthz": {"GET", "HEAD"}} {
		for _, method := range []string{"PUT", "PATCH", "DELETE", "OPTIONS", "BREW"} {
			a := b.do(b.request(method, path, ""))
			require.Equal(t, "METHOD_NOT_ALLOWED", a.problem(t).ErrorCode, method+" "+path)
			require.Equal(t, allowed, a.header.Values("Allow"), method+" "+path)
		}
	}
	for _, id := range []string{"x", "pay_1", strings.ToUpper(noPayment), noPayment + "0", "pay_%00", "%2e%2e", "'"} {
		require.Equal(t, "PAYMENT_NOT_FOUND", b.get("/payments/"+id).problem(t).ErrorCode, id)
		require.Equal(t, "PAYMENT_NOT_FOUND", b.get("/payments/"+id+"/history").problem(t).ErrorCode, id)
	}
	require.Equal(t, "API_VERSION_UNKNOWN", b.get("/payments/"+noPayment, with("Api-Version", "x")).problem(t).ErrorCode)
	require.Equal(t, "API_VERSION_UNKNOWN", b.get("/payments/"+noPayment+"/history", with("Api-Version", "x")).problem(t).ErrorCode)
}

func TestHealthAndContractNeedNoAPIKey(t *testing.T) {
	var proxy *pgtest.Proxy
	b := setup(t, func(s *settings) {
		s.through = func(url string) string { proxy = pgtest.NewProxy(t, url); return proxy.URL() }
	})
	for path, body := range map[string]string{"/healthz": `{"status":"alive"}`, "/readyz": `{"status":"ready"}`} {
		a := b.get(path, without("Authorization"))
		require.Equal(t, http.StatusOK, a.status)
		require.JSONEq(t, body, string(a.body))
		require.Equal(t, http.StatusOK, exchanged(t, b.request("HEAD", path, "")).status)
	}
	require.Equal(t, string(OpenAPI), string(b.get("/openapi.yaml", without("Authorization")).body))

	proxy.Down()
	require.Equal(t, http.StatusOK, b.get("/healthz").status)
	require.Equal(t, http.StatusServiceUnavailable, b.get("/readyz").status)
	down := b.pay("k", b0)
	require.Equal(t, "SERVICE_UNAVAILABLE", down.problem(t).ErrorCode, "no answer of the database is no refusal of the API key")
	require.Equal(t, "SERVICE_UNAVAILABLE", b.get("/payments/"+noPayment).problem(t).ErrorCode)
	proxy.Up(t)
	b.settles("k", b0)
}

func exchanged(t *testing.T, r *http.Request) answer {
	t.Helper()
	a, err := exchange(r)
	require.NoError(t, err)
	return a
}

// The first line that matches wins, so a line must not stand behind one that matches more.
func TestErrorTableOrder(t *testing.T) {
	for err, code := range map[error]string{
		errors.Join(payments.ErrUnavailable, idempotency.ErrUnknownRule): "SERVICE_UNAVAILABLE",
		errors.New("anything"): "INTERNAL",
		errPanicked:            "INTERNAL",
	} {
		p, _ := problemOf(err)
		require.Equal(t, code, p.ErrorCode)
	}
}
