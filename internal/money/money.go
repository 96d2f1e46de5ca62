// Package money promises that an amount is exact: what the payer wrote is what is fingerprinted, stored, sent to the
// provider and shown again. Nothing is rounded, guessed or parsed leniently; a value that the currency cannot express is
// refused.
package money

import (
	"errors"
	"fmt"
	"strings"

	"github.com/bojanz/currency"
	"github.com/shopspring/decimal"
)

const (
	// AmountCharsMax bounds an amount before it is parsed at all, so that no spelling costs more than a glance. The
	// largest amount has 12 digits and a point; the rest leaves room for trailing zeros.
	AmountCharsMax = 32

	// MinorMax is the largest amount in minor units: twelve digits, the width of the amount field of ISO 8583.
	MinorMax = 999_999_999_999
)

// Errors of Parse and ParseCurrency. They never contain the value that was refused.
var (
	// ErrAmountSyntax: not of the form digits[.digits] (ASCII, no sign, no exponent, no leading zeros), or too long.
	ErrAmountSyntax = errors.New("amount must be a decimal string such as 10.00")
	// ErrAmountNotPositive: zero cannot be paid.
	ErrAmountNotPositive = errors.New("amount must be greater than zero")
	// ErrAmountTooPrecise: the currency has no unit that small.
	ErrAmountTooPrecise = errors.New("amount has more decimal places than the currency")
	// ErrAmountTooLarge: more than MinorMax minor units.
	ErrAmountTooLarge = errors.New("amount is larger than this service accepts")
	// ErrCurrencySyntax: not three ASCII letters.
	ErrCurrencySyntax = errors.New("currency must be three letters such as EUR")
	// ErrCurrencyUnknown: three letters, but no currency in use today by ISO 4217 (withdrawn ones and the codes for
	// testing, metals and "no currency" included).
	ErrCurrencyUnknown = errors.New("currency is not an active ISO 4217 currency")
)

// Currency is an active ISO 4217 code in upper case. The zero value is no currency.
type Currency struct{ code string }

// ParseCurrency takes three ASCII letters of either case. It returns ErrCurrencySyntax or ErrCurrencyUnknown.
func ParseCurrency(s string) (Currency, error) {
	if len(s) != 3 || !isLetter(s[0]) || !isLetter(s[1]) || !isLetter(s[2]) {
		return Currency{}, ErrCurrencySyntax
	}
	code := strings.ToUpper(s)
	if !currency.IsValid(code) || isUnitOfAccount(code) {
		return Currency{}, ErrCurrencyUnknown
	}
	return Currency{code}, nil
}

func (c Currency) String() string { return c.code }

// Places is the number of decimal places of the currency's minor unit: 0 (JPY), 2 (EUR), 3 (KWD) or 4 (CLF).
func (c Currency) Places() int32 {
	digits, known := currency.GetDigits(c.code)
	if !known {
		return placesOfWithdrawn // it cannot be told from this build's table any more
	}
	return int32(digits)
}

// placesOfWithdrawn is the number of places nearly every currency has had.
const placesOfWithdrawn = 2

// isUnitOfAccount reports the one code of the library's list that is no money anybody can be charged in: XAD is the
// accounting unit of a regional fund.
func isUnitOfAccount(code string) bool { return code == "XAD" }

func isLetter(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }

// Amount is a positive amount of money, held in minor units of its currency. The zero value is no amount.
type Amount struct {
	minor    int64
	currency Currency
}

// Parse reads a decimal string in the given currency. Equal values are equal amounts: "10", "10.0" and "10.00" EUR are
// one Amount, and "500.00" JPY is "500". It returns one of the ErrAmount errors.
func Parse(s string, c Currency) (Amount, error) {
	if err := CheckSyntax(s); err != nil {
		return Amount{}, err
	}
	d, err := decimal.NewFromString(s)
	if err != nil {
		return Amount{}, ErrAmountSyntax
	}
	minor := d.Shift(c.Places())
	switch {
	case d.IsZero():
		return Amount{}, ErrAmountNotPositive
	case !minor.IsInteger():
		return Amount{}, ErrAmountTooPrecise
	case minor.GreaterThan(decimal.NewFromInt(MinorMax)):
		return Amount{}, ErrAmountTooLarge
	}
	return Amount{minor.IntPart(), c}, nil
}

// FromMinor makes an amount of minor units that this program stored before. It returns ErrAmountNotPositive or
// ErrAmountTooLarge.
func FromMinor(minor int64, c Currency) (Amount, error) {
	switch {
	case minor <= 0:
		return Amount{}, ErrAmountNotPositive
	case minor > MinorMax:
		return Amount{}, ErrAmountTooLarge
	}
	return Amount{minor, c}, nil
}

// Stored makes an amount of what this program stored before. A currency that has been withdrawn since is still the currency
// of the payments that were made in it.
func Stored(minor int64, code string) (Amount, error) {
	c, err := ParseCurrency(code)
	if errors.Is(err, ErrCurrencyUnknown) {
		c, err = Currency{code}, nil
	}
	if err != nil {
		return Amount{}, err
	}
	return FromMinor(minor, c)
}

// Minor is the amount in minor units: 1000 for 10.00 EUR, 500 for 500 JPY.
func (a Amount) Minor() int64 { return a.minor }

// Currency is the currency the amount is in.
func (a Amount) Currency() Currency { return a.currency }

// String is the amount with the currency's number of places: "10.00", "500", "1.000".
func (a Amount) String() string {
	return decimal.New(a.minor, -a.currency.Places()).StringFixed(a.currency.Places())
}

// Canonical is the shortest decimal form of an amount as it was written, the one that is fingerprinted: "10" for "10.00". It
// needs no currency, so it does not depend on a table of places that may change. It returns ErrAmountSyntax.
func Canonical(s string) (string, error) {
	if err := CheckSyntax(s); err != nil {
		return "", err
	}
	d, err := decimal.NewFromString(s)
	if err != nil {
		return "", ErrAmountSyntax
	}
	return d.String(), nil
}

// GoString keeps amounts readable in test failures.
func (a Amount) GoString() string { return fmt.Sprintf("%s %s", a, a.currency) }

// CheckSyntax accepts digits[.digits] and nothing that only a lenient parser would take. It needs no currency, so that a
// client learns of a malformed amount and an unknown currency in one answer.
func CheckSyntax(s string) error {
	if len(s) == 0 || len(s) > AmountCharsMax {
		return ErrAmountSyntax
	}
	whole, fraction, hasPoint := strings.Cut(s, ".")
	if !allDigits(whole) || hasPoint && !allDigits(fraction) {
		return ErrAmountSyntax
	}
	if len(whole) > 1 && whole[0] == '0' {
		return ErrAmountSyntax
	}
	return nil
}

func allDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}
