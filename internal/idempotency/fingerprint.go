package idempotency

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
)

// Fingerprint says what a command meant: the name of the rule that made it and a digest, "v1:<64 hex digits>". Two
// fingerprints of one rule are equal exactly when the commands are.
type Fingerprint string

// Rule is the name of the rule that made the fingerprint, "v1".
func (f Fingerprint) Rule() string {
	rule, _, _ := strings.Cut(string(f), ":")
	return rule
}

// Command can state its meaning under every rule that this build knows. A stored fingerprint is compared with the rule
// that wrote it, so a deploy that changes the rule changes no old answer. It returns ErrUnknownRule for other rules.
type Command interface {
	Fingerprint(rule string) (Fingerprint, error)
}

// Field is one named part of a command's meaning. Absent differs from empty.
type Field struct {
	Name    string
	Value   string
	Present bool
}

// Some is a field that the command has, No is one that it could have had.
func Some(name, value string) Field { return Field{name, value, true} }

// No is a field that the command could have had and has not.
func No(name string) Field { return Field{Name: name} }

// Sum is the digest of a command under a rule. The encoding is injective: every string is preceded by its length, and
// every field by whether it is there, so no two different lists of fields have the same bytes.
func Sum(rule, operation string, fields ...Field) Fingerprint {
	encoded := make([]byte, 0, 256) // a payment's command has about 150 bytes
	encoded = appendString(encoded, rule)
	encoded = appendString(encoded, operation)
	for _, f := range fields {
		encoded = appendString(encoded, f.Name)
		if !f.Present {
			encoded = append(encoded, 0)
			continue
		}
		encoded = append(encoded, 1)
		encoded = appendString(encoded, f.Value)
	}
	digest := sha256.Sum256(encoded)
	return Fingerprint(rule + ":" + hex.EncodeToString(digest[:]))
}

func appendString(b []byte, s string) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
	return append(b, s...)
}

// Means reports whether the command is the one that the stored fingerprint was made of, judged by the rule that made it.
func (f Fingerprint) Means(c Command) (bool, error) {
	again, err := c.Fingerprint(f.Rule())
	if err != nil {
		return false, fmt.Errorf("compare fingerprints: %w", err)
	}
	return f == again, nil
}
