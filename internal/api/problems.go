package api

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/paymentsd/paymentsd/internal/accounts"
	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/payments"
	"github.com/paymentsd/paymentsd/internal/provider"
	"github.com/paymentsd/paymentsd/internal/tenants"
)

// Problem is the body of every error answer: RFC 9457, with members that a program can act on.
type Problem struct {
	Type           string         `json:"type"`
	Title          string         `json:"title"`
	Status         int            `json:"status"`
	ErrorCode      string         `json:"errorCode"`  // stable; what a client branches on
	Message        string         `json:"message"`    // for people
	Retryable      bool           `json:"retryable"`  // the same request with the same key may succeed later
	SafeNewKey     bool           `json:"safeNewKey"` // proved: the same request with a new key cannot charge a second time
	PaymentID      string         `json:"paymentId,omitempty"`
	OperationState string         `json:"operationState,omitempty"`
	Errors         []FieldProblem `json:"errors,omitempty"`
}

// FieldProblem says which member of the body breaks which rule. It never repeats the value.
type FieldProblem struct {
	Field   string `json:"field"`
	Code    string `json:"code"`
	Message string `json:"message"`
}

const problemContentType = "application/problem+json"

var (
	errRouteNotFound    = errors.New("no such resource")
	errMethodNotAllowed = errors.New("method not allowed")
	errAPIVersion       = errors.New("API version is not known")
	errPanicked         = errors.New("internal error")
	errIDInvalid        = errors.New("identifier is malformed")
	errKeyNotFound      = errors.New("no such idempotency key")
)

// validationError collects everything that is wrong with a body, so that a client learns it in one answer.
type validationError struct{ fields []FieldProblem }

func (e *validationError) Error() string { return "a field breaks a rule" }

// failure is the kind of what went wrong. The mistake is to have two of them, "safe to retry" and "done".
type failure string

const (
	authentication  failure = "authentication"
	permission      failure = "permission"
	rateLimit       failure = "rate limit"
	overload        failure = "overload"
	syntax          failure = "syntax"
	validation      failure = "validation"
	keyConflict     failure = "key conflict"
	businessRefusal failure = "refusal by a rule of ours"
	providerDecline failure = "decline by the provider"
	errorBefore     failure = "error before the effect"
	errorAfter      failure = "error after the effect may have happened"
	ourFailure      failure = "failure of ours"
	shutdown        failure = "shutdown"
)

// rule is one line of the policy: for a kind of failure, the answer, and what becomes of the key.
type rule struct {
	kind       failure
	matches    func(error) bool
	status     int
	code       string
	message    string
	retryable  bool
	safeNewKey bool
	retryAfter bool // carries Retry-After
	key        string
}

func is(targets ...error) func(error) bool {
	return func(err error) bool {
		return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
	}
}

func as[E error](err error) bool { _, ok := errors.AsType[E](err); return ok }

// What a failure does to the idempotency key, and what is stored under it.
const (
	keyUntouched = "not touched; nothing is stored"
	keyKept      = "as it was; nothing is stored"
	keyReopened  = "kept for the retry, which runs again on the same payment; no answer is stored"
	keyFinished  = "finished; the refusal is stored and replayed"
	keyReserved  = "reserved until the outcome is known, however long; no answer is stored"
)

