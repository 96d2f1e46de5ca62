package events_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/events"
)

const (
	trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	payID = "pay_0190f5b7c0de7000800000000000beef"
	refID = "ref_0190f5b7c0de7000800000000000cafe"
)

var paymentTypes = []events.Type{
	events.PaymentCreated, events.PaymentSettled, events.PaymentDeclined, events.PaymentCanceled, events.PaymentRecoveryRequired,
	events.RefundCreated, events.RefundSettled, events.RefundDeclined, events.RefundCanceled, events.RefundRecoveryRequired,
}

// samples is one event of every type, with text that encoders like to spell in more than one way.
func samples(t testing.TB) map[events.Type][]byte {
	all := map[events.Type][]byte{}
	for i, name := range paymentTypes {
		p := events.Payment{
			EventID: fmt.Sprintf("evt_0190f5b7c0de70008000000000000%03d", i), Type: name, PaymentID: payID, AccountID: "acc_1",
			Amount: "10.00", Currency: "EUR", MerchantReference: "inv-1 <&> café 請求 \u2028 \"/\\", OccurredAt: time.Date(2026, 5, 1, 12, 0, 0, 123456789, time.UTC), Sequence: i%3 + 1,
		}
		if name[0] == 'R' {
			p.PaymentID, p.ParentPaymentID = refID, payID
		}
		payload, err := p.Encode()
		require.NoError(t, err)
		all[name] = payload
	}
	payload, err := events.Account{
		EventID: "evt_0190f5b7c0de7000800000000000a001", Type: events.AccountChanged, AccountID: "acc_1", Status: "OPEN", DefaultCurrency: "EUR",
		OccurredAt: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC), Sequence: 1}.Encode()
	require.NoError(t, err)
	all[events.AccountChanged] = payload
	return all
}

func wrap(t testing.TB, payload []byte) []byte {
	message, err := events.Wrap("acme", trace, payload)
	require.NoError(t, err)
	return message
}

// The files are the published language: what consumers have read once must look like that for ever.
func TestEveryTypeIsEncodedAsItsGoldenFile(t *testing.T) {
	for name, payload := range samples(t) {
		golden, err := os.ReadFile(filepath.Join("testdata", "v1", string(name)+".json"))
		require.NoError(t, err)
		require.Equal(t, string(golden), string(wrap(t, payload)))
	}
}

func TestTwoEncodingsAreTheSameBytesAndCarryThePayloadUnchanged(t *testing.T) {
	for _, payload := range samples(t) {
		message := wrap(t, payload)
		require.Equal(t, message, wrap(t, payload))
		var e events.Envelope
		require.NoError(t, json.Unmarshal(message, &e))
		require.Equal(t, string(payload), string(e.Data))
	}
}

func TestWhatIsWrappedCanBeReadAndSaysTheSame(t *testing.T) {
	for name, payload := range samples(t) {
		a, err := events.Read(wrap(t, payload))
		require.NoError(t, err)
		require.Equal(t, "acme", a.TenantID)
		require.Equal(t, name, a.Type)
		require.Equal(t, trace, a.TraceParent)
		if name == events.AccountChanged {
			require.Nil(t, a.Payment)
			require.Equal(t, "acc_1", a.Subject)
			continue
		}
		again, err := a.Payment.Encode()
		require.NoError(t, err)
		require.Equal(t, string(payload), string(again))
		amount, err := a.Payment.Money()
		require.NoError(t, err)
		require.EqualValues(t, 1000, amount.Minor())
	}
}

func TestWhatIsNoEventIsNotWrapped(t *testing.T) {
	for _, payload := range []string{``, `null`, `{}`, `[]`, `{"eventId":"evt_1","type":"PaymentCreated","sequence":1}`,
		`{"eventId":"evt_1","type":"PaymentCreated","paymentId":"pay_1","sequence":0}`} {
		_, err := events.Wrap("acme", "", []byte(payload))
		require.Error(t, err, payload)
	}
	_, err := events.Wrap("", "", samples(t)[events.PaymentCreated])
	require.Error(t, err)
}

// A currency may be withdrawn between an event and its redelivery: the event stays what it was.
func TestWithdrawnCurrencyIsStillMoney(t *testing.T) {
	amount, err := events.Payment{Amount: "10.00", Currency: "HRK"}.Money()
	require.NoError(t, err)
	require.EqualValues(t, 1000, amount.Minor())
	_, err = events.Payment{Amount: "10.00", Currency: "EURO"}.Money()
	require.Error(t, err)
}
