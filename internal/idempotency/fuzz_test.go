package idempotency

import (
	"strings"
	"testing"
)

// FuzzParseKey: what is accepted is of the documented syntax, and its quoted form is the same key.
func FuzzParseKey(f *testing.F) {
	for _, seed := range []string{"k-1", `"k-1"`, "k-1;p=1", "", " ", "\xc3\xa9", `"a\"b"`, `"a\\b"`, `"`, `""`, `"a"b`, "a b", strings.Repeat("k", 256), "K-1", "a,b", "k\x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, header string) {
		key, err := ParseKey([]string{header})
		if err != nil {
			if key != "" {
				t.Fatalf("%q was refused, and is %q", header, key)
			}
			return
		}
		if len(key) < 1 || len(key) > KeyBytesMax || !isVisibleASCII(string(key)) {
			t.Fatalf("%q was taken as %q", header, key)
		}
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(string(key)) + `"`
		if again, err := ParseKey([]string{quoted}); err != nil || again != key {
			t.Fatalf("%q is %q, but %q is %q, %v", header, key, quoted, again, err)
		}
	})
}

// FuzzSum: different lists of fields have different fingerprints, and equal ones the same.
func FuzzSum(f *testing.F) {
	f.Add("a", "b", "c", true, "a", "b", "c", false)
	f.Add("ab", "", "c", true, "a", "b", "c", true)
	f.Add("a", "\x00\x00\x00\x01b", "", true, "a", "", "b", true)
	f.Fuzz(func(t *testing.T, name1, value1, more1 string, there1 bool, name2, value2, more2 string, there2 bool) {
		one := []Field{{name1, value1, there1}, Some("more", more1)}
		two := []Field{{name2, value2, there2}, Some("more", more2)}
		if !there1 {
			one[0].Value = ""
		}
		if !there2 {
			two[0].Value = ""
		}
		same := one[0] == two[0] && one[1] == two[1]
		if (Sum("v1", "op", one...) == Sum("v1", "op", two...)) != same {
			t.Fatalf("%v and %v", one, two)
		}
		if Sum("v1", "op", one...) == Sum("v1", "op", one[0]) || Sum("v1", "op", one...) == Sum("v1", "o", one...) || Sum("v1", "op", one...) == Sum("v2", "op", one...) {
			t.Fatal("the number of fields, the operation and the rule are part of it")
		}
	})
}
