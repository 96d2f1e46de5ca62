package broker_test

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/broker"
	"github.com/paymentsd/paymentsd/internal/events"
	"github.com/paymentsd/paymentsd/internal/inbox"
	"github.com/paymentsd/paymentsd/internal/outbox"
)

type assertCollector = assert.CollectT

func TestWhatIsAcknowledgedIsInTheStreamUnderItsIDAndAsItsEnvelope(t *testing.T) {
	h := newNATS(t)
	b := h.dial()
	sent := append(wave(1200), recorded("pay_x", 2)) // more than two batches, and a last one by itself
	requireAllStored(t, publish(t, b, sent...))
	require.EqualValues(t, len(sent), h.info().State.Msgs)

	got := collect(t, b.Source("reader"), len(sent))
	for i, m := range got {
		body, err := events.Wrap("acme", sent[i].TraceParent, sent[i].Payload)
		require.NoError(t, err)
		require.Equal(t, body, m.Body)
		require.Equal(t, sent[i].ID, m.ID)
		require.True(t, strings.HasPrefix(m.Reference, "nats:PAYMENTSD:"), m.Reference)
	}
	raw, err := h.raw().Stream(t.Context(), stream)
	require.NoError(t, err)
	last, err := raw.GetMsg(t.Context(), uint64(len(sent)))
	require.NoError(t, err)
	require.Equal(t, "paymentsd.v1.PaymentCreated", last.Subject)
	require.Equal(t, sent[0].TraceParent, last.Header.Get("traceparent"))
	first, err := raw.GetMsg(t.Context(), 1)
	require.NoError(t, err)
	require.NotEmpty(t, first.Header.Get("Nats-Batch-Id"), "waves travel in batches")
}

// I2: what is sent again, because the mark was lost, has the same id and bytes and is stored once. In a batch it is the server
// that refuses the whole of it.
func TestRepetitionsAreAcknowledgedAndNotStored_I2(t *testing.T) {
	h := newNATS(t)
	b := h.dial()
	requireAllStored(t, publish(t, b, wave(20)...))
	requireAllStored(t, publish(t, b, wave(30)...))
	requireAllStored(t, publish(t, b, wave(1)...))
	require.EqualValues(t, 30, h.info().State.Msgs)
}

func TestEventsTheBrokerNeverTakesAreRefusedAndTheOthersAreStored(t *testing.T) {
	h := newNATS(t)
	b := h.dial()
	large, noEvent, noSubject := recorded("pay_large", 1), recorded("pay_not", 1), recorded("pay_type", 1)
	large.Payload = []byte(`{"eventId":"evt_large","note":"` + strings.Repeat("x", 2<<20) + `"}`)
	noEvent.Payload = []byte(`"secret`)
	noSubject.Type = "Payment.>"
	sent := []outbox.Recorded{recorded("pay_1", 1), large, recorded("pay_2", 1), noEvent, noSubject, recorded("pay_3", 1)}
	errs := publish(t, b, sent...)
	for i, err := range errs {
		if i == 0 || i == 2 || i == 5 {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, outbox.ErrRefused)
		require.NotContains(t, err.Error(), "secret")
	}
	require.EqualValues(t, 3, h.info().State.Msgs)
}

// A limit of the stream is only known to the server, which refuses the batch for it.
func TestEventTooLargeForTheStreamIsRefusedAndTheOthersAreStored(t *testing.T) {
	h := newNATS(t)
	b := h.dial()
	untilReady(t, b)
	h.change(func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1500 })
	large := recorded("pay_large", 1)
	large.Payload = []byte(strings.Replace(string(large.Payload), "inv-1", strings.Repeat("x", 1500), 1))
	errs := publish(t, b, append(wave(20), large)...)
	requireAllStored(t, errs[:20])
	require.ErrorIs(t, errs[20], outbox.ErrRefused)
	require.EqualValues(t, 20, h.info().State.Msgs)
}

// One that the client finds too large only together with the headers, in the middle of a batch.
func TestEventThatIsTooLargeByAHeaderTakesNoOtherWithIt(t *testing.T) {
	h := newNATS(t)
	b := h.dial()
	untilReady(t, b)
	large := recorded("pay_large", 1)
	body, err := events.Wrap("acme", large.TraceParent, large.Payload)
	require.NoError(t, err)
	room := 1<<20 - len(body)
	large.Payload = []byte(strings.Replace(string(large.Payload), "inv-1", "inv-1"+strings.Repeat("x", room), 1))
	errs := publish(t, b, append([]outbox.Recorded{large}, wave(20)...)...)
	require.ErrorIs(t, errs[0], outbox.ErrRefused)
	requireAllStored(t, errs[1:])
}

