package receipts

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/textproto"
	"net/url"
	"strconv"
	"time"

	"github.com/wneessen/go-mail"
)

// SMTP sends mails to a server, one connection each.
//
// What a failure means depends on where it happened, and only on that:
//
//	connecting, TLS, EHLO, AUTH      not sent, whatever the server says: it does not know the mail yet, it refuses us
//	MAIL FROM                        the same: it refuses the sender, who is the same for all
//	RCPT TO, DATA: 4xx               not sent
//	RCPT TO, DATA: 5xx               refused
//	RCPT TO, DATA: no answer         not sent: it has the recipient, and no text
//	the text is on its way: broken   unknown
//	behind the text: 250             sent, whatever happens afterwards
//	behind the text: 4xx, 5xx        not sent, refused
//	behind the text: no answer       unknown
type SMTP struct {
	client  *mail.Client
	timeout time.Duration
}

// NewSMTP makes a mailer of a URL: smtp://user:password@host:port, where TLS is used when the server offers it, or smtps:// with TLS
// from the start. User and password are sent only under TLS, or in a form that does not reveal the password. No step takes longer than
// timeout.
func NewSMTP(rawURL, from string, timeout time.Duration) (*SMTP, error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Hostname() == "" || u.Scheme != "smtp" && u.Scheme != "smtps" || u.Path != "" && u.Path != "/" {
		return nil, errors.New("not of the form smtp://user:password@host:port or smtps://…") // and never the URL itself: it has a password
	}
	port := map[string]int{"smtp": 25, "smtps": 465}[u.Scheme]
	if u.Port() != "" {
		if port, err = strconv.Atoi(u.Port()); err != nil {
			return nil, errors.New("the port is no number")
		}
	}
	addresses, err := ParseAddresses(from, from)
	if err != nil {
		return nil, err
	}
	options := []mail.Option{
		mail.WithPort(port), mail.WithTimeout(timeout), mail.WithHELO(addresses.domain), mail.WithTLSPolicy(mail.TLSOpportunistic),
		mail.WithoutNoop(), mail.WithoutRset(), // the connection is new, and ends with the mail
	}
	if u.Scheme == "smtps" {
		options = append(options, mail.WithSSL())
	}
	if u.User != nil {
		password, _ := u.User.Password()
		options = append(options, mail.WithSMTPAuth(mail.SMTPAuthAutoDiscover), mail.WithUsername(u.User.Username()), mail.WithPassword(password))
	}
	client, err := mail.NewClient(u.Hostname(), options...)
	if err != nil {
		return nil, errors.New("mail client: the settings do not fit together")
	}
	return &SMTP{client, timeout}, nil
}

// Within is the time of connecting, of greeting and authenticating, and of the mail itself.
func (s *SMTP) Within() time.Duration { return 3 * s.timeout }

// Send sends a mail.
func (s *SMTP) Send(ctx context.Context, m Mail) Result {
	msg, err := m.encode()
	if err != nil {
		return Result{Refused, "no_recipient", false}
	}
	connection, err := s.client.DialToSMTPClientWithContext(ctx)
	if err != nil {
		return Result{NotSent, dialReason(err), true}
	}
	defer connection.Close() //nolint:errcheck // whatever it says, the mail's fate is known by then
	err = s.client.SendWithSMTPClient(connection, msg)
	if msg.IsDelivered() {
		_ = s.client.CloseWithSMTPClient(connection)
		return Result{Outcome: Sent}
	}
	return resultOf(err)
}

// resultOf reads the table above from where the library says that it failed. What it does not say is unknown.
func resultOf(err error) Result {
	var failed *mail.SendError
	if !errors.As(err, &failed) {
		return Result{Unknown, "no_reason", false}
	}
	code := failed.ErrorCode()
	switch failed.Reason {
	case mail.ErrConnCheck, mail.ErrSMTPMailFrom:
		return Result{NotSent, codeReason(code, "lost_before_text"), true}
	case mail.ErrGetSender, mail.ErrGetRcpts:
		return Result{Refused, "no_recipient", false}
	case mail.ErrSMTPRcptTo, mail.ErrSMTPData:
		return answered(code, Result{NotSent, "lost_before_text", false})
	case mail.ErrSMTPDataClose:
		return answered(code, Result{Unknown, "lost_after_text", false})
	case mail.ErrWriteContent:
		return Result{Unknown, "lost_in_text", false}
	default:
		return Result{Unknown, "no_reason", false}
	}
}

// answered is what the server's answer means; otherwise, when there was none.
func answered(code int, otherwise Result) Result {
	switch code / 100 {
	case 4:
		return Result{NotSent, codeReason(code, ""), false}
	case 5:
		return Result{Refused, codeReason(code, ""), false}
	default:
		return otherwise
	}
}

func codeReason(code int, otherwise string) string {
	if code == 0 {
		return otherwise
	}
	return fmt.Sprintf("smtp_%d", code)
}

func dialReason(err error) string {
	var refused *textproto.Error
	var network *net.OpError
	switch {
	case errors.As(err, &refused):
		return codeReason(refused.Code, "")
	case errors.As(err, &network):
		return "no_connection"
	default:
		return "no_session" // TLS, authentication, or an answer that makes no sense
	}
}
