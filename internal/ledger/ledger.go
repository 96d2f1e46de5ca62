// Package ledger promises that every payment and refund that took effect is posted once, as one debit and one credit that
// sum to zero.
//
// A payment debits the account that pays and credits the provider's clearing account, where the money is until the provider pays it
// out; a refund does the opposite. Debits are positive and credits negative, so an account's balance is what it has been charged
// and not been given back.
//
// What makes it once is the business key, tenant, entry type and payment: it holds whatever the inbox has forgotten and however
// often a broker sends an event. What makes it balance is a trigger in the database, which refuses a statement that posts anything
// but whole pairs; entries are never changed afterwards.
package ledger

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"github.com/paymentsd/paymentsd/internal/events"
	"github.com/paymentsd/paymentsd/internal/inbox"
	"github.com/paymentsd/paymentsd/internal/ledger/internal/ledgersql"
)

// ConsumerName is the name under which the ledger takes events.
const ConsumerName = "ledger"

// ClearingAccount is the other side of every entry of a client's account. No client can name it: it is not of the syntax of
// account ids.
const ClearingAccount = "@provider_clearing"

// EntryType says which side of what an entry is.
type EntryType string

const (
	PaymentDebit  EntryType = "PAYMENT_DEBIT"  // of the account that pays
	PaymentCredit EntryType = "PAYMENT_CREDIT" // of the clearing account
	RefundDebit   EntryType = "REFUND_DEBIT"   // of the clearing account
	RefundCredit  EntryType = "REFUND_CREDIT"  // of the account that gets it back
)

// NewConsumer makes the consumer that posts. Source is nil when it only handles dead letters again.
func NewConsumer(db inbox.Database, source inbox.Source, log *slog.Logger) *inbox.Consumer[events.Payment] {
	return inbox.New(inbox.Parts[events.Payment]{
		Name: ConsumerName, DB: db, Source: source, Read: read, UnknownVersion: events.ErrUnknownVersion, Apply: post, Log: log})
}

// read takes what moves money; everything else is not for the ledger.
func read(m inbox.Message) (inbox.Head, events.Payment, error) {
	a, err := events.Read(m.Body)
	if err != nil {
		return inbox.Head{}, events.Payment{}, err
	}
	head := inbox.Head{TenantID: a.TenantID, MessageID: a.ID, AggregateID: a.Subject, Sequence: a.Sequence, TraceParent: a.TraceParent}
	if a.Type != events.PaymentSettled && a.Type != events.RefundSettled {
		head.Skip = "moves_no_money"
		return head, events.Payment{}, nil
	}
	return head, *a.Payment, nil
}

// post posts a pair for each event.
func post(ctx context.Context, tx pgx.Tx, fresh []inbox.Received[events.Payment]) error {
	queries := ledgersql.New()
	var lock ledgersql.LockAccountsParams
	var p ledgersql.PostEntriesParams
	for _, r := range fresh {
		amount, err := r.Event.Money()
		if err != nil {
			return &inbox.Refusal{Reason: "no_money", Why: "amount and currency of " + r.Event.PaymentID + " are no money"}
		}
		lock.TenantIds = append(lock.TenantIds, r.TenantID)
		lock.AccountIds = append(lock.AccountIds, r.Event.AccountID)
		for _, side := range sides(r.Event) {
			p.TenantIds = append(p.TenantIds, r.TenantID)
			p.EntryTypes = append(p.EntryTypes, string(side.entryType))
			p.PaymentIds = append(p.PaymentIds, r.Event.PaymentID)
			p.AccountIds = append(p.AccountIds, side.accountID)
			p.AmountsMinor = append(p.AmountsMinor, side.sign*amount.Minor())
			p.Currencies = append(p.Currencies, amount.Currency().String())
			p.OccurredAt = append(p.OccurredAt, r.Event.OccurredAt)
		}
	}
	if err := queries.LockAccounts(ctx, tx, lock); err != nil {
		return fmt.Errorf("lock accounts: %w", err)
	}
	posted, err := queries.PostEntries(ctx, tx, p)
	if err != nil {
		return fmt.Errorf("post entries: %w", err)
	}
	if int(posted) == len(p.PaymentIds) {
		return nil
	}
	return findContradiction(ctx, tx, queries, p)
}

type side struct {
	entryType EntryType
	accountID string
	sign      int64
}

func sides(p events.Payment) [2]side {
	if p.Type == events.RefundSettled {
		return [2]side{{RefundDebit, ClearingAccount, +1}, {RefundCredit, p.AccountID, -1}}
	}
	return [2]side{{PaymentDebit, p.AccountID, +1}, {PaymentCredit, ClearingAccount, -1}}
}

// findContradiction looks at what was posted before. The same again is nothing new; something else under the same business key
// means that one of the two is wrong, and a person has to see it. It is a statement of its own, because only a new snapshot shows
// what somebody else has posted meanwhile, and because it is hardly ever needed.
func findContradiction(ctx context.Context, tx pgx.Tx, queries *ledgersql.Queries, p ledgersql.PostEntriesParams) error {
	contradicted, err := queries.FindContradictions(ctx, tx, ledgersql.FindContradictionsParams{
		TenantIds: p.TenantIds, EntryTypes: p.EntryTypes, PaymentIds: p.PaymentIds, AccountIds: p.AccountIds, AmountsMinor: p.AmountsMinor, Currencies: p.Currencies})
	if err != nil {
		return fmt.Errorf("compare with the ledger: %w", err)
	}
	if len(contradicted) > 0 {
		return &inbox.Refusal{Reason: "contradicts_ledger", Why: contradicted[0] + " is in the ledger with another amount, currency or account"}
	}
	return nil
}
