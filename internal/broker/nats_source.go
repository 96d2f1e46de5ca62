package broker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/paymentsd/paymentsd/internal/inbox"
)

// natsSource gives the messages of a durable pull consumer, which is the server's: all instances of it share what it gives.
type natsSource struct {
	nats *NATS
	name string

	mu       sync.Mutex
	consumer jetstream.Consumer // nil when it has still, or again, to be declared
}

func (s *natsSource) Fetch(ctx context.Context, messagesMax int) (inbox.Batch, error) {
	messages, err := s.fetch(ctx, messagesMax)
	if err != nil && len(messages) == 0 {
		s.forget()
		return inbox.Batch{}, fmt.Errorf("fetch for %s: %w", s.name, err)
	}
	batch := inbox.Batch{
		Messages: make([]inbox.Message, len(messages)),
		Done:     func(ctx context.Context) error { return acknowledge(ctx, messages) },
		Again:    func(ctx context.Context, pause time.Duration) error { return s.giveBack(ctx, messages, pause) },
	}
	for i, m := range messages {
		batch.Messages[i] = inbox.Message{ID: m.Headers().Get(jetstream.MsgIDHeader), Reference: reference(m), Body: m.Data()}
	}
	return batch, nil
}

// fetch takes what is there, or waits for one message and takes what has come with it.
func (s *natsSource) fetch(ctx context.Context, messagesMax int) ([]jetstream.Msg, error) {
	consumer, err := s.declared(ctx)
	if err != nil {
		return nil, err
	}
	there, err := taken(consumer.FetchNoWait(messagesMax))
	if len(there) > 0 || err != nil {
		return there, err
	}
	waiting, cancel := context.WithTimeout(ctx, fetchFor)
	defer cancel()
	first, err := taken(consumer.Fetch(1, jetstream.FetchContext(waiting)))
	if len(first) == 0 {
		if !s.nats.conn.IsConnected() {
			return nil, errNotConnected
		}
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return nil, nil
		}
		return nil, err
	}
	if messagesMax == 1 {
		return first, nil
	}
	rest, _ := taken(consumer.FetchNoWait(messagesMax - 1)) //nolint:errcheck // the first message is enough; the next fetch will say
	return append(first, rest...), nil
}

// taken collects a batch of the client. What the server says about having nothing to give is no error.
func taken(batch jetstream.MessageBatch, err error) (messages []jetstream.Msg, _ error) {
	if err != nil {
		return nil, err
	}
	for m := range batch.Messages() {
		messages = append(messages, m)
	}
	return messages, batch.Error()
}

// declared returns the consumer, creating it when there is none. One that exists is left as it is.
func (s *natsSource) declared(ctx context.Context) (jetstream.Consumer, error) {
	stream, _, err := s.nats.declared(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.consumer != nil {
		return s.consumer, nil
	}
	// An existing one keeps its place in the stream; its ack wait becomes ours.
	consumer, err := stream.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: s.name, AckPolicy: jetstream.AckExplicitPolicy, DeliverPolicy: jetstream.DeliverAllPolicy,
		AckWait: s.nats.cfg.AckWait, MaxDeliver: -1, MaxAckPending: natsPendingMax,
	})
	if err != nil {
		return nil, err
	}
	s.consumer = consumer
	return consumer, nil
}

// forget makes the next fetch declare stream and consumer again.
func (s *natsSource) forget() {
	s.mu.Lock()
	s.consumer = nil
	s.mu.Unlock()
	s.nats.forget()
}

// acknowledge acknowledges messages and waits until the server has confirmed it for each.
func acknowledge(ctx context.Context, messages []jetstream.Msg) error {
	ctx, cancel := context.WithTimeout(ctx, ackFor)
	defer cancel()
	errs := make([]error, len(messages))
	var acks sync.WaitGroup
	for i, m := range messages {
		acks.Go(func() { errs[i] = m.DoubleAck(ctx) })
	}
	acks.Wait()
	return firstOf("acknowledge", errs)
}

// giveBack gives messages back, for a time not before the pause is over.
func (s *natsSource) giveBack(ctx context.Context, messages []jetstream.Msg, pause time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, ackFor)
	defer cancel()
	errs := make([]error, len(messages))
	for i, m := range messages {
		errs[i] = m.NakWithDelay(pause)
	}
	return firstOf("give back", append(errs, s.nats.conn.FlushWithContext(ctx)))
}

// firstOf says how many of a batch failed, and why the first did.
func firstOf(doing string, errs []error) error {
	failed, first := 0, error(nil)
	for _, err := range errs {
		if err != nil {
			if failed++; first == nil {
				first = err
			}
		}
	}
	if failed == 0 {
		return nil
	}
	return fmt.Errorf("%s messages: %d of %d failed: %w", doing, failed, len(errs), first)
}

func reference(m jetstream.Msg) string {
	meta, err := m.Metadata()
	if err != nil {
		return "nats:" + natsStream
	}
	return fmt.Sprintf("nats:%s:%d", meta.Stream, meta.Sequence.Stream)
}
