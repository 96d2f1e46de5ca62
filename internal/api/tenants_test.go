package api

import (
	"net/http"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"
)

func TestE1_TenantsWithTheSameKeyAreIndependent(t *testing.T) {
	b := setup(t)
	mine := b.settles("1", b0)
	theirs := b.settles("1", b0, ofTenant("globex"))
	require.NotEqual(t, mine.payment(t).PaymentID, theirs.payment(t).PaymentID)
	require.Len(t, b.charges("inv-1"), 2)
	require.Equal(t, shapeOf(t, mine), shapeOf(t, theirs))

	b.replays(mine, b.paying("1", b0))
	b.replays(theirs, b.paying("1", b0, ofTenant("globex")))

	// Another body under a key that only the other tenant has used is a first request like any other.
	b.settles("2", bodyFor("of-acme"))
	b.settles("2", bodyFor("of-globex"), ofTenant("globex"))
	require.Len(t, b.charges("of-globex"), 1)
}

func TestE1_NothingIsToldWhileTheOtherTenantsRequestRuns(t *testing.T) {
	b := setup(t)
	b.slow("inv-1", 2000)
	first := b.start(b.paying("1", b0))
	b.untilSent("inv-1")

	b.settles("1", bodyFor("of-globex"), ofTenant("globex"))
	require.Equal(t, "IDEMPOTENCY_REQUEST_IN_PROGRESS", b.pay("1", b0).problem(t).ErrorCode, "and it still ran")
	require.Equal(t, http.StatusCreated, first().status)
}

func TestE1_WithoutAnAPIKeyNothingIsLookedAt(t *testing.T) {
	b := setup(t)
	mine := b.settles("1", b0)
	secret, err := b.tenants.IssueAPIKey(t.Context(), "acme", "second")
	require.NoError(t, err)
	b.replays(mine, b.paying("1", b0, bearing(secret))) // the tenant owns the key, not the API key
	require.NoError(t, b.tenants.RevokeAPIKey(t.Context(), "acme", "second"))
	time.Sleep(1100 * time.Millisecond) // an API key is remembered for a second

	var answers []answer
	for name, credentials := range map[string][]change{
		"none": {without("Authorization")}, "revoked": {bearing(secret)}, "unknown": {bearing("sk_demo_nobody")}, "blank": {bearing("")},
		"other scheme": {without("Authorization"), with("Authorization", "Basic sk_demo_acme")},
		"bare secret":  {without("Authorization"), with("Authorization", "sk_demo_acme")},
		"two of them":  {with("Authorization", "Bearer sk_demo_globex")},
	} {
		t.Run("E1 "+name, func(t *testing.T) {
			for _, r := range []*http.Request{
				b.paying("1", b0, credentials...), b.paying("1", otherCommands["amount"], credentials...), b.paying("unused", b0, credentials...),
				b.paying("", "{", credentials...), b.request("GET", "/payments/"+mine.payment(t).PaymentID, "", credentials...),
				b.request("GET", "/payments/"+noPayment+"/history", "", credentials...),
			} {
				b.rejects(r, http.StatusUnauthorized, "UNAUTHENTICATED")
			}
			answers = append(answers, b.pay("1", b0, credentials...))
		})
	}
	for _, a := range answers {
		require.Equal(t, string(answers[0].body), string(a.body), "which of these it was is not told")
	}
}

func TestE1_PaymentsOfAnotherTenantDoNotExist(t *testing.T) {
	b := setup(t)
	id := b.settles("1", b0).payment(t).PaymentID
	for _, path := range []string{"/payments/" + id, "/payments/" + id + "/history"} {
		hidden, absent := b.get(path, ofTenant("globex")), b.get("/payments/"+noPayment, ofTenant("globex"))
		require.Equal(t, http.StatusNotFound, hidden.status)
		require.Equal(t, string(absent.body), string(hidden.body))
	}
	// Nor do their references: the business key is the tenant's too.
	b.settles("2", b0, ofTenant("globex"))
}

// What a refusal says depends on the refused request alone: nothing of the first one comes back.
func TestE1_ConflictsRepeatNothingOfTheFirstRequest(t *testing.T) {
	b := setup(t)
	first := b.settles("secret-key", paymentBody("secret-reference", "123.45", "CHF"))
	conflict := b.pay("secret-key", b0)
	require.Equal(t, http.StatusConflict, conflict.status)
	for _, value := range []string{"secret-key", "secret-reference", "123.45", "12345", "CHF", "acc_1", first.payment(t).PaymentID} {
		require.NotContains(t, string(conflict.body), value)
	}
	require.Empty(t, conflict.header.Get("Idempotency-Key-Expires"))
	require.Empty(t, conflict.header.Get("Location"))

	b.settles("k-2", bodyFor("inv-2"))
	require.Equal(t, string(conflict.body), string(b.pay("k-2", bodyFor("inv-3")).body))

	duplicate := b.pay("another", bodyFor("secret-reference"))
	require.Equal(t, first.payment(t).PaymentID, duplicate.problem(t).PaymentID)
	for _, value := range []string{"secret-key", "123.45", "CHF"} {
		require.NotContains(t, string(duplicate.body), value)
	}
	for _, value := range []string{"secret-key", "secret-reference", "123.45"} {
		require.NotContains(t, b.logs.String(), value)
	}
}

// shapeOf is an answer without its values: status, header names, and the names and kinds of the members.
func shapeOf(t *testing.T, a answer) any {
	t.Helper()
	var members map[string]any
	require.NoError(t, json.Unmarshal(a.body, &members))
	for name, value := range members {
		if _, isText := value.(string); isText {
			members[name] = "text"
		}
	}
	names := map[string]bool{}
	for name := range a.header {
		names[name] = true
	}
	return []any{a.status, names, members}
}
