package money

import (
	"errors"
	"regexp"
	"strings"
	"testing"
)

// FuzzParse: what is accepted is of the documented form and exact, and equal values are equal amounts.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"10.00", "10", "0.01", "1e1000000", "1E+999999", "1/3", "0x10", "1_000", "+10.00", "010.00", ".5", "10.", "NaN",
		"Infinity", " 10.00", "10.00\n", "1,000.00", "１０", "-0.00", "99999999999.99", "0." + strings.Repeat("0", 40) + "1", strings.Repeat("9", 33)} {
		for _, code := range []string{"EUR", "JPY", "KWD", "CLF"} {
			f.Add(seed, code)
		}
	}
	form := regexp.MustCompile(`^(0|[1-9][0-9]*)(\.[0-9]+)?$`)
	f.Fuzz(func(t *testing.T, text, code string) {
		c, err := ParseCurrency(code)
		if err != nil {
			return
		}
		a, err := Parse(text, c)
		canonical, canonicalErr := Canonical(text)
		if err != nil {
			if a != (Amount{}) || errors.Is(err, ErrAmountSyntax) != (canonicalErr != nil) {
				t.Fatalf("%q: %v and %v", text, err, canonicalErr)
			}
			return
		}
		if !form.MatchString(text) || a.Minor() < 1 || a.Minor() > MinorMax {
			t.Fatalf("%q was taken as %d", text, a.Minor())
		}
		for _, same := range []string{canonical, a.String()} {
			if again, err := Parse(same, c); err != nil || again != a {
				t.Fatalf("%q is %v, but %q is %v, %v", text, a, same, again, err)
			}
		}
	})
}
