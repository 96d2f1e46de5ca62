package api

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"

	"github.com/go-chi/chi/v5"

	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/payments"
)

const (
	pageRowsDefault = 20
	pageRowsMax     = 100 // about 30 kB of answer
)

// showPayments is GET /payments: a page, newest first. A cursor says where the next page begins, and holds no state of ours:
// payments that are made meanwhile do not shift a page.
func (s *server) showPayments(r *http.Request, version string) (any, error) {
	q, err := listQuery(r.URL)
	if err != nil {
		return nil, err
	}
	list, err := s.payments.List(r.Context(), tenantOf(r.Context()), q.filter, q.before, q.rows+1)
	if err != nil {
		return nil, err
	}
	view := struct {
		Payments []any  `json:"payments"`
		Next     string `json:"nextCursor,omitzero"`
	}{Payments: []any{}}
	if len(list) > q.rows { // one more than asked for says that there is a next page
		list = list[:q.rows]
		view.Next = nextCursor(list[q.rows-1].ID)
	}
	for _, p := range list {
		view.Payments = append(view.Payments, representations[version](p))
	}
	return view, nil
}

type pageQuery struct {
	filter payments.Filter
	before string
	rows   int
}

func listQuery(u *url.URL) (pageQuery, error) {
	f := fields{}
	values, rows, cursor := f.page(u, paymentIDForm, "accountId", "merchantReference", "status")
	q := pageQuery{rows: rows, before: cursor, filter: payments.Filter{AccountID: values.Get("accountId"),
		MerchantReference: values.Get("merchantReference"), Status: payments.Status(values.Get("status"))}}
	f.check("accountId", q.filter.AccountID == "" || accountIDForm.MatchString(q.filter.AccountID), "INVALID", "1 to 64 letters, digits, underscores or hyphens")
	f.check("merchantReference", q.filter.MerchantReference == "" || isText(q.filter.MerchantReference), "INVALID", "1 to 255 characters, none of them a control character")
	f.check("status", q.filter.Status == "" || slices.Contains(payments.Statuses, q.filter.Status), "INVALID", "one of PENDING, SETTLED, DECLINED, CANCELED")
	return q, f.err()
}

// page reads the query of a list strictly: a misspelled filter must not become no filter. A cursor holds a place of the given
// form, "" is the beginning.
func (f *fields) page(u *url.URL, place *regexp.Regexp, filters ...string) (values url.Values, rows int, cursor string) {
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		f.add("query", "INVALID", "the query string is malformed")
	}
	for name, all := range values {
		if !slices.Contains(filters, name) && name != "cursor" && name != "limit" {
			f.add(safeName(name), "UNKNOWN_MEMBER", "this parameter is not known here")
		} else if len(all) > 1 || all[0] == "" {
			f.add(name, "INVALID", "must be there once, and not be empty")
		}
	}
	rows = pageRowsDefault
	if limit := values.Get("limit"); limit != "" {
		rows, err = strconv.Atoi(limit)
		f.check("limit", err == nil && rows >= 1 && rows <= pageRowsMax, "INVALID", "a number from 1 to "+strconv.Itoa(pageRowsMax))
	}
	if encoded := values.Get("cursor"); encoded != "" {
		decoded, err := base64.RawURLEncoding.DecodeString(encoded)
		cursor = string(decoded)
		f.check("cursor", err == nil && place.MatchString(cursor), "INVALID", "a nextCursor of an earlier answer")
	}
	return values, rows, cursor
}

// nextCursor is where the page behind a place begins.
func nextCursor(place string) string { return base64.RawURLEncoding.EncodeToString([]byte(place)) }

// operations are the keyed operations by their names in the path of a key.
var operations = []string{payments.OperationCreate, payments.OperationRefund}

// keyView is what a client that lost the answer can ask about its own key.
type keyView struct {
	Operation      string `json:"operation"`
	IdempotencyKey string `json:"idempotencyKey"`
	State          string `json:"state"`
	ResourceType   string `json:"resourceType"`
	ResourceID     string `json:"resourceId"`
	ResponseStatus int    `json:"responseStatus,omitzero"`
	CreatedAt      string `json:"createdAt"`
	ExpiresAt      string `json:"expiresAt"`
}

// getKey is GET /idempotency-keys/{operation}/{key}: what became of a key, for a client that lost the answer. It changes
// nothing and triggers nothing; only the tenant's own keys are found.
func (s *server) getKey(w http.ResponseWriter, r *http.Request) {
	operation := chi.URLParam(r, "operation")
	raw, err := pathParam(r, "key")
	if err != nil || !slices.Contains(operations, operation) {
		s.fail(w, r, errKeyNotFound)
		return
	}
	key, err := idempotency.ParseKey([]string{raw})
	if err != nil {
		s.fail(w, r, err)
		return
	}
	record, exists, err := s.payments.Key(r.Context(), idempotency.Scope{TenantID: tenantOf(r.Context()), Operation: operation, Key: key})
	switch {
	case err != nil:
		s.fail(w, r, unavailable(err))
		return
	case !exists:
		s.fail(w, r, errKeyNotFound)
		return
	}
	body, err := encode(keyView{
		Operation: operation, IdempotencyKey: string(key), State: keyState(record), ResourceType: record.ResourceType,
		ResourceID: record.Lease.ResourceID, ResponseStatus: record.Answer.Status,
		CreatedAt: timeText(record.CreatedAt), ExpiresAt: timeText(record.ExpiresAt),
	})
	s.answer(w, r, body, err)
}

// pathParam is a part of the path, decoded once: chi matches the path as it was sent where that differs from its plain
// encoding, and the decoded path otherwise.
func pathParam(r *http.Request, name string) (string, error) {
	if r.URL.RawPath == "" {
		return chi.URLParam(r, name), nil
	}
	return url.PathUnescape(chi.URLParam(r, name))
}

// keyState is the client's word for a key's status: the internal names never leave the service.
func keyState(r idempotency.Record) string {
	switch {
	case r.Over():
		return "EXPIRED"
	case r.Status == idempotency.Completed || r.Status == idempotency.FailedReplayable:
		return "FINISHED"
	case r.Status == idempotency.FailedRetryable:
		return "RETRYABLE"
	default:
		return "PENDING"
	}
}
