package api

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// bodyBytesMax is far more than any request of this API needs (the longest legal one has about 2 kB), and small enough that
// a thousand of them at once are nothing.
const bodyBytesMax = 16 << 10

// drainBytesMax is how much of a body that is too large is read, and dropped, so that its sender hears of it.
const drainBytesMax = 16 << 20

var (
	errMediaType    = errors.New("content type is not application/json")
	errBodyTooLarge = errors.New("body is too large")
	errBodyTimeout  = errors.New("body did not arrive in time")
	errBodyInvalid  = errors.New("body is not a valid document")
)

// member is one member of a JSON object: its kind as jsontext has it, and its value if it is a string.
type member struct {
	kind jsontext.Kind
	text string
}

// members are the members of a JSON object by name.
type members map[string]member

// readObject reads the whole body as one JSON object by the strict rules of RFC 8259 and RFC 7493: valid UTF-8, no lone
// surrogates, no member twice (in whatever spelling), nothing behind the object. U+0000 is refused too: no column can hold
// it. It returns errBodyInvalid, and what readBody does.
func readObject(r *http.Request) (members, error) {
	body, err := readBody(r)
	if err != nil {
		return nil, err
	}
	return parseObject(body)
}

// readBody reads the whole body, which must say that it is JSON, within limits. It returns errMediaType, errBodyTooLarge,
// errBodyTimeout, or errBodyInvalid for one that ended early.
func readBody(r *http.Request) ([]byte, error) {
	if !isJSON(r.Header) {
		return nil, errMediaType
	}
	if r.ContentLength > bodyBytesMax && r.Header.Get("Expect") != "" {
		return nil, errBodyTooLarge // its sender waits to be told before it sends it
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, bodyBytesMax+1))
	if err != nil {
		return nil, bodyError(err)
	}
	if len(body) > bodyBytesMax {
		// A connection that is closed with unread data is reset, and the answer is lost with it. What is drained is not kept.
		_, _ = io.CopyN(io.Discard, r.Body, drainBytesMax) // whoever sends more, or stops, gets no answer
		return nil, errBodyTooLarge
	}
	return body, nil
}

func parseObject(body []byte) (members, error) {
	var raw map[string]jsontext.Value
	if err := json.Unmarshal(body, &raw); err != nil || raw == nil {
		return nil, errBodyInvalid // null is no object
	}
	object := make(members, len(raw))
	for name, value := range raw {
		m := member{kind: value.Kind()}
		if m.kind == '"' {
			if err := json.Unmarshal(value, &m.text); err != nil {
				return nil, errBodyInvalid
			}
		}
		if strings.ContainsRune(name, 0) || strings.ContainsRune(m.text, 0) {
			return nil, errBodyInvalid
		}
		object[name] = m
	}
	return object, nil
}

func isJSON(h http.Header) bool {
	for _, encoding := range h.Values("Content-Encoding") {
		if !strings.EqualFold(strings.TrimSpace(encoding), "identity") {
			return false // a compressed body can be far larger than it looks
		}
	}
	if len(h.Values("Content-Type")) != 1 {
		return false
	}
	mediaType, params, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil || mediaType != "application/json" {
		return false
	}
	charset, ok := params["charset"]
	return !ok || strings.EqualFold(charset, "utf-8")
}

func bodyError(err error) error {
	if timeout, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err); ok && timeout.Timeout() {
		return errBodyTimeout
	}
	return errBodyInvalid
}

// text takes a string out of the object. Absent and null are the same, "not there"; any other kind is reported.
func (m members) text(name string) (value string, there bool, code string) {
	switch found, ok := m[name]; {
	case !ok || found.kind == 'n':
		return "", false, ""
	case found.kind != '"':
		return "", true, "MUST_BE_STRING"
	default:
		return found.text, true, ""
	}
}
