package api

import (
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/paymentsd/paymentsd/internal/money"
	"github.com/paymentsd/paymentsd/internal/payments"
)

// fields reads the members of a body and collects what is wrong with them: one problem a field, the first one found.
type fields struct {
	body    members
	wrong   []FieldProblem
	unknown bool // what is wrong leaves open what the body means
}

// fieldProblemsMax bounds an answer to a body that is wrong everywhere.
const fieldProblemsMax = 20

func (f *fields) add(field, code, message string) {
	named := func(p FieldProblem) bool { return p.Field == field }
	if len(f.wrong) < fieldProblemsMax && !slices.ContainsFunc(f.wrong, named) {
		f.wrong = append(f.wrong, FieldProblem{field, code, message})
	}
}

// printable is a member name that can be repeated in an answer without harm.
var printable = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,40}$`)

func safeName(name string) string {
	if !printable.MatchString(name) {
		return "(unprintable)"
	}
	return name
}

// only refuses every other member: a misspelled one must not become a silently different payment.
func (f *fields) only(names ...string) {
	var unknown []string
	for name := range f.body {
		if slices.Contains(names, name) {
			continue
		}
		unknown = append(unknown, safeName(name))
	}
	slices.Sort(unknown)
	for _, name := range unknown {
		f.misread(name, "UNKNOWN_MEMBER", "this member is not known here")
	}
}

func (f *fields) required(name string) string {
	value, there, code := f.body.text(name)
	switch {
	case code != "":
		f.misread(name, code, "must be a string")
	case !there:
		f.misread(name, "REQUIRED", "is required")
	case value == "":
		f.misread(name, "INVALID", "must not be empty")
	}
	return value
}

func (f *fields) optional(name, otherwise string) string {
	value, there, code := f.body.text(name)
	switch {
	case code != "":
		f.misread(name, code, "must be a string")
	case !there:
		return otherwise
	case value == "":
		f.misread(name, "INVALID", "must not be empty; leave it out instead")
	}
	return value
}

// amount reads an amount in canonical form.
func (f *fields) amount(name string) string {
	value := f.required(name)
	canonical, err := money.Canonical(value)
	if err != nil {
		f.misread(name, "AMOUNT_MALFORMED", err.Error())
	}
	return canonical
}

// currency reads a currency code in upper case, whether or not there is such a currency.
func (f *fields) currency(name string) string {
	value := f.optional(name, "")
	if value != "" && !currencyForm.MatchString(value) {
		f.misread(name, "CURRENCY_MALFORMED", money.ErrCurrencySyntax.Error())
	}
	return strings.ToUpper(value)
}

var currencyForm = regexp.MustCompile(`^[A-Za-z]{3}$`)

// checkMoney applies the rules of today to an amount and a currency that could be read. Without a currency they are
// applied when it is known which one is meant.
func (f *fields) checkMoney(amount, code string) {
	if code == "" {
		return
	}
	currency, err := money.ParseCurrency(code)
	if err != nil {
		f.report("currency", err)
		return // the amount's places and limit depend on the currency
	}
	_, err = money.Parse(amount, currency)
	f.report("amount", err)
}

func (f *fields) misread(name, code, message string) {
	f.unknown = true
	f.add(name, code, message)
}

func (f *fields) check(name string, ok bool, code, message string) {
	if !ok {
		f.add(name, code, message)
	}
}

// ruleCodes gives every error about one member its code.
var ruleCodes = []struct {
	err  error
	code string
}{
	{money.ErrAmountSyntax, "AMOUNT_MALFORMED"},
	{money.ErrAmountNotPositive, "AMOUNT_NOT_POSITIVE"},
	{money.ErrAmountTooPrecise, "AMOUNT_TOO_PRECISE"},
	{money.ErrAmountTooLarge, "AMOUNT_TOO_LARGE"},
	{money.ErrCurrencySyntax, "CURRENCY_MALFORMED"},
	{money.ErrCurrencyUnknown, "CURRENCY_NOT_ACTIVE"},
	{payments.ErrOtherCurrency, "CURRENCY_NOT_THE_PAYMENTS"},
	{payments.ErrNoDefaultCurrency, "REQUIRED"},
}

func (f *fields) report(name string, err error) {
	for _, m := range ruleCodes {
		if errors.Is(err, m.err) {
			f.add(name, m.code, m.err.Error())
		}
	}
}

// err is nil when nothing was wrong.
func (f *fields) err() error {
	if len(f.wrong) == 0 {
		return nil
	}
	slices.SortStableFunc(f.wrong, func(a, b FieldProblem) int { return strings.Compare(a.Field, b.Field) })
	return &validationError{f.wrong}
}
