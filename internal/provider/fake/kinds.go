package fake

import (
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"

	"github.com/paymentsd/paymentsd/internal/money"
)

// kind is what an order is for. An order of either kind takes the same path from the request to the answer; they differ
// in the names below, in one member of the body, and in what the ledger makes of them.
type kind struct {
	plural   string // in paths
	idPrefix string
	onOrder  string // how a fault script calls its POST
	onLookup string // and its GET
	onTell   string // and its webhook
	event    string // how webhooks call it
}

var (
	charge = kind{plural: "charges", idPrefix: "ch", onOrder: onCharge, onLookup: onLookup, onTell: onWebhook, event: "charge"}
	refund = kind{plural: "refunds", idPrefix: "re", onOrder: onRefund, onLookup: onRefundLookup, onTell: onRefundWebhook, event: "refund"}

	kinds = []kind{charge, refund}
)

// chargeTerms is the body of POST /v1/charges. Every member but tenant is required, and no other is allowed.
type chargeTerms struct {
	Account     string `json:"account"`
	AmountMinor int64  `json:"amountMinor"`
	Currency    string `json:"currency"`
	Reference   string `json:"reference"`
	PaymentID   string `json:"paymentId"`
	Tenant      string `json:"tenant,omitempty"` // given back in webhooks; the merchant's business, not ours
}

// terms is what an order says, and all of it the body of POST /v1/refunds, where chargeId is required too.
type terms struct {
	chargeTerms
	ChargeID string `json:"chargeId,omitempty"` // the charge that is given back
}

// kind is refund when the terms name a charge. It is not stored beside them: a journal from before there were refunds
// holds charges, and says so by this rule.
func (t terms) kind() kind {
	if t.ChargeID != "" {
		return refund
	}
	return charge
}

// decodeOrder reads an order strictly: every member, no other, none twice, and an amount and a currency that exist.
func decodeOrder(k kind, body []byte) (terms, error) {
	if len(body) > bodyBytesMax {
		return terms{}, fmt.Errorf("the body must not be longer than %d bytes", bodyBytesMax)
	}
	var t terms
	members, into := "account, amountMinor, currency, reference and paymentId", any(&t.chargeTerms)
	if k == refund {
		members, into = "account, amountMinor, currency, reference, paymentId and chargeId", &t
	}
	if err := json.Unmarshal(body, into, json.RejectUnknownMembers(true)); err != nil {
		return terms{}, errors.New("the body must be a JSON object with " + members)
	}
	currency, err := money.ParseCurrency(t.Currency)
	if err != nil || currency.String() != t.Currency {
		return terms{}, errors.New("currency must be an active ISO 4217 code in upper case")
	}
	if _, err := money.FromMinor(t.AmountMinor, currency); err != nil {
		return terms{}, fmt.Errorf("amountMinor must be between 1 and %d", int64(money.MinorMax))
	}
	if t.Account == "" || t.Reference == "" || t.PaymentID == "" || t.kind() != k {
		return terms{}, errors.New("the members must not be empty: " + members)
	}
	return t, nil
}
