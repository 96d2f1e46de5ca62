package idempotency

import (
	"fmt"

	"github.com/go-json-experiment/json"
)

// Answer is what a finished key replays: the same status and the same bytes, on every instance and after every deploy.
type Answer struct {
	Status      int
	ContentType string
	Location    string // of the resource; "" when the answer names none
	Body        []byte
	ErrorCode   string // of a refusal; "" otherwise
}

// Finished is the key status that the answer gives its key: a refusal is replayed, but is no success.
func (a Answer) Finished() Status {
	if a.ErrorCode != "" {
		return FailedReplayable
	}
	return Completed
}

// storedHeaders is the allow-list: what is not a field here belongs to one exchange (Date, request ids, cookies, the
// replay mark itself) and is never stored.
type storedHeaders struct {
	Location string `json:"Location,omitempty"`
	ETag     string `json:"ETag,omitempty"`
}

// Headers is the allow-list of response headers in the form in which they are stored.
func (a Answer) Headers() ([]byte, error) {
	return json.Marshal(storedHeaders{Location: a.Location}, json.Deterministic(true))
}

// StoredAnswer puts an answer together from the columns it was kept in.
func StoredAnswer(status int, contentType string, headers, body []byte) (Answer, error) {
	var h storedHeaders
	if err := json.Unmarshal(headers, &h); err != nil {
		return Answer{}, fmt.Errorf("read stored headers: %w", err)
	}
	return Answer{Status: status, ContentType: contentType, Location: h.Location, Body: body}, nil
}
