package receipts

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	netmail "net/mail"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
	"github.com/stretchr/testify/require"
	"github.com/wneessen/go-mail"
)

const smtpTimeout = 300 * time.Millisecond

// answers is what a mail server says to each command; "." is the end of the text. An empty answer closes the connection, and "hang" is
// none at all.
type answers map[string]string

// with changes what a good server says.
func with(command, answer string) answers {
	a := answers{"connect": "220 hello", "EHLO": "250 hello", "MAIL": "250 ok", "RCPT": "250 ok", "DATA": "354 go on", ".": "250 taken", "QUIT": "221 bye", "RSET": "250 ok"}
	a[command] = answer
	return a
}

// badServer is a mail server that answers as it is told, and counts the texts that it has read to their end.
type badServer struct {
	l     net.Listener
	mu    sync.Mutex
	says  answers
	texts int
}

func newBadServer(t *testing.T, says answers) *badServer {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	s := &badServer{l: l, says: says}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go s.serve(c)
		}
	}()
	return s
}

func (s *badServer) url() string { return "smtp://" + s.l.Addr().String() }

func (s *badServer) serve(c net.Conn) {
	defer c.Close()
	lines := bufio.NewScanner(c)
	say := func(command string) bool {
		s.mu.Lock()
		answer := s.says[command]
		s.mu.Unlock()
		if answer == "hang" {
			_, _ = io.Copy(io.Discard, c)
		}
		if answer == "" || answer == "hang" {
			return false
		}
		_, err := fmt.Fprintf(c, "%s\r\n", answer)
		return err == nil
	}
	if !say("connect") {
		return
	}
	for lines.Scan() {
		command := strings.ToUpper(strings.Fields(lines.Text() + " ?")[0])
		if !say(command) {
			return
		}
		if command != "DATA" || !strings.HasPrefix(s.says["DATA"], "354") {
			continue
		}
		for lines.Scan() && lines.Text() != "." {
		}
		s.mu.Lock()
		s.texts++
		s.mu.Unlock()
		if !say(".") {
			return
		}
	}
}

var sample = Mail{
	MessageID: "receipt_payment_pay_1.acme@paymentsd.example", From: "receipts@paymentsd.example", To: "acc_1@acme.example", Subject: "Receipt: 10.00 EUR",
	Text: "You have paid 10.00 EUR.\n\n.\nReference: café\n", Date: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC),
}

// The truth table, row by row: what the server said, or where the connection broke, and what is known then.
func TestWhereItFailedDecidesWhatIsKnown(t *testing.T) {
	for name, row := range map[string]struct {
		says answers
		want Result
	}{
		"all is well":                 {with("QUIT", "221 bye"), Result{Sent, "", false}},
		"taken, then broken":          {with("QUIT", ""), Result{Sent, "", false}},
		"taken, then silent":          {with("QUIT", "hang"), Result{Sent, "", false}},
		"greeting: not now":           {with("connect", "421 not now"), Result{NotSent, "smtp_421", true}},
		"greeting: never":             {with("connect", "554 never"), Result{NotSent, "smtp_554", true}},
		"greeting: nonsense":          {with("connect", "what?"), Result{NotSent, "no_session", true}},
		"greeting: broken":            {with("connect", ""), Result{NotSent, "no_session", true}},
		"greeting: silent":            {with("connect", "hang"), Result{NotSent, "no_connection", true}},
		"hello: never":                {with("EHLO", "550 not you"), Result{NotSent, "smtp_550", true}},
		"sender: not now":             {with("MAIL", "451 busy"), Result{NotSent, "smtp_451", true}},
		"sender: never":               {with("MAIL", "550 not you"), Result{NotSent, "smtp_550", true}},
		"sender: broken":              {with("MAIL", ""), Result{NotSent, "lost_before_text", true}},
		"recipient: not now":          {with("RCPT", "450 mailbox busy"), Result{NotSent, "smtp_450", false}},
		"recipient: never":            {with("RCPT", "550 nobody"), Result{Refused, "smtp_550", false}},
		"recipient: broken":           {with("RCPT", ""), Result{NotSent, "lost_before_text", false}},
		"recipient: silent":           {with("RCPT", "hang"), Result{NotSent, "lost_before_text", false}},
		"before the text: not now":    {with("DATA", "452 disk full"), Result{NotSent, "smtp_452", false}},
		"before the text: never":      {with("DATA", "554 no"), Result{Refused, "smtp_554", false}},
		"before the text: broken":     {with("DATA", ""), Result{NotSent, "lost_before_text", false}},
		"behind the text: not now":    {with(".", "451 try again"), Result{NotSent, "smtp_451", false}},
		"behind the text: never":      {with(".", "552 too big"), Result{Refused, "smtp_552", false}},
		"behind the text: broken":     {with(".", ""), Result{Unknown, "lost_after_text", false}},
		"behind the text: silent":     {with(".", "hang"), Result{Unknown, "lost_after_text", false}},
		"behind the text: nonsense":   {with(".", "what?"), Result{Unknown, "lost_after_text", false}},
		"behind the text: 2xx, other": {with(".", "251 forwarded"), Result{Unknown, "lost_after_text", false}},
		"behind the text: 354 again":  {with(".", "354 more"), Result{Unknown, "lost_after_text", false}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newBadServer(t, row.says)
			m, err := NewSMTP(server.url(), "receipts@paymentsd.example", smtpTimeout)
			require.NoError(t, err)
			began := time.Now()
			require.Equal(t, row.want, m.Send(t.Context(), sample))
			require.LessOrEqual(t, time.Since(began), m.Within()+5*time.Second)
			if row.want.Outcome == NotSent && !strings.HasPrefix(name, "behind") {
				require.Zero(t, server.texts)
			}
		})
	}
}

