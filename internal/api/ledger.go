package api

import (
	"context"
	"net/http"
	"regexp"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/paymentsd/paymentsd/internal/ledger"
)

// Database is a pool of connections to the primary database.
type Database interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// entryView is one entry of an account, as both versions of the API show it.
type entryView struct {
	EntryID    string           `json:"entryId"`
	Type       ledger.EntryType `json:"type"`
	PaymentID  string           `json:"paymentId"` // the payment or refund that it comes from
	Amount     string           `json:"amount"`    // negative for a credit
	Currency   string           `json:"currency"`
	Balance    string           `json:"balance"` // of the account in this currency, after this entry
	OccurredAt string           `json:"occurredAt"`
	PostedAt   string           `json:"postedAt"`
}

// entryPosition is the place that a cursor of the ledger holds; a bigint has room for it.
var entryPosition = regexp.MustCompile(`^[1-9][0-9]{0,17}$`)

// showLedger is GET /accounts/{id}/ledger: a page of what was posted to the account, oldest first. What a page has shown never
// changes, and nothing is posted before it later.
func (s *server) showLedger(r *http.Request, _ string) (any, error) {
	id, err := accountID(r)
	if err != nil {
		return nil, err
	}
	f := fields{}
	_, rows, cursor := f.page(r.URL, entryPosition)
	if err := f.err(); err != nil {
		return nil, err
	}
	if _, err := s.accounts.Get(r.Context(), tenantOf(r.Context()), id); err != nil {
		return nil, accountError(err)
	}
	after, _ := strconv.ParseInt(cursor, 10, 64) // "" is the beginning, and its form was checked
	list, err := ledger.Entries(r.Context(), s.ledger, tenantOf(r.Context()), id, after, rows+1)
	if err != nil {
		return nil, unavailable(err)
	}
	view := struct {
		AccountID string      `json:"accountId"`
		Entries   []entryView `json:"entries"`
		Next      string      `json:"nextCursor,omitzero"`
	}{AccountID: id, Entries: []entryView{}}
	if len(list) > rows { // one more than asked for says that there is a next page
		list = list[:rows]
		view.Next = nextCursor(strconv.FormatInt(list[rows-1].Position, 10))
	}
	for _, e := range list {
		view.Entries = append(view.Entries, entryView{e.ID, e.Type, e.PaymentID, e.Amount.String(), e.Amount.Currency.String(),
			e.Balance.String(), timeText(e.OccurredAt), timeText(e.PostedAt)})
	}
	return view, nil
}
