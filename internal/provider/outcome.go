package provider

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/paymentsd/paymentsd/internal/money"
)

// What an answer proves. This file decides it, and no other place does; when there is no answer at all, attempt.sealed
// tells NotSent from Unknown.
//
//	call     status     body                                                   outcome    reason
//	send     2xx        "succeeded", complete, fits the request                Confirmed  answered
//	send     2xx, 402   "declined", does not contradict the request            Declined   answered
//	send     2xx, 402   contradicts the request in any member                  Unknown    mismatch
//	send     2xx, 402   cut short                                              Unknown    truncated
//	send     2xx, 402   longer than answerBytesMax                             Unknown    too_large
//	send     2xx, 402   no JSON, or a success without id, amount or currency   Unknown    unreadable
//	send     2xx        any other status member, such as "pending"             Unknown    undecided
//	send     any other  whatever it says                                       Unknown    http_NNN
//	lookup   200        an array without elements                              Absent     absent
//	lookup   200        one element, "succeeded", as above                     Confirmed  answered
//	lookup   200        nothing but "declined"                                 Declined   answered
//	lookup   200        more than one "succeeded"                              Unknown    ambiguous
//	lookup   200        anything else                                          Unknown    as above
//	lookup   any other  whatever it says                                       Unknown    http_NNN
//
// 409 (our first request still runs), 425, 429 and 5xx prove nothing, however often they are repeated: a provider may
// remember a 500 for a key under which it has charged. A lookup answered with 404 is no absence: any proxy says 404.

// answerBytesMax bounds what is read of an answer. A charge is about 400 bytes; a reference of 255 characters, each
// spelled as an escape, adds 1.5 KiB. 64 KiB is far above every honest answer and keeps 1,000 calls in flight
// under 64 MiB whatever the other side sends.
const answerBytesMax = 64 << 10

// answer is one HTTP answer, as far as it arrived.
type answer struct {
	status  int
	body    []byte
	bodyErr error // why the body is not whole; nil when it is
}

var errAnswerTooLarge = errors.New("answer is longer than a charge can be")

// readAnswer reads the body within its limit. It never fails: a body that cannot be read is part of the answer.
func readAnswer(resp *http.Response) answer {
	body, err := io.ReadAll(io.LimitReader(resp.Body, answerBytesMax+1))
	if err == nil && len(body) > answerBytesMax {
		err = errAnswerTooLarge
	}
	return answer{status: resp.StatusCode, body: body, bodyErr: err}
}

// judgeSend applies the rows "send" of the table.
func judgeSend(a answer, key string, want orderBody) Result {
	if a.status/100 != 2 && a.status != http.StatusPaymentRequired {
		return unknown(httpReason(a.status))
	}
	if a.bodyErr != nil {
		return unknown(reasonOf(a.bodyErr))
	}
	var c moneyMoved
	if json.Unmarshal(a.body, &c) != nil {
		return unknown("unreadable")
	}
	result := c.judge(key, want)
	if a.status == http.StatusPaymentRequired && result.Outcome == Confirmed {
		return unknown(httpReason(a.status)) // status line and body contradict each other
	}
	return result
}

// judgeLookup applies the rows "lookup" of the table.
func judgeLookup(a answer, key string, want orderBody) Result {
	if a.status != http.StatusOK {
		return unknown(httpReason(a.status))
	}
	if a.bodyErr != nil {
		return unknown(reasonOf(a.bodyErr))
	}
	var found []moneyMoved
	if json.Unmarshal(a.body, &found) != nil || found == nil { // nil: the body was null, which is not "none"
		return unknown("unreadable")
	}

	verdict := Result{Outcome: Absent, Reason: "absent"}
	for _, c := range found {
		switch r := c.judge(key, want); r.Outcome {
		case Unknown:
			return r // one element that is not understood makes the whole list uncertain
		case Confirmed:
			if verdict.Outcome == Confirmed {
				return unknown("ambiguous")
			}
			verdict = r
		case Declined:
			if verdict.Outcome == Absent { // money that moved outweighs a refusal
				verdict = r
			}
		default:
			panic("judge lookup: an element was judged " + r.Outcome.String())
		}
	}
	return verdict
}

// moneyMoved is a charge or a refund as the provider describes it. Pointers tell "not said" from a value; members that are not
// listed here are ignored, because providers add some. Duplicate members and invalid UTF-8 make the answer unreadable.
type moneyMoved struct {
	ID             string  `json:"id"`
	Status         string  `json:"status"`
	DeclineCode    string  `json:"declineCode"`
	Account        *string `json:"account"`
	AmountMinor    *int64  `json:"amountMinor"`
	Currency       *string `json:"currency"`
	Reference      *string `json:"reference"`
	PaymentID      *string `json:"paymentId"`
	Tenant         *string `json:"tenant"`
	ChargeID       *string `json:"chargeId"` // of a refund
	IdempotencyKey *string `json:"idempotencyKey"`
}

// judge says what this charge proves about the request: Confirmed, Declined or Unknown.
func (c moneyMoved) judge(key string, want orderBody) Result {
	switch {
	case c.contradicts(key, want):
		return unknown("mismatch")
	case c.Status == "declined":
		return Result{Outcome: Declined, DeclineCode: declineCode(c.DeclineCode), Reason: "answered"}
	case c.Status != "succeeded":
		return unknown("undecided")
	case c.AmountMinor == nil || c.Currency == nil || !idSyntax.MatchString(c.ID):
		return unknown("unreadable")
	default:
		return Result{Outcome: Confirmed, ChargeID: c.ID, Reason: "answered"}
	}
}

// contradicts reports that a member which is present says something else than the request did.
func (c moneyMoved) contradicts(key string, want orderBody) bool {
	differs := func(got *string, want string) bool { return got != nil && *got != want }
	return c.AmountMinor != nil && *c.AmountMinor != want.AmountMinor ||
		c.Currency != nil && !sameCurrency(*c.Currency, want.Currency) ||
		differs(c.Account, want.Account) ||
		differs(c.Reference, want.Reference) ||
		differs(c.PaymentID, want.PaymentID) ||
		want.Tenant != "" && differs(c.Tenant, want.Tenant) ||
		differs(c.ChargeID, want.ChargeID) ||
		differs(c.IdempotencyKey, key)
}

// sameCurrency compares after normalising: many providers answer in lower case.
func sameCurrency(got, want string) bool {
	c, err := money.ParseCurrency(got)
	return err == nil && c.String() == want
}

var (
	// Ids that the provider says go into our database and our answers, so they have to be plain: 255 visible ASCII
	// characters, the same bound as for our clients' keys.
	idSyntax = regexp.MustCompile(`^[\x21-\x7e]{1,255}$`)

	// Decline codes are shown to our clients. What does not look like one could be anything, a card number included.
	declineCodeSyntax = regexp.MustCompile(`^[A-Z0-9_]{1,64}$`)
)

// declineCode gives the code in upper snake case, or DECLINED when it is no code.
func declineCode(code string) string {
	if upper := strings.ToUpper(code); declineCodeSyntax.MatchString(upper) {
		return upper
	}
	return "DECLINED"
}

func httpReason(status int) string { return fmt.Sprintf("http_%d", status) }