func (h *natsHouse) change(f func(*jetstream.StreamConfig)) {
	js := h.raw()
	cfg := h.info().Config
	f(&cfg)
	_, err := js.UpdateStream(h.t.Context(), cfg)
	require.NoError(h.t, err)
}

func TestFullStreamIsNoFaultOfTheEvents(t *testing.T) {
	h := newNATS(t)
	b := h.dial()
	untilReady(t, b)
	h.change(func(c *jetstream.StreamConfig) { c.MaxMsgs = 3 })
	requireAllStored(t, publish(t, b, wave(3)...))
	for _, size := range []int{2, 20} {
		for _, err := range publish(t, b, wave(30)[10:10+size]...) {
			require.Error(t, err)
			require.NotErrorIs(t, err, outbox.ErrRefused)
		}
	}
	require.EqualValues(t, 3, h.info().State.Msgs, "and nothing that consumers have not seen makes room")
}

func TestDeclaringTwiceHarmsNothing(t *testing.T) {
	h := newNATS(t)
	first := h.dial()
	requireAllStored(t, publish(t, first, wave(5)...))
	require.Len(t, collect(t, first.Source("reader"), 5), 5)
	requireAllStored(t, publish(t, first, recorded("pay_x", 1)))
	h.change(func(c *jetstream.StreamConfig) { c.MaxAge, c.Description = 30*24*time.Hour, "an operator's" })

	second := h.dial(func(c *broker.Config) { c.AckWait = time.Minute })
	untilReady(t, second)
	require.Equal(t, "pay_x", collectOne(t, second, "reader"), "the consumer goes on where it was")
	info := h.info()
	require.EqualValues(t, 6, info.State.Msgs)
	require.Equal(t, 30*24*time.Hour, info.Config.MaxAge)
	require.Equal(t, "an operator's", info.Config.Description)
}

func collectOne(t *testing.T, b broker.Broker, consumer string) (paymentID string) {
	e, err := events.Read(collect(t, b.Source(consumer), 1)[0].Body)
	require.NoError(t, err)
	return e.Subject
}

func TestStreamOfAnOperatorGetsOurSubjectsAndKeepsItsOwn(t *testing.T) {
	h := newNATS(t)
	_, err := h.raw().CreateStream(t.Context(), jetstream.StreamConfig{Name: stream, Subjects: []string{"other.>"}, Storage: jetstream.FileStorage})
	require.NoError(t, err)
	b := h.dial()
	requireAllStored(t, publish(t, b, wave(3)...)) // a stream that takes no batches
	require.ElementsMatch(t, []string{"other.>", "paymentsd.v1.>"}, h.info().Config.Subjects)
	require.EqualValues(t, 3, h.info().State.Msgs)
	requireAllStored(t, publish(t, b, wave(3)...))
	require.EqualValues(t, 3, h.info().State.Msgs)
}

func TestStreamThatSomebodyDeletedIsDeclaredAgain(t *testing.T) {
	h := newNATS(t)
	b := h.dial()
	requireAllStored(t, publish(t, b, wave(2)...))
	source := b.Source("reader")
	collect(t, source, 2)
	require.NoError(t, h.raw().DeleteStream(t.Context(), stream))
	require.EventuallyWithT(t, func(c *assertCollector) {
		for _, err := range publish(t, b, recorded("pay_x", 1), recorded("pay_y", 1)) {
			require.NotErrorIs(t, err, outbox.ErrRefused)
			require.NoError(c, err)
		}
	}, patience, 10*time.Millisecond)
	require.Len(t, collect(t, source, 2), 2)
}

