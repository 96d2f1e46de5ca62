package money

import "testing"

// Every payment is parsed, made canonical for its fingerprint, and printed.

func BenchmarkParse(b *testing.B) {
	eur, err := ParseCurrency("EUR")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := Parse("1234.50", eur); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParseCurrency(b *testing.B) {
	for b.Loop() {
		if _, err := ParseCurrency("EUR"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCanonical(b *testing.B) {
	for b.Loop() {
		if _, err := Canonical("1234.50"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkString(b *testing.B) {
	amount, err := Stored(123450, "EUR")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if amount.String() == "" {
			b.Fatal("no amount")
		}
	}
}
