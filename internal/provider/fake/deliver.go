package fake

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
)

// orderView is an order as the provider's API shows it.
type orderView struct {
	ID          string `json:"id"`
	Status      string `json:"status"`
	DeclineCode string `json:"declineCode,omitempty"`
	terms
	IdempotencyKey string    `json:"idempotencyKey"`
	Replayed       bool      `json:"replayed"` // this answer repeats an earlier one
	ExecutedAt     time.Time `json:"executedAt"`
}

func (a attempt) view(replayed bool) orderView {
	return orderView{
		ID: a.ID, Status: a.Status, DeclineCode: a.DeclineCode, terms: a.terms,
		IdempotencyKey: a.IdempotencyKey, Replayed: replayed, ExecutedAt: a.ExecutedAt,
	}
}

// distorted is the view as a fault wants it told.
func (v orderView) distorted(f fault) orderView {
	switch f.Name {
	case faultWrongAmount:
		v.AmountMinor++
	case faultLowerCaseCurrency:
		v.Currency = strings.ToLower(v.Currency)
	}
	return v
}

// preventsEffect reports faults after which nothing has happened.
func (f fault) preventsEffect() bool {
	switch f.Name {
	case faultDropBeforeExecute, faultInProgress, faultRateLimited, faultErrorBefore, faultLookupError:
		return true
	default:
		return false
	}
}

// refuse answers a request that had no effect because of the fault.
func (f fault) refuse(w http.ResponseWriter) {
	switch f.Name {
	case faultDropBeforeExecute:
		hangUp(w, quietly)
	case faultInProgress:
		refuseOrder(w, errKeyHeld)
	case faultRateLimited:
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusTooManyRequests, "rate_limited", "too many requests")
	case faultErrorBefore, faultLookupError:
		refuseOrder(w, errInternal)
	default:
		panic("the fault " + f.Name + " prevents nothing")
	}
}

// answerOrder tells the client what the attempt came to, as well as the fault lets it.
func answerOrder(w http.ResponseWriter, f fault, a attempt, replayed bool) {
	switch {
	case f.Name == faultExecuteThenDrop:
		hangUp(w, quietly)
	case f.Name == faultErrorAfter, a.Answer == http.StatusInternalServerError:
		refuseOrder(w, errInternal)
	default:
		deliver(w, f, a.Answer, encode(a.view(replayed).distorted(f)))
	}
}

func answerLookup(w http.ResponseWriter, f fault, found []attempt) {
	views := make([]orderView, len(found))
	for i, a := range found {
		views[i] = a.view(false).distorted(f)
	}
	deliver(w, f, http.StatusOK, encode(views))
}

// deliver writes an answer and does to the connection what the fault says.
func deliver(w http.ResponseWriter, f fault, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	switch f.Name {
	case faultTruncatedBody:
		// net/http closes the connection of a handler that wrote less than it announced.
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(status)
		_, _ = w.Write(body[:len(body)/2])
	case faultUnreadableBody:
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "<html>created</html>")
	case faultCloseIdle:
		answerThenClose(w, status, body)
	default:
		w.WriteHeader(status)
		_, _ = w.Write(body) // a client that is gone learns nothing, as at a real provider
	}
}

// answerThenClose writes an ordinary answer, which promises to keep the connection, and closes the connection.
func answerThenClose(w http.ResponseWriter, status int, body []byte) {
	header := w.Header().Clone()
	conn := takeOver(w)
	defer conn.Close()
	_ = (&http.Response{
		StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Header: header,
		ContentLength: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body)),
	}).Write(conn)
}

// How a connection ends without an answer.
const (
	quietly   = false // FIN: the client reads an end of file
	withReset = true  // RST: the client's read fails
)

func hangUp(w http.ResponseWriter, reset bool) {
	conn := takeOver(w)
	if tcp, ok := conn.(*net.TCPConn); ok && reset {
		_ = tcp.SetLinger(0) // close then sends RST
	}
	_ = conn.Close()
}

// takeOver gives the connection of a request, which net/http then no longer touches.
func takeOver(w http.ResponseWriter) net.Conn {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // no connection to take (a recorder, HTTP/2): ending without an answer is all there is
	}
	return conn
}

var errInternal = errors.New("internal error")

// refuseOrder answers with the provider's error for it.
func refuseOrder(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, errKeyReused):
		refuse(w, http.StatusUnprocessableEntity, "idempotency_key_reused", err.Error())
	case errors.Is(err, errKeyHeld):
		refuse(w, http.StatusConflict, "request_in_progress", err.Error())
	case errors.Is(err, errProviderOff):
		hangUp(w, quietly) // as if the process had died
	default:
		refuse(w, http.StatusInternalServerError, "internal_error", "something went wrong")
	}
}

// refuse writes an error of the provider's API.
func refuse(w http.ResponseWriter, status int, code, message string) {
	writeJSON(w, status, map[string]string{"error": code, "message": message})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(encode(v)) // see deliver
}

func encode(v any) []byte {
	b, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		panic("encode answer: " + err.Error()) // nothing the fake stores can fail to encode
	}
	return b
}
