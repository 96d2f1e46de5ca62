package money

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func currencyOf(t *testing.T, code string) Currency {
	t.Helper()
	c, err := ParseCurrency(code)
	require.NoError(t, err)
	return c
}

func canonicalOf(t *testing.T, text string) string {
	canonical, err := Canonical(text)
	require.NoError(t, err)
	return canonical
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		amount, currency string
		minor            int64
		shown, canonical string
	}{
		{"10.00", "EUR", 1000, "10.00", "10"}, {"10", "EUR", 1000, "10.00", "10"}, {"10.0", "EUR", 1000, "10.00", "10"},
		{"10.50", "EUR", 1050, "10.50", "10.5"}, {"0.01", "EUR", 1, "0.01", "0.01"}, {"19.99", "EUR", 1999, "19.99", "19.99"},
		{"500", "JPY", 500, "500", "500"}, {"500.00", "JPY", 500, "500", "500"}, {"1200", "JPY", 1200, "1200", "1200"},
		{"1.5", "KWD", 1500, "1.500", "1.5"}, {"0.0001", "CLF", 1, "0.0001", "0.0001"},
		{"9999999999.99", "EUR", MinorMax, "9999999999.99", "9999999999.99"}, {"999999999999", "JPY", MinorMax, "999999999999", "999999999999"},
		{"1." + strings.Repeat("0", 30), "EUR", 100, "1.00", "1"},
	} {
		a, err := Parse(c.amount, currencyOf(t, c.currency))
		require.NoError(t, err, "%s %s", c.amount, c.currency)
		require.Equal(t, c.minor, a.Minor())
		require.Equal(t, c.shown, a.String())
		canonical, err := Canonical(c.amount)
		require.NoError(t, err)
		require.Equal(t, c.canonical, canonical)
		require.Equal(t, c.currency, a.Currency().String())
	}
}

func TestParseRefuses(t *testing.T) {
	for amount, expected := range map[string]error{
		"": ErrAmountSyntax, "-1": ErrAmountSyntax, "+1": ErrAmountSyntax, "01": ErrAmountSyntax, "00": ErrAmountSyntax, ".5": ErrAmountSyntax, "5.": ErrAmountSyntax,
		"1e2": ErrAmountSyntax, "1_0": ErrAmountSyntax, "1,0": ErrAmountSyntax, " 1": ErrAmountSyntax, "1\n": ErrAmountSyntax, "１": ErrAmountSyntax, "NaN": ErrAmountSyntax,
		"1.2.3": ErrAmountSyntax, strings.Repeat("9", AmountCharsMax+1): ErrAmountSyntax,
		"0": ErrAmountNotPositive, "0.00": ErrAmountNotPositive, "0.000": ErrAmountNotPositive,
		"0.001": ErrAmountTooPrecise, "10.005": ErrAmountTooPrecise,
		"10000000000": ErrAmountTooLarge, strings.Repeat("9", AmountCharsMax): ErrAmountTooLarge,
	} {
		a, err := Parse(amount, currencyOf(t, "EUR"))
		require.ErrorIs(t, err, expected, "%q", amount)
		require.Equal(t, Amount{}, a)
		if len(amount) > 3 {
			require.NotContains(t, err.Error(), amount)
		}
	}
}

func TestFromMinorHasTheSameBounds(t *testing.T) {
	eur := currencyOf(t, "EUR")
	for minor, expected := range map[int64]error{0: ErrAmountNotPositive, -1: ErrAmountNotPositive, 1: nil, MinorMax: nil, MinorMax + 1: ErrAmountTooLarge} {
		_, err := FromMinor(minor, eur)
		require.ErrorIs(t, err, expected, "%d", minor)
	}
}

func TestParseCurrency(t *testing.T) {
	for code, places := range map[string]int32{"JPY": 0, "KRW": 0, "CLP": 0, "EUR": 2, "USD": 2, "KWD": 3, "BHD": 3, "CLF": 4} {
		require.Equal(t, places, currencyOf(t, code).Places(), code)
		require.Equal(t, code, currencyOf(t, strings.ToLower(code)).String())
	}
	for _, code := range []string{"", "EU", "EURO", "978", "E R", " EUR", "ＥＵＲ", "€"} {
		_, err := ParseCurrency(code)
		require.ErrorIs(t, err, ErrCurrencySyntax, "%q", code)
	}
	for _, code := range []string{"XXX", "XTS", "XAU", "XAD", "XDR", "HRK", "ZWL", "DEM", "ABC", "xxx"} {
		_, err := ParseCurrency(code)
		require.ErrorIs(t, err, ErrCurrencyUnknown, "%q", code)
	}
}

// Showing, shortening and parsing again never changes an amount.
func TestAmountsSurviveEveryForm(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, code := range []string{"JPY", "EUR", "KWD", "CLF"} {
		c := currencyOf(t, code)
		for range 500 {
			a, err := FromMinor(1+random.Int64N([]int64{99, 99_999, MinorMax}[random.IntN(3)]), c)
			require.NoError(t, err)
			for _, text := range []string{a.String(), canonicalOf(t, a.String())} {
				again, err := Parse(text, c)
				require.NoError(t, err, "%s %s", text, code)
				require.Equal(t, a, again)
			}
			require.Equal(t, strconv.FormatInt(a.Minor(), 10), strings.TrimLeft(strings.ReplaceAll(a.String(), ".", ""), "0"))
		}
	}
}
