package provider

import (
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"

	"github.com/paymentsd/paymentsd/internal/money"
)

// Charge is what the provider is asked to do for one payment.
type Charge struct {
	PaymentID string       // ours; the provider stores it and gives it back
	Account   string       // the account that pays
	Reference string       // the merchant's own reference
	Amount    money.Amount // sent in minor units of its currency
}

// KeyFor is the idempotency key under which a payment is charged. It is made from the payment and nothing else, so that
// every attempt, every retry and every rescuer of one payment uses the same one.
func KeyFor(paymentID string) string { return "provider_payment_" + paymentID }

// Key is KeyFor of the charge's payment.
func (c Charge) Key() string { return KeyFor(c.PaymentID) }

// chargeRequest is the body of POST /v1/charges. The order of its members is part of the stored bytes: providers insist
// on byte-equal parameters for a key.
type chargeRequest struct {
	Account     string `json:"account"`
	AmountMinor int64  `json:"amountMinor"`
	Currency    string `json:"currency"`
	Reference   string `json:"reference"`
	PaymentID   string `json:"paymentId"`
}

// Encode gives the exact bytes of the request. They are stored before the first send and never made a second time, so
// that a later build that encodes differently still sends what its predecessor sent.
func (c Charge) Encode() []byte {
	b, err := json.Marshal(chargeRequest{
		Account:     c.Account,
		AmountMinor: c.Amount.Minor(),
		Currency:    c.Amount.Currency().String(),
		Reference:   c.Reference,
		PaymentID:   c.PaymentID,
	})
	if err != nil {
		// The texts of a charge came in through strict JSON, so they are valid UTF-8. Sending a repaired text instead
		// would charge for a reference that nobody gave.
		panic(fmt.Sprintf("encode charge: %v", err))
	}
	return b
}

// decodeRequest reads back what Encode wrote. It returns an error when an answer could not be judged against it.
func decodeRequest(request []byte) (chargeRequest, error) {
	var r chargeRequest
	if err := json.Unmarshal(request, &r); err != nil {
		return chargeRequest{}, fmt.Errorf("decode charge request: %w", err)
	}
	if r.Account == "" || r.AmountMinor <= 0 || r.Currency == "" || r.Reference == "" || r.PaymentID == "" {
		return chargeRequest{}, errors.New("decode charge request: a member is missing")
	}
	return r, nil
}
