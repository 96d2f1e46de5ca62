package api

import (
	"errors"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/paymentsd/paymentsd/internal/accounts"
	"github.com/paymentsd/paymentsd/internal/money"
	"github.com/paymentsd/paymentsd/internal/payments"
)

// accountView is an account as both versions of the API show it.
type accountView struct {
	AccountID       string          `json:"accountId"`
	Status          accounts.Status `json:"status"`
	DefaultCurrency string          `json:"defaultCurrency,omitzero"`
	CreatedAt       string          `json:"createdAt"`
	UpdatedAt       string          `json:"updatedAt"`
}

func viewOf(a accounts.Account) accountView {
	return accountView{a.ID, a.Status, a.DefaultCurrency, timeText(a.CreatedAt), timeText(a.UpdatedAt)}
}

func timeText(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// getAccount is GET /accounts/{id}.
func (s *server) getAccount(w http.ResponseWriter, r *http.Request) {
	id, err := accountID(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	a, err := s.accounts.Get(r.Context(), tenantOf(r.Context()), id)
	s.account(w, r, http.StatusOK, a, err)
}

// putAccount is PUT /accounts/{id}: idempotent by its resource, not by a key. 201 when it made the account.
func (s *server) putAccount(w http.ResponseWriter, r *http.Request) {
	id, err := accountID(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	body, err := readObject(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	f := fields{body: body}
	f.only("status")
	status := accounts.Status(f.required("status"))
	f.check("status", status == accounts.Open || status == accounts.Blocked, "INVALID", "one of OPEN, BLOCKED")
	if err := f.err(); err != nil {
		s.fail(w, r, err)
		return
	}
	a, made, err := s.accounts.Put(r.Context(), tenantOf(r.Context()), id, status)
	code := http.StatusOK
	if made {
		code = http.StatusCreated
	}
	s.account(w, r, code, a, err)
}

// putDefaultCurrency is PUT /accounts/{id}/settings/default-currency. Done twice it is done once.
func (s *server) putDefaultCurrency(w http.ResponseWriter, r *http.Request) {
	id, err := accountID(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	body, err := readObject(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	f := fields{body: body}
	f.only("currency")
	currency, err := money.ParseCurrency(f.required("currency"))
	f.report("currency", err)
	if err := f.err(); err != nil {
		s.fail(w, r, err)
		return
	}
	a, err := s.accounts.SetDefaultCurrency(r.Context(), tenantOf(r.Context()), id, currency)
	s.account(w, r, http.StatusOK, a, err)
}

func accountID(r *http.Request) (string, error) {
	id := chi.URLParam(r, "id")
	if !accountIDForm.MatchString(id) {
		return "", accounts.ErrNotFound
	}
	return id, nil
}

func (s *server) account(w http.ResponseWriter, r *http.Request, status int, a accounts.Account, err error) {
	if err != nil {
		s.fail(w, r, accountError(err))
		return
	}
	body, err := encode(viewOf(a))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client is gone; it can ask again
}

// accountError tells an account that is not there from a database that is not.
func accountError(err error) error {
	if errors.Is(err, accounts.ErrNotFound) {
		return err
	}
	return unavailable(err)
}

// unavailable marks an error of the database as one that passes.
func unavailable(err error) error { return errors.Join(payments.ErrUnavailable, err) }
