package payments

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/paymentsd/paymentsd/internal/payments/internal/paymentssql"
)

// AccountStatus says whether an account takes new payments.
type AccountStatus string

const (
	AccountOpen    AccountStatus = "OPEN"
	AccountBlocked AccountStatus = "BLOCKED"
)

// Account is what a payment needs to know of its account.
type Account struct {
	Status          AccountStatus
	DefaultCurrency string // "" for none
}

// Account reads an account. It returns ErrAccountNotFound.
func (s *Service) Account(ctx context.Context, tenantID, accountID string) (Account, error) {
	ctx, cancel := context.WithTimeout(ctx, tryFor)
	defer cancel()
	row, err := s.sql.ReadAccount(ctx, s.db, paymentssql.ReadAccountParams{TenantID: tenantID, AccountID: accountID})
	if errors.Is(err, pgx.ErrNoRows) {
		return Account{}, ErrAccountNotFound
	}
	if err != nil {
		return Account{}, unavailable("read account", err)
	}
	return Account{AccountStatus(row.Status), row.DefaultCurrency}, nil
}

// Filter chooses payments. Empty members choose all.
type Filter struct {
	AccountID         string
	MerchantReference string
	Status            Status
}

// List is one page of a tenant's payments, newest first: those before the payment with this id ("" for the first page), at
// most rowsMax. Refunds are not among them.
func (s *Service) List(ctx context.Context, tenantID string, f Filter, before string, rowsMax int) ([]Payment, error) {
	rows, err := s.sql.ListPayments(ctx, s.db, paymentssql.ListPaymentsParams{
		TenantID: tenantID, BeforeID: before, AccountID: f.AccountID, MerchantReference: f.MerchantReference,
		States: statesOf(f.Status), RowsMax: int32(rowsMax)})
	if err != nil {
		return nil, unavailable("list payments", err)
	}
	return paymentsOf(rows, func(r paymentssql.ListPaymentsRow) paymentssql.Payment { return r.Payment })
}

// refundsMax bounds a list of refunds. Each is at least one minor unit, so there can be more; nobody reads them in one list.
const refundsMax = 1000

// Refunds lists the refunds of a payment, oldest first. It returns ErrNotFound when the tenant has no such payment.
func (s *Service) Refunds(ctx context.Context, tenantID, paymentID string) ([]Payment, error) {
	if _, err := s.Get(ctx, tenantID, paymentID); err != nil {
		return nil, err
	}
	rows, err := s.sql.ListRefunds(ctx, s.db, paymentssql.ListRefundsParams{TenantID: tenantID, ParentID: &paymentID, RowsMax: refundsMax})
	if err != nil {
		return nil, unavailable("list refunds", err)
	}
	return paymentsOf(rows, func(r paymentssql.ListRefundsRow) paymentssql.Payment { return r.Payment })
}

func paymentsOf[R any](rows []R, payment func(R) paymentssql.Payment) ([]Payment, error) {
	list := make([]Payment, len(rows))
	for i, r := range rows {
		var err error
		if list[i], err = paymentOf(payment(r)); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// statesOf are the states that a client sees as this status; none for no status.
func statesOf(status Status) []string {
	list := []string{}
	for _, s := range states {
		if status != "" && s.Public() == status {
			list = append(list, string(s))
		}
	}
	return list
}
