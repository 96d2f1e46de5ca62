package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/paymentsd/paymentsd/internal/api"
	"github.com/paymentsd/paymentsd/internal/broker"
	"github.com/paymentsd/paymentsd/internal/config"
	"github.com/paymentsd/paymentsd/internal/devpg"
	"github.com/paymentsd/paymentsd/internal/provider/fake"
	"github.com/paymentsd/paymentsd/migrations"
)

type devCmd struct{}

// Run starts everything in the order in which it is needed, and ends it in the opposite order.
func (devCmd) Run(ctx context.Context, s config.Settings, log *slog.Logger) error {
	public, err := listen("PAYMENTSD_HTTP_ADDR", s.HTTPAddr)
	if err != nil {
		return err
	}
	admin, err := listen("PAYMENTSD_ADMIN_ADDR", s.AdminAddr)
	if err != nil {
		return err
	}
	isPrivate := s.DatabaseURL == ""
	databaseLives := func(context.Context) error { return nil } // somebody else looks after it
	if isPrivate {
		server, err := devpg.Start(ctx, devpg.Config{Dir: filepath.Join(s.DataDir, "postgres"), Log: log})
		if err != nil {
			return err
		}
		defer stopDatabase(server, log)
		s.DatabaseURL, databaseLives = server.URL(), lives(server, s)
		if err := writeURL(s); err != nil {
			return err
		}
	}
	if err := migrations.Up(ctx, s.DatabaseURL); err != nil {
		return fmt.Errorf("DATABASE_URL: %w", err)
	}
	if s.Broker == "nats" && s.NATSURL == "" {
		server, err := startBroker(s, log)
		if err != nil {
			return err
		}
		defer server.Stop()
		s.NATSURL = server.URL()
	}
	if s.WebhookSecret == "" {
		s.WebhookSecret = madeUpSecret()
	}
	if s.WebhookURL == "" {
		s.WebhookURL = "http://" + public.Addr().String() + "/provider/webhooks"
	}
	bank, err := openProvider(s, log)
	if err != nil {
		return err
	}
	if s.ProviderURL == "" {
		s.ProviderURL = "http://" + bank.Addr()
	}
	v, err := openService(ctx, s, log)
	if err != nil {
		return err
	}
	defer v.close()
	if err := v.tenants.Demo(ctx); err != nil {
		return err
	}
	parts := []func(context.Context) error{
		v.serveAPI(public, s, log), v.bell(), serve(admin, v.metrics.Handler(api.Health(v.ready)), time.Second), databaseLives,
	}
	for _, w := range []worker{recovery, cleanup, relay, consumeLedger, consumeReceipts, sendReceipts} {
		part, err := w(v, s, log)
		if err != nil {
			return err
		}
		parts = append(parts, part)
	}

	go greet(ctx, public.Addr().String(), s, isPrivate)
	return withProvider(ctx, bank, parts...)
}

// lives ends with an error when the database does.
func lives(server *devpg.Server, s config.Settings) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-server.Done():
			return fmt.Errorf("the private PostgreSQL ended by itself; its log is in %s", filepath.Join(s.DataDir, "postgres", "postgres.log"))
		case <-ctx.Done():
			return nil
		}
	}
}

// madeUpSecret is good for one run: the provider that signs with it lives in this process too.
func madeUpSecret() string {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails
	return "whsec_" + base64.StdEncoding.EncodeToString(secret)
}

// startBroker runs a NATS server in this process.
func startBroker(s config.Settings, log *slog.Logger) (*broker.Server, error) {
	server, err := broker.StartNATS(filepath.Join(s.DataDir, "nats"), s.NATSAddr, log)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, takenError("PAYMENTSD_NATS_ADDR", s.NATSAddr)
	}
	if err != nil {
		return nil, fmt.Errorf("PAYMENTSD_NATS_ADDR, PAYMENTSD_DATA_DIR: %w", err)
	}
	return server, nil
}

// withProvider runs parts that call the provider, and ends the provider only after them: a charge that is under way when
// the service is told to stop gets its answer.
func withProvider(ctx context.Context, bank *fake.Server, parts ...func(context.Context) error) error {
	bankCtx, endBank := context.WithCancel(context.WithoutCancel(ctx))
	defer endBank()
	ended := make(chan error, 1)
	go func() { ended <- bank.Serve(bankCtx) }()
	parts = append(parts, func(ctx context.Context) error {
		select {
		case err := <-ended:
			ended <- err
			return err
		case <-ctx.Done():
			return nil
		}
	})
	err := together(ctx, parts...)
	endBank()
	if bankErr := <-ended; err == nil {
		err = bankErr
	}
	return err
}

// databaseStopsWithin is generous: a fast shutdown writes one checkpoint.
const databaseStopsWithin = 30 * time.Second

func stopDatabase(server *devpg.Server, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), databaseStopsWithin)
	defer cancel()
	if err := server.Stop(ctx); err != nil {
		log.Error("database did not stop", "error", err)
	}
}

// urlFile is where the private database's URL is written, for the other roles and for psql.
func urlFile(s config.Settings) string { return filepath.Join(s.DataDir, "database-url") }

func writeURL(s config.Settings) error {
	if err := os.WriteFile(urlFile(s), []byte(s.DatabaseURL+"\n"), 0o600); err != nil {
		return fmt.Errorf("PAYMENTSD_DATA_DIR: %w", err)
	}
	return nil
}

// greet tells a person what to do next.
func greet(ctx context.Context, addr string, s config.Settings, isPrivate bool) {
	if ctx.Err() != nil {
		return
	}
	database := "the database is the one of DATABASE_URL"
	if isPrivate {
		database = "other roles and psql reach the same database with DATABASE_URL=$(cat " + urlFile(s) + ")"
	}
	fmt.Fprintf(os.Stdout, `
paymentsd is ready: API http://%[1]s, fake provider %[2]s, health, metrics and profiles http://%[3]s;
%[4]s

Make a payment (and then send the same again: it is answered, not repeated):

curl -i http://%[1]s/payments -H 'Authorization: Bearer sk_demo_acme' -H 'Idempotency-Key: my-first-payment' -H 'Content-Type: application/json' -d '{"accountId":"acc_1","amount":"10.00","currency":"EUR","merchantReference":"my-first-invoice"}'

`, addr, s.Provider(), s.AdminAddr, database)
}
