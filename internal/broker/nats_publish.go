package broker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/paymentsd/paymentsd/internal/outbox"
)

const (
	// natsBatchMax is how many messages share one atomic batch; the server takes 1,000 unless it is told otherwise.
	natsBatchMax = 500
	// natsBatchMin is where a batch begins to pay: it costs the server a directory of its own and a few writes to the disk.
	natsBatchMin = 8
)

// The headers of an atomic batch (NATS ADR-50).
const (
	natsBatchID       = "Nats-Batch-Id"
	natsBatchSequence = "Nats-Batch-Sequence"
	natsBatchCommit   = "Nats-Batch-Commit"
)

// natsPublisher sends events as messages of the stream.
//
// A server that is told to write to the disk before it acknowledges does so once for each message, or once for a whole
// atomic batch, which is what makes the safe setting a fast one. So a wave is sent in batches where the stream takes them. A
// batch is all or nothing, and its answer does not say which message it failed for: then its messages are sent one by one,
// without waiting for one before the next.
type natsPublisher NATS

func (p *natsPublisher) Publish(ctx context.Context, wave []outbox.Recorded) []error {
	n := (*NATS)(p)
	errs := make([]error, len(wave))
	messages := make([]*nats.Msg, len(wave))
	var sendable []int
	for i, e := range wave {
		messages[i], errs[i] = n.message(e)
		if errs[i] == nil {
			sendable = append(sendable, i)
		}
	}
	_, batches, err := n.declared(ctx)
	if err != nil {
		fill(errs, sendable, err)
		return errs
	}
	for len(sendable) > 0 {
		part := sendable[:min(len(sendable), natsBatchMax)]
		sendable = sendable[len(part):]
		if !batches || len(part) < natsBatchMin {
			n.sendEach(ctx, messages, part, errs)
			continue
		}
		switch refused, err := n.sendBatch(ctx, messages, part); {
		case refused:
			n.sendEach(ctx, messages, part, errs)
		default:
			fill(errs, part, n.meaning(err))
		}
	}
	return errs
}

// message makes the message of an event, or says that the server will never take it.
func (n *NATS) message(e outbox.Recorded) (*nats.Msg, error) {
	if !isSubjectToken(e.Type) {
		return nil, refused("its type cannot be part of a subject")
	}
	body, err := encode(e)
	if err != nil {
		return nil, err
	}
	m := nats.NewMsg(natsSubject + e.Type)
	m.Data = body
	m.Header.Set("Content-Type", contentType)
	m.Header.Set(jetstream.MsgIDHeader, e.ID)
	if isHeaderValue(e.TraceParent) {
		m.Header.Set("traceparent", e.TraceParent)
	}
	if most := n.conn.MaxPayload(); most > 0 && int64(len(body)) > most {
		return nil, n.meaning(nats.ErrMaxPayload)
	}
	return m, nil
}

func isSubjectToken(name string) bool {
	return isHeaderValue(name) && !strings.ContainsAny(name, ".*>")
}

// sendBatch sends messages that are stored together or not at all. It reports a refusal when they were certainly not stored
// because of something in them, and an error when nobody knows.
func (n *NATS) sendBatch(ctx context.Context, messages []*nats.Msg, part []int) (refused bool, err error) {
	id := rand.Text()
	for sequence, i := range part[:len(part)-1] {
		if err := n.conn.PublishMsg(inBatch(messages[i], id, sequence+1)); err != nil {
			return errors.Is(err, nats.ErrMaxPayload), err
		}
	}
	last := inBatch(messages[part[len(part)-1]], id, len(part))
	last.Header.Set(natsBatchCommit, "1")
	reply, err := n.conn.RequestMsgWithContext(ctx, last)
	if err != nil {
		return errors.Is(err, nats.ErrMaxPayload), err
	}
	var answer struct {
		Error *jetstream.APIError `json:"error"`
		Batch string              `json:"batch"`
		Count int                 `json:"count"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return false, jetstream.ErrInvalidJSAck
	}
	if answer.Error != nil {
		return true, nil
	}
	if answer.Batch != id || answer.Count != len(part) {
		return false, fmt.Errorf("batch of %d: the server acknowledges %d", len(part), answer.Count)
	}
	return false, nil
}

// inBatch returns a copy: the message itself may still have to be sent alone.
func inBatch(m *nats.Msg, id string, sequence int) *nats.Msg {
	out := nats.NewMsg(m.Subject)
	out.Data = m.Data
	for name, values := range m.Header {
		out.Header[name] = values
	}
	out.Header.Set(natsBatchID, id)
	out.Header.Set(natsBatchSequence, strconv.Itoa(sequence))
	return out
}

// sendEach sends messages one after the other and then waits for their acknowledgements.
func (n *NATS) sendEach(ctx context.Context, messages []*nats.Msg, part []int, errs []error) {
	pending := make(map[int]jetstream.PubAckFuture, len(part))
	for _, i := range part {
		future, err := n.js.PublishMsgAsync(messages[i], jetstream.WithRetryAttempts(0))
		if err != nil {
			errs[i] = n.meaning(err)
			continue
		}
		pending[i] = future
	}
	for _, i := range part {
		future := pending[i]
		if future == nil {
			continue
		}
		select {
		case <-future.Ok():
		case err := <-future.Err():
			errs[i] = n.meaning(err)
		case <-ctx.Done():
			errs[i] = ctx.Err()
		}
	}
}

// meaning tells what is wrong with an event from what is wrong with the broker.
func (n *NATS) meaning(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, nats.ErrMaxPayload), errors.Is(err, jetstream.ErrStreamMessageExceedsMaximum):
		return refused("it is larger than the broker takes")
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, jetstream.ErrStreamNotFound):
		n.forget()
	case errors.Is(err, jetstream.ErrAsyncPublishTimeout), errors.Is(err, nats.ErrTimeout):
		return fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	return err
}
