package api

import (
	"net/http"
	"regexp"
	"unicode"
	"unicode/utf8"

	"github.com/go-chi/chi/v5"

	"github.com/paymentsd/paymentsd/internal/payments"
)

const (
	referenceCharsMax = 255 // longer than any invoice number; the column's limit
	defaultChannel    = "web"
)

var (
	accountIDForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	channelForm   = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,31}$`)
)

// readPayment is what POST /payments says.
func readPayment(_ *http.Request, body members) (payments.Command, error) { return parseCreate(body) }

// parseCreate turns a body into a command.
//
// Equal commands become equal here: an absent channel, null and "web" are the same, and so are "10", "10.0" and "10.00" EUR,
// and "eur" and "EUR". Identifiers are taken as they are: nothing is trimmed, folded or normalised in a reference.
//
// It returns a validationError when the body does not say enough to know what is meant. What it says, but a rule refuses,
// becomes the command's refusal: such a rule may have been laxer when the key was first used.
func parseCreate(body members) (payments.Command, error) {
	f := fields{body: body}
	f.only("accountId", "amount", "currency", "merchantReference", "channel", "description")
	said := payments.Said{
		AccountID:         f.required("accountId"),
		Amount:            f.amount("amount"),
		Currency:          f.currency("currency"),
		MerchantReference: f.required("merchantReference"),
		Channel:           f.optional("channel", defaultChannel),
		Description:       f.optional("description", ""),
	}
	f.check("accountId", accountIDForm.MatchString(said.AccountID), "INVALID", "1 to 64 letters, digits, underscores or hyphens")
	f.check("merchantReference", isText(said.MerchantReference), "INVALID", "1 to 255 characters, none of them a control character")
	f.check("channel", channelForm.MatchString(said.Channel), "INVALID", "a lower-case word of at most 32 characters")
	f.check("description", said.Description == "" || isText(said.Description), "INVALID", "1 to 255 characters, none of them a control character")
	f.checkMoney(said.Amount, said.Currency)
	if f.unknown {
		return payments.Command{}, f.err()
	}
	return payments.Command{Said: said, Refusal: f.err()}, nil
}

func isText(s string) bool {
	n := utf8.RuneCountInString(s)
	if !utf8.ValidString(s) || n < 1 || n > referenceCharsMax {
		return false
	}
	for _, c := range s {
		if unicode.IsControl(c) {
			return false
		}
	}
	return true
}

// showPayment is GET /payments/{id}: the payment as it is now, which is not a replay of how it was created.
func (s *server) showPayment(r *http.Request, version string) (any, error) {
	id, err := paymentID(r)
	if err != nil {
		return nil, err
	}
	p, err := s.payments.Get(r.Context(), tenantOf(r.Context()), id)
	if err != nil {
		return nil, err
	}
	return representations[version](p), nil
}

// showHistory is GET /payments/{id}/history: every move, oldest first.
func (s *server) showHistory(r *http.Request, _ string) (any, error) {
	id, err := paymentID(r)
	if err != nil {
		return nil, err
	}
	return s.history(r, id)
}

// history is the moves of a payment or a refund.
func (s *server) history(r *http.Request, id string) (any, error) {
	moves, err := s.payments.History(r.Context(), tenantOf(r.Context()), id)
	if err != nil {
		return nil, err
	}
	view := struct {
		PaymentID string     `json:"paymentId"`
		Moves     []moveView `json:"moves"`
	}{PaymentID: id}
	for _, m := range moves {
		view.Moves = append(view.Moves, moveView{m.Version, string(m.From), string(m.To), m.Reason, timeText(m.At)})
	}
	return view, nil
}

var (
	paymentIDForm = regexp.MustCompile(`^pay_[0-9a-f]{32}$`)
	refundIDForm  = regexp.MustCompile(`^ref_[0-9a-f]{32}$`)
)

// paymentID takes the id from the path. What cannot be an id is no payment, and is not asked the database about.
func paymentID(r *http.Request) (string, error) {
	id := chi.URLParam(r, "id")
	if !paymentIDForm.MatchString(id) {
		return "", errIDInvalid
	}
	return id, nil
}

// reading serves what only reads: show makes the view, in the version of the API that the request is answered in.
func (s *server) reading(show func(r *http.Request, version string) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, version, err := versionNamed(r)
		var view any
		if err == nil {
			view, err = show(r, version)
		}
		var body []byte
		if err == nil {
			body, err = encode(view)
		}
		s.answer(w, r, body, err)
	}
}

func (s *server) answer(w http.ResponseWriter, r *http.Request, body []byte, err error) {
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body)
}
