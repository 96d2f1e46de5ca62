package inbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
)

var (
	// ErrNoLetter: there is no such dead letter; it was handled or there never was one.
	ErrNoLetter = errors.New("no such dead letter")
	// ErrDiscarded: somebody has given the dead letter up.
	ErrDiscarded = errors.New("dead letter was discarded")
	// ErrNotKept: the message was too large to keep, so it can only be handled when the broker sends it again.
	ErrNotKept = errors.New("message was too large to be kept in its dead letter")
	// ErrStillBehind: an earlier dead letter of the same aggregate comes first.
	ErrStillBehind = errors.New("an earlier dead letter of the same aggregate is still waiting")
)

// Reasons of dead letters that this package gives. A Refusal adds others.
const (
	reasonMalformed      = "malformed"
	reasonUnknownVersion = "unknown_version"
	reasonOversized      = "oversized"
	reasonBehind         = "behind"
	reasonPoison         = "poison"
)

// Refusal is an error of Apply that says why a message can have no effect, in words that may be stored and logged: Reason is a
// word to count by, and Why a sentence that names ids and nothing else of the message.
type Refusal struct{ Reason, Why string }

func (r *Refusal) Error() string { return r.Why }

// panicked is what became of a panic in Read or Apply.
type panicked struct{ what string }

func (p *panicked) Error() string { return "panic: " + p.what }

// recovered turns a panic into an error, to be deferred. Its value may hold anything, so only its type is kept, and the text of what
// the runtime itself had to say.
func recovered(err *error) {
	switch value := recover().(type) {
	case nil:
	case interface {
		error
		RuntimeError()
	}:
		*err = &panicked{value.Error()}
	default:
		*err = &panicked{fmt.Sprintf("%T", value)}
	}
}

// outage is an error that no message is to blame for.
type outage struct{ cause error }

func (o *outage) Error() string { return o.cause.Error() }
func (o *outage) Unwrap() error { return o.cause }

// notTheMessage are the SQLSTATEs, or their classes, of what PostgreSQL reports about itself, about other transactions, or about
// the schema it has: the next message would fare no better. What a message can cause are mainly classes 22 (data), 23 (constraints)
// and P0 (raised by a trigger).
var notTheMessage = []string{
	"08",    // connection
	"0A",    // not supported: a plan from before a migration
	"25006", // read-only transaction: a standby, or a server that was made one
	"25P03", // idle in transaction for too long: we stalled
	"25P04", // transaction timeout
	"26",    // prepared statement is gone
	"28",    // who we are
	"3D",    // which database
	"40",    // serialization, deadlock
	"42",    // tables and rights: a migration is missing, or ahead
	"53",    // resources: disk, memory, connections
	"55",    // lock not available, not in the right state
	"57",    // shut down, or canceled, by an operator or a time-out
	"58",    // the system below it
}

// isOutage tells an outage from what may be the message's fault, by type and SQLSTATE.
func isOutage(err error) bool {
	var ours *outage
	var refused *pgconn.PgError
	var connect *pgconn.ConnectError
	var network net.Error
	switch {
	case errors.As(err, &ours):
		return true
	case errors.As(err, &refused):
		return slices.ContainsFunc(notTheMessage, func(prefix string) bool { return strings.HasPrefix(refused.Code, prefix) })
	case errors.As(err, &connect), errors.As(err, &network):
		return true
	default:
		return pgconn.SafeToRetry(err) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) ||
			errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
			errors.Is(err, pgconn.ErrConnClosed)
	}
}

// describe says in words that may be stored why a message failed. An error may quote a message, so of one that did not promise
// otherwise only the type is told.
func describe(err error) (reason, text string) {
	var refusal *Refusal
	var refused *pgconn.PgError
	var panicking *panicked
	switch {
	case errors.As(err, &refusal):
		return storable(refusal.Reason, reasonBytesMax), storable(refusal.Why, textBytesMax)
	case errors.As(err, &refused):
		return reasonPoison, storable(fmt.Sprintf("the database refuses it: SQLSTATE %s, table %q, constraint %q", refused.Code, refused.TableName, refused.ConstraintName), textBytesMax)
	case errors.As(err, &panicking):
		return reasonPoison, storable(panicking.Error(), textBytesMax)
	default:
		return reasonPoison, storable(fmt.Sprintf("handling it failed with an error of type %T", innermost(err)), textBytesMax)
	}
}

func innermost(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}

const (
	reasonBytesMax = 40  // a label of a metric
	textBytesMax   = 255 // a line on an operator's screen
)

// storable makes text that PostgreSQL takes: valid UTF-8, without U+0000, of bounded length.
func storable(text string, bytesMax int) string {
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "?"), "\x00", "?")
	if len(text) <= bytesMax {
		return text
	}
	cut := bytesMax
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut]
}
