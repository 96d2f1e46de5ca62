package api

import (
	"errors"
	"net/http"

	"github.com/paymentsd/paymentsd/internal/provider"
)

// postWebhook is POST /provider/webhooks: what the provider says unasked. No API key is asked for; the signature over the body's
// bytes decides. It is answered with 204 once what it says is durable, whether or not it says anything new, because every other
// answer makes the provider say it again.
func (s *server) postWebhook(w http.ResponseWriter, r *http.Request) {
	body, err := readBody(r)
	var notice provider.Notice
	if err == nil {
		notice, err = s.webhooks.Read(r.Header, body)
	}
	if err == nil {
		err = s.payments.TakeCallback(r.Context(), notice)
	}
	if err != nil && !errors.Is(err, provider.ErrWebhookNotForUs) {
		s.fail(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
