package fake

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/paymentsd/paymentsd/internal/money"
)

// bodyBytesMax bounds a request. The longest honest charge (a reference of 255 characters, each spelled as an escape) is
// below 4 KiB.
const bodyBytesMax = 64 << 10

// postCharge is POST /v1/charges.
func (s *Server) postCharge(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key")
	body, f, err := s.receiveCharge(r, key)
	if f.Name == faultResetMidRequest {
		s.pause(f)
		hangUp(w, withReset)
		return
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, "body_unreadable", err.Error())
		return
	}
	request, err := decodeCharge(body)
	switch {
	case err != nil:
		refuse(w, http.StatusBadRequest, "invalid_request", err.Error())
		return
	case key == "":
		refuse(w, http.StatusBadRequest, "idempotency_key_required", "the header Idempotency-Key is missing")
		return
	}

	// From here on the request is received, and nothing looks at its context: a client that hangs up takes back nothing.
	f = s.faults.take(onCharge, request.Reference)
	o := order{key: key, body: body, request: request, declineCode: f.Code, failForever: f.Name == faultErrorForever}
	if f.DelayMS > 0 {
		if err := s.book.hold(key); err != nil {
			refuseCharge(w, err)
			return
		}
		o.holds = true
		if !s.pause(f) {
			hangUp(w, quietly)
			return
		}
	}
	if f.preventsEffect() {
		if o.holds {
			s.book.release(key)
		}
		f.refuse(w)
		return
	}
	a, replayed, err := s.book.charge(o)
	if err != nil {
		refuseCharge(w, err)
		return
	}
	answerCharge(w, f, a, replayed)
}

// receiveCharge reads the request and records it. When reset_mid_request is next for it, it stops before the last byte
// and gives that fault. The reference has to be read before anybody knows whose fault is next.
func (s *Server) receiveCharge(r *http.Request, key string) (body []byte, reset fault, err error) {
	if r.ContentLength > bodyBytesMax {
		s.requests.add(r, key, nil)
		return nil, fault{}, fmt.Errorf("the body must not be longer than %d bytes", bodyBytesMax)
	}
	most, err := io.ReadAll(io.LimitReader(r.Body, max(r.ContentLength-1, 0)))
	if err == nil {
		isReset := func(f fault) bool { return f.Name == faultResetMidRequest }
		if reset = s.faults.takeIf(onCharge, s.requests.owner(key, most), isReset); reset.Name != "" {
			s.requests.add(r, key, most)
			return most, reset, nil
		}
		var rest []byte
		rest, err = io.ReadAll(io.LimitReader(r.Body, bodyBytesMax+1))
		most = append(most, rest...)
	}
	s.requests.add(r, key, most)
	if err != nil {
		return nil, fault{}, errors.New("the body ended early")
	}
	return most, fault{}, nil
}

// decodeCharge reads a charge strictly: every member, no other, none twice, and an amount and a currency that exist.
func decodeCharge(body []byte) (chargeRequest, error) {
	if len(body) > bodyBytesMax {
		return chargeRequest{}, fmt.Errorf("the body must not be longer than %d bytes", bodyBytesMax)
	}
	var c chargeRequest
	if err := json.Unmarshal(body, &c, json.RejectUnknownMembers(true)); err != nil {
		return chargeRequest{}, errors.New("the body must be a JSON object with account, amountMinor, currency, reference and paymentId")
	}
	currency, err := money.ParseCurrency(c.Currency)
	if err != nil || currency.String() != c.Currency {
		return chargeRequest{}, errors.New("currency must be an active ISO 4217 code in upper case")
	}
	if _, err := money.FromMinor(c.AmountMinor, currency); err != nil {
		return chargeRequest{}, fmt.Errorf("amountMinor must be between 1 and %d", int64(money.MinorMax))
	}
	if c.Account == "" || c.Reference == "" || c.PaymentID == "" {
		return chargeRequest{}, errors.New("account, reference and paymentId must not be empty")
	}
	return c, nil
}

// getCharges is GET /v1/charges?idempotency_key=, the lookup.
func (s *Server) getCharges(w http.ResponseWriter, r *http.Request) {
	key := r.URL.Query().Get("idempotency_key")
	reference := s.requests.add(r, key, nil)
	if key == "" {
		refuse(w, http.StatusBadRequest, "idempotency_key_required", "the query parameter idempotency_key is missing")
		return
	}
	f := s.faults.take(onLookup, reference)
	if !s.pause(f) {
		hangUp(w, quietly)
		return
	}
	if f.preventsEffect() {
		f.refuse(w)
		return
	}
	found := s.book.lookup(key)
	if f.Name == faultNotFound {
		found = nil
	}
	answerLookup(w, f, found)
}

// pause waits as long as the fault says. It reports false when the server was closed meanwhile.
func (s *Server) pause(f fault) bool {
	if f.DelayMS == 0 {
		return true
	}
	select {
	case <-time.After(f.delay()):
		return true
	case <-s.closing:
		return false
	}
}
