package api

import (
	"fmt"
	"net/http"

	"github.com/go-json-experiment/json"

	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/payments"
)

// version20260501 is the representation with paymentId and status.
const version20260501 = "2026-05-01"

// defaultVersion answers clients that name no version.
const defaultVersion = version20260501

// versionNamed reads the Api-Version header: the version the client named ("" for none), and the one to answer in. It
// returns errAPIVersion when this API has no such version.
func versionNamed(h http.Header) (named, effective string, err error) {
	switch values := h.Values("Api-Version"); {
	case len(values) == 0:
		return "", defaultVersion, nil
	case len(values) == 1 && values[0] == version20260501:
		return values[0], values[0], nil
	default:
		return "", "", errAPIVersion
	}
}

// payment20260501 is a payment as version 2026-05-01 shows it.
type payment20260501 struct {
	PaymentID         string          `json:"paymentId"`
	Status            payments.Status `json:"status"`
	AccountID         string          `json:"accountId"`
	Amount            string          `json:"amount"`
	Currency          string          `json:"currency"`
	MerchantReference string          `json:"merchantReference"`
	Channel           string          `json:"channel"`
}

// represent shows a payment in a version of the API.
func represent(p payments.Payment, version string) ([]byte, error) {
	if version != version20260501 {
		return nil, fmt.Errorf("represent payment: this build does not know version %q", version)
	}
	return encode(payment20260501{
		PaymentID: p.ID, Status: p.State.Public(), AccountID: p.AccountID, Amount: p.Amount.String(),
		Currency: p.Amount.Currency().String(), MerchantReference: p.MerchantReference, Channel: p.Channel,
	})
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

func locationOf(paymentID string) string { return "/payments/" + paymentID }

// Answer makes the answer that a finished payment's key stores and replays, in the version that its first request was made
// in. It is the payments.Render of this API.
func Answer(p payments.Payment, schemaVersion string) (idempotency.Answer, error) {
	switch p.State {
	case payments.Completed:
		body, err := represent(p, schemaVersion)
		return idempotency.Answer{Status: http.StatusCreated, ContentType: "application/json", Location: locationOf(p.ID), Body: body}, err
	case payments.Declined:
		return refusal(p, p.DeclineCode, "The provider declined the payment."), nil
	case payments.Canceled:
		return refusal(p, "PAYMENT_CANCELED", "The payment was given up before anything was sent to the provider."), nil
	default:
		return idempotency.Answer{}, fmt.Errorf("answer: a payment in state %s has none", p.State)
	}
}

// refusal is the stored answer to a payment that ended without a charge. It is final for its key; what is refused can be
// tried again under a new one.
func refusal(p payments.Payment, code, message string) idempotency.Answer {
	b := problem(http.StatusPaymentRequired, code, message)
	b.SafeNewKey = true
	b.PaymentID, b.OperationState = p.ID, string(p.State.Public())
	return idempotency.Answer{Status: b.Status, ContentType: problemContentType, Location: locationOf(p.ID), Body: b.encode(), ErrorCode: code}
}
