package events

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
)

// Whatever comes from a broker is somebody else's claim until it has passed here: the broker may be shared, and a message
// may be older or newer than this build. Read vouches for every member that it returns; a consumer may store them.

var (
	// ErrMalformed: what came is no event of this language, in any version.
	ErrMalformed = errors.New("malformed event")
	// ErrUnknownVersion: what came is an event of this language in a version that this build does not know. A newer one does.
	ErrUnknownVersion = errors.New("unknown version of the event language")
)

// Announced is an event as it was received: who it is about, and what happened. Payment is nil when Type is not about a
// payment or refund, or is newer than this build, which must do nothing about it then.
type Announced struct {
	ID          string
	TenantID    string
	Subject     string
	Sequence    int
	Type        Type
	TraceParent string // "" when there was none, or none that W3C Trace Context would take
	Payment     *Payment
}

var (
	tenantForm   = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)
	idForm       = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	nameForm     = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]{0,63}$`)
	typeForm     = regexp.MustCompile(`^paymentsd\.v([1-9][0-9]{0,8})\.(.*)$`)
	currencyForm = regexp.MustCompile(`^[A-Z]{3}$`)
	textForm     = regexp.MustCompile(`^\P{Cc}*$`)
	traceForm    = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)
)

// referenceCharsMax is the longest merchant reference that a payment can have.
const referenceCharsMax = 255

// Read reads a message. It returns an error that wraps ErrMalformed or ErrUnknownVersion and says why, without a word of the
// message. Members that it does not know are left alone.
func Read(message []byte) (Announced, error) {
	if len(message) > BodyBytesMax {
		return Announced{}, malformed("more than %d bytes", BodyBytesMax)
	}
	var e Envelope
	if err := json.Unmarshal(message, &e); err != nil {
		return Announced{}, malformed("not a CloudEvent in JSON")
	}
	if e.SpecVersion != specVersion {
		return Announced{}, malformed("not CloudEvents 1.0")
	}
	name, err := e.name()
	if err != nil {
		return Announced{}, err
	}
	sequence, err := strconv.Atoi(e.Sequence)
	switch {
	case !idForm.MatchString(e.ID):
		return Announced{}, malformed("no id")
	case !tenantForm.MatchString(e.TenantID) || e.Source != sourcePrefix+e.TenantID:
		return Announced{}, malformed("no tenant, or another source's")
	case !idForm.MatchString(e.Subject):
		return Announced{}, malformed("no subject")
	case err != nil || sequence < 1 || strconv.Itoa(sequence) != e.Sequence:
		return Announced{}, malformed("no sequence")
	}
	a := Announced{ID: e.ID, TenantID: e.TenantID, Subject: e.Subject, Sequence: sequence, Type: name}
	if traceForm.MatchString(e.TraceParent) {
		a.TraceParent = e.TraceParent
	}
	if !name.isAboutPayment() {
		return a, nil
	}
	p, err := readPayment(e.Data)
	if err != nil {
		return Announced{}, err
	}
	if p.EventID != a.ID || p.PaymentID != a.Subject || p.Sequence != a.Sequence || p.Type != a.Type {
		return Announced{}, malformed("data and envelope say different things")
	}
	a.Payment = &p
	return a, nil
}

// name is what the event's type says after the version that this build knows.
func (e Envelope) name() (Type, error) {
	parts := typeForm.FindStringSubmatch(e.Type)
	if parts == nil {
		return "", malformed("a type that is not ours")
	}
	if parts[1] != strconv.Itoa(Version) {
		return "", fmt.Errorf("%w: %s, this build knows %d", ErrUnknownVersion, parts[1], Version)
	}
	if !nameForm.MatchString(parts[2]) {
		return "", malformed("a type that is not ours")
	}
	return Type(parts[2]), nil
}

func readPayment(data []byte) (Payment, error) {
	var p Payment
	if err := json.Unmarshal(data, &p); err != nil {
		return p, malformed("data is not a payment event")
	}
	_, notMoney := p.Money()
	switch {
	case !idForm.MatchString(p.PaymentID) || !idForm.MatchString(p.AccountID):
		return p, malformed("no paymentId or accountId")
	case strings.HasPrefix(string(p.Type), "Refund") != (p.ParentPaymentID != "") || p.ParentPaymentID != "" && !idForm.MatchString(p.ParentPaymentID):
		return p, malformed("parentPaymentId is a refund's, and every refund's")
	case p.OccurredAt.UTC().Year() < 1970 || p.OccurredAt.UTC().Year() > 9999:
		return p, malformed("occurredAt is no time at which anything was paid")
	case notMoney != nil || !currencyForm.MatchString(p.Currency):
		return p, malformed("amount and currency are no money")
	case p.MerchantReference == "" || utf8.RuneCountInString(p.MerchantReference) > referenceCharsMax || !textForm.MatchString(p.MerchantReference):
		return p, malformed("no merchantReference")
	}
	return p, nil
}

func malformed(why string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(why, args...))
}
