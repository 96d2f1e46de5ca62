package broker_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/paymentsd/paymentsd/internal/broker"
	"github.com/paymentsd/paymentsd/internal/events"
	"github.com/paymentsd/paymentsd/internal/inbox"
	"github.com/paymentsd/paymentsd/internal/outbox"
)

const topic = "paymentsd.events"

func newKafka(t *testing.T, opts ...kfake.Opt) *kfake.Cluster {
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1), kfake.BrokerConfigs(map[string]string{"group.initial.rebalance.delay.ms": "0"})}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func dialKafka(t *testing.T, c *kfake.Cluster) broker.Broker {
	return open(t, broker.Config{Kind: "kafka", KafkaBrokers: c.ListenAddrs(), Log: quiet})
}

func stored(c *kfake.Cluster) (records int64) {
	for _, p := range c.PartitionInfos(topic) {
		records += p.HighWatermark
	}
	return records
}

func TestKafkaStoresWhatItAcknowledges(t *testing.T) {
	c := newKafka(t)
	b := dialKafka(t, c)
	sent := wave(300)
	for i := range sent {
		sent[i].AggregateID = fmt.Sprintf("pay_%d", i%10) // Publish is called with one event of each; here it only shows the partitions
	}
	requireAllStored(t, publish(t, b, sent...))
	require.EqualValues(t, 300, stored(c))
	require.Equal(t, strconv.FormatInt((7*24*time.Hour).Milliseconds(), 10), *c.TopicInfo(topic).Configs["retention.ms"])

	want := map[string]outbox.Recorded{}
	for _, e := range sent {
		want[e.ID] = e
	}
	partitionOf := map[string]string{}
	for _, m := range collect(t, b.Source("reader"), 300) {
		e := want[m.ID]
		body, err := events.Wrap("acme", e.TraceParent, e.Payload)
		require.NoError(t, err)
		require.Equal(t, body, m.Body)
		require.True(t, strings.HasPrefix(m.Reference, "kafka:paymentsd.events:"), m.Reference)
		partition := strings.Split(m.Reference, ":")[2]
		if before, seen := partitionOf[e.AggregateID]; seen {
			require.Equal(t, before, partition, "events of one aggregate are in one partition")
		}
		partitionOf[e.AggregateID] = partition
		delete(want, m.ID)
	}
	require.Empty(t, want)
}

func TestKafkaRefusalsAreTheEventsAndOutagesAreNot(t *testing.T) {
	c := newKafka(t)
	b := dialKafka(t, c)
	large, noEvent := recorded("pay_large", 1), recorded("pay_not", 1)
	large.Payload = []byte(`{"eventId":"evt_large","note":"` + strings.Repeat("x", 2<<20) + `"}`)
	noEvent.Payload = []byte(`"secret`)
	errs := publish(t, b, recorded("pay_1", 1), large, noEvent, recorded("pay_2", 1))
	require.NoError(t, errs[0])
	require.ErrorIs(t, errs[1], outbox.ErrRefused)
	require.ErrorIs(t, errs[2], outbox.ErrRefused)
	require.NoError(t, errs[3])

	// Records travel in batches. One refusal of a batch says nothing about the record.
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Err: kerr.MessageTooLarge})
	requireAllStored(t, publish(t, b, wave(5)...))

	handle := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Err: kerr.NotEnoughReplicas, Count: -1})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	for _, err := range b.Publisher().Publish(ctx, wave(3)) {
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, outbox.ErrRefused)
	}
	handle.Remove()
	require.EventuallyWithT(t, func(a *assertCollector) {
		for _, err := range publish(t, b, wave(3)...) {
			require.NoError(a, err) // those that were given up may take some of the same partition with them
		}
	}, patience, 10*time.Millisecond)
}

func TestKafkaDeclaredTwiceKeepsWhatItHas(t *testing.T) {
	c := newKafka(t, kfake.SeedTopics(3, topic))
	requireAllStored(t, publish(t, dialKafka(t, c), wave(5)...))
	second := dialKafka(t, c)
	untilReady(t, second)
	require.Len(t, c.PartitionInfos(topic), 3)
	require.EqualValues(t, 5, stored(c))
}

