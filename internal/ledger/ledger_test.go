package ledger

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/events"
	"github.com/paymentsd/paymentsd/internal/inbox"
	"github.com/paymentsd/paymentsd/internal/pgtest"
)

func TestOnlyWhatTookEffectIsPosted(t *testing.T) {
	h := setup(t)
	var all []inbox.Message
	for i, name := range []events.Type{
		events.PaymentCreated, events.PaymentSettled, events.PaymentDeclined, events.PaymentCanceled, events.PaymentRecoveryRequired,
		events.RefundCreated, events.RefundSettled, events.RefundDeclined, events.RefundCanceled, events.RefundRecoveryRequired} {
		p := settled(i)
		if name[0] == 'R' {
			p = refunded(i, "4.00")
		}
		p.Type = name
		all = append(all, message(t, "acme", p))
	}
	h.consume(all...)
	h.requireBalanced(2)
	require.Equal(t, 2, h.count(`SELECT count(*) FROM consumer_inbox`), "what moves no money costs no row")
	for _, row := range []struct {
		name    EntryType
		account string
		minor   int
	}{{PaymentDebit, "acc_1", 1000}, {PaymentCredit, ClearingAccount, -1000}, {RefundDebit, ClearingAccount, 400}, {RefundCredit, "acc_1", -400}} {
		require.Equal(t, 1, h.count(`SELECT count(*) FROM ledger_entries WHERE ledger_entry_type = $1 AND account_id = $2 AND amount_minor = $3`, row.name, row.account, row.minor))
	}
	require.Empty(t, h.letters())
}

// The issue's own words: a purge of the inbox followed by a full redelivery adds no entry.
func TestBusinessKeyDecidesWhenTheInboxHasForgotten(t *testing.T) {
	h := setup(t)
	var all []inbox.Message
	for n := range 600 {
		all = append(all, message(t, "acme", settled(n)))
	}
	h.consume(all...)
	h.requireBalanced(600)
	h.exec(`DELETE FROM consumer_inbox`)
	h.consume(all...)
	h.requireBalanced(600)
	require.Equal(t, 600, h.count(`SELECT count(*) FROM consumer_inbox`))
	require.Empty(t, h.letters())

	again := settled(1) // the same fact under another event id
	again.EventID = "evt_another"
	h.consume(message(t, "acme", again))
	h.requireBalanced(600)
}

func TestContradictionIsSeenAndChangesNothing(t *testing.T) {
	for name, change := range map[string]func(*events.Payment){
		"amount":   func(p *events.Payment) { p.Amount = "99.00" },
		"currency": func(p *events.Payment) { p.Currency = "USD" },
		"account":  func(p *events.Payment) { p.AccountID = "acc_2" },
	} {
		t.Run(name, func(t *testing.T) {
			h := setup(t)
			other := settled(1)
			other.EventID = "evt_other"
			change(&other)
			good := message(t, "acme", settled(2))
			h.consume(message(t, "acme", settled(1)), message(t, "acme", other), good) // in one batch
			h.consume(message(t, "acme", other))                                       // and again
			h.requireBalanced(2)
			require.Equal(t, 1, h.count(`SELECT count(*) FROM ledger_entries WHERE source_payment_id = 'pay_1' AND account_id = 'acc_1' AND amount_minor = 1000 AND currency = 'EUR'`))
			letters := h.letters()
			require.Len(t, letters, 1)
			require.Equal(t, "contradicts_ledger", letters[0].Reason)
			require.Contains(t, letters[0].Error, "pay_1")
		})
	}
}

// I4: one message to two ledger instances at the same instant; and one fact under two event ids.
func TestI4TwoInstancesPostOnePair(t *testing.T) {
	h := setup(t)
	const n = 200
	var one, two []inbox.Message
	for i := range n {
		p := settled(i)
		one = append(one, message(t, "acme", p))
		if i%2 == 0 {
			p.EventID += "_again"
		}
		two = append([]inbox.Message{message(t, "acme", p)}, two...) // the other way round
	}
	feeds := []*feed{{waiting: one}, {waiting: two}, {waiting: one}}
	for _, f := range feeds {
		defer h.start(h.pool, f)()
	}
	for _, f := range feeds {
		h.eventually(func() bool { return f.ackedCount() == n })
	}
	h.requireBalanced(n)
	require.Empty(t, h.letters())
}

