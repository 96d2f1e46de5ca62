package provider

import (
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"

	"github.com/paymentsd/paymentsd/internal/money"
)

// Movement is what the provider is asked to do for one payment: to charge it, or, when it names a charge, to give back a part
// of that.
type Movement struct {
	PaymentID string       // ours; the provider stores it and gives it back
	Tenant    string       // whose payment it is; given back too, because what the provider says unasked must name it
	Account   string       // the account that pays, or is paid back
	Reference string       // the merchant's own reference
	Amount    money.Amount // sent in minor units of its currency
	ChargeID  string       // the provider's id of the charge to give back; "" charges
}

// Kind is Refund when the movement names a charge.
func (m Movement) Kind() Kind {
	if m.ChargeID != "" {
		return Refund
	}
	return Charge
}

// Order is the movement as it is sent.
func (m Movement) Order() Order { return NewOrder(m.Kind(), m.PaymentID, m.Encode()) }

// orderBody is the body of POST /v1/charges and, with chargeId, of POST /v1/refunds. The order of its members is part of the stored bytes: providers insist
// on byte-equal parameters for a key.
type orderBody struct {
	Account     string `json:"account"`
	AmountMinor int64  `json:"amountMinor"`
	Currency    string `json:"currency"`
	Reference   string `json:"reference"`
	PaymentID   string `json:"paymentId"`
	Tenant      string `json:"tenant,omitzero"` // not in requests that were stored before there were webhooks
	ChargeID    string `json:"chargeId,omitzero"`
}

// Encode gives the exact bytes of the request. They are stored before the first send and never made a second time, so
// that a later build that encodes differently still sends what its predecessor sent.
func (m Movement) Encode() []byte {
	b, err := json.Marshal(orderBody{
		Account:     m.Account,
		AmountMinor: m.Amount.Minor(),
		Currency:    m.Amount.Currency().String(),
		Reference:   m.Reference,
		PaymentID:   m.PaymentID,
		Tenant:      m.Tenant,
		ChargeID:    m.ChargeID,
	})
	if err != nil {
		// The texts of a movement came in through strict JSON, so they are valid UTF-8. Sending a repaired text instead
		// would move money for a reference that nobody gave.
		panic(fmt.Sprintf("encode order: %v", err))
	}
	return b
}

// decodeRequest reads back what Encode wrote. It returns an error when an answer could not be judged against it.
func decodeRequest(request []byte) (orderBody, error) {
	var r orderBody
	if err := json.Unmarshal(request, &r); err != nil {
		return orderBody{}, fmt.Errorf("decode order: %w", err)
	}
	if r.Account == "" || r.AmountMinor <= 0 || r.Currency == "" || r.Reference == "" || r.PaymentID == "" {
		return orderBody{}, errors.New("decode order: a member is missing")
	}
	return r, nil
}
