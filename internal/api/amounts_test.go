package api

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/money"
)

func TestB2_EqualAmountsAreOneAmount(t *testing.T) {
	b := setup(t)
	for _, spellings := range [][]string{{"EUR", "10.00", "10.0", "10", "10.000", "10.00000000000000000000"}, {"JPY", "500", "500.0", "500.00"}, {"KWD", "1.5", "1.500", "1.50"}} {
		currency, spellings := spellings[0], spellings[1:]
		for i, spelling := range spellings {
			reference := fmt.Sprintf("%s-%d", currency, i)
			first := b.settles(reference, paymentBody(reference, spelling, currency))
			for _, other := range spellings {
				b.replays(first, b.paying(reference, paymentBody(reference, other, currency)))
			}
		}
	}
	require.Equal(t, "10.00", b.settles("shown", paymentBody("shown", "10", "eur")).payment(t).Amount)
}

func TestB6_NumbersBuiltToHurtCostNothing(t *testing.T) {
	b := setup(t)
	zeros, nines := strings.Repeat("0", 200_000), strings.Repeat("9", 100_000)
	hurting := map[string]string{
		"exponent": "1e1000000", "negative exponent": "1e-1000000", "signed exponent": "1E+999999",
		"zeros inside": "0." + zeros + "1", "nines": nines, "zeros in front": zeros + "10.00",
		"zeros within the body": "0." + zeros[:15000] + "1", "nines within the body": nines[:15000], "zeros behind": "10." + zeros[:15000],
		"33 characters": "10." + zeros[:30],
	}
	for name, amount := range hurting {
		t.Run("B6 "+name, func(t *testing.T) {
			r := b.paying("k", b0With("amount", amount))
			began := time.Now()
			a := b.do(r)
			require.Less(t, time.Since(began), 2*time.Second, "generous: the bound on a quiet machine is milliseconds")
			if len(amount) > bodyBytesMax {
				require.Equal(t, "BODY_TOO_LARGE", a.problem(t).ErrorCode)
				return
			}
			b.rejectsField(b.paying("k", b0With("amount", amount)), "amount", "AMOUNT_MALFORMED")
		})
	}

	before := heap()
	var waiting []func() answer
	for range 200 / len(hurting) {
		for _, amount := range hurting {
			waiting = append(waiting, b.start(b.paying("k", b0With("amount", amount))))
		}
	}
	for _, wait := range waiting {
		require.Contains(t, []int{http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge}, wait().status)
	}
	waiting = nil
	require.Less(t, heap(), before+32<<20)
	require.Equal(t, traces{}, b.traces())
	for _, value := range []string{"e1000000", "99999999", "00000000"} {
		require.NotContains(t, b.logs.String(), value)
	}
	b.settles("k", b0)
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestB7_OnlyPlainDecimalStringsAreAmounts(t *testing.T) {
	b := setup(t)
	for _, amount := range []string{"1/3", "0x10", "1_000", "1e2", "1E2", "+10.00", "-10.00", "010.00", "00.50", ".5", "10.", ".", "10.0.0", "NaN",
		"Infinity", "inf", " 10.00", "10.00 ", "10.00\n", "\t10.00", "1,000.00", "1.000,00", "10,00", "１０.00", "١٠.00", "10\u00a000", "10.00€", "ten", "0b1", "0o7", "10.00f"} {
		t.Run(fmt.Sprintf("B7 %q", amount), func(t *testing.T) {
			b.rejectsField(b.paying("k", b0With("amount", amount)), "amount", "AMOUNT_MALFORMED")
		})
	}
	b.rejectsField(b.paying("k", b0With("amount", "")), "amount", "INVALID")
	for _, value := range []string{"10.00", "1e1", "9007199254740993", "true", `["10.00"]`, "{}"} {
		b.rejectsField(b.paying("k", b0WithRaw("amount", value)), "amount", "MUST_BE_STRING")
	}
	for amount, minor := range map[string]int64{"19.99": 1999, "8.29": 829, "17.08": 1708, "8.20": 820, "0.01": 1, "1.1": 110, "4.35": 435, "1.15": 115} {
		reference := "inv-" + amount
		b.settles(reference, paymentBody(reference, amount, "EUR"))
		require.Equal(t, minor, b.wire(reference).AmountMinor, amount)
		require.Equal(t, minor, b.charges(reference)[0].AmountMinor)
	}
}

func TestC1_MinorUnitsAreTheCurrencys(t *testing.T) {
	b := setup(t)
	for i, c := range []struct {
		amount, currency string
		minor            int64
		shown            string
	}{
		{"500", "JPY", 500, "500"}, {"500.00", "JPY", 500, "500"}, {"1000", "KRW", 1000, "1000"}, {"1000", "CLP", 1000, "1000"},
		{"10", "EUR", 1000, "10.00"}, {"1.5", "KWD", 1500, "1.500"}, {"1", "BHD", 1000, "1.000"}, {"0.0001", "CLF", 1, "0.0001"},
	} {
		t.Run("C1 "+c.amount+" "+c.currency, func(t *testing.T) {
			reference := fmt.Sprintf("inv-%d", i)
			a := b.settles(reference, paymentBody(reference, c.amount, c.currency))
			require.Equal(t, c.shown, a.payment(t).Amount)
			sent := b.wire(reference)
			require.Equal(t, c.minor, sent.AmountMinor)
			require.Equal(t, c.currency, sent.Currency)
		})
	}
	for amount, currency := range map[string]string{"500.5": "JPY", "0.1": "KRW", "1.0001": "KWD", "0.00001": "CLF"} {
		b.rejectsField(b.paying("k", paymentBody("refused", amount, currency)), "amount", "AMOUNT_TOO_PRECISE")
	}
}

func TestC3_CurrencyCodes(t *testing.T) {
	b := setup(t)
	for i, spelling := range []string{"eur", "Eur", `E\u0055R`} {
		reference := fmt.Sprintf("inv-%d", i)
		body := strings.Replace(b0WithRaw("currency", `"`+spelling+`"`), "inv-1", reference, 1)
		first := b.settles(reference, body)
		require.Equal(t, "EUR", first.payment(t).Currency)
		require.Equal(t, "EUR", b.wire(reference).Currency)
		b.replays(first, b.paying(reference, bodyFor(reference)))
	}
	for _, code := range []string{"EU", "EURO", " EUR", "EUR ", "978", "€", "ＥＵＲ", "E R", "EU\u0280"} {
		b.rejectsField(b.paying("k", b0With("currency", code)), "currency", "CURRENCY_MALFORMED")
	}
	b.rejectsField(b.paying("k", b0With("currency", "")), "currency", "INVALID")
	for _, code := range []string{"XXX", "XTS", "XAU", "HRK", "ZWL", "DEM", "ABC", "xxx"} {
		b.rejectsField(b.paying("k", b0With("currency", code)), "currency", "CURRENCY_NOT_ACTIVE")
	}
}

func TestC3_ProviderMayAnswerInLowerCase(t *testing.T) {
	b := setup(t)
	b.fault("inv-1", "charge", "lower_case_currency", nil)
	require.Equal(t, "EUR", b.settles("k", b0).payment(t).Currency)
}

func TestC4_NothingIsRounded(t *testing.T) {
	b := setup(t)
	for amount, code := range map[string]string{
		"0": "AMOUNT_NOT_POSITIVE", "0.00": "AMOUNT_NOT_POSITIVE", "0.000": "AMOUNT_NOT_POSITIVE", "-0.00": "AMOUNT_MALFORMED", "-10.00": "AMOUNT_MALFORMED",
		"0.004": "AMOUNT_TOO_PRECISE", "10.005": "AMOUNT_TOO_PRECISE", "9999999999.995": "AMOUNT_TOO_PRECISE",
		"10000000000.00": "AMOUNT_TOO_LARGE", "10000000000": "AMOUNT_TOO_LARGE", "99999999999.99": "AMOUNT_TOO_LARGE",
		"92233720368547758.08": "AMOUNT_TOO_LARGE", "184467440737095516.17": "AMOUNT_TOO_LARGE", strings.Repeat("9", 32): "AMOUNT_TOO_LARGE",
	} {
		t.Run("C4 "+amount, func(t *testing.T) {
			b.rejectsField(b.paying("k", b0With("amount", amount)), "amount", code)
		})
	}
	b.settles("largest", paymentBody("largest", "9999999999.99", "EUR"))
	require.EqualValues(t, money.MinorMax, b.wire("largest").AmountMinor)
	b.settles("smallest", paymentBody("smallest", "0.01", "EUR"))
	require.EqualValues(t, 1, b.wire("smallest").AmountMinor)
}

// placesOf is written down here once more, so that a wrong number of places in the code cannot hide itself.
var placesOf = map[string]int{"JPY": 0, "KRW": 0, "ISK": 0, "EUR": 2, "USD": 2, "GBP": 2, "HUF": 2, "KWD": 3, "BHD": 3, "TND": 3, "CLF": 4}

// For random amounts: what was asked, what is stored, what was sent and what was charged are one amount.
func TestC4_AmountIsTheSameEverywhere(t *testing.T) {
	b := setup(t)
	random := rand.New(rand.NewPCG(4, 2026))
	var currencies []string
	for c := range placesOf {
		currencies = append(currencies, c)
	}
	for i := range 60 {
		currency := currencies[random.IntN(len(currencies))]
		places := placesOf[currency]
		digits := strconv.FormatInt(1+random.Int64N([]int64{9, 999, 999_999, money.MinorMax - 1}[random.IntN(4)]), 10)
		minor, err := strconv.ParseInt(digits, 10, 64)
		require.NoError(t, err)

		amount := digits
		if places > 0 { // put the point in by hand
			digits = strings.Repeat("0", max(0, places+1-len(digits))) + digits
			amount = digits[:len(digits)-places] + "." + digits[len(digits)-places:]
		}
		asked := amount
		if places > 0 && random.IntN(2) == 0 {
			asked = strings.TrimSuffix(strings.TrimRight(amount, "0"), ".")
		}
		reference := fmt.Sprintf("inv-%d", i)
		a := b.settles(reference, paymentBody(reference, asked, currency))

		require.Equal(t, amount, a.payment(t).Amount, "asked %s %s", asked, currency)
		require.Equal(t, 1, b.count(`SELECT count(*) FROM payments WHERE merchant_reference = $1 AND amount_minor = $2 AND currency = $3`, reference, minor, currency))
		require.Equal(t, minor, b.wire(reference).AmountMinor)
		require.Equal(t, minor, b.charges(reference)[0].AmountMinor)
		require.Equal(t, currency, b.charges(reference)[0].Currency)
	}
}