// I4: killed between effect and mark, and around the commit.
func TestI4CutCommitLeavesOnePair(t *testing.T) {
	for name, cut := range map[string]func(*pgtest.Proxy) *pgtest.Cut{
		"after the mark":      func(p *pgtest.Proxy) *pgtest.Cut { return p.DropNextReply(pgtest.Containing("into consumer_inbox")) },
		"after the effect":    func(p *pgtest.Proxy) *pgtest.Cut { return p.DropNextReply(pgtest.Containing("into ledger_entries")) },
		"commit never came":   func(p *pgtest.Proxy) *pgtest.Cut { return p.DropNextRequest(pgtest.Containing("commit")) },
		"commit was not told": func(p *pgtest.Proxy) *pgtest.Cut { return p.DropNextReply(pgtest.Containing("commit")) },
	} {
		t.Run(name, func(t *testing.T) {
			h := setup(t)
			proxy := pgtest.NewProxy(t, h.pool.Config().ConnString())
			planned := cut(proxy)
			f := &feed{waiting: []inbox.Message{message(t, "acme", settled(1)), message(t, "acme", refunded(1, "1.00"))}}
			stop := h.start(pgtest.Open(t, proxy.URL()), f)
			defer stop()
			h.eventually(func() bool { return f.ackedCount() == 2 })
			require.True(t, planned.Fired())
			h.requireBalanced(2)
		})
	}
}

func TestDatabaseRefusesWhatDoesNotBalance(t *testing.T) {
	h := setup(t)
	h.consume(message(t, "acme", settled(1)))
	const insert = `INSERT INTO ledger_entries (tenant_id, ledger_entry_type, source_payment_id, account_id, amount_minor, currency, occurred_at) VALUES `
	for constraint, statements := range map[string][]string{
		"debit_and_credit_sum_to_zero": {
			insert + `('acme', 'PAYMENT_DEBIT', 'pay_2', 'acc_1', 1000, 'EUR', now())`,
			insert + `('acme', 'PAYMENT_DEBIT', 'pay_2', 'acc_1', 1000, 'EUR', now()), ('acme', 'PAYMENT_CREDIT', 'pay_2', '@provider_clearing', -999, 'EUR', now())`,
			insert + `('acme', 'PAYMENT_DEBIT', 'pay_2', 'acc_1', 1000, 'EUR', now()), ('acme', 'PAYMENT_CREDIT', 'pay_2', '@provider_clearing', -1000, 'USD', now())`,
			insert + `('acme', 'PAYMENT_DEBIT', 'pay_2', 'acc_1', 1000, 'EUR', now()), ('acme', 'PAYMENT_CREDIT', 'pay_3', '@provider_clearing', -1000, 'EUR', now())`,
			insert + `('acme', 'PAYMENT_DEBIT', 'pay_2', 'acc_1', 1000, 'EUR', now()), ('globex', 'PAYMENT_CREDIT', 'pay_2', '@provider_clearing', -1000, 'EUR', now())`,
			insert + `('acme', 'PAYMENT_DEBIT', 'pay_2', 'acc_1', 1000, 'EUR', now()), ('acme', 'REFUND_CREDIT', 'pay_2', 'acc_1', -1000, 'EUR', now())`,
			insert + `('acme', 'REFUND_DEBIT', 'pay_2', '@provider_clearing', 1000, 'EUR', now()), ('acme', 'PAYMENT_CREDIT', 'pay_2', '@provider_clearing', -1000, 'EUR', now())`,
			insert + `('acme', 'PAYMENT_DEBIT', 'pay_2', 'acc_1', 1000, 'EUR', now()), ('acme', 'REFUND_CREDIT', 'pay_2', 'acc_1', -400, 'EUR', now()), ('acme', 'PAYMENT_CREDIT', 'pay_2', '@provider_clearing', -600, 'EUR', now())`,
			// one side is there already, so only the other one is inserted
			insert + `('acme', 'PAYMENT_DEBIT', 'pay_1', 'acc_1', 1000, 'EUR', now()), ('acme', 'REFUND_DEBIT', 'pay_1', '@provider_clearing', 5, 'EUR', now()) ON CONFLICT DO NOTHING`,
		},
		"debit_is_positive_and_credit_negative": {
			insert + `('acme', 'PAYMENT_DEBIT', 'pay_2', 'acc_1', -1000, 'EUR', now()), ('acme', 'PAYMENT_CREDIT', 'pay_2', '@provider_clearing', 1000, 'EUR', now())`,
			insert + `('acme', 'PAYMENT_DEBIT', 'pay_2', 'acc_1', 0, 'EUR', now()), ('acme', 'PAYMENT_CREDIT', 'pay_2', '@provider_clearing', 0, 'EUR', now())`,
		},
		"other_side_is_the_providers": {
			insert + `('acme', 'PAYMENT_DEBIT', 'pay_2', 'acc_1', 1000, 'EUR', now()), ('acme', 'PAYMENT_CREDIT', 'pay_2', 'acc_2', -1000, 'EUR', now())`,
		},
		"ledger_entry_type_is_known": {insert + `('acme', 'FEE', 'pay_2', 'acc_1', -1000, 'EUR', now())`},
		"ledger_entries_pkey":        {insert + `('acme', 'PAYMENT_DEBIT', 'pay_1', 'acc_1', 1000, 'EUR', now())`},
		"ledger_is_append_only": {
			`UPDATE ledger_entries SET amount_minor = 2 * amount_minor`, `UPDATE ledger_entries SET account_id = 'acc_2' WHERE false`,
			`DELETE FROM ledger_entries`, `TRUNCATE ledger_entries`,
		},
	} {
		for _, statement := range statements {
			_, err := h.pool.Exec(t.Context(), statement)
			var refused *pgconn.PgError
			require.True(t, errors.As(err, &refused), statement)
			require.Equal(t, constraint, refused.ConstraintName, statement)
		}
	}
	h.requireBalanced(1)
}