func TestServerThatComesLateOrComesBackIsFoundWithoutHands(t *testing.T) {
	h := newNATS(t)
	h.stop()
	b := h.dial()
	source := b.Source("reader")
	require.Error(t, b.Ready(t.Context()))
	for _, err := range publish(t, b, wave(3)...) {
		require.Error(t, err)
		require.NotErrorIs(t, err, outbox.ErrRefused)
	}
	_, err := source.Fetch(t.Context(), 10)
	require.Error(t, err)

	h.start()
	untilReady(t, b)
	requireAllStored(t, publish(t, b, wave(10)...))
	batch, err := source.Fetch(t.Context(), 4)
	require.NoError(t, err)
	require.Len(t, batch.Messages, 4)
	h.stop()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	require.Error(t, batch.Done(ctx), "an acknowledgement that nobody confirmed")
	require.Error(t, b.Ready(t.Context()))

	h.start()
	untilReady(t, b)
	require.EqualValues(t, 10, h.info().State.Msgs, "the stream outlives its server")
	requireAllStored(t, publish(t, b, wave(12)...))
	require.EqualValues(t, 12, h.info().State.Msgs, "and so does what it knows of ids")
}

func TestInstancesOfAConsumerShareItsMessages(t *testing.T) {
	h := newNATS(t)
	first, second := h.dial(), h.dial()
	requireAllStored(t, publish(t, first, wave(40)...))
	ours, theirs := first.Source("reader"), second.Source("reader")
	seen := map[string]int{}
	for range 4 {
		for _, s := range []inbox.Source{ours, theirs} {
			batch, err := s.Fetch(t.Context(), 5)
			require.NoError(t, err)
			for _, m := range batch.Messages {
				seen[m.ID]++
			}
			require.NoError(t, batch.Done(t.Context()))
		}
	}
	require.Len(t, seen, 40)
	batch, err := ours.Fetch(t.Context(), 5)
	require.NoError(t, err)
	require.Empty(t, batch.Messages)
	require.Len(t, collect(t, first.Source("other"), 40), 40, "another consumer has its own place")
}

func TestGivenBackComesAgainAndNotBeforeThePauseIsOver(t *testing.T) {
	h := newNATS(t)
	b := h.dial()
	requireAllStored(t, publish(t, b, wave(3)...))
	source := b.Source("reader")
	batch, err := source.Fetch(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, batch.Messages, 3)
	began := time.Now()
	require.NoError(t, batch.Again(t.Context(), 1500*time.Millisecond))
	again := collect(t, source, 3)
	require.GreaterOrEqual(t, time.Since(began), 1500*time.Millisecond)
	require.ElementsMatch(t, batch.Messages, again)
}

// I4: a consumer that died between effect and acknowledgement.
func TestUnacknowledgedComesAgain_I4(t *testing.T) {
	h := newNATS(t)
	b := h.dial(func(c *broker.Config) { c.AckWait = 200 * time.Millisecond })
	requireAllStored(t, publish(t, b, wave(3)...))
	batch, err := b.Source("reader").Fetch(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, batch.Messages, 3)
	require.ElementsMatch(t, batch.Messages, collect(t, b.Source("reader"), 3))
}

// A consumer that gives everything back must not walk through the whole stream, and what it may not have yet is no error.
func TestConsumerThatFinishesNothingIsGivenNoMore(t *testing.T) {
	h := newNATS(t)
	b := h.dial()
	requireAllStored(t, publish(t, b, wave(1100)...))
	source := b.Source("reader")
	given := 0
	for {
		batch, err := source.Fetch(t.Context(), 300)
		require.NoError(t, err)
		if len(batch.Messages) == 0 {
			break
		}
		given += len(batch.Messages)
		require.NoError(t, batch.Again(t.Context(), time.Minute))
	}
	require.Equal(t, 1000, given)
}

func TestOneDirectoryHasOneServerAndATakenAddressIsSaidSo(t *testing.T) {
	h := newNATS(t)
	_, err := broker.StartNATS(h.dir, "127.0.0.1:0", quiet)
	require.ErrorContains(t, err, "belongs to another process")
	_, err = broker.StartNATS(t.TempDir(), h.addr, quiet)
	require.ErrorIs(t, err, syscall.EADDRINUSE)
}

func TestConfigurationThatCannotBeRightIsSaidSo(t *testing.T) {
	for _, cfg := range []broker.Config{{Kind: "carrier pigeon"}, {Kind: "nats", NATSURL: "nats://127.0.0.1:1", NATSCredentials: "/no/such/file"},
		{Kind: "nats", NATSURL: "nats://127.0.0.1:1", NATSCA: "/no/such/file"}, {Kind: "nats", NATSURL: "nats://127.0.0.1:port"}} {
		cfg.Log = quiet
		_, err := broker.Open(cfg)
		require.Error(t, err)
	}
}