func TestWhatTheLibraryDoesNotSayIsUnknown(t *testing.T) {
	for reason, want := range map[mail.SendErrReason]Result{
		mail.ErrWriteContent: {Unknown, "lost_in_text", false}, mail.ErrAmbiguous: {Unknown, "no_reason", false}, mail.ErrSMTPReset: {Unknown, "no_reason", false},
		mail.ErrSMTPDataClose: {Unknown, "lost_after_text", false}, mail.ErrConnCheck: {NotSent, "lost_before_text", true}, mail.SendErrReason(99): {Unknown, "no_reason", false},
	} {
		require.Equal(t, want, resultOf(fmt.Errorf("send: %w", &mail.SendError{Reason: reason})))
	}
	require.Equal(t, Result{Unknown, "no_reason", false}, resultOf(io.EOF))
	require.Equal(t, Unknown, Result{}.Outcome, "the zero value is the pessimist")
}

func TestNobodyThereIsNotSent(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	for _, scheme := range []string{"smtp", "smtps"} {
		m, err := NewSMTP(scheme+"://"+l.Addr().String(), "receipts@paymentsd.example", smtpTimeout)
		require.NoError(t, err)
		require.Equal(t, Result{NotSent, "no_connection", true}, m.Send(t.Context(), sample))
	}
}

// goodServer is a real mail server.
type goodServer struct {
	mu       sync.Mutex
	received []received
	tls      bool // the last mail came encrypted
	user     string
}

type received struct{ from, to, text string }

type session struct {
	server   *goodServer
	conn     *smtp.Conn
	from, to string
}

func (s *session) Reset()                                      {}
func (s *session) Logout() error                               { return nil }
func (s *session) Mail(from string, _ *smtp.MailOptions) error { s.from = from; return nil }
func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error   { s.to = to; return nil }
func (s *session) AuthMechanisms() []string                    { return []string{sasl.Plain} }
func (s *session) Auth(mechanism string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, user, password string) error {
		if password != "s3cret" {
			return smtp.ErrAuthFailed
		}
		s.server.mu.Lock()
		defer s.server.mu.Unlock()
		s.server.user = user
		return nil
	}), nil
}

func (s *session) Data(r io.Reader) error {
	text, err := io.ReadAll(r)
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	_, s.server.tls = s.conn.TLSConnectionState()
	s.server.received = append(s.server.received, received{s.from, s.to, string(text)})
	return err
}

// newGoodServer listens with STARTTLS when a configuration is given, or with TLS from the start.
func newGoodServer(t *testing.T, config *tls.Config, fromStart bool) (*goodServer, string) {
	g := &goodServer{}
	server := smtp.NewServer(smtp.BackendFunc(func(c *smtp.Conn) (smtp.Session, error) { return &session{server: g, conn: c}, nil }))
	server.Domain, server.ErrorLog, server.AllowInsecureAuth = "mail.example", discard{}, true
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	if fromStart {
		l = tls.NewListener(l, config)
	} else {
		server.TLSConfig = config
	}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return g, l.Addr().String()
}

type discard struct{}

func (discard) Printf(string, ...any) {}
func (discard) Println(...any)        {}

func certificate(t *testing.T) (*tls.Config, *x509.CertPool) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	parsed, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}, pool
}

func TestMailArrivesAsItWasComposed(t *testing.T) {
	server, addr := newGoodServer(t, nil, false)
	m, err := NewSMTP("smtp://"+addr, "receipts@paymentsd.example", 5*time.Second)
	require.NoError(t, err)
	require.Equal(t, Result{Outcome: Sent}, m.Send(t.Context(), sample))
	require.Equal(t, Result{Outcome: Sent}, m.Send(t.Context(), sample))
	require.Len(t, server.received, 2)
	got := server.received[0]
	require.Equal(t, got, server.received[1], "sent again it is the same bytes")
	require.Equal(t, []string{"receipts@paymentsd.example", "acc_1@acme.example"}, []string{got.from, got.to})
	parsed, err := netmail.ReadMessage(strings.NewReader(got.text))
	require.NoError(t, err)
	require.Equal(t, "<receipt_payment_pay_1.acme@paymentsd.example>", parsed.Header.Get("Message-ID"))
	require.Equal(t, "Receipt: 10.00 EUR", parsed.Header.Get("Subject"))
	require.Equal(t, "Fri, 01 May 2026 12:00:00 +0000", parsed.Header.Get("Date"))
	require.Equal(t, "auto-generated", parsed.Header.Get("Auto-Submitted"))
	require.Contains(t, got.text, "Reference: caf=C3=A9")
	require.False(t, server.tls)
}

