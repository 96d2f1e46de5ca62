// Package accounts promises that an account is put into a state, not changed by a request: PUT it twice and the second
// time nothing is written and nothing is announced. No key is needed where the resource itself remembers.
package accounts

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/paymentsd/paymentsd/internal/accounts/internal/accountssql"
	"github.com/paymentsd/paymentsd/internal/events"
	"github.com/paymentsd/paymentsd/internal/money"
	"github.com/paymentsd/paymentsd/internal/outbox"
)

// ErrNotFound: the tenant has no such account.
var ErrNotFound = errors.New("account not found")

// Status says whether an account takes new payments. A blocked one still replays old answers, and can be refunded.
type Status string

const (
	Open    Status = "OPEN"
	Blocked Status = "BLOCKED"
)

// Account is an account of a tenant.
type Account struct {
	ID              string
	Status          Status
	DefaultCurrency string // for payments that name none; "" when there is none
	Version         int    // changes so far, its opening included
	CreatedAt       time.Time
	UpdatedAt       time.Time
}

// Register keeps accounts.
type Register struct {
	// Committed is called after a commit that announced a change. It must not block. Nil: nobody wants to know.
	Committed func()

	db  Database
	sql *accountssql.Queries
}

// Database is a pool of connections.
type Database interface {
	accountssql.DBTX
	Begin(ctx context.Context) (pgx.Tx, error)
}

// NewRegister keeps accounts in a database.
func NewRegister(db Database) *Register { return &Register{db: db, sql: accountssql.New()} }

// Get reads an account. It returns ErrNotFound.
func (r *Register) Get(ctx context.Context, tenantID, accountID string) (Account, error) {
	row, err := r.sql.GetAccount(ctx, r.db, accountssql.GetAccountParams{TenantID: tenantID, AccountID: accountID})
	if errors.Is(err, pgx.ErrNoRows) {
		return Account{}, ErrNotFound
	}
	if err != nil {
		return Account{}, fmt.Errorf("get account: %w", err)
	}
	return accountOf(accountID, accountssql.LockAccountRow(row)), nil
}

// Put makes the account have this status, and makes the account when there is none. It reports whether it made it.
func (r *Register) Put(ctx context.Context, tenantID, accountID string, status Status) (a Account, made bool, err error) {
	before := 0 // changes that were announced already
	err = pgx.BeginFunc(ctx, r.db, func(tx pgx.Tx) error {
		rows, err := r.sql.InsertAccount(ctx, tx, accountssql.InsertAccountParams{TenantID: tenantID, AccountID: accountID, Status: string(status)})
		if err != nil {
			return err
		}
		made = rows == 1
		if a, err = r.lock(ctx, tx, tenantID, accountID); err != nil {
			return err
		}
		if made {
			return announce(ctx, tx, tenantID, a)
		}
		before = a.Version
		wanted := a
		wanted.Status = status
		a, err = r.change(ctx, tx, tenantID, a, wanted)
		return err
	})
	if err != nil {
		return Account{}, false, fmt.Errorf("put account: %w", err)
	}
	r.committed(before, a)
	return a, made, nil
}

// SetDefaultCurrency makes the account have this default currency. It returns ErrNotFound.
func (r *Register) SetDefaultCurrency(ctx context.Context, tenantID, accountID string, currency money.Currency) (a Account, err error) {
	before := 0 // changes that were announced already
	err = pgx.BeginFunc(ctx, r.db, func(tx pgx.Tx) error {
		if a, err = r.lock(ctx, tx, tenantID, accountID); err != nil {
			return err
		}
		before = a.Version
		wanted := a
		wanted.DefaultCurrency = currency.String()
		a, err = r.change(ctx, tx, tenantID, a, wanted)
		return err
	})
	if errors.Is(err, ErrNotFound) {
		return Account{}, err
	}
	if err != nil {
		return Account{}, fmt.Errorf("set default currency: %w", err)
	}
	r.committed(before, a)
	return a, nil
}

func (r *Register) committed(before int, a Account) {
	if r.Committed != nil && a.Version > before {
		r.Committed()
	}
}

func (r *Register) lock(ctx context.Context, tx pgx.Tx, tenantID, accountID string) (Account, error) {
	row, err := r.sql.LockAccount(ctx, tx, accountssql.LockAccountParams{TenantID: tenantID, AccountID: accountID})
	if errors.Is(err, pgx.ErrNoRows) {
		return Account{}, ErrNotFound
	}
	return accountOf(accountID, row), err
}

// change writes the difference between two accounts and announces it, or does nothing where there is none.
func (r *Register) change(ctx context.Context, tx pgx.Tx, tenantID string, from, to Account) (Account, error) {
	if from == to {
		return from, nil
	}
	if err := r.sql.UpdateAccount(ctx, tx, accountssql.UpdateAccountParams{
		TenantID: tenantID, AccountID: to.ID, Status: string(to.Status), DefaultCurrency: to.DefaultCurrency}); err != nil {
		return from, err
	}
	after, err := r.lock(ctx, tx, tenantID, to.ID)
	if err != nil {
		return from, err
	}
	return after, announce(ctx, tx, tenantID, after)
}

func announce(ctx context.Context, tx pgx.Tx, tenantID string, a Account) error {
	payload := events.Account{
		EventID: events.NewID(), Type: events.AccountChanged, AccountID: a.ID, Status: string(a.Status),
		DefaultCurrency: a.DefaultCurrency, OccurredAt: time.Now().UTC(), Sequence: a.Version,
	}
	encoded, err := payload.Encode()
	if err != nil {
		return err
	}
	return outbox.Append(ctx, tx, tenantID, outbox.Event{
		ID: payload.EventID, AggregateID: a.ID, Sequence: a.Version, Type: string(payload.Type), Payload: encoded})
}

func accountOf(accountID string, row accountssql.LockAccountRow) Account {
	return Account{accountID, Status(row.Status), row.DefaultCurrency, int(row.Version), row.CreatedAt, row.UpdatedAt}
}
