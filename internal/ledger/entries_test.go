package ledger

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/events"
	"github.com/paymentsd/paymentsd/internal/inbox"
)

func TestBalancesRunPerCurrencyThroughThePages(t *testing.T) {
	h := setup(t)
	yen, other := settled(4), settled(5)
	yen.Amount, yen.Currency = "500", "JPY"
	other.AccountID = "acc_2"
	giveBackYen := refunded(4, "500")
	giveBackYen.Currency = "JPY"
	for _, p := range []events.Payment{settled(1), settled(2), yen, other, refunded(1, "10.00"), refunded(2, "0.01"), giveBackYen, settled(3)} {
		h.consume(message(t, "acme", p))
	}
	h.consume(message(t, "globex", settled(6)))

	type line struct{ id, amount, balance string }
	want := []line{
		{"ledger_payment_pay_1_debit", "10.00", "10.00"},
		{"ledger_payment_pay_2_debit", "10.00", "20.00"},
		{"ledger_payment_pay_4_debit", "500", "500"},
		{"ledger_refund_ref_1_credit", "-10.00", "10.00"},
		{"ledger_refund_ref_2_credit", "-0.01", "9.99"},
		{"ledger_refund_ref_4_credit", "-500", "0"},
		{"ledger_payment_pay_3_debit", "10.00", "19.99"},
	}
	for _, max := range []int{1, 2, 3, 100} {
		var got []line
		for after := int64(0); ; {
			page, err := Entries(t.Context(), h.pool, "acme", "acc_1", after, max)
			require.NoError(t, err)
			require.LessOrEqual(t, len(page), max)
			if len(page) == 0 {
				break
			}
			for _, e := range page {
				got = append(got, line{e.ID, e.Amount.String(), e.Balance.String()})
				after = e.Position
			}
		}
		require.Equal(t, want, got, "pages of %d", max)
	}
	page, err := Entries(t.Context(), h.pool, "acme", "acc_1", 0, 1)
	require.NoError(t, err)
	require.Equal(t, Entry{
		ID: "ledger_payment_pay_1_debit", PairID: "ledger_payment_pay_1", Type: PaymentDebit, PaymentID: "pay_1",
		Amount: page[0].Amount, Balance: page[0].Balance, OccurredAt: page[0].OccurredAt, PostedAt: page[0].PostedAt, Position: page[0].Position}, page[0])
	require.True(t, settled(1).OccurredAt.Equal(page[0].OccurredAt))
	page, err = Entries(t.Context(), h.pool, "globex", "acc_2", 0, 10)
	require.NoError(t, err)
	require.Empty(t, page, "of another tenant")
}

// What a page has shown never changes: no entry appears before one that was shown. So an account is posted to by one transaction
// at a time, and other accounts do not wait for it.
func TestEntriesOfAnAccountAppearInTheOrderOfTheirPositions(t *testing.T) {
	h := setup(t)
	tx, err := h.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	require.NoError(t, post(t.Context(), tx, []inbox.Received[events.Payment]{{Head: inbox.Head{TenantID: "acme"}, Event: settled(1)}}))

	same, other := &feed{waiting: []inbox.Message{message(t, "acme", settled(2))}}, &feed{}
	elsewhere := settled(3)
	elsewhere.AccountID = "acc_2"
	other.waiting = []inbox.Message{message(t, "acme", elsewhere), message(t, "globex", settled(4))}
	defer h.start(h.pool, same)()
	h.eventually(func() bool {
		return h.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'`) == 1
	})
	stop := h.start(h.pool, other)
	h.eventually(func() bool { return other.ackedCount() == 2 })
	stop()
	require.Zero(t, same.ackedCount(), "posted behind an entry that may still come")

	require.NoError(t, tx.Commit(t.Context()))
	h.eventually(func() bool { return same.ackedCount() == 1 })
	page, err := Entries(t.Context(), h.pool, "acme", "acc_1", 0, 10)
	require.NoError(t, err)
	require.Len(t, page, 2)
	require.Equal(t, []string{"pay_1", "pay_2"}, []string{page[0].PaymentID, page[1].PaymentID})
	require.False(t, page[1].PostedAt.Before(page[0].PostedAt))
}

// Pages and balances come from the index alone, however many entries there are.
func TestPagesAreServedByTheIndex(t *testing.T) {
	h := setup(t)
	h.exec(`INSERT INTO ledger_entries (tenant_id, ledger_entry_type, source_payment_id, account_id, amount_minor, currency, occurred_at)
		SELECT 'acme', side.name, 'pay_' || n, side.account, side.amount, 'EUR', now() FROM generate_series(1, 20000) n,
		LATERAL (VALUES ('PAYMENT_DEBIT', 'acc_' || n % 100, 5), ('PAYMENT_CREDIT', '@provider_clearing', -5)) side (name, account, amount)`)
	h.exec(`VACUUM ANALYZE ledger_entries`)
	rows, err := h.pool.Query(t.Context(), `EXPLAIN SELECT currency, sum(amount_minor) FROM ledger_entries
		WHERE tenant_id = 'acme' AND account_id = 'acc_7' AND position <= 30000 GROUP BY currency`)
	require.NoError(t, err)
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Contains(t, plan[len(plan)-2]+plan[len(plan)-1], "ledger_entries_of_account")
	require.Contains(t, plan[len(plan)-2]+plan[len(plan)-1], "Index Only Scan")
	page, err := Entries(t.Context(), h.pool, "acme", "acc_7", 0, 1000)
	require.NoError(t, err)
	require.Len(t, page, 200)
	require.Equal(t, "10.00", page[199].Balance.String())
}
