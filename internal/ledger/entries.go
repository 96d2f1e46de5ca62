package ledger

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/shopspring/decimal"

	"github.com/paymentsd/paymentsd/internal/ledger/internal/ledgersql"
	"github.com/paymentsd/paymentsd/internal/money"
)

// Entry is one side of what was posted, as its account sees it.
type Entry struct {
	ID         string // "ledger_payment_<payment id>_debit"
	PairID     string // "ledger_payment_<payment id>" or "ledger_refund_<refund id>": the same for both sides
	Type       EntryType
	PaymentID  string // the payment or refund
	Amount     Sum    // negative for a credit
	Balance    Sum    // of the account in this currency, after this entry
	OccurredAt time.Time
	PostedAt   time.Time
	Position   int64 // where the page after this entry begins
}

// Sum is an amount of money that may be negative or zero.
type Sum struct {
	Minor    int64
	Currency money.Currency
}

// String is the sum with the currency's number of places: "-10.00", "0", "1.000".
func (s Sum) String() string {
	return decimal.New(s.Minor, -s.Currency.Places()).StringFixed(s.Currency.Places())
}

// Entries is a page of an account's entries, oldest first: at most max of those behind the position of an entry, 0 for the first
// page. Entries of an account never appear before one that was shown, and a balance that was shown never changes.
func Entries(ctx context.Context, db ledgersql.DBTX, tenantID, accountID string, after int64, max int) ([]Entry, error) {
	rows, err := ledgersql.New().ListEntries(ctx, db, ledgersql.ListEntriesParams{TenantID: tenantID, AccountID: accountID, AfterPosition: after, RowsMax: int32(max)})
	if err != nil {
		return nil, fmt.Errorf("list ledger entries: %w", err)
	}
	entries := make([]Entry, len(rows))
	for i, row := range rows {
		one, err := money.Stored(1, row.Currency)
		if err != nil {
			return nil, fmt.Errorf("list ledger entries: %w", err)
		}
		of, side, _ := strings.Cut(strings.ToLower(row.LedgerEntryType), "_")
		pair := "ledger_" + of + "_" + row.SourcePaymentID
		entries[i] = Entry{
			ID: pair + "_" + side, PairID: pair, Type: EntryType(row.LedgerEntryType), PaymentID: row.SourcePaymentID,
			Amount: Sum{row.AmountMinor, one.Currency()}, Balance: Sum{row.BalanceMinor, one.Currency()},
			OccurredAt: row.OccurredAt, PostedAt: row.PostedAt, Position: row.Position,
		}
	}
	return entries, nil
}
