package provider

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var asked = orderBody{Account: "acc_1", AmountMinor: 1000, Currency: "EUR", Reference: "inv-1", PaymentID: "pay_1"}

const askedKey = "provider_payment_pay_1"

// fits is a success as the provider writes it, with one member replaced or added.
func fits(member, value string) string {
	members := []string{
		`"id":"ch_1"`, `"status":"succeeded"`, `"account":"acc_1"`, `"amountMinor":1000`, `"currency":"EUR"`,
		`"reference":"inv-1"`, `"paymentId":"pay_1"`, `"idempotencyKey":"provider_payment_pay_1"`, `"replayed":false`,
	}
	for i, m := range members {
		if strings.HasPrefix(m, `"`+member+`"`) {
			members[i] = fmt.Sprintf("%q:%s", member, value)
			return "{" + strings.Join(members, ",") + "}"
		}
	}
	return "{" + strings.Join(append(members, fmt.Sprintf("%q:%s", member, value)), ",") + "}"
}

var fitting = fits("x", "1") // unknown members are the provider's business

func TestOnlyAnAnswerThatFitsIsASuccess(t *testing.T) {
	for _, row := range []struct {
		body    string
		outcome Outcome
		reason  string
	}{
		{fitting, Confirmed, "answered"},
		{`{"id":"ch_1","status":"succeeded","amountMinor":1000,"currency":"EUR"}`, Confirmed, "answered"},
		{fits("currency", `"eur"`), Confirmed, "answered"},
		{fits("replayed", `true`), Confirmed, "answered"},

		{fits("amountMinor", `1001`), Unknown, "mismatch"},
		{fits("amountMinor", `100000`), Unknown, "mismatch"},
		{fits("amountMinor", `0`), Unknown, "mismatch"},
		{fits("currency", `"USD"`), Unknown, "mismatch"},
		{fits("currency", `""`), Unknown, "mismatch"},
		{fits("account", `"acc_2"`), Unknown, "mismatch"},
		{fits("reference", `"Inv-1"`), Unknown, "mismatch"},
		{fits("paymentId", `"pay_2"`), Unknown, "mismatch"},
		{fits("idempotencyKey", `"provider_payment_pay_2"`), Unknown, "mismatch"},

		{fits("amountMinor", `null`), Unknown, "unreadable"},
		{fits("amountMinor", `"1000"`), Unknown, "unreadable"},
		{fits("amountMinor", `1000.0`), Unknown, "unreadable"},
		{fits("amountMinor", `99999999999999999999`), Unknown, "unreadable"},
		{fits("currency", `null`), Unknown, "unreadable"},
		{fits("id", `""`), Unknown, "unreadable"},
		{fits("id", `"ch\n1"`), Unknown, "unreadable"},
		{fits("id", `"`+strings.Repeat("c", 256)+`"`), Unknown, "unreadable"},
		{`{"status":"succeeded","status":"declined"}`, Unknown, "unreadable"},
		{fitting + fitting, Unknown, "unreadable"},
		{fitting[:len(fitting)-1], Unknown, "unreadable"},
		{"[" + fitting + "]", Unknown, "unreadable"},
		{"", Unknown, "unreadable"},

		{fits("status", `"pending"`), Unknown, "undecided"},
		{fits("status", `"Succeeded"`), Unknown, "undecided"},
		{`{}`, Unknown, "undecided"},
		{`null`, Unknown, "undecided"},

		{`{"status":"declined"}`, Declined, "answered"},
		{`{"status":"declined","amountMinor":5}`, Unknown, "mismatch"},
		{`{"status":"declined","paymentId":"pay_2"}`, Unknown, "mismatch"},
	} {
		result := judgeSend(answer{status: http.StatusCreated, body: []byte(row.body)}, askedKey, asked)
		require.Equal(t, row.outcome, result.Outcome, row.body)
		require.Equal(t, row.reason, result.Reason, row.body)
	}
}

// An order from before orders named their tenant is not judged by it.
func TestTenantFitsWhereItWasSaid(t *testing.T) {
	named := asked
	named.Tenant = "acme"
	for _, row := range []struct {
		body    string
		asked   orderBody
		outcome Outcome
	}{
		{fits("tenant", `"acme"`), named, Confirmed},
		{fitting, named, Confirmed},
		{fits("tenant", `"globex"`), named, Unknown},
		{fits("tenant", `"globex"`), asked, Confirmed},
	} {
		result := judgeSend(answer{status: http.StatusCreated, body: []byte(row.body)}, askedKey, row.asked)
		require.Equal(t, row.outcome, result.Outcome, row.body)
	}
}

func TestStatusLineLimitsWhatABodyCanProve(t *testing.T) {
	for status := 100; status < 600; status++ {
		success := judgeSend(answer{status: status, body: []byte(fitting)}, askedKey, asked)
		refusal := judgeSend(answer{status: status, body: []byte(`{"status":"declined"}`)}, askedKey, asked)
		switch {
		case status >= 200 && status <= 299:
			require.Equal(t, Confirmed, success.Outcome, status)
			require.Equal(t, Declined, refusal.Outcome, status)
		case status == 402:
			require.Equal(t, unknown("http_402"), success)
			require.Equal(t, Declined, refusal.Outcome)
		default:
			require.Equal(t, unknown(fmt.Sprintf("http_%d", status)), success)
			require.Equal(t, unknown(fmt.Sprintf("http_%d", status)), refusal)
		}
		if found := judgeLookup(answer{status: status, body: []byte("[]")}, askedKey, asked); status != 200 {
			require.Equal(t, unknown(fmt.Sprintf("http_%d", status)), found)
		}
	}
}

func TestLookupListsAreJudgedAsAWhole(t *testing.T) {
	refusal := `{"status":"declined","declineCode":"CARD_DECLINED"}`
	for _, row := range []struct {
		body    string
		outcome Outcome
		reason  string
	}{
		{"[]", Absent, "absent"},
		{"[" + fitting + "]", Confirmed, "answered"},
		{"[" + refusal + "]", Declined, "answered"},
		{"[" + refusal + "," + refusal + "]", Declined, "answered"},
		{"[" + refusal + "," + fitting + "]", Confirmed, "answered"},
		{"[" + fitting + "," + refusal + "]", Confirmed, "answered"},
		{"[" + fitting + "," + fitting + "]", Unknown, "ambiguous"},
		{"[" + fitting + "," + fits("amountMinor", "1") + "]", Unknown, "mismatch"},
		{"[" + refusal + "," + fits("status", `"pending"`) + "]", Unknown, "undecided"},
		{"[null]", Unknown, "undecided"},
		{"null", Unknown, "unreadable"},
		{"{}", Unknown, "unreadable"},
		{fitting, Unknown, "unreadable"},
		{"", Unknown, "unreadable"},
		{"[", Unknown, "unreadable"},
	} {
		result := judgeLookup(answer{status: http.StatusOK, body: []byte(row.body)}, askedKey, asked)
		require.Equal(t, row.outcome, result.Outcome, row.body)
		require.Equal(t, row.reason, result.Reason, row.body)
	}
}

func TestOutcomesHaveNamesAndTheZeroValueIsThePessimist(t *testing.T) {
	names := map[Outcome]string{
		Unknown: "unknown", Confirmed: "confirmed", Declined: "declined", NotSent: "not_sent", Absent: "absent",
	}
	for o, name := range names {
		require.Equal(t, name, o.String())
	}
	require.Equal(t, "invalid_outcome_9", Outcome(9).String())
	require.Equal(t, Unknown, Result{}.Outcome)
}