func TestNoClientCanNameTheClearingAccount(t *testing.T) {
	require.NotRegexp(t, regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`), ClearingAccount, "the syntax of account ids in openapi.yaml")
	h := setup(t)
	p := settled(1)
	p.AccountID = ClearingAccount
	h.consume(message(t, "acme", p))
	h.requireBalanced(0)
	require.Equal(t, "malformed", h.letters()[0].Reason)
}

// H7: what is stored and logged about messages that cannot be handled names ids and nothing else of them.
func TestH7DeadLettersAndLogsRepeatNoMessage(t *testing.T) {
	h := setup(t)
	broken, newer, huge, contradicting := message(t, "acme", settled(1)), message(t, "acme", settled(2)), message(t, "acme", settled(3)), settled(4)
	broken.Body = append(broken.Body, broken.Body...)
	newer.Body = regexp.MustCompile(`paymentsd\.v1\.`).ReplaceAll(newer.Body, []byte("paymentsd.v2."))
	huge.Body = append(make([]byte, 1<<20), huge.Body...)
	contradicting.EventID, contradicting.Amount = "evt_contradicting", "77.77"
	h.consume(broken, newer, huge, message(t, "acme", settled(4)), message(t, "acme", contradicting))
	h.requireBalanced(1)
	reasons := map[string]bool{}
	for _, l := range h.letters() {
		reasons[l.Reason] = true
		require.NotContains(t, l.Error, "s3cret")
		require.NotContains(t, l.Error, "77.77")
	}
	require.Equal(t, map[string]bool{"malformed": true, "unknown_version": true, "oversized": true, "contradicts_ledger": true}, reasons)
	require.NotContains(t, h.log.String(), "s3cret")
	require.NotContains(t, h.log.String(), "77.77")
}

// A dead letter that is repaired is posted once, however often it is handled again.
func TestRepairedLetterIsPostedOnce(t *testing.T) {
	h := setup(t)
	h.exec(`ALTER TABLE ledger_entries ADD CONSTRAINT no_euros CHECK (currency <> 'EUR') NOT VALID`)
	h.consume(message(t, "acme", settled(1)))
	require.Contains(t, h.letters()[0].Error, "no_euros")
	h.exec(`ALTER TABLE ledger_entries DROP CONSTRAINT no_euros`)
	c := NewConsumer(h.pool, nil, slog.New(slog.DiscardHandler))
	for want := 1; want >= 0; want-- {
		gone, failed, err := c.RedriveAll(context.Background())
		require.NoError(t, err)
		require.Zero(t, failed)
		require.Equal(t, want, gone)
	}
	h.consume(message(t, "acme", settled(1)))
	h.requireBalanced(1)
}
