package fake

import (
	"bytes"
	"net/http"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// requestLogBytesMax bounds the record of requests; the oldest go first. A request of paymentsd takes about 600 bytes
// here, so this keeps the last 100,000 of them: all of a test, and enough of a benchmark.
const requestLogBytesMax = 64 << 20

// requestLog is every request received on /v1, as it arrived. It keeps them encoded, so that their size is known and
// asking is cheap.
type requestLog struct {
	mu          sync.Mutex
	entries     []loggedRequest // oldest first
	bytes       int
	referenceOf map[string]string // by idempotency key: the reference of the request that used it; grows as the orders do
}

type loggedRequest struct {
	reference string
	encoded   jsontext.Value
}

// receivedRequest is how /control/requests shows a request.
type receivedRequest struct {
	Time    time.Time   `json:"time"`
	Method  string      `json:"method"`
	Path    string      `json:"path"` // with the query
	Headers http.Header `json:"headers"`
	Body    string      `json:"body"` // the bytes that were read, invalid UTF-8 replaced
}

// add records a request and the part of its body that was read, and says whose it is: the reference in the body as far
// as it can be read, or else the one that an earlier request with the same key had. Empty: nobody's that is known.
func (l *requestLog) add(r *http.Request, key string, body []byte) (reference string) {
	reference = l.owner(key, body)
	headers := r.Header.Clone()
	headers.Set("Host", r.Host) // net/http keeps it apart
	encoded, err := json.Marshal(receivedRequest{
		Time:    time.Now().UTC(),
		Method:  r.Method,
		Path:    r.RequestURI,
		Headers: headers,
		Body:    string(body),
	}, jsontext.AllowInvalidUTF8(true), json.Deterministic(true))
	if err != nil {
		panic("record a request: " + err.Error()) // nothing in it can fail to encode
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = append(l.entries, loggedRequest{reference, encoded})
	l.bytes += len(encoded)
	for l.bytes > requestLogBytesMax && len(l.entries) > 1 {
		l.bytes -= len(l.entries[0].encoded)
		l.entries = l.entries[1:]
	}
	return reference
}

// owner finds the reference of a request and remembers it for its key.
func (l *requestLog) owner(key string, body []byte) string {
	if reference := referenceIn(body); reference != "" {
		l.learn(key, reference)
		return reference
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.referenceOf[key]
}

func (l *requestLog) learn(key, reference string) {
	if key == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.referenceOf == nil {
		l.referenceOf = map[string]string{}
	}
	l.referenceOf[key] = reference
}

// of gives the requests of one reference or (empty) all of them, oldest first.
func (l *requestLog) of(reference string) []jsontext.Value {
	l.mu.Lock()
	defer l.mu.Unlock()
	found := []jsontext.Value{}
	for _, e := range l.entries {
		if reference == "" || e.reference == reference {
			found = append(found, e.encoded)
		}
	}
	return found
}

// referenceIn finds the member "reference" in as much of an order as there is.
func referenceIn(body []byte) string {
	tokens := jsontext.NewDecoder(bytes.NewReader(body))
	if first, err := tokens.ReadToken(); err != nil || first.Kind() != '{' {
		return ""
	}
	for {
		name, err := tokens.ReadToken()
		if err != nil || name.Kind() != '"' {
			return "" // the end of the object, or of what there is
		}
		isReference := name.String() == "reference"
		value, err := tokens.ReadValue()
		if err != nil {
			return ""
		}
		if isReference {
			var reference string
			_ = json.Unmarshal(value, &reference) // no string: no reference
			return reference
		}
	}
}
