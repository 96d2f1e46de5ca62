package provider

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// What is wrong with a webhook. None of these says anything of its content, of its signature or of a secret.
var (
	// ErrWebhookSignature: nobody who knows the secret has signed these bytes lately. Nothing about them was looked at.
	ErrWebhookSignature = errors.New("webhook is not signed by the provider, or too long ago")
	// ErrWebhookMalformed: the provider signed something that is no document of its language.
	ErrWebhookMalformed = errors.New("webhook is malformed")
	// ErrWebhookNotForUs: the provider speaks of something that is none of this service's business: of another type of
	// event, or of an order that names no tenant.
	ErrWebhookNotForUs = errors.New("webhook is about nothing that is known here")
)

const (
	// secretsMax is the old secret and the new one, while the provider changes over.
	secretsMax = 2

	// The bounds of the specification. The lower one matters: with an empty secret, everybody could sign.
	secretBytesMin = 24
	secretBytesMax = 64
)

// Webhooks reads webhooks as the Standard Webhooks specification has them (https://www.standardwebhooks.com).
type Webhooks struct{ secrets []*standardwebhooks.Webhook }

// NewWebhooks takes the provider's secret, or two separated by a space while it is being changed: whsec_ and base64 of 24
// to 64 bytes. Its error does not repeat them.
func NewWebhooks(secrets string) (*Webhooks, error) {
	w := &Webhooks{}
	for i, secret := range strings.Fields(secrets) {
		key, err := standardwebhooks.NewWebhook(secret)
		if err != nil || !isSecret(secret) {
			return nil, fmt.Errorf("webhook secret %d must be whsec_ and the base64 of %d to %d bytes", i+1, secretBytesMin, secretBytesMax)
		}
		w.secrets = append(w.secrets, key)
	}
	if n := len(w.secrets); n == 0 || n > secretsMax {
		return nil, fmt.Errorf("webhooks need 1 or %d secrets, not %d", secretsMax, n)
	}
	return w, nil
}

// Notice is what a webhook says about one order. Its signature proves that the provider said it; whether it is true of a
// payment is found out by comparing it with that payment.
type Notice struct {
	WebhookID   string // the same however often the webhook comes
	TenantID    string
	PaymentID   string
	Kind        Kind
	Key         string  // the provider key that the order came under
	Outcome     Outcome // Confirmed or Declined
	ChargeID    string  // the provider's id of the charge, the refund, or the refused attempt
	AmountMinor int64
	Currency    string // upper case
	DeclineCode string // as in Result
}

// webhookTypes are the events that matter here.
var webhookTypes = map[string]struct {
	kind    Kind
	outcome Outcome
}{
	"charge.succeeded": {Charge, Confirmed},
	"charge.declined":  {Charge, Declined},
	"refund.succeeded": {Refund, Confirmed},
	"refund.declined":  {Refund, Declined},
}

// webhookBody is the body. Members that are not listed are ignored, because providers add some.
type webhookBody struct {
	Type      string    `json:"type"`
	Timestamp time.Time `json:"timestamp"` // when it happened; not when it was sent, which a header says
	Data      struct {
		ID             string `json:"id"`
		Tenant         string `json:"tenant"`
		PaymentID      string `json:"paymentId"`
		IdempotencyKey string `json:"idempotencyKey"`
		AmountMinor    *int64 `json:"amountMinor"`
		Currency       string `json:"currency"`
		DeclineCode    string `json:"declineCode"`
	} `json:"data"`
}

// Read verifies a webhook and reads it. The signature is over the bytes as they came and is judged before anything else,
// its age included: five minutes are the specification's tolerance. It returns ErrWebhookSignature, ErrWebhookMalformed or
// ErrWebhookNotForUs.
func (w *Webhooks) Read(header http.Header, body []byte) (Notice, error) {
	if !w.isSigned(header, body) {
		return Notice{}, ErrWebhookSignature
	}
	var b webhookBody
	if err := json.Unmarshal(body, &b); err != nil || b.Type == "" || b.Timestamp.IsZero() {
		return Notice{}, ErrWebhookMalformed
	}
	event, known := webhookTypes[b.Type]
	if !known {
		return Notice{}, ErrWebhookNotForUs
	}
	d := b.Data
	n := Notice{
		WebhookID: header.Get(standardwebhooks.HeaderWebhookID), TenantID: d.Tenant, PaymentID: d.PaymentID, Kind: event.kind,
		Key: d.IdempotencyKey, Outcome: event.outcome, ChargeID: d.ID, Currency: strings.ToUpper(d.Currency),
	}
	if d.AmountMinor == nil || !currencySyntax.MatchString(d.Currency) || !arePlain(n.WebhookID, n.PaymentID, n.Key, n.ChargeID) {
		return Notice{}, ErrWebhookMalformed
	}
	if n.AmountMinor = *d.AmountMinor; n.Outcome == Declined {
		n.DeclineCode = declineCode(d.DeclineCode)
	}
	switch {
	case n.TenantID == "": // an order that was stored before orders named their tenant
		return Notice{}, ErrWebhookNotForUs
	case !arePlain(n.TenantID):
		return Notice{}, ErrWebhookMalformed
	default:
		return n, nil
	}
}

var currencySyntax = regexp.MustCompile(`^[A-Za-z]{3}$`)

func arePlain(ids ...string) bool {
	return !slices.ContainsFunc(ids, func(id string) bool { return !idSyntax.MatchString(id) })
}

func (w *Webhooks) isSigned(header http.Header, body []byte) bool {
	if w == nil {
		return false // nobody told us a secret, so nobody can have signed
	}
	for _, secret := range w.secrets {
		if secret.Verify(body, header) == nil {
			return true
		}
	}
	return false
}

// isSecret reports whether a secret is as long as the specification wants it.
func isSecret(secret string) bool {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	return err == nil && len(key) >= secretBytesMin && len(key) <= secretBytesMax
}