func TestKafkaClusterThatComesBackIsFoundWithoutHands(t *testing.T) {
	dir := t.TempDir()
	c := newKafka(t, kfake.DataDir(dir), kfake.SyncWrites())
	addr := c.ListenAddrs()[0]
	port, err := strconv.Atoi(addr[strings.LastIndex(addr, ":")+1:])
	require.NoError(t, err)
	b := dialKafka(t, c)
	requireAllStored(t, publish(t, b, wave(5)...))
	source := b.Source("reader")
	require.Len(t, collect(t, source, 5), 5)
	c.Close()
	require.Error(t, b.Ready(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	for _, err := range b.Publisher().Publish(ctx, wave(3)) {
		require.Error(t, err)
		require.NotErrorIs(t, err, outbox.ErrRefused)
	}
	require.Eventually(t, func() bool {
		_, err := source.Fetch(t.Context(), 10)
		return err != nil
	}, patience, time.Millisecond)

	newKafka(t, kfake.DataDir(dir), kfake.SyncWrites(), kfake.Ports(port))
	untilReady(t, b)
	require.EventuallyWithT(t, func(a *assertCollector) {
		require.NoError(a, publish(t, b, recorded("pay_after", 1))[0])
	}, patience, 10*time.Millisecond)
	found := false
	for !found {
		for _, m := range collect(t, source, 1) {
			found = found || m.ID == "evt_pay_after_1"
		}
	}
}

func TestKafkaGivesAgainWhatIsNotDone_I4(t *testing.T) {
	c := newKafka(t, kfake.SeedTopics(1, topic))
	b := dialKafka(t, c)
	requireAllStored(t, publish(t, b, wave(10)...))
	source := b.Source("reader")
	first := firstBatch(t, source, 4)
	require.NoError(t, first.Again(t.Context(), 500*time.Millisecond))
	began := time.Now()
	again := firstBatch(t, source, 4)
	require.Equal(t, first.Messages, again.Messages, "before anything that comes after it")
	require.Greater(t, time.Since(began), 400*time.Millisecond)

	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.InvalidCommitOffsetSize})
	require.Error(t, again.Done(t.Context()))
	again = firstBatch(t, source, 4)
	require.Equal(t, first.Messages, again.Messages, "not done until it is committed")
	require.NoError(t, again.Done(t.Context()))
	require.NotEqual(t, first.Messages, firstBatch(t, source, 4).Messages)
	b.Close() // with a batch that nobody has answered for

	rest := collect(t, dialKafka(t, c).Source("reader"), 6)
	require.NotContains(t, rest, first.Messages[0])
	require.Len(t, rest, 6, "whoever comes next goes on at what is not done")
}

func TestKafkaInstancesShareAndCarryOnForEachOther(t *testing.T) {
	c := newKafka(t)
	first, second := dialKafka(t, c), dialKafka(t, c)
	ours, theirs := first.Source("reader"), second.Source("reader")
	requireAllStored(t, publish(t, first, wave(60)...))
	counts := map[string]int{}
	deadline := time.Now().Add(patience)
	for len(counts) < 60 {
		require.True(t, time.Now().Before(deadline))
		for _, s := range []inbox.Source{ours, theirs} {
			batch, err := s.Fetch(t.Context(), 10)
			require.NoError(t, err)
			if len(batch.Messages) > 0 && batch.Done(t.Context()) == nil {
				for _, m := range batch.Messages {
					counts[m.ID]++
				}
			}
		}
	}
	second.Close()
	requireAllStored(t, publish(t, first, wave(70)[60:]...))
	got := collect(t, ours, 10)
	require.NotEmpty(t, got, "the other's partitions are ours now")
}

func firstBatch(t *testing.T, s inbox.Source, messages int) inbox.Batch {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		require.True(t, time.Now().Before(deadline))
		batch, err := s.Fetch(t.Context(), messages)
		require.NoError(t, err)
		if len(batch.Messages) > 0 {
			return batch
		}
	}
}
