// Package fake promises a payment provider that is a provider in everything but the money: a real HTTP server with real
// idempotency keys, and charges and refunds that survive its own death, which fails exactly when and how it is told to.
//
// It shares no code with the client in package provider. A wrong factor of 100 that both sides get from one function
// would hide itself; written twice, it shows.
//
// An order is a charge or a refund. Both take the same path, so that whatever can go wrong with one can go wrong with the
// other.
//
// How to read it: kinds.go is what can be ordered and orders.go the API that paymentsd orders with; book.go is what the
// provider knows about keys, ledger.go what it knows about money, and journal.go how it remembers both; webhooks.go is what it
// tells unasked and courier.go brings it there; faults.go is the script of what goes wrong and deliver.go does it; control.go
// is the API of whoever writes the script; requests.go keeps what was received.
package fake

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
)

// Config says where the fake listens and how its provider behaves.
type Config struct {
	// Addr is host:port to listen on; port 0 picks a free one. Empty: no listening, use Handler.
	Addr string
	// Dir holds the journal. It is made if it is missing. One process at a time may use it.
	Dir string
	// KeyWindow is how long a key is remembered. Zero: for ever. Afterwards the same key charges or refunds again.
	KeyWindow time.Duration
	// LookupLag is how long after its execution an order becomes visible to lookups. Zero: at once.
	LookupLag time.Duration
	// WebhookURL is where the outcome of every order is told to. Empty: nowhere.
	WebhookURL string
	// WebhookSecret signs what is told there, as the Standard Webhooks specification has it: whsec_ and base64.
	WebhookSecret string
	// Log gets life-cycle events and trouble. Nil: nothing is logged.
	Log *slog.Logger
}

// Server is the fake provider. Its faults and its record of requests live in memory and are gone after a restart; its
// charges, refunds, keys and balances are not.
type Server struct {
	log      *slog.Logger
	book     *book
	faults   faultScript
	requests requestLog
	courier  *courier // nil without a URL
	handler  http.Handler
	addr     string
	closing  chan struct{} // closed by Close: wakes delayed requests, which then die without effect

	mu       sync.Mutex
	listener net.Listener // bound, and not yet given to an http.Server
	serving  *http.Server // nil when not serving
	downFor  time.Duration
	closed   bool
}

// Open reads the journal and binds the address; requests wait in the backlog until Serve. It returns an error when the
// directory cannot be used, when the journal is damaged anywhere but in its last line, or when the address is taken.
func Open(cfg Config) (*Server, error) {
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	book, err := openBook(cfg.Dir, cfg.KeyWindow, cfg.LookupLag, log)
	if err != nil {
		return nil, fmt.Errorf("open fake provider: %w", err)
	}
	s := &Server{log: log, book: book, closing: make(chan struct{}), addr: cfg.Addr}
	for _, k := range kinds {
		for _, a := range book.executed(k, "") {
			s.requests.learn(a.IdempotencyKey, a.Reference)
		}
	}
	s.handler = s.routes()
	if cfg.Addr != "" {
		if s.listener, err = net.Listen("tcp", cfg.Addr); err != nil {
			_ = book.close() // nothing was written yet
			return nil, fmt.Errorf("open fake provider: %w", err)
		}
		s.addr = s.listener.Addr().String()
	}
	if cfg.WebhookURL != "" {
		if s.courier, err = newCourier(cfg.WebhookURL, cfg.WebhookSecret, log); err != nil {
			_ = s.Close() // nothing was written yet
			return nil, fmt.Errorf("open fake provider: %w", err)
		}
		s.tellWhatIsUntold()
	}
	return s, nil
}

// Handler is the whole API. Faults that break connections need a real server under it, and so does /control/down, which
// needs Serve.
func (s *Server) Handler() http.Handler { return s.handler }

// Addr is the address the server is bound to, with the real port.
func (s *Server) Addr() string { return s.addr }

func (s *Server) routes() http.Handler {
	r := chi.NewRouter()
	for _, k := range kinds {
		r.Post("/v1/"+k.plural, of(k, s.postOrder))
		r.Get("/v1/"+k.plural, of(k, s.lookUpOrder))
	}
	r.Route("/control", func(r chi.Router) {
		for _, k := range kinds {
			r.Get("/"+k.plural, of(k, s.controlExecuted))
		}
		r.Get("/requests", s.controlRequests)
		r.Get("/webhooks", s.controlDeliveries)
		r.Post("/webhooks", s.controlTell)
		r.Post("/faults", s.controlAddFault)
		r.Delete("/faults", s.controlClearFaults)
		r.Post("/forget-keys", s.controlForgetKeys)
		r.Post("/down", s.controlDown)
		r.Put("/accounts/{id}", s.controlPutAccount)
	})
	return r
}

