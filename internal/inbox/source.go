package inbox

import (
	"context"
	"time"
)

// Message is one message as a broker gave it. Nothing in it is trusted yet.
type Message struct {
	ID        string // what its sender called it; "" when it has no name
	Reference string // where the broker keeps it, such as "nats:PAYMENTSD:1234"; for operators
	Body      []byte
}

// Source gives the messages of one consumer. Instances of the consumer have a Source each and share the messages.
type Source interface {
	// Fetch waits for messages and returns at most messagesMax of them, or an empty batch when none came for a while. It
	// returns an error when the broker cannot be reached.
	Fetch(ctx context.Context, messagesMax int) (Batch, error)
}

// Batch is what one Fetch gave. Exactly one of its two functions is called, once; a batch for which neither is called, because its
// process died, comes again.
type Batch struct {
	Messages []Message
	// Done acknowledges all messages. It is called after their effects are durable. When it fails, they come again.
	Done func(context.Context) error
	// Again gives all messages back: they come again, to whatever instance, not before the pause is over.
	Again func(ctx context.Context, pause time.Duration) error
}
