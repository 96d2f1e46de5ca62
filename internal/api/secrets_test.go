package api

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// H7: sentinels in everything that is secret or personal, through success, conflict, refusal, provider errors and recovery.
// The API key is nowhere. The others are where they belong, and not in logs, error texts or anything that is for operators.
func TestH7_SentinelsStayWhereTheyBelong(t *testing.T) {
	b := setup(t)
	const key, reference, account = "sentinel-key", "sentinel-reference", "sentinel-account"
	secret, err := b.tenants.IssueAPIKey(t.Context(), "acme", "sentinel")
	require.NoError(t, err)
	b.exec(`INSERT INTO accounts (tenant_id, account_id) VALUES ('acme', $1)`, account)
	body := strings.NewReplacer("acc_1", account, "inv-1", reference).Replace(b0)
	as := bearing(secret)

	require.Equal(t, http.StatusCreated, b.pay(key, body, as).status)
	var problems []string
	for name, a := range map[string]answer{
		"conflict":  b.pay(key, strings.Replace(body, "10.00", "11.00", 1), as),
		"malformed": b.pay(key+"-2", body+"x", as),
		"invalid":   b.pay(key+"-2", strings.Replace(body, "10.00", "sentinel-amount", 1), as),
		"duplicate": b.pay(key+"-2", body, as),
		"unknown":   b.pay(key+"-2", `{"sentinel-member":"sentinel-value",`+body[1:], as),
	} {
		require.GreaterOrEqual(t, a.status, 400, name)
		problems = append(problems, strings.ReplaceAll(string(a.body), "sentinel-member", "")) // the member's name is what is wrong
	}
	for i, fault := range []string{"execute_then_drop", "error_before", "unreadable_body", "decline"} {
		other := reference + fault
		b.fault(other, "charge", fault, nil)
		b.pay(key+fault, strings.Replace(body, reference, other, 1), as)
		b.leaseOver()
		_, err := b.service.Recover(t.Context())
		require.NoError(t, err, i)
	}
	require.NotContains(t, strings.Join(problems, "\n"), "sentinel")
	for _, word := range []string{secret, "sentinel"} {
		require.NotContains(t, b.logs.String(), word, "logs, at every level")
	}
	require.NotContains(t, b.dump(), secret)
	for _, r := range b.received(reference) {
		require.NotContains(t, r.Body, key)
		require.NotContains(t, strings.Join(r.Headers["Authorization"], ""), secret)
	}

	// After expiry and cleanup the body is gone; hash and ids stay.
	b.exec(`UPDATE idempotency_requests SET expires_at = now() - interval '1 s', cleanup_at = now() - interval '1 s'`)
	_, err = b.keys.Clean(t.Context(), time.Hour, 100, func(context.Context) {})
	require.NoError(t, err)
	require.Zero(t, b.count(`SELECT count(*) FROM idempotency_requests WHERE response_body IS NOT NULL AND status = 'EXPIRED'`))
}

// dump is everything that is in the database, as pg_dump writes it.
func (b *bench) dump() string {
	name, err := exec.LookPath("pg_dump")
	if err != nil {
		found, _ := exec.Command("sh", "-c", "ls /usr/lib/postgresql/*/bin/pg_dump | tail -1").Output()
		name = strings.TrimSpace(string(found))
	}
	if _, err := os.Stat(name); err != nil {
		b.t.Skip("no pg_dump here")
	}
	out, err := exec.Command(name, b.pool.Config().ConnString()).Output()
	require.NoError(b.t, err)
	require.Contains(b.t, string(out), "sentinel-reference", "the dump is one")
	return string(out)
}
