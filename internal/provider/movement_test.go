package provider_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/provider"
	"github.com/paymentsd/paymentsd/internal/provider/fake"
)

// TestC1MinorUnitsOnTheWire looks at the provider's side: a factor that is wrong on the way out and wrong again on the
// way back hides from our own answers.
func TestC1MinorUnitsOnTheWire(t *testing.T) {
	b := setup(t, fake.Config{}, patience)
	for paymentID, row := range map[string]struct {
		amount, currency, wire string
		minor                  int64
	}{
		"JPY": {"500", "JPY", `"amountMinor":500,`, 500},
		"KRW": {"1000", "KRW", `"amountMinor":1000,`, 1000},
		"KWD": {"1.000", "KWD", `"amountMinor":1000,`, 1000},
		"CLF": {"1.2345", "CLF", `"amountMinor":12345,`, 12345},
		// These four are one less when they go through a float.
		"19.99":   {"19.99", "EUR", `"amountMinor":1999,`, 1999},
		"8.29":    {"8.29", "EUR", `"amountMinor":829,`, 829},
		"17.08":   {"17.08", "EUR", `"amountMinor":1708,`, 1708},
		"8.20":    {"8.20", "EUR", `"amountMinor":820,`, 820},
		"largest": {"9999999999.99", "EUR", `"amountMinor":999999999999,`, 999999999999},
	} {
		c := charge(t, paymentID, row.amount, row.currency)
		require.Equal(t, provider.Confirmed, b.charge(c).Outcome)
		require.Contains(t, b.received(c.Reference)[0].Body, row.wire)
		executed := b.executed(c.Reference)
		require.Len(t, executed, 1)
		require.Equal(t, row.minor, executed[0].AmountMinor)
		require.Equal(t, row.currency, executed[0].Currency)
	}
}

func TestExactlyTheseBytesGoOut(t *testing.T) {
	b := setup(t, fake.Config{}, patience)
	c := charge(t, "pay_1", "10.00", "EUR")
	c.Reference = `<café> & "cafe` + "\u0301\u2028\""

	require.Equal(t, provider.Confirmed, b.charge(c).Outcome)

	head, body, _ := strings.Cut(b.tap.text(), "\r\n\r\n")
	require.Equal(t, `{"account":"acc_1","amountMinor":1000,"currency":"EUR","reference":"<café> & \"cafe`+"\u0301\u2028"+`\"","paymentId":"pay_1"}`, body)
	lines := strings.Split(head, "\r\n")
	require.Equal(t, "POST /v1/charges HTTP/1.1", lines[0])
	require.Contains(t, lines, "Idempotency-Key: provider_payment_pay_1")
	require.Contains(t, lines, "Content-Type: application/json")
	require.NotContains(t, head, "Accept-Encoding")
	require.Equal(t, c.Reference, b.executed(c.Reference)[0].Reference)
}

// What was stored before orders named their tenant has no tenant, and is sent as it is.
func TestOrderNamesItsTenant(t *testing.T) {
	b := setup(t, fake.Config{}, patience)
	c := charge(t, "pay_1", "10.00", "EUR")
	require.NotContains(t, string(c.Encode()), "tenant")
	c.Tenant = "acme"
	require.Equal(t, `{"account":"acc_1","amountMinor":1000,"currency":"EUR","reference":"inv-pay_1","paymentId":"pay_1","tenant":"acme"}`, string(c.Encode()))
	require.Equal(t, provider.Confirmed, b.charge(c).Outcome)
	require.Contains(t, b.received(c.Reference)[0].Body, `"tenant":"acme"`)
}

func TestKeyIsMadeFromThePaymentAndNothingElse(t *testing.T) {
	c := charge(t, "pay_1", "10.00", "EUR")
	require.Equal(t, "provider_payment_pay_1", c.Order().Key)
	require.Equal(t, c.Order().Key, provider.NewOrder(provider.Charge, "pay_1", nil).Key)
	c.Account, c.Reference, c.Amount = "acc_2", "inv-2", charge(t, "x", "99.00", "USD").Amount
	require.Equal(t, "provider_payment_pay_1", c.Order().Key)
}

// TestStoredBytesAreSentUnchanged: what an older build stored is sent as it is, spaces and order included.
func TestStoredBytesAreSentUnchanged(t *testing.T) {
	b := setup(t, fake.Config{}, patience)
	stored := `{ "paymentId":"pay_1", "reference":"inv\u002d1", "currency":"EUR", "amountMinor":1000, "account":"acc_1" }`
	result := b.client.Send(t.Context(), provider.Order{Kind: provider.Charge, Key: provider.NewOrder(provider.Charge, "pay_1", nil).Key, Request: []byte(stored)})
	require.Equal(t, provider.Confirmed, result.Outcome)
	require.Equal(t, stored, b.received("inv-1")[0].Body)
}
