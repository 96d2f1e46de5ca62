package events_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/events"
)

// secret stands for whatever must not be repeated in an error: it is part of every broken message.
const secret = "inv-1"

func settled(t testing.TB) string { return string(wrap(t, samples(t)[events.PaymentSettled])) }

func TestMembersThatAreNotKnownAreLeftAlone(t *testing.T) {
	message := strings.Replace(settled(t), `{"specversion"`, `{"newext":{"a":[1]},"specversion"`, 1)
	message = strings.Replace(message, `"data":{`, `"data":{"newMember":null,`, 1)
	a, err := events.Read([]byte(message))
	require.NoError(t, err)
	require.NotNil(t, a.Payment)
}

func TestTypesThatAreNotKnownAreReadWithoutPayment(t *testing.T) {
	message := strings.ReplaceAll(settled(t), "PaymentSettled", "PaymentDisputed")
	a, err := events.Read([]byte(message))
	require.NoError(t, err)
	require.Nil(t, a.Payment)
	require.Equal(t, events.Type("PaymentDisputed"), a.Type)
}

func TestOtherVersionsAreToldFromNonsense(t *testing.T) {
	for _, version := range []string{"v2", "v17", "v123456789"} {
		_, err := events.Read([]byte(strings.Replace(settled(t), "paymentsd.v1.", "paymentsd."+version+".", 1)))
		require.ErrorIs(t, err, events.ErrUnknownVersion, version)
		require.NotContains(t, err.Error(), secret)
	}
}

func TestTraceThatIsNoneIsLeftOut(t *testing.T) {
	a, err := events.Read([]byte(strings.Replace(settled(t), trace, "00-not-a-trace\\nlog line", 1)))
	require.NoError(t, err)
	require.Empty(t, a.TraceParent)
}

// broken is every way to spoil a message that somebody thought of: what is replaced, and by what.
var broken = map[string][2]string{
	"other CloudEvents version":    {`"specversion":"1.0"`, `"specversion":"0.3"`},
	"type of somebody else":        {"paymentsd.v1.PaymentSettled", "com.example.PaymentSettled"},
	"type without a name":          {"paymentsd.v1.PaymentSettled", "paymentsd.v1."},
	"type with a strange name":     {"paymentsd.v1.PaymentSettled", "paymentsd.v1.Payment Settled"},
	"version zero":                 {"paymentsd.v1.", "paymentsd.v0."},
	"version spelled otherwise":    {"paymentsd.v1.", "paymentsd.v01."},
	"version with a sign":          {"paymentsd.v1.", "paymentsd.v+1."},
	"no id":                        {`"id":"evt_0190f5b7c0de70008000000000000001"`, `"id":""`},
	"other id than in data":        {`"id":"evt_0190f5b7c0de70008000000000000001"`, `"id":"evt_2"`},
	"null in the id":               {`"id":"evt_0190f5b7c0de70008000000000000001"`, `"id":"evt_\u0000"`},
	"no tenant":                    {`"tenantid":"acme"`, `"tenantid":""`},
	"upper-case tenant":            {`"tenantid":"acme"`, `"tenantid":"ACME"`},
	"tenant with a slash":          {`"tenantid":"acme"`, `"tenantid":"a/../b"`},
	"tenant with a line feed":      {`"tenantid":"acme"`, `"tenantid":"acme\n"`},
	"another tenant than source's": {`"tenantid":"acme"`, `"tenantid":"globex"`},
	"no subject":                   {`"subject":"pay_`, `"subjekt":"pay_`},
	"another subject than data's":  {`"subject":"pay_0190`, `"subject":"pay_0191`},
	"no sequence":                  {`"sequence":"2"`, `"sequence":""`},
	"sequence zero":                {`"sequence":"2"`, `"sequence":"0"`},
	"sequence as a number":         {`"sequence":"2"`, `"sequence":2`},
	"sequence spelled otherwise":   {`"sequence":"2"`, `"sequence":"02"`},
	"sequence too large":           {`"sequence":"2"`, `"sequence":"99999999999999999999"`},
	"another sequence than data's": {`"sequence":"2"`, `"sequence":"3"`},
	"same member twice":            {`"specversion":"1.0"`, `"specversion":"1.0","specversion":"1.0"`},
	"same member, escaped, twice":  {`"specversion":"1.0"`, `"specversion":"1.0","specv\u0065rsion":"1.0"`},
	"same member twice in data":    {`"amount":"10.00"`, `"amount":"10.00","amount":"99.00"`},
	"invalid UTF-8":                {`inv-1`, "inv-1\xff"},
	"lone surrogate":               {`inv-1`, `inv-1\ud800`},
	"null in the reference":        {`inv-1`, `inv-1\u0000`},
	"line feed in the reference":   {`inv-1`, `inv-1\r\nBcc: x@example.com`},
	"no reference":                 {`"merchantReference"`, `"merchantreference"`},
	"no data":                      {`"data":{`, `"date":{`},
	"data is null":                 {`"data":{`, `"data":null,"date":{`},
	"no amount":                    {`"amount":"10.00"`, `"amount":""`},
	"amount as a number":           {`"amount":"10.00"`, `"amount":10.00`},
	"negative amount":              {`"amount":"10.00"`, `"amount":"-10.00"`},
	"amount of zero":               {`"amount":"10.00"`, `"amount":"0.00"`},
	"amount with an exponent":      {`"amount":"10.00"`, `"amount":"1e9"`},
	"amount too precise":           {`"amount":"10.00"`, `"amount":"10.001"`},
	"no currency":                  {`"currency":"EUR"`, `"currency":""`},
	"lower-case currency":          {`"currency":"EUR"`, `"currency":"eur"`},
	"account with an at sign":      {`"accountId":"acc_1"`, `"accountId":"@provider_clearing"`},
	"account with a line feed":     {`"accountId":"acc_1"`, `"accountId":"acc_1\n"`},
	"payment with a parent":        {`"accountId":"acc_1"`, `"accountId":"acc_1","parentPaymentId":"pay_1"`},
	"no time":                      {`"occurredAt":"2026-05-01T12:00:00.123456789Z"`, `"occurredAt":"yesterday"`},
	"another type than in data":    {`"type":"PaymentSettled"`, `"type":"PaymentDeclined"`},
	"reference too long":           {`inv-1`, `inv-1` + strings.Repeat("é", 255)},
	"two documents":                {`"data":{`, `"data":{}}{"data":{`},
	"an array":                     {`{"specversion"`, `[{"specversion"`},
	"cut off":                      {`"data":{`, ``},
}

