package broker_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/broker"
	"github.com/paymentsd/paymentsd/internal/events"
	"github.com/paymentsd/paymentsd/internal/inbox"
	"github.com/paymentsd/paymentsd/internal/outbox"
	"github.com/paymentsd/paymentsd/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const stream = "PAYMENTSD"

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// patience is how long a test waits for what must come. Nothing is measured by it.
const patience = 20 * time.Second

// natsHouse is an embedded server that can be stopped and started again at the same address, on the same directory.
type natsHouse struct {
	t      *testing.T
	dir    string
	addr   string
	server *broker.Server
}

func newNATS(t *testing.T) *natsHouse {
	h := &natsHouse{t: t, dir: t.TempDir(), addr: "127.0.0.1:0"}
	h.start()
	t.Cleanup(func() { h.stop() })
	return h
}

func (h *natsHouse) start() {
	var err error
	h.server, err = broker.StartNATS(h.dir, h.addr, quiet)
	require.NoError(h.t, err)
	h.addr = h.server.URL()[len("nats://"):]
}

func (h *natsHouse) stop() {
	if h.server != nil {
		h.server.Stop()
		h.server = nil
	}
}

func (h *natsHouse) dial(change ...func(*broker.Config)) broker.Broker {
	cfg := broker.Config{Kind: "nats", NATSURL: "nats://" + h.addr, NATSReplicas: 1, Log: quiet}
	for _, f := range change {
		f(&cfg)
	}
	return open(h.t, cfg)
}

// raw is a client of the server that is not ours.
func (h *natsHouse) raw() jetstream.JetStream {
	conn, err := nats.Connect("nats://" + h.addr)
	require.NoError(h.t, err)
	h.t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	require.NoError(h.t, err)
	return js
}

func (h *natsHouse) info() *jetstream.StreamInfo {
	s, err := h.raw().Stream(h.t.Context(), stream)
	require.NoError(h.t, err)
	return s.CachedInfo()
}

func open(t *testing.T, cfg broker.Config) broker.Broker {
	b, err := broker.Open(cfg)
	require.NoError(t, err)
	t.Cleanup(b.Close)
	return b
}

// untilReady waits for a broker that is there, or comes.
func untilReady(t *testing.T, b broker.Broker) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assertCollector) { require.NoError(c, b.Ready(t.Context())) }, patience, 10*time.Millisecond)
}

// recorded is the n-th event of an aggregate, as its row has it.
func recorded(aggregate string, n int) outbox.Recorded {
	payload, err := events.Payment{EventID: fmt.Sprintf("evt_%s_%d", aggregate, n), Type: events.PaymentCreated, PaymentID: aggregate, AccountID: "acc_1",
		Amount: "10.00", Currency: "EUR", MerchantReference: "inv-1", OccurredAt: time.Unix(1_700_000_000, 0).UTC(), Sequence: n}.Encode()
	if err != nil {
		panic(err)
	}
	return outbox.Recorded{TenantID: "acme", TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Event: outbox.Event{
		ID: fmt.Sprintf("evt_%s_%d", aggregate, n), AggregateID: aggregate, Sequence: n, Type: string(events.PaymentCreated), Payload: payload}}
}

func wave(n int) []outbox.Recorded {
	all := make([]outbox.Recorded, n)
	for i := range all {
		all[i] = recorded(fmt.Sprintf("pay_%d", i), 1)
	}
	return all
}

func publish(t *testing.T, b broker.Broker, wave ...outbox.Recorded) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return b.Publisher().Publish(ctx, wave)
}

func requireAllStored(t *testing.T, errs []error) {
	t.Helper()
	for _, err := range errs {
		require.NoError(t, err)
	}
}

// collect fetches from a source until it has so many messages, acknowledging them.
func collect(t *testing.T, s inbox.Source, messages int) (got []inbox.Message) {
	t.Helper()
	for deadline := time.Now().Add(patience); len(got) < messages; {
		require.True(t, time.Now().Before(deadline), "%d of %d messages came", len(got), messages)
		batch, err := s.Fetch(t.Context(), 100)
		if err != nil || len(batch.Messages) == 0 {
			continue
		}
		require.NoError(t, batch.Done(t.Context()))
		got = append(got, batch.Messages...)
	}
	return got
}
