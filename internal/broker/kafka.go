package broker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/paymentsd/paymentsd/internal/inbox"
	"github.com/paymentsd/paymentsd/internal/outbox"
)

const (
	kafkaTopic = "paymentsd.events"
	// kafkaPartitions is how many instances of a consumer can share the work. It can be raised later, but the order of an
	// aggregate is then only kept from there on.
	kafkaPartitions = 12
	// kafkaHeaderID carries the event's id beside the message, for who does not read the body.
	kafkaHeaderID = "ce_id"
	// kafkaMetadataMin is how soon the client may ask again who leads what. Its default of 5 s is added to every outage.
	kafkaMetadataMin = 500 * time.Millisecond
)

// Kafka is a connection to a Kafka cluster.
type Kafka struct {
	cfg      Config
	producer *kgo.Client

	mu       sync.Mutex
	declared bool           // the topic is known to exist
	sources  []*kafkaSource // to close
}

// DialKafka makes a client, which connects when it is used.
func DialKafka(cfg Config) (*Kafka, error) {
	producer, err := kgo.NewClient(
		kgo.SeedBrokers(cfg.KafkaBrokers...), kgo.ClientID("paymentsd"), kgo.MetadataMinAge(kafkaMetadataMin),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		// The client repeats what it has to without making duplicates. What we stop waiting for it may give up, though the
		// broker may have it: a duplicate with the same id is better than a relay that waits for ever.
		kgo.AllowIdempotentProduceCancellation(),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)), // the same partition that every other client would choose
	)
	if err != nil {
		return nil, fmt.Errorf("open Kafka client: %w", err)
	}
	return &Kafka{cfg: cfg, producer: producer}, nil
}

// Close ends the connections of the publisher and of all sources.
func (k *Kafka) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range k.sources {
		s.close()
	}
	k.producer.Close()
}

// Ready is nil when the cluster can be reached and the topic is declared.
func (k *Kafka) Ready(ctx context.Context) error {
	if err := k.producer.Ping(ctx); err != nil {
		return fmt.Errorf("%w: %w", errNotConnected, err)
	}
	return k.declare(ctx)
}

// Publisher publishes to the topic.
func (k *Kafka) Publisher() outbox.Publisher { return (*kafkaPublisher)(k) }

// Source returns the messages of a consumer group.
func (k *Kafka) Source(consumer string) inbox.Source {
	s := &kafkaSource{cfg: k.cfg, name: consumer, declare: k.declare}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sources = append(k.sources, s)
	return s
}

// declare creates the topic. One that exists is left as it is.
func (k *Kafka) declare(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.declared {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, ackFor)
	defer cancel()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = kafkaTopic, kafkaPartitions, -1 // as the cluster thinks right
	retention := kmsg.NewCreateTopicsRequestTopicConfig()
	retention.Name, retention.Value = "retention.ms", kmsg.StringPtr(strconv.FormatInt(keepFor.Milliseconds(), 10))
	topic.Configs = append(topic.Configs, retention)
	request := kmsg.NewPtrCreateTopicsRequest()
	request.Topics = append(request.Topics, topic)
	answer, err := request.RequestWith(ctx, k.producer)
	if err != nil {
		return fmt.Errorf("declare topic %s: %w", kafkaTopic, err)
	}
	for _, t := range answer.Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			return fmt.Errorf("declare topic %s: %w", kafkaTopic, err)
		}
	}
	k.declared = true
	return nil
}

// kafkaPublisher sends events as records, those of an aggregate into one partition.
type kafkaPublisher Kafka

func (p *kafkaPublisher) Publish(ctx context.Context, wave []outbox.Recorded) []error {
	k := (*Kafka)(p)
	errs := make([]error, len(wave))
	records := make([]*kgo.Record, len(wave))
	var sendable []int
	for i, e := range wave {
		if records[i], errs[i] = record(e); errs[i] == nil {
			sendable = append(sendable, i)
		}
	}
	if err := k.declare(ctx); err != nil {
		fill(errs, sendable, err)
		return errs
	}
	k.send(ctx, records, sendable, errs)
	for _, i := range sendable {
		if errors.Is(errs[i], kerr.MessageTooLarge) {
			// Records travel in batches, and it may have been the batch that was too large.
			k.send(ctx, records, []int{i}, errs)
		}
		errs[i] = k.meaning(errs[i])
	}
	return errs
}

// send sends records and waits for what becomes of them, until ctx is done. The client may take longer to give up one that it
// has sent already.
func (k *Kafka) send(ctx context.Context, records []*kgo.Record, part []int, errs []error) {
	type fate struct {
		i   int
		err error
	}
	fates := make(chan fate, len(part)) // never blocks the client, also when nobody reads any more
	for _, i := range part {
		k.producer.TryProduce(ctx, records[i], func(_ *kgo.Record, err error) { fates <- fate{i, err} })
		errs[i] = context.DeadlineExceeded // unless we are told something else
	}
	for range part {
		select {
		case f := <-fates:
			errs[f.i] = f.err
		case <-ctx.Done():
			return
		}
	}
}

func record(e outbox.Recorded) (*kgo.Record, error) {
	body, err := encode(e)
	if err != nil {
		return nil, err
	}
	r := &kgo.Record{Topic: kafkaTopic, Key: []byte(e.TenantID + "/" + e.AggregateID), Value: body, Headers: []kgo.RecordHeader{
		{Key: "content-type", Value: []byte(contentType)}, {Key: kafkaHeaderID, Value: []byte(e.ID)}}}
	if isHeaderValue(e.TraceParent) {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: "traceparent", Value: []byte(e.TraceParent)})
	}
	return r, nil
}

// meaning tells what is wrong with an event from what is wrong with the broker.
func (k *Kafka) meaning(err error) error {
	switch {
	case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.RecordListTooLarge):
		return refused("it is larger than the broker takes")
	case errors.Is(err, kerr.InvalidRecord):
		return refused("the broker finds it invalid")
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		k.mu.Lock()
		k.declared = false
		k.mu.Unlock()
	case errors.Is(err, kgo.ErrRecordTimeout):
		return fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	return err
}