func TestEncryptionIsUsedWhenItIsOffered(t *testing.T) {
	config, pool := certificate(t)
	for name, fromStart := range map[string]bool{"smtp": false, "smtps": true} {
		t.Run(name, func(t *testing.T) {
			server, addr := newGoodServer(t, config, fromStart)
			m, err := NewSMTP(name+"://user:s3cret@"+addr, "receipts@paymentsd.example", 5*time.Second)
			require.NoError(t, err)
			require.Equal(t, Result{NotSent, "no_session", true}, m.Send(t.Context(), sample), "a certificate that nobody vouches for")
			require.NoError(t, m.client.SetTLSConfig(&tls.Config{RootCAs: pool, ServerName: "127.0.0.1"}))
			require.Equal(t, Result{Outcome: Sent}, m.Send(t.Context(), sample))
			require.True(t, server.tls)
			require.Equal(t, "user", server.user)

			m, err = NewSMTP(name+"://user:wrong@"+addr, "receipts@paymentsd.example", 5*time.Second)
			require.NoError(t, err)
			require.NoError(t, m.client.SetTLSConfig(&tls.Config{RootCAs: pool, ServerName: "127.0.0.1"}))
			require.Equal(t, Result{NotSent, "smtp_535", true}, m.Send(t.Context(), sample), "a wrong password is no receipt's fault")
			require.Len(t, server.received, 1)
		})
	}
}

// A password never goes over the wire in the clear.
func TestPasswordIsNotSentInTheClear(t *testing.T) {
	server, addr := newGoodServer(t, nil, false)
	m, err := NewSMTP("smtp://user:s3cret@"+addr, "receipts@paymentsd.example", 5*time.Second)
	require.NoError(t, err)
	require.Equal(t, Result{NotSent, "no_session", true}, m.Send(t.Context(), sample))
	require.Empty(t, server.user)
}

func TestMailServerURLsThatMakeNoSenseAreRefusedWithoutTheirPassword(t *testing.T) {
	for _, url := range []string{"", "mail.example:25", "http://u:s3cret@mail.example", "smtp://", "smtp://u:s3cret@", "smtp://u:s3cret@h:99999", "smtp://u:s3cret@h:x", "smtp://u:s3cret@h/path", "smtp://u:s3cret@h\x7f"} {
		_, err := NewSMTP(url, "receipts@paymentsd.example", time.Second)
		require.Error(t, err, url)
		require.NotContains(t, err.Error(), "s3cret")
	}
	_, err := NewSMTP("smtp://h", "nobody", time.Second)
	require.Error(t, err)
}

func TestMailThatIsWrittenTwiceIsOneFile(t *testing.T) {
	dir := t.TempDir() + "/mail"
	f, err := NewFolder(dir)
	require.NoError(t, err)
	other := sample
	other.MessageID = "receipt_refund_ref_1.acme@paymentsd.example"
	for _, m := range []Mail{sample, sample, other} {
		require.Equal(t, Result{Outcome: Sent}, f.Send(t.Context(), m))
	}
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 2)
	require.Equal(t, "receipt_payment_pay_1.acme@paymentsd.example.eml", files[0].Name())
	content, err := os.ReadFile(dir + "/" + files[0].Name())
	require.NoError(t, err)
	require.Contains(t, string(content), "Message-ID: <receipt_payment_pay_1.acme@paymentsd.example>\r\n")

	other.MessageID = "../../outside@x"
	require.Equal(t, Refused, f.Send(t.Context(), other).Outcome)
	require.NoError(t, os.RemoveAll(dir))
	require.Equal(t, Result{NotSent, "no_folder", true}, f.Send(t.Context(), sample))
}

func TestAddressesCannotBecomeHeaders(t *testing.T) {
	for _, from := range []string{"", "nobody", "a@b@c", "Name <a@b>", "a@b\r\nBcc: c@d", "a b@c", "a@b c", `"a"@b`, "é@b", "a@b,c@d", strings.Repeat("a", 65) + "@b", "a@" + strings.Repeat("b", 260)} {
		_, err := ParseAddresses(from, "{account}@{tenant}.example")
		require.Error(t, err, from)
	}
	for _, to := range []string{"", "{account}", "{account} {tenant}@x", "{account}@", "a@b\r\nBcc: {account}@d", "<{account}@b>"} {
		_, err := ParseAddresses("a@b", to)
		require.Error(t, err, to)
	}
	a, err := ParseAddresses("receipts@paymentsd.example", "{account}+{tenant}@mail.example")
	require.NoError(t, err)
	to, err := a.recipient("acme", "acc_1")
	require.NoError(t, err)
	require.Equal(t, "acc_1+acme@mail.example", to)
	for _, account := range []string{"a\r\nBcc: x@y", "a b", "a@b", strings.Repeat("a", 64), "a\x00", "a,b@c"} {
		_, err := a.recipient("acme", account)
		require.Error(t, err, account)
	}
}
