package idempotency

import "strings"

// KeyBytesMax is the longest key: it fits any index, and nobody's request identifier is longer.
const KeyBytesMax = 255

// Key is an idempotency key as its client meant it: 1 to 255 visible ASCII characters, case-sensitive, without quotes.
type Key string

// ParseKey reads the values of the Idempotency-Key header fields of one request.
//
// The quoted form is the structured-field string of RFC 9651, section 3.3.3, as the IETF draft "The Idempotency-Key HTTP
// Header Field" has it. It means the same key as the bare form, because an upgrade of an SDK or a proxy may switch between
// the two in the middle of a retry. ParseKey returns ErrKeyRequired when there is no key and ErrKeyInvalid when it is none
// of this syntax, or when there are several.
func ParseKey(values []string) (Key, error) {
	if len(values) == 0 || len(values) == 1 && strings.Trim(values[0], " \t") == "" {
		return "", ErrKeyRequired
	}
	if len(values) > 1 {
		return "", ErrKeyInvalid
	}
	key := strings.Trim(values[0], " \t")
	if key[0] == '"' {
		unquoted, ok := unquote(key)
		if !ok {
			return "", ErrKeyInvalid
		}
		key = unquoted
	}
	if len(key) == 0 || len(key) > KeyBytesMax || !isVisibleASCII(key) {
		return "", ErrKeyInvalid
	}
	return Key(key), nil
}

// unquote reads a structured-field string without parameters: only \" and \\ are escapes.
func unquote(s string) (string, bool) {
	if len(s) < 2 || len(s) > 2*KeyBytesMax+2 {
		return "", false
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; c {
		case '"':
			return b.String(), i == len(s)-1
		case '\\':
			i++
			if i == len(s) || s[i] != '"' && s[i] != '\\' {
				return "", false
			}
			b.WriteByte(s[i])
		default:
			b.WriteByte(c)
		}
	}
	return "", false
}

func isVisibleASCII(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
