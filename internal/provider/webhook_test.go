package provider_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/provider"
)

const (
	oldSecret = "the old secret has 31 bytes ..."
	newSecret = "the new secret has 31 bytes too"
)

func whsec(secret string) string { return "whsec_" + base64.StdEncoding.EncodeToString([]byte(secret)) }

// signed are the headers of a webhook, made by the letter of the specification and not by the library that reads them.
func signed(secret, id string, at time.Time, body string) http.Header {
	mac := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(mac, "%s.%d.%s", id, at.Unix(), body)
	h := http.Header{}
	h.Set("webhook-id", id)
	h.Set("webhook-timestamp", strconv.FormatInt(at.Unix(), 10))
	h.Set("webhook-signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	return h
}

func webhooks(t *testing.T, secrets ...string) *provider.Webhooks {
	t.Helper()
	for i, s := range secrets {
		secrets[i] = whsec(s)
	}
	w, err := provider.NewWebhooks(strings.Join(secrets, " "))
	require.NoError(t, err)
	return w
}

const chargeSucceeded = `{"type":"charge.succeeded","timestamp":"2026-05-01T10:00:00Z","data":{"id":"ch_000001","tenant":"acme","paymentId":"pay_1","idempotencyKey":"provider_payment_pay_1","amountMinor":1000,"currency":"EUR","of":"later versions"},"version":2}`

func TestWebhookIsRead(t *testing.T) {
	w := webhooks(t, newSecret)
	read := func(body string) (provider.Notice, error) {
		return w.Read(signed(newSecret, "msg_1", time.Now(), body), []byte(body))
	}
	n, err := read(chargeSucceeded)
	require.NoError(t, err)
	require.Equal(t, provider.Notice{WebhookID: "msg_1", TenantID: "acme", PaymentID: "pay_1", Kind: provider.Charge, Key: "provider_payment_pay_1",
		Outcome: provider.Confirmed, ChargeID: "ch_000001", AmountMinor: 1000, Currency: "EUR"}, n)

	edit := func(pairs ...string) string { return strings.NewReplacer(pairs...).Replace(chargeSucceeded) }
	for name, row := range map[string]struct {
		body string
		want func(*provider.Notice)
	}{
		"declined": {edit("charge.succeeded", "charge.declined", `"id"`, `"declineCode":"lost_card","id"`), func(n *provider.Notice) {
			n.Outcome, n.DeclineCode = provider.Declined, "LOST_CARD"
		}},
		"declined without a code": {edit("charge.succeeded", "charge.declined"), func(n *provider.Notice) { n.Outcome, n.DeclineCode = provider.Declined, "DECLINED" }},
		"a code that is none": {edit("charge.succeeded", "charge.declined", `"id"`, `"declineCode":"4111 1111 1111 1111","id"`), func(n *provider.Notice) {
			n.Outcome, n.DeclineCode = provider.Declined, "DECLINED"
		}},
		"refund": {edit("charge.succeeded", "refund.succeeded"), func(n *provider.Notice) { n.Kind = provider.Refund }},
		"refund declined": {edit("charge.succeeded", "refund.declined"), func(n *provider.Notice) {
			n.Kind, n.Outcome, n.DeclineCode = provider.Refund, provider.Declined, "DECLINED"
		}},
		"lower case":          {edit("EUR", "eur"), func(*provider.Notice) {}},
		"nobody's amount":     {edit("1000", "-5"), func(n *provider.Notice) { n.AmountMinor = -5 }},
		"withdrawn currency":  {edit("EUR", "DEM"), func(n *provider.Notice) { n.Currency = "DEM" }},
		"a tenant of nowhere": {edit("acme", "ACME!"), func(n *provider.Notice) { n.TenantID = "ACME!" }},
	} {
		want := n
		row.want(&want)
		got, err := read(row.body)
		require.NoError(t, err, name)
		require.Equal(t, want, got, name)
	}

	for name, body := range map[string]string{
		"another event":     edit("charge.succeeded", "payout.created"),
		"another language":  `{"type":"customer.created","timestamp":"2026-05-01T10:00:00Z","data":{"name":"x"}}`,
		"without a tenant":  edit(`"tenant":"acme",`, ""),
		"with an empty one": edit("acme", ""),
	} {
		_, err := read(body)
		require.ErrorIs(t, err, provider.ErrWebhookNotForUs, name)
	}
	for name, body := range map[string]string{
		"nothing":        "",
		"no JSON":        "<html>",
		"no object":      "[]",
		"null":           "null",
		"no type":        edit(`"type":"charge.succeeded",`, ""),
		"no timestamp":   edit(`"timestamp":"2026-05-01T10:00:00Z",`, ""),
		"no time":        edit("2026-05-01T10:00:00Z", "yesterday"),
		"a member twice": edit(`"id"`, `"id":"ch_2","id"`),
		"invalid UTF-8":  edit("acme", "\xff"),
		"NUL":            edit("acme", `\u0000`),
		"no id":          edit(`"id":"ch_000001",`, ""),
		"a strange id":   edit("ch_000001", "ch 1"),
		"a long id":      edit("ch_000001", strings.Repeat("x", 256)),
		"no payment":     edit(`"paymentId":"pay_1",`, ""),
		"no key":         edit(`"idempotencyKey":"provider_payment_pay_1",`, ""),
		"no amount":      edit(`"amountMinor":1000,`, ""),
		"a float":        edit("1000", "10.5"),
		"a huge amount":  edit("1000", "9223372036854775808"),
		"a text amount":  edit("1000", `"1000"`),
		"no currency":    edit("EUR", ""),
		"a long one":     edit("EUR", "EURO"),
		"data as a list": `{"type":"charge.succeeded","timestamp":"2026-05-01T10:00:00Z","data":[]}`,
		"something more": chargeSucceeded + "x",
	} {
		_, err := read(body)
		require.ErrorIs(t, err, provider.ErrWebhookMalformed, name)
	}
	_, err = w.Read(signed(newSecret, strings.Repeat("x", 256), time.Now(), chargeSucceeded), []byte(chargeSucceeded))
	require.ErrorIs(t, err, provider.ErrWebhookMalformed, "an id that is longer than any")
}

func TestSignatureDecidesBeforeAnythingElse(t *testing.T) {
	now := time.Now()
	genuine := func() http.Header { return signed(newSecret, "msg_1", now, chargeSucceeded) }
	with := func(name, value string) http.Header {
		h := genuine()
		h.Set(name, value)
		return h
	}
	rotating := webhooks(t, oldSecret, newSecret)
	for name, row := range map[string]struct {
		w      *provider.Webhooks
		header http.Header
		body   string
		ok     bool
	}{
		"genuine":                    {webhooks(t, newSecret), genuine(), chargeSucceeded, true},
		"old secret while rotated":   {rotating, signed(oldSecret, "msg_1", now, chargeSucceeded), chargeSucceeded, true},
		"new secret while rotated":   {rotating, genuine(), chargeSucceeded, true},
		"old secret afterwards":      {webhooks(t, newSecret), signed(oldSecret, "msg_1", now, chargeSucceeded), chargeSucceeded, false},
		"signed by both":             {webhooks(t, newSecret), with("webhook-signature", "v1,AAAA "+genuine().Get("webhook-signature")), chargeSucceeded, true},
		"four minutes old":           {webhooks(t, newSecret), signed(newSecret, "msg_1", now.Add(-4*time.Minute), chargeSucceeded), chargeSucceeded, true},
		"six minutes old":            {webhooks(t, newSecret), signed(newSecret, "msg_1", now.Add(-6*time.Minute), chargeSucceeded), chargeSucceeded, false},
		"from the future":            {webhooks(t, newSecret), signed(newSecret, "msg_1", now.Add(6*time.Minute), chargeSucceeded), chargeSucceeded, false},
		"another id":                 {webhooks(t, newSecret), with("webhook-id", "msg_2"), chargeSucceeded, false},
		"another time":               {webhooks(t, newSecret), with("webhook-timestamp", strconv.FormatInt(now.Unix()+1, 10)), chargeSucceeded, false},
		"no time":                    {webhooks(t, newSecret), with("webhook-timestamp", "now"), chargeSucceeded, false},
		"another body":               {webhooks(t, newSecret), genuine(), strings.Replace(chargeSucceeded, "1000", "9000", 1), false},
		"a body with a space behind": {webhooks(t, newSecret), genuine(), chargeSucceeded + " ", false},
		"another version":            {webhooks(t, newSecret), with("webhook-signature", strings.Replace(genuine().Get("webhook-signature"), "v1,", "v2,", 1)), chargeSucceeded, false},
		"no headers":                 {webhooks(t, newSecret), http.Header{}, chargeSucceeded, false},
		"signed with nothing":        {webhooks(t, newSecret), signed("", "msg_1", now, chargeSucceeded), chargeSucceeded, false},
		"nobody knows a secret":      {nil, signed("", "msg_1", now, chargeSucceeded), chargeSucceeded, false},
		"malformed and not signed":   {webhooks(t, newSecret), genuine(), "{", false},
	} {
		_, err := row.w.Read(row.header, []byte(row.body))
		if row.ok {
			require.NoError(t, err, name)
		} else {
			require.Equal(t, provider.ErrWebhookSignature, err, name)
		}
	}
}

func TestWebhookSecretsAreChecked(t *testing.T) {
	for _, secrets := range []string{
		"", " ", "whsec_", "whsec_" + base64.StdEncoding.EncodeToString([]byte("23 bytes are too little")), "whsec_!sentinel!",
		whsec(strings.Repeat("x", 65)), whsec(oldSecret) + " sentinel", whsec(oldSecret) + " " + whsec(newSecret) + " " + whsec(oldSecret),
	} {
		_, err := provider.NewWebhooks(secrets)
		require.Error(t, err, secrets)
		require.NotContains(t, err.Error(), "sentinel")
		require.NotContains(t, err.Error(), "MjMgYnl0ZXM", "no secret in errors")
	}
}
