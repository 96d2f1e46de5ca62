package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/paymentsd/paymentsd/internal/money"
	"github.com/paymentsd/paymentsd/internal/payments"
)

const benchBody = `{"accountId":"acc_1","amount":"10.00","currency":"EUR","merchantReference":"invoice-123456"}`

func benchRequest() *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(benchBody))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", "019ae000-5c1e-7000-8000-0123456789ab")
	return r
}

// BenchmarkDecode is a body from its bytes to a command; the request around it is made outside the measurement.
func BenchmarkDecode(b *testing.B) {
	r := benchRequest()
	body := strings.NewReader(benchBody)
	for b.Loop() {
		body.Reset(benchBody)
		r.Body = readNopCloser{body}
		object, err := readObject(r)
		if err != nil {
			b.Fatal(err)
		}
		if command, err := parseCreate(object); err != nil || command.Refusal != nil {
			b.Fatal(err, command.Refusal)
		}
	}
}

type readNopCloser struct{ *strings.Reader }

func (readNopCloser) Close() error { return nil }

func BenchmarkFingerprint(b *testing.B) {
	object, err := parseObject([]byte(benchBody))
	if err != nil {
		b.Fatal(err)
	}
	command, err := parseCreate(object)
	if err != nil {
		b.Fatal(err)
	}
	command.Scope.Operation = payments.OperationCreate
	for b.Loop() {
		if _, err := command.Fingerprint(payments.RuleV2); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRender is a settled payment to the answer that is stored and replayed.
func BenchmarkRender(b *testing.B) {
	amount, err := money.Stored(1000, "EUR")
	if err != nil {
		b.Fatal(err)
	}
	p := payments.Payment{
		TenantID: "acme", ID: "pay_019ae0005c1e70008000000000000001", Kind: payments.KindPayment, AccountID: "acc_1",
		MerchantReference: "invoice-123456", Channel: "web", Amount: amount, State: payments.Completed, CreatedAt: time.Now(),
	}
	for _, version := range []string{version20260501, version20261101} {
		b.Run(version, func(b *testing.B) {
			for b.Loop() {
				if _, err := Answer(p, version); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
