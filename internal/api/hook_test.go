package api

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// webhookSecret is what the provider signs with, and the API believes.
const webhookSecret = "whsec_c2VudGluZWwtc2VjcmV0LW9mLXRoZS13ZWJob29rcw=="

// signedWith makes the signature headers of a body by the letter of the specification.
func signedWith(secret, id string, at time.Time, body string) change {
	return func(r *http.Request) {
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
		if err != nil {
			panic(err)
		}
		mac := hmac.New(sha256.New, key)
		fmt.Fprintf(mac, "%s.%d.%s", id, at.Unix(), body)
		r.Header.Set("Webhook-Id", id)
		r.Header.Set("Webhook-Timestamp", strconv.FormatInt(at.Unix(), 10))
		r.Header.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
}

// webhook is a webhook of the provider's, which needs no API key.
func (b *bench) webhook(id, body string, changes ...change) *http.Request {
	b.t.Helper()
	ordinary := []change{without("Authorization"), with("Content-Type", "application/json"), signedWith(webhookSecret, id, time.Now(), body)}
	return b.request("POST", "/provider/webhooks", body, append(ordinary, changes...)...)
}

// hook stands between the provider and the API: it passes webhooks on as they are, and keeps what they were answered.
type hook struct {
	url  string
	mu   sync.Mutex
	seen []passed
}

type passed struct {
	request *http.Request
	body    string
	answer  answer
	err     error
}

func openHook(b *bench) *hook {
	h := &hook{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		on, err := http.NewRequest(r.Method, b.url+"/provider/webhooks", bytes.NewReader(body))
		if err != nil {
			panic(err)
		}
		for _, name := range []string{"Content-Type", "Webhook-Id", "Webhook-Timestamp", "Webhook-Signature"} {
			on.Header.Set(name, r.Header.Get(name))
		}
		a, err := exchange(on)
		h.mu.Lock()
		h.seen = append(h.seen, passed{on, string(body), a, err})
		h.mu.Unlock()
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(a.status)
	}))
	b.t.Cleanup(server.Close)
	h.url = server.URL
	return h
}

func (h *hook) all() []passed {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]passed{}, h.seen...)
}

// answers are the statuses that webhooks were answered with, in the order in which they came.
func (h *hook) answers() (statuses []int) {
	for _, p := range h.all() {
		statuses = append(statuses, p.answer.status)
	}
	return statuses
}

// check holds every answer against the contract.
func (h *hook) check(t *testing.T) {
	t.Helper()
	for _, p := range h.all() {
		if p.err == nil {
			checkContract(t, p.request, p.body, p.answer)
		}
	}
}

// told waits until there are so many webhooks on file, with these verdicts in the order in which they came, and nothing is
// under way any more.
func (b *bench) told(verdicts ...string) {
	b.t.Helper()
	var found []string
	ok := func() bool {
		rows, err := b.pool.Query(b.t.Context(), `SELECT verdict FROM provider_callbacks ORDER BY received_at`)
		require.NoError(b.t, err)
		defer rows.Close()
		found = nil
		for rows.Next() {
			var v string
			require.NoError(b.t, rows.Scan(&v))
			found = append(found, v)
		}
		return strings.Join(found, " ") == strings.Join(verdicts, " ")
	}
	if !within(10*time.Second, ok) {
		require.Equal(b.t, verdicts, found)
	}
}

func within(d time.Duration, ok func() bool) bool {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if ok() {
			return true
		}
	}
	return false
}
