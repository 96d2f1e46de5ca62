package api

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/paymentsd/paymentsd/internal/payments"
)

// waitMax caps Prefer: wait. A client that wants to wait longer asks again; a connection is cheap, but not free.
const waitMax = 30 * time.Second

// preferences are what the Prefer header of RFC 7240 says, as far as this API knows it. They shape the exchange: they are
// neither in a fingerprint nor in a stored answer.
type preferences struct {
	wait         time.Duration // wait=N: of a concurrent duplicate, for the first request's answer
	respondAsync bool          // respond-async: answer 202 as soon as the payment is durable
	minimal      bool          // return=minimal: no body in a successful answer
}

// preferencesOf reads the header. What is not known or malformed is ignored, as the RFC has it; of a preference that is there
// twice the first counts.
func preferencesOf(h http.Header) preferences {
	var p preferences
	seen := map[string]bool{}
	for item := range strings.SplitSeq(strings.Join(h.Values("Prefer"), ","), ",") {
		token, _, _ := strings.Cut(item, ";")
		name, value, _ := strings.Cut(token, "=")
		name = strings.ToLower(strings.TrimSpace(name))
		value = strings.Trim(strings.TrimSpace(value), `"`)
		if name == "" || seen[name] {
			continue
		}
		seen[name] = true
		switch name {
		case "wait":
			if n, err := strconv.ParseUint(value, 10, 31); err == nil {
				p.wait = min(time.Duration(n)*time.Second, waitMax)
			}
		case "respond-async":
			p.respondAsync = true
		case "return":
			p.minimal = strings.EqualFold(value, "minimal")
		}
	}
	return p
}

// applied says which preferences made a difference.
func (p preferences) applied(h http.Header, result payments.Result, err error) {
	if p.wait > 0 && result.Waited {
		h.Add("Preference-Applied", "wait="+strconv.Itoa(int(p.wait.Seconds())))
	}
	if p.respondAsync && err == nil && result.Pending {
		h.Add("Preference-Applied", "respond-async")
	}
	if p.minimal && err == nil && (result.Pending || result.Answer.Status < http.StatusBadRequest) {
		h.Add("Preference-Applied", "return=minimal")
	}
}
