package api

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/payments"
)

// The versions of this API. An answer that was stored stays in the version it was made in.
const (
	version20260501 = "2026-05-01" // paymentId, status
	version20261101 = "2026-11-01" // id, state, createdAt, description
)

// KnowsVersion reports whether this API has such a version.
func KnowsVersion(version string) bool { _, ok := representations[version]; return ok }

// versionNamed reads the Api-Version header: the version the client named ("" for none), and the one to answer in, which is
// the tenant's pinned one then. It returns errAPIVersion when this API has no such version.
func versionNamed(r *http.Request) (named, effective string, err error) {
	values := r.Header.Values("Api-Version")
	switch {
	case len(values) == 0:
		effective = callerOf(r.Context()).APIVersion
	case len(values) == 1:
		named, effective = values[0], values[0]
	}
	if !KnowsVersion(effective) {
		return "", "", errAPIVersion
	}
	return named, effective, nil
}

// representations say how each version shows a payment, and a refund with it.
var representations = map[string]func(payments.Payment) any{
	version20260501: func(p payments.Payment) any { return represent20260501(p) },
	version20261101: func(p payments.Payment) any { return represent20261101(p) },
}

type payment20260501 struct {
	PaymentID         string          `json:"paymentId"`
	ParentPaymentID   string          `json:"parentPaymentId,omitzero"` // of a refund
	Status            payments.Status `json:"status"`
	AccountID         string          `json:"accountId"`
	Amount            string          `json:"amount"`
	Currency          string          `json:"currency"`
	MerchantReference string          `json:"merchantReference"`
	Channel           string          `json:"channel,omitzero"` // not of a refund
}

func represent20260501(p payments.Payment) payment20260501 {
	return payment20260501{
		PaymentID: p.ID, ParentPaymentID: p.ParentID, Status: p.State.Public(), AccountID: p.AccountID, Amount: p.Amount.String(),
		Currency: p.Amount.Currency().String(), MerchantReference: p.MerchantReference, Channel: p.Channel,
	}
}

type payment20261101 struct {
	ID                string          `json:"id"`
	ParentID          string          `json:"parentId,omitzero"` // of a refund
	State             payments.Status `json:"state"`
	AccountID         string          `json:"accountId"`
	Amount            string          `json:"amount"`
	Currency          string          `json:"currency"`
	MerchantReference string          `json:"merchantReference"`
	Channel           string          `json:"channel,omitzero"` // not of a refund
	Description       string          `json:"description,omitzero"`
	CreatedAt         string          `json:"createdAt"`
}

func represent20261101(p payments.Payment) payment20261101 {
	return payment20261101{
		ID: p.ID, ParentID: p.ParentID, State: p.State.Public(), AccountID: p.AccountID, Amount: p.Amount.String(),
		Currency: p.Amount.Currency().String(), MerchantReference: p.MerchantReference, Channel: p.Channel,
		Description: p.Description, CreatedAt: p.CreatedAt.UTC().Format(time.RFC3339Nano),
	}
}

// represent shows a payment in a version of the API.
func represent(p payments.Payment, version string) ([]byte, error) {
	show, ok := representations[version]
	if !ok {
		return nil, fmt.Errorf("represent payment: %w: %q", idempotency.ErrUnknownVersion, version)
	}
	return encode(show(p))
}

// moveView is one line of a payment's history. It is an operator's view: it shows the internal states.
type moveView struct {
	Version int    `json:"version"`
	From    string `json:"from"`
	To      string `json:"to"`
	Reason  string `json:"reason"`
	At      string `json:"at"`
}

func encode(v any) ([]byte, error) {
	b, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("encode answer: %w", err)
	}
	return append(b, '\n'), nil
}

// locationOf is where a payment, or a refund, is found.
func locationOf(p payments.Payment) string {
	if p.Kind == payments.KindRefund {
		return "/payments/" + p.ParentID + "/refunds/" + p.ID
	}
	return "/payments/" + p.ID
}

// Answer makes the answer that a finished payment's key stores and replays, in the version that its first request was made
// in. It is the payments.Render of this API.
func Answer(p payments.Payment, schemaVersion string) (idempotency.Answer, error) {
	switch p.State {
	case payments.Completed:
		body, err := represent(p, schemaVersion)
		return idempotency.Answer{Status: http.StatusCreated, ContentType: "application/json", Location: locationOf(p), Body: body}, err
	case payments.Declined:
		return refusal(p, answered.declined, declineCode(p.DeclineCode)), nil
	case payments.Canceled:
		return refusal(p, answered.canceled, answered.canceled.code), nil
	default:
		return idempotency.Answer{}, fmt.Errorf("answer: a payment in state %s has none", p.State)
	}
}

// declineCode is the provider's code, unless that is a code of ours: what a client branches on must mean one thing.
func declineCode(code string) string {
	if code == answered.canceled.code || slices.ContainsFunc(rules, func(r rule) bool { return r.code == code }) {
		return "DECLINED"
	}
	return code
}

// refusal is the stored answer to a payment that ended without a charge. It is final for its key; what is refused can be
// tried again under a new one.
func refusal(p payments.Payment, policy rule, code string) idempotency.Answer {
	b := problem(policy.status, code, policy.message)
	b.Retryable, b.SafeNewKey = policy.retryable, policy.safeNewKey
	b.PaymentID, b.OperationState = p.ID, string(p.State.Public())
	return idempotency.Answer{Status: b.Status, ContentType: problemContentType, Location: locationOf(p), Body: b.encode(), ErrorCode: code}
}
