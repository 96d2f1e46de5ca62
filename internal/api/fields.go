package api

import (
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/paymentsd/paymentsd/internal/money"
)

// fields reads the members of a body and collects what is wrong with them: one problem a field, the first one found.
type fields struct {
	body  members
	wrong []FieldProblem
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

// only refuses every other member: a misspelled one must not become a silently different payment.
func (f *fields) only(names ...string) {
	var unknown []string
	for name := range f.body {
		if slices.Contains(names, name) {
			continue
		}
		if !printable.MatchString(name) {
			name = "(unprintable)"
		}
		unknown = append(unknown, name)
	}
	slices.Sort(unknown)
	for _, name := range unknown {
		f.add(name, "UNKNOWN_MEMBER", "this member is not known here")
	}
}

func (f *fields) required(name string) string {
	value, there, code := f.body.text(name)
	switch {
	case code != "":
		f.add(name, code, "must be a string")
	case !there:
		f.add(name, "REQUIRED", "is required")
	}
	return value
}

func (f *fields) optional(name, otherwise string) string {
	value, there, code := f.body.text(name)
	if code != "" {
		f.add(name, code, "must be a string")
	}
	if !there {
		return otherwise
	}
	return value
}

func (f *fields) check(name string, ok bool, code, message string) {
	if !ok {
		f.add(name, code, message)
	}
}

// moneyCodes gives every error of package money its code.
var moneyCodes = []struct {
	err  error
	code string
}{
	{money.ErrAmountSyntax, "AMOUNT_MALFORMED"},
	{money.ErrAmountNotPositive, "AMOUNT_NOT_POSITIVE"},
	{money.ErrAmountTooPrecise, "AMOUNT_TOO_PRECISE"},
	{money.ErrAmountTooLarge, "AMOUNT_TOO_LARGE"},
	{money.ErrCurrencySyntax, "CURRENCY_MALFORMED"},
	{money.ErrCurrencyUnknown, "CURRENCY_NOT_ACTIVE"},
}

func (f *fields) report(name string, err error) {
	for _, m := range moneyCodes {
		if errors.Is(err, m.err) {
			f.add(name, m.code, err.Error())
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
