package api

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/tenants"
)

// posts is what the ledger's consumer does with a settled payment or refund of an account.
func (b *bench) posts(tenantID, accountID, paymentID string, minor int64, currency string) {
	b.t.Helper()
	debit, credit, from, to := "PAYMENT_DEBIT", "PAYMENT_CREDIT", accountID, "@provider_clearing"
	if paymentID[:3] == "ref" {
		debit, credit, from, to = "REFUND_DEBIT", "REFUND_CREDIT", to, from
	}
	b.exec(`INSERT INTO ledger_entries (tenant_id, ledger_entry_type, source_payment_id, account_id, amount_minor, currency, occurred_at)
		VALUES ($1, $2, $6, $4, $7, $8, now()), ($1, $3, $6, $5, -$7::bigint, $8, now())`, tenantID, debit, credit, from, to, paymentID, minor, currency)
}

type ledgerPage struct {
	AccountID string      `json:"accountId"`
	Entries   []entryView `json:"entries"`
	Next      string      `json:"nextCursor"`
}

func (b *bench) ledger(path string, changes ...change) (page ledgerPage) {
	b.t.Helper()
	a := b.get(path, changes...)
	require.Equal(b.t, http.StatusOK, a.status, "%s", a.body)
	require.NoError(b.t, json.Unmarshal(a.body, &page, json.RejectUnknownMembers(true)), "%s", a.body)
	return page
}

func anID(prefix string, n int) string { return fmt.Sprintf("%s_%032x", prefix, n) }

func TestLedgerShowsEntriesWithRunningBalances(t *testing.T) {
	b := setup(t)
	require.Equal(t, ledgerPage{AccountID: "acc_1", Entries: []entryView{}}, b.ledger("/accounts/acc_1/ledger"))
	b.posts("acme", "acc_1", anID("pay", 1), 1000, "EUR")
	b.posts("acme", "acc_2", anID("pay", 2), 7, "EUR") // somebody else's
	b.posts("acme", "acc_1", anID("pay", 3), 500, "JPY")
	b.posts("acme", "acc_1", anID("ref", 4), 400, "EUR")
	b.posts("globex", "acc_1", anID("pay", 5), 9, "EUR") // another tenant's
	b.posts("acme", "acc_1", anID("ref", 6), 600, "EUR")
	b.posts("acme", "acc_1", anID("pay", 7), 1, "KWD")
	b.posts("acme", "acc_1", anID("ref", 8), 1, "EUR")

	want := []string{"PAYMENT_DEBIT 10.00 EUR 10.00", "PAYMENT_DEBIT 500 JPY 500", "REFUND_CREDIT -4.00 EUR 6.00",
		"REFUND_CREDIT -6.00 EUR 0.00", "PAYMENT_DEBIT 0.001 KWD 0.001", "REFUND_CREDIT -0.01 EUR -0.01"}
	for _, version := range []string{version20260501, version20261101} {
		for limit := 1; limit <= len(want)+1; limit++ {
			var seen []string
			path := fmt.Sprintf("/accounts/acc_1/ledger?limit=%d", limit)
			for next := path; next != ""; {
				page := b.ledger(next, with("Api-Version", version))
				require.Equal(t, "acc_1", page.AccountID)
				require.LessOrEqual(t, len(page.Entries), limit)
				for _, e := range page.Entries {
					seen = append(seen, fmt.Sprintf("%s %s %s %s", e.Type, e.Amount, e.Currency, e.Balance))
				}
				if next = ""; page.Next != "" {
					next = path + "&cursor=" + page.Next
				}
			}
			require.Equal(t, want, seen, "a balance does not depend on where a page begins")
		}
	}
	first := b.ledger("/accounts/acc_1/ledger?limit=2")
	require.Equal(t, "ledger_payment_"+anID("pay", 1)+"_debit", first.Entries[0].EntryID)
	require.Equal(t, anID("pay", 1), first.Entries[0].PaymentID)
	b.posts("acme", "acc_1", anID("pay", 9), 100, "EUR")
	require.Equal(t, first, b.ledger("/accounts/acc_1/ledger?limit=2"), "what a page has shown never changes")
	require.Equal(t, "0.09", b.ledger("/accounts/acc_1/ledger", ofTenant("globex")).Entries[0].Balance)
}

func TestLedgerIsReadByWhoMay(t *testing.T) {
	b := setup(t)
	may := func(scope tenants.Scope) change {
		secret, err := b.tenants.IssueAPIKey(t.Context(), "acme", string(scope), scope)
		require.NoError(t, err)
		return bearing(secret)
	}
	require.Equal(t, http.StatusOK, b.get("/accounts/acc_1/ledger", may(tenants.Read)).status)
	b.rejects(b.request("GET", "/accounts/acc_1/ledger", "", may(tenants.Pay)), http.StatusForbidden, "FORBIDDEN")
	b.rejects(b.request("GET", "/accounts/acc_1/ledger", "", without("Authorization")), http.StatusUnauthorized, "UNAUTHENTICATED")
	b.rejects(b.request("GET", "/accounts/acc_9/ledger", ""), http.StatusNotFound, "ACCOUNT_NOT_FOUND")
	b.rejects(b.request("GET", "/accounts/acc%209/ledger", ""), http.StatusNotFound, "ACCOUNT_NOT_FOUND")
	b.rejects(b.request("GET", "/accounts/@provider_clearing/ledger", ""), http.StatusNotFound, "ACCOUNT_NOT_FOUND")
	b.rejects(b.request("GET", "/accounts/acc_1/ledger", "", with("Api-Version", "1999-01-01")), http.StatusBadRequest, "API_VERSION_UNKNOWN")
	for query, field := range map[string]string{
		"limit=0": "limit", "limit=101": "limit", "limit=x": "limit", "cursor=x": "cursor", "cursor=MA": "cursor", "cursor=LTE": "cursor",
		"cursor=OTk5OTk5OTk5OTk5OTk5OTk5OTk": "cursor", "cursor=": "cursor", "limit=1&limit=2": "limit",
	} {
		b.rejectsField(b.request("GET", "/accounts/acc_1/ledger?"+query, ""), field, "INVALID")
	}
	b.rejectsField(b.request("GET", "/accounts/acc_1/ledger?status=PENDING", ""), "status", "UNKNOWN_MEMBER")
	b.exec(`ALTER TABLE ledger_entries RENAME TO ledger_entries_away`)
	b.rejects(b.request("GET", "/accounts/acc_1/ledger", ""), http.StatusServiceUnavailable, "SERVICE_UNAVAILABLE")
	b.exec(`ALTER TABLE ledger_entries_away RENAME TO ledger_entries`)
}
