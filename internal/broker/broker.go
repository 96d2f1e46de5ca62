// Package broker promises that what a broker acknowledged is stored there, and that what it gives is given until it is
// acknowledged. It adapts NATS JetStream and Kafka to the two interfaces that their users declare: outbox.Publisher and
// inbox.Source. Streams, topics and consumers are declared by this code; what exists already is left as it is.
package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/paymentsd/paymentsd/internal/events"
	"github.com/paymentsd/paymentsd/internal/inbox"
	"github.com/paymentsd/paymentsd/internal/outbox"
)

// Config says which broker, and how to reach it.
type Config struct {
	Kind string // "nats" or "kafka"
	Log  *slog.Logger

	NATSURL         string // servers, separated by commas
	NATSCredentials string // a file; "" is none but what the URL says
	NATSCA          string // a file; "" is the system's authorities
	NATSReplicas    int    // servers that store each event, when the stream is declared

	KafkaBrokers []string // host:port to begin with

	AckWait time.Duration // how long a consumer may take for a message before it is given to another; 0 is ackWaitDefault
}

// Broker is a connection to a broker. It is there before the broker is, and outlives its absences.
type Broker interface {
	Publisher() outbox.Publisher
	// Source returns the messages of a consumer, all there are from the beginning. Sources of one consumer share them.
	Source(consumer string) inbox.Source
	// Ready is nil when the broker can be reached and what it needs is declared.
	Ready(ctx context.Context) error
	Close()
}

const (
	// ackWaitDefault is far above what a batch takes, and what a message of a consumer that died waits for the next one.
	ackWaitDefault = 30 * time.Second
	// fetchFor is how long a Fetch waits for a first message.
	fetchFor = time.Second
	// keepFor is how long the broker keeps an event: a consumer may be away for that long.
	keepFor = 7 * 24 * time.Hour
	// ackFor is how long an acknowledgement of ours may take.
	ackFor = 5 * time.Second

	contentType = "application/cloudevents+json"
)

// Open returns the broker that the configuration names. It does not wait for it. It returns an error when the configuration
// cannot be right.
func Open(cfg Config) (Broker, error) {
	if cfg.AckWait == 0 {
		cfg.AckWait = ackWaitDefault
	}
	switch cfg.Kind {
	case "nats":
		return DialNATS(cfg)
	case "kafka":
		return DialKafka(cfg)
	default:
		return nil, fmt.Errorf("open broker: %q is neither nats nor kafka", cfg.Kind)
	}
}

// errEncode: the row holds what is no event. No broker is to blame.
var errEncode = fmt.Errorf("%w: its payload cannot be put into an envelope", outbox.ErrRefused)

// encode makes the message of an event. The same event is always the same bytes.
func encode(e outbox.Recorded) ([]byte, error) {
	body, err := events.Wrap(e.TenantID, e.TraceParent, e.Payload)
	if err != nil {
		return nil, errEncode // without its text, which may quote the payload
	}
	return body, nil
}

// refused says that the broker will never take the event, and why.
func refused(why string) error { return fmt.Errorf("%w: %s", outbox.ErrRefused, why) }

// isHeaderValue reports whether a text can travel in a header: short, visible ASCII.
func isHeaderValue(text string) bool {
	const bytesMax = 256 // a traceparent has 55
	if text == "" || len(text) > bytesMax {
		return false
	}
	for _, b := range []byte(text) {
		if b <= ' ' || b > '~' {
			return false
		}
	}
	return true
}

// fill gives every event that has no answer yet the same one.
func fill(errs []error, of []int, err error) {
	for _, i := range of {
		errs[i] = err
	}
}

var errNotConnected = errors.New("broker cannot be reached")
