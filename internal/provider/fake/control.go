package fake

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-json-experiment/json"

	"github.com/paymentsd/paymentsd/internal/money"
)

// executedOrder is how /control/charges and /control/refunds show an order. Only money that moved is listed, declines are
// not.
type executedOrder struct {
	ID string `json:"id"`
	terms
	IdempotencyKey string    `json:"idempotencyKey"`
	ExecutedAt     time.Time `json:"executedAt"`
}

// controlExecuted is GET /control/charges?reference= and GET /control/refunds?reference=: what was really executed.
func (s *Server) controlExecuted(w http.ResponseWriter, r *http.Request, k kind) {
	orders := []executedOrder{}
	for _, a := range s.book.executed(k, r.URL.Query().Get("reference")) {
		orders = append(orders, executedOrder{a.ID, a.terms, a.IdempotencyKey, a.ExecutedAt})
	}
	writeJSON(w, http.StatusOK, orders)
}

// controlRequests is GET /control/requests?reference=: what was received on /v1, executed or not.
func (s *Server) controlRequests(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, http.StatusOK, s.requests.of(r.URL.Query().Get("reference")))
}

// controlAddFault is POST /control/faults.
func (s *Server) controlAddFault(w http.ResponseWriter, r *http.Request) {
	var f fault
	if !decodeControl(w, r, &f) {
		return
	}
	f, err := f.withDefaults()
	if err == nil {
		err = s.faults.add(f)
	}
	if err != nil {
		problem(w, http.StatusBadRequest, err.Error())
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// controlClearFaults is DELETE /control/faults. A request that is being delayed already stays delayed.
func (s *Server) controlClearFaults(w http.ResponseWriter, _ *http.Request) {
	s.faults.clear()
	w.WriteHeader(http.StatusNoContent)
}

// controlDeliveries is GET /control/webhooks?reference=: every attempt to deliver a webhook, and how it was answered.
func (s *Server) controlDeliveries(w http.ResponseWriter, r *http.Request) {
	if s.courier == nil {
		writeJSON(w, http.StatusOK, []delivery{})
		return
	}
	writeJSON(w, http.StatusOK, s.courier.of(r.URL.Query().Get("reference")))
}

// controlTell is POST /control/webhooks: sends a webhook about an order that exists, executed or declined, and spoils it as a
// fault on webhooks would. It is a new webhook, with an id of its own, unless "again" is true: then it is the order's own,
// repeated.
func (s *Server) controlTell(w http.ResponseWriter, r *http.Request) {
	var tell struct {
		Order   string `json:"order"`
		Again   bool   `json:"again"`
		Name    string `json:"fault"`
		DelayMS int64  `json:"delayMs"`
		Code    string `json:"code"`
		Copies  int    `json:"copies"`
	}
	if !decodeControl(w, r, &tell) {
		return
	}
	a, known := s.book.attempt(tell.Order)
	switch {
	case s.courier == nil:
		problem(w, http.StatusConflict, "the provider has no webhook URL")
		return
	case !known:
		problem(w, http.StatusNotFound, "there is no such order")
		return
	}
	f := fault{Reference: a.Reference, On: a.kind().onTell, Name: tell.Name, DelayMS: tell.DelayMS, Code: tell.Code, Copies: tell.Copies}
	if f.Name != "" {
		var err error
		if f, err = f.withDefaults(); err == nil && (f.Name == faultEarly || f.Name == faultNever) {
			err = errors.New("the fault " + f.Name + " makes no sense for an order that was executed long ago")
		}
		if err != nil {
			problem(w, http.StatusBadRequest, err.Error())
			return
		}
	}
	if !tell.Again || a.WebhookID == "" {
		a.WebhookID = newID()
	}
	s.send(s.message(a, f), f)
	writeJSON(w, http.StatusAccepted, map[string]string{"webhookId": a.WebhookID})
}

// controlForgetKeys is POST /control/forget-keys: every key is new again, and what was executed stays. It models
// the end of the provider's key window: the same key would charge or refund again, and a lookup by key finds nothing.
func (s *Server) controlForgetKeys(w http.ResponseWriter, _ *http.Request) {
	if err := s.book.forgetKeys(); err != nil {
		problem(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// controlDown is POST /control/down: once it is answered, nobody listens, and every other connection is cut. Requests
// that were received in full still take effect.
func (s *Server) controlDown(w http.ResponseWriter, r *http.Request) {
	var down struct {
		ForMS int64 `json:"forMs"`
	}
	if !decodeControl(w, r, &down) {
		return
	}
	if down.ForMS < 1 || down.ForMS > pauseMax.Milliseconds() {
		problem(w, http.StatusBadRequest, fmt.Sprintf("forMs must be between 1 and %d", pauseMax.Milliseconds()))
		return
	}
	if !s.isServing() {
		problem(w, http.StatusConflict, "the provider is not listening by itself, so it cannot stop")
		return
	}
	conn := takeOver(w) // this connection has to outlive the cut, for the answer
	defer conn.Close()
	s.goDown(time.Duration(down.ForMS) * time.Millisecond)
	_, _ = io.WriteString(conn, "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}

// controlPutAccount is PUT /control/accounts/{id}: replaces the balances of an account. A currency that is not named is
// unlimited.
func (s *Server) controlPutAccount(w http.ResponseWriter, r *http.Request) {
	var account struct {
		Balances map[string]string `json:"balances"`
	}
	if !decodeControl(w, r, &account) {
		return
	}
	minor := map[string]int64{}
	for code, amount := range account.Balances {
		m, err := parseBalance(code, amount)
		if err != nil {
			problem(w, http.StatusBadRequest, "balances: "+err.Error())
			return
		}
		minor[m.currency] = m.minor
	}
	if err := s.book.setBalances(chi.URLParam(r, "id"), minor); err != nil {
		problem(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

type balance struct {
	currency string
	minor    int64
}

// parseBalance reads a balance by the rules of money, with one exception: an account can be empty.
func parseBalance(code, amount string) (balance, error) {
	currency, err := money.ParseCurrency(code)
	if err != nil {
		return balance{}, err
	}
	a, err := money.Parse(amount, currency)
	if err != nil && !errors.Is(err, money.ErrAmountNotPositive) {
		return balance{}, err
	}
	return balance{currency.String(), a.Minor()}, nil
}

// decodeControl reads a body of the control API strictly, so that a misspelled script fails when it is written and not
// by having no effect. It answers and reports false when it cannot.
func decodeControl(w http.ResponseWriter, r *http.Request, into any) bool {
	err := json.UnmarshalRead(http.MaxBytesReader(w, r.Body, bodyBytesMax), into, json.RejectUnknownMembers(true))
	if err != nil {
		problem(w, http.StatusBadRequest, "the body is not what this call takes: "+err.Error())
		return false
	}
	return true
}

// problem writes an error of the control API (RFC 9457).
func problem(w http.ResponseWriter, status int, detail string) {
	body := encode(map[string]any{"title": http.StatusText(status), "status": status, "detail": detail})
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_, _ = w.Write(body) // see deliver
}