// of makes a handler of orders a handler of orders of one kind.
func of(k kind, handle func(http.ResponseWriter, *http.Request, kind)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { handle(w, r, k) }
}

const (
	// Long enough for answers that are being written, short enough for a Ctrl-C. Delayed requests do not get more:
	// a provider that dies in the middle is what paymentsd is made for.
	shutdownFor = 2 * time.Second

	// A client that is slower than this with its headers is stuck. There is no limit on bodies and answers: delays are
	// scripted, and a limit here would be a fault that nobody ordered.
	readHeaderFor = 10 * time.Second

	// The port may be held for a moment by whoever used it while the server was down.
	relistenTries = 100
	relistenPause = 50 * time.Millisecond
)

// Serve answers requests until the context ends or Close is called, and returns nil then. It comes back by itself, on
// the same address, after /control/down. It returns an error when it cannot listen.
func (s *Server) Serve(ctx context.Context) error {
	shutDown := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(shutDown)
		s.shutdown()
	})
	defer func() {
		if !stop() {
			<-shutDown // http.Server.Serve returns when a shutdown begins, and answers are still being written then
		}
	}()
	for ctx.Err() == nil {
		listener, server, err := s.startServing(ctx)
		if err != nil {
			return fmt.Errorf("serve fake provider: %w", err)
		}
		if server == nil {
			return nil // closed
		}
		s.log.Info("provider is listening", "addr", s.addr)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve fake provider: %w", err)
		}
		if !s.waitWhileDown(ctx) {
			return nil
		}
	}
	return nil
}

// startServing gives a listener and a server for it, or no server once the fake is closed.
func (s *Server) startServing(ctx context.Context) (net.Listener, *http.Server, error) {
	s.mu.Lock()
	listener := s.listener
	s.listener = nil
	s.mu.Unlock()
	if listener == nil {
		var err error
		if listener, err = s.relisten(ctx); err != nil && ctx.Err() == nil {
			return nil, nil, err
		}
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || ctx.Err() != nil {
		if listener != nil {
			_ = listener.Close() // nobody was served on it
		}
		return nil, nil, nil
	}
	s.serving = &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: readHeaderFor,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
	return listener, s.serving, nil
}

func (s *Server) relisten(ctx context.Context) (net.Listener, error) {
	if s.addr == "" {
		return nil, errors.New("no address was configured")
	}
	for try := 1; ; try++ {
		listener, err := net.Listen("tcp", s.addr)
		if err == nil || try == relistenTries {
			return listener, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(relistenPause):
		}
	}
}

func (s *Server) isServing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.serving != nil
}

// goDown stops listening and cuts every connection, all before it returns.
func (s *Server) goDown(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.serving == nil {
		return // it goes down for good already
	}
	s.downFor = d
	_ = s.serving.Close() // it can only repeat errors of closing connections that are gone anyway
	s.serving = nil
	s.log.Info("provider goes down", "for", d)
}

// waitWhileDown sleeps through a scripted outage. It reports false when the server stopped for good instead.
func (s *Server) waitWhileDown(ctx context.Context) bool {
	s.mu.Lock()
	d := s.downFor
	s.downFor = 0
	s.mu.Unlock()
	if d == 0 {
		return false
	}
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	case <-s.closing:
		return false
	}
}

// shutdown ends Serve, with a moment's grace for answers that are being written.
func (s *Server) shutdown() {
	s.mu.Lock()
	server := s.serving
	s.serving = nil
	s.mu.Unlock()
	if server == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), shutdownFor)
	defer cancel()
	if server.Shutdown(ctx) != nil {
		_ = server.Close() // the grace is over; whoever still waits gets no answer
	}
}

// Close stops the server at once, as if it had died: no request that is still being delayed takes effect any more. It
// returns the journal's error, if closing it fails.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	close(s.closing)
	if s.serving != nil {
		_ = s.serving.Close() // see goDown
	}
	if s.listener != nil {
		_ = s.listener.Close()
	}
	s.mu.Unlock()
	if s.courier != nil {
		s.courier.stop()
	}
	return s.book.close()
}
