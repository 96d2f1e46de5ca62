package fake

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// bodyBytesMax bounds a request. The longest honest order (a reference of 255 characters, each spelled as an escape) is
// below 4 KiB.
const bodyBytesMax = 64 << 10

// postOrder is POST /v1/charges and POST /v1/refunds.
func (s *Server) postOrder(w http.ResponseWriter, r *http.Request, k kind) {
	key := r.Header.Get("Idempotency-Key")
	body, f, err := s.receiveOrder(r, k, key)
	if f.Name == faultResetMidRequest {
		s.pause(f)
		hangUp(w, withReset)
		return
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, "body_unreadable", err.Error())
		return
	}
	t, err := decodeOrder(k, body)
	switch {
	case err != nil:
		refuse(w, http.StatusBadRequest, "invalid_request", err.Error())
		return
	case key == "":
		refuse(w, http.StatusBadRequest, "idempotency_key_required", "the header Idempotency-Key is missing")
		return
	}

	// From here on the request is received, and nothing looks at its context: a client that hangs up takes back nothing.
	f = s.faults.take(k.onOrder, t.Reference)
	o := order{key: key, body: body, terms: t, declineCode: f.Code, failForever: f.Name == faultErrorForever, webhookID: s.newWebhookID()}
	if f.DelayMS > 0 {
		if err := s.book.hold(key); err != nil {
			refuseOrder(w, err)
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
	a, replayed, err := s.book.place(o)
	if err != nil {
		refuseOrder(w, err)
		return
	}
	if !replayed {
		defer s.announce(k, a)() // its last part comes after the answer
	}
	answerOrder(w, f, a, replayed)
}

// receiveOrder reads the request and records it. When reset_mid_request is next for it, it stops before the last byte
// and gives that fault. The reference has to be read before anybody knows whose fault is next.
func (s *Server) receiveOrder(r *http.Request, k kind, key string) (body []byte, reset fault, err error) {
	if r.ContentLength > bodyBytesMax {
		s.requests.add(r, key, nil)
		return nil, fault{}, fmt.Errorf("the body must not be longer than %d bytes", bodyBytesMax)
	}
	most, err := io.ReadAll(io.LimitReader(r.Body, max(r.ContentLength-1, 0)))
	if err == nil {
		isReset := func(f fault) bool { return f.Name == faultResetMidRequest }
		if reset = s.faults.takeIf(k.onOrder, s.requests.owner(key, most), isReset); reset.Name != "" {
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

// lookUpOrder is GET /v1/charges?idempotency_key= and GET /v1/refunds?idempotency_key=.
func (s *Server) lookUpOrder(w http.ResponseWriter, r *http.Request, k kind) {
	key := r.URL.Query().Get("idempotency_key")
	reference := s.requests.add(r, key, nil)
	if key == "" {
		refuse(w, http.StatusBadRequest, "idempotency_key_required", "the query parameter idempotency_key is missing")
		return
	}
	f := s.faults.take(k.onLookup, reference)
	if !s.pause(f) {
		hangUp(w, quietly)
		return
	}
	if f.preventsEffect() {
		f.refuse(w)
		return
	}
	found := s.book.lookup(k, key)
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
