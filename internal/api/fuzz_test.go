package api

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json"

	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/payments"
)

// bodies of the field cases.
var fuzzedBodies = []string{
	b0,
	`{"merchantReference":"inv\u002d1","currency":"eur","amount":"10","accountId":"acc_1"}`,
	`{"amount":"10.00","amount":"100.00"}`, `{"amount":"10.00","am\u006funt":"100.00"}`,
	`{"accountId":"acc_1","amount":"10.00","currency":"EUR","merchantReference":"\ud800"}`, `{"merchantReference":"a\u0000b"}`,
	`null`, `[]`, `"x"`, ``, `{}`, "\xef\xbb\xbf{}", `{"x":` + strings.Repeat("[", 500), `{"amount":10.00}`, `{"amount":null}`, `{"chanel":"web"}`,
	`{"accountId":"acc_1","amount":"10.00","currency":"EUR","merchantReference":"cafe\u0301","channel":null,"description":"d"}`,
}

// FuzzBody: a body is refused, or becomes a command that says what the body said, and saying it again in another spelling is
// the same command.
func FuzzBody(f *testing.F) {
	for _, seed := range fuzzedBodies {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		object, err := parseObject(body)
		if err != nil {
			return
		}
		for name, m := range object {
			if !utf8.ValidString(name) || !utf8.ValidString(m.text) || strings.ContainsRune(m.text, 0) {
				t.Fatalf("%q has %q: %q", body, name, m.text)
			}
		}
		command, err := parseCreate(object)
		if err != nil {
			return
		}
		again := spell(command.Said)
		object, err = parseObject(again)
		if err != nil {
			t.Fatalf("%q was taken, %q was not", body, again)
		}
		same, err := parseCreate(object)
		if err != nil || same.Said != command.Said || (same.Refusal == nil) != (command.Refusal == nil) {
			t.Fatalf("%q is %+v, but %q is %+v, %v", body, command, again, same, err)
		}
		if fingerprintOf(t, same) != fingerprintOf(t, command) {
			t.Fatalf("%q and %q have different fingerprints", body, again)
		}
	})
}

// FuzzFingerprint: two commands have one fingerprint exactly when they say the same, under every rule.
func FuzzFingerprint(f *testing.F) {
	f.Add("acc_1", "10", "EUR", "inv-1", "web", "", "acc_1", "10", "EUR", "inv-1", "web", "d")
	f.Add("acc_1", "10", "", "inv-1", "web", "", "acc_1", "10", "EUR", "inv-1", "web", "")
	f.Fuzz(func(t *testing.T, account1, amount1, currency1, reference1, channel1, description1, account2, amount2, currency2, reference2, channel2, description2 string) {
		one := payments.Command{Said: payments.Said{AccountID: account1, Amount: amount1, Currency: currency1, MerchantReference: reference1, Channel: channel1, Description: description1}}
		two := payments.Command{Said: payments.Said{AccountID: account2, Amount: amount2, Currency: currency2, MerchantReference: reference2, Channel: channel2, Description: description2}}
		for _, rule := range []string{payments.RuleV1, payments.RuleV2} {
			first, err1 := one.Fingerprint(rule)
			second, err2 := two.Fingerprint(rule)
			if err1 != nil || err2 != nil || (first == second) != (one.Said == two.Said) {
				t.Fatalf("%s: %+v and %+v", rule, one.Said, two.Said)
			}
		}
	})
}

func fingerprintOf(t *testing.T, c payments.Command) idempotency.Fingerprint {
	fingerprint, err := c.Fingerprint(payments.RuleV2)
	if err != nil {
		t.Fatal(err)
	}
	return fingerprint
}

// spell writes down what was said, in the plainest way.
func spell(s payments.Said) []byte {
	body := map[string]string{"accountId": s.AccountID, "amount": s.Amount, "merchantReference": s.MerchantReference, "channel": s.Channel}
	if s.Currency != "" {
		body["currency"] = s.Currency
	}
	if s.Description != "" {
		body["description"] = s.Description
	}
	b, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return b
}
