package receipts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/paymentsd/paymentsd/internal/money"
	"github.com/paymentsd/paymentsd/internal/receipts/internal/receiptssql"
)

// Statuses of a receipt; sender.go says what moves it out of each.
const (
	StatusPending = "PENDING"
	StatusSending = "SENDING"
	StatusSent    = "SENT"
	StatusUnknown = "UNKNOWN"
	StatusFailed  = "FAILED"
)

var (
	// ErrNotFound: the tenant has no such receipt.
	ErrNotFound = errors.New("receipt not found")
	// ErrNotYours: only a receipt that failed or is in doubt can be sent again, and only one in doubt can be confirmed.
	ErrNotYours = errors.New("the receipt's status does not leave that to a person")
)

// Receipt is a receipt as operators see it. What it says and to whom is not shown.
type Receipt struct {
	TenantID  string
	ID        string
	PaymentID string // the payment or refund
	AccountID string
	Amount    money.Amount
	MessageID string // by which a mail server can be asked, without the angle brackets
	Status    string
	Attempts  int
	LastError string // a word of ours, such as smtp_550
	CreatedAt time.Time
	UpdatedAt time.Time
	SentAt    *time.Time
}

// Get reads a receipt. It returns ErrNotFound.
func Get(ctx context.Context, db receiptssql.DBTX, tenantID, receiptID string) (Receipt, error) {
	row, err := receiptssql.New().GetReceipt(ctx, db, receiptssql.GetReceiptParams{TenantID: tenantID, ReceiptID: receiptID})
	if errors.Is(err, pgx.ErrNoRows) {
		return Receipt{}, ErrNotFound
	}
	if err != nil {
		return Receipt{}, fmt.Errorf("get receipt: %w", err)
	}
	return receiptOf(row.Receipt)
}

// List lists receipts of one status by tenant and id: at most max of those behind the given one; the zero value for the first page.
func List(ctx context.Context, db receiptssql.DBTX, status string, after Receipt, max int) ([]Receipt, error) {
	rows, err := receiptssql.New().ListReceipts(ctx, db, receiptssql.ListReceiptsParams{
		Status: status, AfterTenantID: after.TenantID, AfterReceiptID: after.ID, RowsMax: int32(max)})
	if err != nil {
		return nil, fmt.Errorf("list receipts: %w", err)
	}
	receipts := make([]Receipt, len(rows))
	for i, row := range rows {
		if receipts[i], err = receiptOf(row.Receipt); err != nil {
			return nil, fmt.Errorf("list receipts: %w", err)
		}
	}
	return receipts, nil
}

func receiptOf(row receiptssql.Receipt) (Receipt, error) {
	amount, err := money.Stored(row.AmountMinor, row.Currency)
	if err != nil {
		return Receipt{}, err
	}
	r := Receipt{
		TenantID: row.TenantID, ID: row.ReceiptID, PaymentID: row.PaymentID, AccountID: row.AccountID, Amount: amount, MessageID: row.MessageID,
		Status: row.Status, Attempts: int(row.Attempts), CreatedAt: row.CreatedAt, UpdatedAt: row.UpdatedAt, SentAt: row.SentAt,
	}
	if row.LastError != nil {
		r.LastError = *row.LastError
	}
	return r, nil
}

// Resend has a receipt sent again that failed or is in doubt, under the same Message-ID. Of one that is in doubt the payer may then
// have two, which is why a person decides it. It returns ErrNotFound, or ErrNotYours when it is neither.
func Resend(ctx context.Context, db receiptssql.DBTX, tenantID, receiptID string) error {
	return decide(ctx, db, tenantID, receiptID, StatusPending, "resent_by_operator", StatusUnknown, StatusFailed)
}

// ConfirmSent records that a receipt that was in doubt has arrived: somebody has seen it. It returns ErrNotFound, or ErrNotYours
// when it is not in doubt.
func ConfirmSent(ctx context.Context, db receiptssql.DBTX, tenantID, receiptID string) error {
	return decide(ctx, db, tenantID, receiptID, StatusSent, "confirmed_by_operator", StatusUnknown)
}

func decide(ctx context.Context, db receiptssql.DBTX, tenantID, receiptID, to, why string, from ...string) error {
	rows, err := receiptssql.New().DecideReceipt(ctx, db, receiptssql.DecideReceiptParams{
		Status: to, LastError: &why, TenantID: tenantID, ReceiptID: receiptID, FromStatuses: from})
	if err != nil {
		return fmt.Errorf("decide receipt: %w", err)
	}
	if rows == 1 {
		return nil
	}
	r, err := Get(ctx, db, tenantID, receiptID)
	if err != nil {
		return err
	}
	if slices.Contains(from, r.Status) {
		return errors.New("decide receipt: it changed meanwhile, try again")
	}
	return ErrNotYours
}

// Open counts the receipts that are not sent.
type Open struct {
	Pending, Sending, Unknown, Failed int64
	OldestPending                     time.Duration
}

// CountOpen measures what waits for a sender, and what waits for a person.
func CountOpen(ctx context.Context, db receiptssql.DBTX) (Open, error) {
	row, err := receiptssql.New().CountOpen(ctx, db)
	if err != nil {
		return Open{}, fmt.Errorf("count receipts: %w", err)
	}
	return Open{row.Pending, row.Sending, row.Unknown, row.Failed, time.Duration(row.OldestPendingSeconds * float64(time.Second))}, nil
}