// rules is the one table from errors to answers; the first line that matches wins. With answered below it is the policy, and
// docs/contract.md prints both.
var rules = []rule{
	{authentication, is(tenants.ErrUnknownAPIKey), 401, "UNAUTHENTICATED", "The API key is missing or not valid.", false, false, false, keyUntouched},
	{authentication, is(provider.ErrWebhookSignature), 401, "WEBHOOK_SIGNATURE_INVALID", "The webhook's signature is missing, does not fit, or is too old.", false, false, false, keyUntouched},
	{permission, is(errForbidden), 403, "FORBIDDEN", "The API key was not issued for this.", false, false, false, keyUntouched},
	{rateLimit, is(errRateLimited), 429, "RATE_LIMITED", "The tenant makes more requests than it may.", true, false, true, keyUntouched},
	{overload, is(errOverloaded), 503, "OVERLOADED", "The service is at its limit; the request was refused before anything was done.", true, false, true, keyUntouched},
	{syntax, is(errRouteNotFound), 404, "NOT_FOUND", "There is no such resource.", false, false, false, keyUntouched},
	{syntax, is(errMethodNotAllowed), 405, "METHOD_NOT_ALLOWED", "The resource does not know this method.", false, false, false, keyUntouched},
	{syntax, is(idempotency.ErrKeyRequired), 400, "IDEMPOTENCY_KEY_REQUIRED", "The header Idempotency-Key is required.", false, true, false, keyUntouched},
	{syntax, is(idempotency.ErrKeyInvalid), 400, "IDEMPOTENCY_KEY_INVALID", "The idempotency key must be 1 to 255 visible ASCII characters, bare or as one quoted string.", false, true, false, keyUntouched},
	{syntax, is(errAPIVersion), 400, "API_VERSION_UNKNOWN", "The header Api-Version names no version of this API.", false, true, false, keyUntouched},
	{syntax, is(errMediaType), 415, "UNSUPPORTED_MEDIA_TYPE", "The body must be application/json in UTF-8, without content encoding.", false, true, false, keyUntouched},
	{syntax, is(errBodyTooLarge), 413, "BODY_TOO_LARGE", "The body is larger than " + strconv.Itoa(bodyBytesMax) + " bytes.", false, true, false, keyUntouched},
	{syntax, is(errBodyTimeout), 408, "BODY_TIMEOUT", "The body did not arrive in time.", true, false, false, keyUntouched},
	{syntax, is(errBodyInvalid), 400, "BODY_INVALID", "The body is not one JSON object in valid UTF-8 with every member at most once.", false, true, false, keyUntouched},
	{syntax, is(provider.ErrWebhookMalformed), 400, "WEBHOOK_MALFORMED", "The webhook is signed, and no document of the provider's language.", false, false, false, keyUntouched},
	{validation, as[*validationError], 422, "VALIDATION_FAILED", "A field breaks a rule.", false, true, false, keyUntouched},
	{validation, is(errIDInvalid), 404, "PAYMENT_NOT_FOUND", "There is no such payment.", false, false, false, keyUntouched},
	{validation, is(payments.ErrNotFound), 404, "PAYMENT_NOT_FOUND", "There is no such payment.", false, false, false, keyUntouched},
	{validation, is(errKeyNotFound), 404, "IDEMPOTENCY_KEY_NOT_FOUND", "The tenant has no such idempotency key in this operation.", false, false, false, keyUntouched},
	{businessRefusal, is(accounts.ErrNotFound), 404, "ACCOUNT_NOT_FOUND", "There is no such account.", false, false, false, keyUntouched},
	{keyConflict, is(payments.ErrKeyReused), 409, "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST", "This idempotency key was used for a different request.", false, false, false, keyKept},
	{keyConflict, as[*payments.KeyExpiredError], 409, "IDEMPOTENCY_KEY_EXPIRED", "This idempotency key has expired; its answer is no longer kept.", false, false, false, keyKept},
	{keyConflict, as[*payments.InProgressError], 409, "IDEMPOTENCY_REQUEST_IN_PROGRESS", "The first request with this idempotency key is still running.", true, false, true, keyKept},
	{businessRefusal, as[*payments.DuplicateReferenceError], 409, "DUPLICATE_MERCHANT_REFERENCE", "The account has a payment with this merchantReference under another idempotency key.", false, false, false, keyUntouched},
	{validation, as[*payments.FieldError], 422, "VALIDATION_FAILED", "A field breaks a rule.", false, true, false, keyUntouched},
	{businessRefusal, is(payments.ErrNotSettled), 409, "PAYMENT_NOT_SETTLED", "Only a settled payment can be refunded, and this one is not settled yet.", true, true, true, keyUntouched},
	{businessRefusal, is(payments.ErrNotRefundable), 409, "PAYMENT_NOT_REFUNDABLE", "Only a settled payment can be refunded, and this one never will be.", false, true, false, keyUntouched},
	{businessRefusal, is(payments.ErrRefundTooLarge), 422, "REFUND_EXCEEDS_PAYMENT", "Together with the refunds that are pending or settled, this is more than was paid.", false, true, false, keyUntouched},
	{businessRefusal, is(payments.ErrAccountNotFound), 422, "ACCOUNT_NOT_FOUND", "There is no such account.", false, true, false, keyUntouched},
	{businessRefusal, is(payments.ErrAccountBlocked), 422, "ACCOUNT_BLOCKED", "The account takes no new payments.", false, true, false, keyUntouched},
	{errorBefore, as[*payments.ProviderUnavailableError], 503, "PROVIDER_UNAVAILABLE", "The provider could not be reached; nothing was charged.", true, false, true, keyReopened},
	{ourFailure, is(payments.ErrUnavailable), 503, "SERVICE_UNAVAILABLE", "The service cannot record payments at the moment.", true, false, true, keyKept},
	{ourFailure, is(idempotency.ErrUnknownRule, idempotency.ErrUnknownVersion), 503, "STORED_REQUEST_UNREADABLE", "This instance cannot read what this idempotency key was used for; a newer one can.", true, false, true, keyKept},
	{ourFailure, func(error) bool { return true }, 500, "INTERNAL", "Something went wrong on our side.", true, false, true, keyKept},
}

