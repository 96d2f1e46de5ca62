package broker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/paymentsd/paymentsd/internal/events"
	"github.com/paymentsd/paymentsd/internal/inbox"
	"github.com/paymentsd/paymentsd/internal/outbox"
)

const (
	natsStream = "PAYMENTSD"
	// natsDuplicates is how long the server knows an event's id and drops repetitions. A relay that dies between the
	// acknowledgement and its mark is replaced within a lease; an hour would cost the server 100 bytes an event of that hour.
	natsDuplicates = 5 * time.Minute
	// natsPing finds a connection that the network has lost: two of them without an answer end it.
	natsPing = 10 * time.Second
	// natsReconnect is the pause between two attempts to connect, for ever.
	natsReconnect = 500 * time.Millisecond
	// natsPendingMax is how many messages of a consumer may be unacknowledged at a time. It ends the running ahead of
	// consumers that give everything back, as when their database is away.
	natsPendingMax = 1000
)

// natsSubjects are those of the stream; an event's subject is natsSubject and its type.
var (
	natsSubject  = fmt.Sprintf("paymentsd.v%d.", events.Version)
	natsSubjects = natsSubject + ">"
)

// NATS is a connection to a NATS server or cluster with JetStream.
type NATS struct {
	cfg  Config
	conn *nats.Conn
	js   jetstream.JetStream

	mu      sync.Mutex
	stream  jetstream.Stream // nil when it has still, or again, to be declared
	batches bool             // the stream takes atomic batches
}

// DialNATS connects, now or as soon as the server is there, and again whenever the connection is lost.
func DialNATS(cfg Config) (*NATS, error) {
	opts := []nats.Option{
		nats.Name("paymentsd"), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(natsReconnect),
		nats.PingInterval(natsPing), nats.Timeout(ackFor),
		// An event that nobody waits for any more must not be sent later: without a connection, sending fails at once.
		nats.ReconnectBufSize(-1),
		// Credentials may be replaced on the server while we run.
		nats.IgnoreAuthErrorAbort(),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				cfg.Log.Warn("connection to NATS is lost", "error", err)
			}
		}),
		nats.ConnectHandler(func(c *nats.Conn) { cfg.Log.Info("connected to NATS", "server", c.ConnectedUrlRedacted()) }),
		nats.ReconnectHandler(func(c *nats.Conn) { cfg.Log.Info("connected to NATS again", "server", c.ConnectedUrlRedacted()) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			cfg.Log.Warn("NATS reports an error", "error", err)
		}),
	}
	for _, file := range []struct {
		name string
		use  func(string) nats.Option
	}{
		{cfg.NATSCredentials, func(f string) nats.Option { return nats.UserCredentials(f) }},
		{cfg.NATSCA, func(f string) nats.Option { return nats.RootCAs(f) }},
	} {
		if file.name == "" {
			continue
		}
		if _, err := os.Stat(file.name); err != nil {
			return nil, fmt.Errorf("connect to NATS: %w", err)
		}
		opts = append(opts, file.use(file.name))
	}
	conn, err := nats.Connect(cfg.NATSURL, opts...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	js, err := jetstream.New(conn, jetstream.WithPublishAsyncTimeout(ackFor), jetstream.WithDefaultTimeout(ackFor))
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	return &NATS{cfg: cfg, conn: conn, js: js}, nil
}

// Close ends the connection.
func (n *NATS) Close() { n.conn.Close() }

// Ready is nil when the server can be reached and the stream is declared.
func (n *NATS) Ready(ctx context.Context) error {
	_, _, err := n.declared(ctx)
	return err
}

// Publisher publishes to the stream.
func (n *NATS) Publisher() outbox.Publisher { return (*natsPublisher)(n) }

// Source returns the messages of a consumer.
func (n *NATS) Source(consumer string) inbox.Source { return &natsSource{nats: n, name: consumer} }

// declared returns the stream, declaring it when it is not known to exist, and whether it takes atomic batches.
func (n *NATS) declared(ctx context.Context) (jetstream.Stream, bool, error) {
	if !n.conn.IsConnected() {
		return nil, false, errNotConnected
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stream != nil {
		return n.stream, n.batches, nil
	}
	stream, err := n.declare(ctx)
	if err != nil {
		return nil, false, fmt.Errorf("declare stream %s: %w", natsStream, err)
	}
	n.stream, n.batches = stream, stream.CachedInfo().Config.AllowAtomicPublish
	return n.stream, n.batches, nil
}

// forget makes the next use declare the stream again: somebody may have deleted it.
func (n *NATS) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stream = nil
}

// declare creates the stream. One that exists keeps its limits, which an operator may have chosen and which could delete
// data if they were made smaller; it is only given what this code cannot do without.
func (n *NATS) declare(ctx context.Context) (jetstream.Stream, error) {
	stream, err := n.js.Stream(ctx, natsStream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		stream, err = n.js.CreateStream(ctx, jetstream.StreamConfig{
			Name: natsStream, Description: "what paymentsd announces", Subjects: []string{natsSubjects},
			Storage: jetstream.FileStorage, Replicas: max(n.cfg.NATSReplicas, 1), MaxAge: keepFor, Duplicates: natsDuplicates,
			// A limit that an operator sets later must stop the relay, not delete what consumers have not seen.
			Discard: jetstream.DiscardNew,
			// One synchronous write for a whole batch. Servers before 2.12 do not know the member and leave it out.
			AllowAtomicPublish: true,
		})
		switch {
		case errors.Is(err, jetstream.ErrStreamNameAlreadyInUse): // another process was faster
			stream, err = n.js.Stream(ctx, natsStream)
		case err == nil:
			n.cfg.Log.InfoContext(ctx, "stream made; if there was one before, its events are gone: paymentsd republish sends them again", "stream", natsStream)
		}
	}
	if err != nil {
		return nil, err
	}
	cfg := stream.CachedInfo().Config
	if wanted := max(n.cfg.NATSReplicas, 1); cfg.Replicas != wanted {
		n.cfg.Log.WarnContext(ctx, "stream keeps its number of replicas; nats stream edit changes it", "stream", natsStream,
			"replicas", cfg.Replicas, "setting", wanted)
	}
	if slices.Contains(cfg.Subjects, natsSubjects) {
		return stream, nil
	}
	n.cfg.Log.WarnContext(ctx, "stream lacks our subjects, they are added", "stream", natsStream, "subjects", cfg.Subjects)
	cfg.Subjects = append(cfg.Subjects, natsSubjects)
	return n.js.UpdateStream(ctx, cfg)
}
