package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/paymentsd/paymentsd/internal/inbox"
)

// kafkaSource gives the records of a consumer group. Kafka knows no single messages, only how far a group has come in each
// partition: so what was given is held here until it is done, and given again before anything later is asked for.
type kafkaSource struct {
	cfg     Config
	name    string
	declare func(context.Context) error

	mu        sync.Mutex
	client    *kgo.Client // nil until the first Fetch
	closed    bool
	held      []*kgo.Record // given and not done
	notBefore time.Time     // when to give them again
}

func (s *kafkaSource) Fetch(ctx context.Context, messagesMax int) (inbox.Batch, error) {
	records, err := s.fetch(ctx, messagesMax)
	if err != nil {
		return inbox.Batch{}, fmt.Errorf("fetch for %s: %w", s.name, err)
	}
	batch := inbox.Batch{Messages: make([]inbox.Message, len(records)), Done: s.done, Again: s.again}
	for i, r := range records {
		batch.Messages[i] = inbox.Message{ID: header(r, kafkaHeaderID), Reference: fmt.Sprintf("kafka:%s:%d:%d", r.Topic, r.Partition, r.Offset), Body: r.Value}
	}
	return batch, nil
}

func (s *kafkaSource) fetch(ctx context.Context, messagesMax int) ([]*kgo.Record, error) {
	client, err := s.opened(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, fetchFor)
	defer cancel()
	if held, pause := s.heldBack(); pause > 0 {
		select {
		case <-time.After(pause):
		case <-ctx.Done(): // not yet
		}
		return nil, nil
	} else if len(held) > 0 {
		return held, nil
	}
	fetches := client.PollRecords(ctx, messagesMax)
	records := fetches.Records()
	for _, e := range fetches.Errors() {
		if len(records) == 0 && !errors.Is(e.Err, context.DeadlineExceeded) && !errors.Is(e.Err, context.Canceled) {
			return nil, e.Err
		}
	}
	if len(records) > 0 {
		s.mu.Lock()
		s.held = records
		s.mu.Unlock()
		return records, nil
	}
	if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil, s.reachable(client)
	}
	return nil, nil
}

// reachable is asked when nothing came: the client waits for a cluster that is away without a word.
func (s *kafkaSource) reachable(client *kgo.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), fetchFor)
	defer cancel()
	if err := client.Ping(ctx); err != nil {
		return fmt.Errorf("%w: %w", errNotConnected, err)
	}
	return nil
}

// opened returns the client, which joins the group when it is made.
func (s *kafkaSource) opened(ctx context.Context) (*kgo.Client, error) {
	if err := s.declare(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, kgo.ErrClientClosed
	}
	if s.client != nil {
		return s.client, nil
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(s.cfg.KafkaBrokers...), kgo.ClientID("paymentsd-"+s.name), kgo.ConsumerGroup("paymentsd-"+s.name),
		kgo.MetadataMinAge(kafkaMetadataMin), kgo.ConsumeTopics(kafkaTopic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(),
		kgo.OnPartitionsRevoked(s.drop), kgo.OnPartitionsLost(s.drop))
	if err != nil {
		return nil, err
	}
	s.client = client
	return client, nil
}

func (s *kafkaSource) heldBack() ([]*kgo.Record, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.held) == 0 {
		return nil, 0
	}
	return s.held, time.Until(s.notBefore)
}

// drop forgets what was given of partitions that are another instance's now: it gets them from where the group was.
func (s *kafkaSource) drop(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = slices.DeleteFunc(slices.Clone(s.held), func(r *kgo.Record) bool { return slices.Contains(lost[r.Topic], r.Partition) })
}

// done commits how far the group has come with what is held. When that fails, it stays held.
func (s *kafkaSource) done(ctx context.Context) error {
	s.mu.Lock()
	held, client := s.held, s.client
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, ackFor)
	defer cancel()
	if err := client.CommitRecords(ctx, held...); err != nil {
		return fmt.Errorf("commit offsets of %s: %w", s.name, err)
	}
	s.mu.Lock()
	s.held, s.notBefore = nil, time.Time{}
	s.mu.Unlock()
	return nil
}

func (s *kafkaSource) again(_ context.Context, pause time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notBefore = time.Now().Add(pause)
	return nil
}

func (s *kafkaSource) close() {
	s.mu.Lock()
	client := s.client
	s.closed = true
	s.mu.Unlock() // closing gives the partitions back, which calls drop
	if client != nil {
		client.Close()
	}
}

func header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}
