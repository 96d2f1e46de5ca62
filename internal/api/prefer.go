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
			if isDigits(value) {
				n, err := strconv.ParseUint(value, 10, 31)
				if err != nil { // more than anybody can wait
					n = uint64(waitMax.Seconds())
				}
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
	var names []string
	if p.wait > 0 && result.Waited {
		names = append(names, "wait="+strconv.Itoa(int(p.wait.Seconds())))
	}
	if p.respondAsync && result.Async {
		names = append(names, "respond-async")
	}
	if p.minimal && err == nil && (result.Pending || result.Answer.Status < http.StatusBadRequest) {
		names = append(names, "return=minimal")
	}
	if len(names) > 0 {
		h.Set("Preference-Applied", strings.Join(names, ", "))
	}
}

func isDigits(s string) bool {
	return s != "" && strings.IndexFunc(s, func(c rune) bool { return c < '0' || c > '9' }) < 0
}
