package payments

import (
	"time"

	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/money"
	"github.com/paymentsd/paymentsd/internal/payments/internal/paymentssql"
	"github.com/paymentsd/paymentsd/internal/provider"
)

// Payment is a payment as it was read. Ages are by the database's clock at that moment.
type Payment struct {
	TenantID          string
	ID                string
	AccountID         string
	MerchantReference string
	Channel           string
	Amount            money.Amount
	State             State
	Version           int // moves so far
	Events            int // events so far
	CreatedAt         time.Time
	UpdatedAt         time.Time
	KeyExpiresAt      time.Time

	// The provider's side.
	Request      []byte        // the bytes to send, every time the same
	Sends        int           // recorded attempts
	FirstSentAge time.Duration // the provider counts its key window from here
	LastSentAge  time.Duration // its lookup may not show the payment before the lag has passed since here
	ChargeID     string
	DeclineCode  string
	LastReason   string // why the outcome is what it is; for operators

	answer idempotency.Answer // stored by the move that finished it; empty on a payment that was read
}

// Move is one row of a payment's history.
type Move struct {
	Version int
	From    State
	To      State
	Reason  string
	Epoch   int64 // of the lease under which it was made
	At      time.Time
}

// CreateCommand is the validated, normalised meaning of a request to pay.
type CreateCommand struct {
	Scope             idempotency.Scope
	APIVersionNamed   string // the version the client named; "" when it named none
	SchemaVersion     string // the representation to answer in
	AccountID         string
	MerchantReference string
	Channel           string
	Amount            money.Amount
}

// OperationCreate is the operation name of POST /payments, in scopes and fingerprints.
const OperationCreate = "create_payment"

// ruleV1 is how fingerprints have been made since the first release.
const ruleV1 = "v1"

// Fingerprint states the command's meaning under a rule. Not in it: the tenant and the key (they are the scope), and
// whatever the server makes or resolves, such as the pinned version behind an absent Api-Version.
func (c CreateCommand) Fingerprint(rule string) (idempotency.Fingerprint, error) {
	if rule != ruleV1 {
		return "", idempotency.ErrUnknownRule
	}
	version := idempotency.No("apiVersion")
	if c.APIVersionNamed != "" {
		version = idempotency.Some("apiVersion", c.APIVersionNamed)
	}
	return idempotency.Sum(rule, OperationCreate,
		version,
		idempotency.Some("accountId", c.AccountID),
		idempotency.Some("amount", c.Amount.Canonical()),
		idempotency.Some("currency", c.Amount.Currency().String()),
		idempotency.Some("merchantReference", c.MerchantReference),
		idempotency.Some("channel", c.Channel),
	), nil
}

func paymentFromRow(row paymentssql.LoadPaymentRow) (Payment, error) {
	currency, err := money.ParseCurrency(row.Currency)
	if err != nil {
		return Payment{}, err
	}
	amount, err := money.FromMinor(row.AmountMinor, currency)
	if err != nil {
		return Payment{}, err
	}
	p := Payment{
		TenantID: row.TenantID, ID: row.PaymentID, AccountID: row.AccountID, MerchantReference: row.MerchantReference,
		Channel: row.Channel, Amount: amount, State: State(row.State), Version: int(row.Version), Events: int(row.Events),
		CreatedAt: row.CreatedAt, UpdatedAt: row.UpdatedAt, Request: row.ProviderRequest, Sends: int(row.ProviderSends),
		FirstSentAge: seconds(row.FirstSentAgeSeconds), LastSentAge: seconds(row.LastSentAgeSeconds),
		ChargeID: deref(row.ProviderChargeID), DeclineCode: deref(row.DeclineCode), LastReason: row.LastReason,
	}
	if row.KeyExpiresAt != nil {
		p.KeyExpiresAt = *row.KeyExpiresAt
	}
	return p, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// deref reads a nullable column of which NULL means the zero value.
func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// order is what the provider is sent for the payment, every time the same.
func (p Payment) order() provider.Order { return provider.NewOrder(provider.Charge, p.ID, p.Request) }
