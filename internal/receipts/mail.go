package receipts

import (
	"context"
	"errors"
	"fmt"
	netmail "net/mail"
	"strings"
	"time"
	"unicode"

	"github.com/wneessen/go-mail"

	"github.com/paymentsd/paymentsd/internal/money"
	"github.com/paymentsd/paymentsd/internal/receipts/internal/receiptssql"
)

// Mail is a receipt as it is sent. Composed twice it is the same bytes.
type Mail struct {
	MessageID string // without the angle brackets; stays the same whenever and however often it is sent
	From, To  string
	Subject   string
	Text      string
	Date      time.Time
}

// Outcome is what sending a mail came to.
type Outcome int

const (
	// Unknown: the text, or a part of it, was on its way, and nobody said what became of it. It may have arrived.
	Unknown Outcome = iota
	// Sent: the mail server has taken the mail over.
	Sent
	// NotSent: the mail server has not got the mail, and may take it later.
	NotSent
	// Refused: the mail server has not got the mail, and never takes it.
	Refused
)

func (o Outcome) String() string {
	switch o {
	case Sent:
		return "sent"
	case NotSent:
		return "not_sent"
	case Refused:
		return "refused"
	default:
		return "unknown"
	}
}

// Result is an outcome and why: a word of ours, such as smtp_550 or no_connection, never the mail server's text.
type Result struct {
	Outcome Outcome
	Reason  string
	// Down: it is not about this mail. The server cannot be reached or takes nothing from us, so other mails can wait too.
	Down bool
}

// Mailer sends mails.
type Mailer interface {
	// Send sends a mail, at most once: it repeats nothing by itself. It returns within the mailer's own time limits.
	Send(ctx context.Context, m Mail) Result
	// Within is the longest that Send takes.
	Within() time.Duration
}

// Addresses says from whom to whom receipts are sent.
type Addresses struct {
	from, domain string
	to           string // in which {tenant} and {account} are replaced
}

// ParseAddresses checks the sender's address and the template of recipients'.
func ParseAddresses(from, to string) (Addresses, error) {
	if err := checkAddress(from); err != nil {
		return Addresses{}, fmt.Errorf("the sender of receipts is no mail address: %w", err)
	}
	a := Addresses{from: from, domain: from[strings.LastIndexByte(from, '@')+1:], to: to}
	if !strings.Contains(to, "@") {
		return Addresses{}, errors.New("the recipient of receipts is no mail address in which {tenant} and {account} can be replaced")
	}
	if strings.ContainsAny(strings.NewReplacer("{tenant}", "", "{account}", "").Replace(to), "{}") {
		return Addresses{}, errors.New("the recipient of receipts has braces around something other than {tenant} and {account}")
	}
	if _, err := a.recipient("tenant", "account"); err != nil {
		return Addresses{}, fmt.Errorf("the recipient of receipts is no mail address: %w", err)
	}
	return a, nil
}

// recipient is the address of an account. What is put in cannot become anything but a part of it.
func (a Addresses) recipient(tenantID, accountID string) (string, error) {
	to := strings.NewReplacer("{tenant}", tenantID, "{account}", accountID).Replace(a.to)
	return to, checkAddress(to)
}

const (
	addressBytesMax = 254 // RFC 5321, 4.5.3.1.3, without the angle brackets
	localBytesMax   = 64  // RFC 5321, 4.5.3.1.1
)

var errNoAddress = errors.New("not of the form local@domain")

// checkAddress takes a bare address of ASCII letters, digits and a few signs: no name, no comment, no quotes, nothing that ends a line.
func checkAddress(address string) error {
	if len(address) > addressBytesMax {
		return errNoAddress
	}
	if _, err := netmail.ParseAddress(address); err != nil {
		return errNoAddress
	}
	local, domain, _ := strings.Cut(address, "@")
	strange := func(r rune) bool {
		return r > unicode.MaxASCII || unicode.IsControl(r) || unicode.IsSpace(r) || strings.ContainsRune(`"()<>,;:\@[]`, r)
	}
	if local == "" || len(local) > localBytesMax || domain == "" || strings.ContainsFunc(local, strange) || strings.ContainsFunc(domain, strange) {
		return errNoAddress
	}
	return nil
}

// compose makes the mail of a receipt. Text of clients stands in its body only.
func (a Addresses) compose(r receiptssql.AcquireDueReceiptRow) (Mail, error) {
	to, err := a.recipient(r.TenantID, r.AccountID)
	if err != nil {
		return Mail{}, fmt.Errorf("recipient: %w", err)
	}
	amount, err := money.Stored(r.AmountMinor, r.Currency)
	if err != nil {
		return Mail{}, fmt.Errorf("amount: %w", err)
	}
	subject, first := "Receipt", "You have paid"
	if isOfRefund(r.ReceiptID) {
		subject, first = "Refund", "You have been given back"
	}
	return Mail{
		MessageID: r.MessageID, From: a.from, To: to, Date: r.OccurredAt.UTC(),
		Subject: fmt.Sprintf("%s: %s %s", subject, amount, amount.Currency()),
		Text: fmt.Sprintf("%s %s %s.\n\nAccount:   %s\nReference: %s\nPayment:   %s\nDate:      %s\n", first, amount, amount.Currency(),
			r.AccountID, r.MerchantReference, r.PaymentID, r.OccurredAt.UTC().Format("2006-01-02 15:04 UTC")),
	}, nil
}

// encode is the mail in the form of RFC 5322.
func (m Mail) encode() (*mail.Msg, error) {
	msg := mail.NewMsg(mail.WithNoDefaultUserAgent())
	if err := msg.From(m.From); err != nil {
		return nil, errNoAddress
	}
	if err := msg.To(m.To); err != nil {
		return nil, errNoAddress
	}
	msg.SetMessageIDWithValue(m.MessageID)
	msg.SetDateWithValue(m.Date)
	msg.Subject(m.Subject)
	msg.SetGenHeader("Auto-Submitted", "auto-generated") // RFC 3834: nobody's absence notice answers it
	msg.SetBodyString(mail.TypeTextPlain, m.Text)
	return msg, nil
}