func TestWhatCannotBeVouchedForIsMalformed(t *testing.T) {
	for name, change := range broken {
		t.Run(name, func(t *testing.T) {
			message := strings.Replace(settled(t), change[0], change[1], 1)
			require.NotEqual(t, settled(t), message, "the case changes nothing")
			a, err := events.Read([]byte(message))
			require.ErrorIs(t, err, events.ErrMalformed)
			require.Zero(t, a)
			require.NotContains(t, err.Error(), secret)
			require.NotContains(t, err.Error(), "acc_1")
		})
	}
	for _, message := range []string{"", "null", "{}", "[]", `"x"`, "\xef\xbb\xbf" + settled(t), settled(t) + "x", settled(t) + settled(t),
		strings.Repeat("[", 100_000), strings.Replace(settled(t), `"data":{`, `"x":"`+strings.Repeat("x", events.BodyBytesMax)+`","data":{`, 1)} {
		_, err := events.Read([]byte(message))
		require.ErrorIs(t, err, events.ErrMalformed)
	}
	_, err := events.Read(wrapped(t, events.RefundSettled, `"parentPaymentId":"`+payID+`",`, ``))
	require.ErrorIs(t, err, events.ErrMalformed, "a refund of nothing")
}

func wrapped(t testing.TB, name events.Type, old, new string) []byte {
	before := string(wrap(t, samples(t)[name]))
	require.Contains(t, before, old)
	return []byte(strings.Replace(before, old, new, 1))
}

// FuzzRead: nothing makes it panic, and what it takes it can vouch for: it is the same when it is sent on.
func FuzzRead(f *testing.F) {
	for _, payload := range samples(f) {
		f.Add(wrap(f, payload))
	}
	for _, change := range broken {
		f.Add([]byte(strings.Replace(settled(f), change[0], change[1], 1)))
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		a, err := events.Read(message)
		if err != nil || a.Payment == nil {
			return
		}
		payload, err := a.Payment.Encode()
		require.NoError(t, err)
		sent, err := events.Wrap(a.TenantID, a.TraceParent, payload)
		require.NoError(t, err)
		again, err := events.Read(sent)
		require.NoError(t, err)
		require.Equal(t, a, again)
	})
}
