package api

import (
	"net/http"

	"github.com/go-chi/chi/v5"

	"github.com/paymentsd/paymentsd/internal/payments"
)

// readRefund is what POST /payments/{id}/refunds says. A key used there is another key than the same one used for a payment,
// and the payment in the path is part of what it means.
func readRefund(r *http.Request, body members) (payments.Command, error) {
	id, err := paymentID(r)
	if err != nil {
		return payments.Command{}, err
	}
	command, err := parseRefund(body)
	command.Said.PaymentID = id
	return command, err
}

// parseRefund turns a body into a command, by the same rules as parseCreate.
func parseRefund(body members) (payments.Command, error) {
	f := fields{body: body}
	f.only("amount", "currency")
	said := payments.Said{Amount: f.amount("amount"), Currency: f.currency("currency")}
	f.checkMoney(said.Amount, said.Currency)
	if f.unknown {
		return payments.Command{}, f.err()
	}
	return payments.Command{Said: said, Refusal: f.err()}, nil
}

// showRefunds is GET /payments/{id}/refunds, oldest first.
func (s *server) showRefunds(r *http.Request, version string) (any, error) {
	id, err := paymentID(r)
	if err != nil {
		return nil, err
	}
	list, err := s.payments.Refunds(r.Context(), tenantOf(r.Context()), id)
	if err != nil {
		return nil, err
	}
	view := struct {
		Refunds []any `json:"refunds"`
	}{[]any{}}
	for _, p := range list {
		view.Refunds = append(view.Refunds, representations[version](p))
	}
	return view, nil
}

// showRefund is GET /payments/{id}/refunds/{refundId}: the refund as it is now.
func (s *server) showRefund(r *http.Request, version string) (any, error) {
	p, err := s.refund(r)
	if err != nil {
		return nil, err
	}
	return representations[version](p), nil
}

// showRefundHistory is GET /payments/{id}/refunds/{refundId}/history.
func (s *server) showRefundHistory(r *http.Request, _ string) (any, error) {
	p, err := s.refund(r)
	if err != nil {
		return nil, err
	}
	return s.history(r, p.ID)
}

// refund finds the refund that the path names.
func (s *server) refund(r *http.Request) (payments.Payment, error) {
	id := chi.URLParam(r, "refundId")
	if !refundIDForm.MatchString(id) {
		return payments.Payment{}, errIDInvalid
	}
	p, err := s.payments.Get(r.Context(), tenantOf(r.Context()), id)
	if err == nil && p.ParentID != chi.URLParam(r, "id") {
		err = payments.ErrNotFound
	}
	return p, err
}