// answered are the failures that are no errors of the call: it has an answer all the same.
var answered = struct{ declined, canceled, unknown, shutdown rule }{
	declined: rule{kind: providerDecline, status: 402, code: "the provider's code", message: "The provider declined the payment.", safeNewKey: true, key: keyFinished},
	canceled: rule{kind: errorBefore, status: 402, code: "PAYMENT_CANCELED", message: "The payment was given up before anything was sent to the provider.", safeNewKey: true, key: keyFinished},
	unknown:  rule{kind: errorAfter, status: 202, code: "-", message: "The payment, PENDING: nobody can say yet how it ends.", retryable: true, retryAfter: true, key: keyReserved},
	shutdown: rule{kind: shutdown, status: 0, code: "-", message: "New connections are refused; what runs is finished and answered.", retryable: true, key: keyKept},
}

// problemOf turns an error into the answer that the table gives it.
func problemOf(err error) (Problem, rule) {
	for _, r := range rules {
		if !r.matches(err) {
			continue
		}
		p := problem(r.status, r.code, r.message)
		p.Retryable, p.SafeNewKey = r.retryable, r.safeNewKey
		if e, ok := errors.AsType[*validationError](err); ok {
			p.Errors = e.fields
		}
		if e, ok := errors.AsType[*payments.InProgressError](err); ok {
			p.PaymentID, p.OperationState = e.PaymentID, string(payments.Pending)
		}
		if e, ok := errors.AsType[*payments.DuplicateReferenceError](err); ok {
			p.PaymentID = e.PaymentID
		}
		if e, ok := errors.AsType[*payments.KeyExpiredError](err); ok {
			p.PaymentID = e.PaymentID
		}
		if e, ok := errors.AsType[*payments.FieldError](err); ok {
			f := fields{}
			f.report(e.Field, e.Err)
			p.Errors = f.wrong
		}
		if e, ok := errors.AsType[*payments.ProviderUnavailableError](err); ok {
			p.PaymentID, p.OperationState = e.PaymentID, string(payments.Pending)
		}
		return p, r
	}
	panic("the last line of the error table matches everything")
}

func problem(status int, code, message string) Problem {
	return Problem{Type: "urn:paymentsd:problem:" + strings.ToLower(code), Title: http.StatusText(status), Status: status, ErrorCode: code, Message: message}
}

func (p Problem) encode() []byte {
	b, err := json.Marshal(p, json.Deterministic(true))
	if err != nil {
		panic(fmt.Sprintf("encode problem: %v", err)) // it holds nothing that JSON cannot
	}
	return append(b, '\n')
}

// fail answers with the problem that the table gives the error.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	p, rule := problemOf(err)
	if p.Status >= 500 {
		s.log.ErrorContext(r.Context(), "request failed", "route", routeOf(r), "errorCode", p.ErrorCode, "error", err)
	}
	if p.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", challengeOf(p))
	}
	if rule.retryAfter {
		w.Header().Set("Retry-After", retryAfter(time.Second))
	}
	w.Header().Set("Content-Type", problemContentType)
	w.WriteHeader(p.Status)
	_, _ = w.Write(p.encode()) // the client is gone; nothing depends on its reading
}

// challengeOf says what a caller that was not believed could have proved itself with (RFC 9110, section 11.6.1).
func challengeOf(p Problem) string {
	if p.ErrorCode == "WEBHOOK_SIGNATURE_INVALID" {
		return `Webhook-Signature realm="paymentsd"`
	}
	return `Bearer realm="paymentsd"`
}

// retryAfterMax bounds what a client is told to wait, so that it is there again when the answer is.
const retryAfterMax = 30 * time.Second

// retryAfter is a number of seconds: the pause, and up to two more, so that those who were refused together do not come
// back together.
func retryAfter(pause time.Duration) string {
	seconds := math.Ceil(min(max(pause, time.Second), retryAfterMax).Seconds())
	return strconv.Itoa(int(seconds) + rand.IntN(3))
}

// ErrorTable prints the policy for docs/contract.md.
func ErrorTable() string {
	var b strings.Builder
	b.WriteString("| kind of failure | status | errorCode | meaning | retryable | safeNewKey | Retry-After | the key is |\n|---|---|---|---|---|---|---|---|\n")
	yes := map[bool]string{true: "yes", false: "no"}
	seen := map[string]bool{}
	for _, r := range slices.Concat(rules, []rule{answered.declined, answered.canceled, answered.unknown, answered.shutdown}) {
		line := fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s | %s |\n", r.kind, status(r.status), r.code, r.message, yes[r.retryable], yes[r.safeNewKey], yes[r.retryAfter], r.key)
		if !seen[line] {
			b.WriteString(line)
		}
		seen[line] = true
	}
	return b.String()
}

func status(code int) string {
	if code == 0 {
		return "none"
	}
	return strconv.Itoa(code)
}

type contextKey int

const callerKey contextKey = iota

// callerOf is who was authenticated.
func callerOf(ctx context.Context) tenants.Caller {
	c, _ := ctx.Value(callerKey).(tenants.Caller)
	return c
}

func tenantOf(ctx context.Context) string { return callerOf(ctx).TenantID }
