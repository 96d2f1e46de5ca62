package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/paymentsd/paymentsd/internal/api"
	"github.com/paymentsd/paymentsd/internal/config"
	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/inbox"
	"github.com/paymentsd/paymentsd/internal/outbox"
	"github.com/paymentsd/paymentsd/internal/provider/fake"
	"github.com/paymentsd/paymentsd/internal/telemetry"
)

type apiCmd struct{}

func (apiCmd) Run(ctx context.Context, s config.Settings, log *slog.Logger) error {
	public, err := listen("PAYMENTSD_HTTP_ADDR", s.HTTPAddr)
	if err != nil {
		return err
	}
	admin, err := listen("PAYMENTSD_ADMIN_ADDR", s.AdminAddr)
	if err != nil {
		return err
	}
	v, err := openService(ctx, s, log)
	if err != nil {
		return err
	}
	defer v.close()
	log.Info("api serves", "addr", public.Addr().String())
	return together(ctx,
		v.serveAPI(public, s, log), v.bell(),
		serve(admin, v.metrics.Handler(api.Health(v.ready)), time.Second))
}

type recoverCmd struct{}

func (recoverCmd) Run(ctx context.Context, s config.Settings, log *slog.Logger) error {
	return work(ctx, s, log, recovery)
}

type cleanupCmd struct{}

func (cleanupCmd) Run(ctx context.Context, s config.Settings, log *slog.Logger) error {
	return work(ctx, s, log, cleanup)
}

// worker builds a part that runs beside the API and serves nobody.
type worker func(*service, config.Settings, *slog.Logger) (func(context.Context) error, error)

// work runs a worker as a role of its own.
func work(ctx context.Context, s config.Settings, log *slog.Logger, w worker) error {
	admin, err := listen("PAYMENTSD_ADMIN_ADDR", s.AdminAddr)
	if err != nil {
		return err
	}
	v, err := openService(ctx, s, log)
	if err != nil {
		return err
	}
	defer v.close()
	run, err := w(v, s, log)
	if err != nil {
		return err
	}
	return together(ctx, run, v.bell(), serve(admin, v.metrics.Handler(api.Health(v.workerReady)), time.Second))
}

func recovery(v *service, s config.Settings, log *slog.Logger) (func(context.Context) error, error) {
	return func(ctx context.Context) error {
		log.Info("recovery runs", "every", s.RecoveryInterval)
		v.payments.RunRecovery(ctx, s.RecoveryInterval)
		return nil
	}, nil
}

const (
	// cleanupBatchMax keeps every transaction of cleanup at a few milliseconds, and its locks with it: a payment that meets one
	// waits no longer than that.
	cleanupBatchMax = 100
	// cleanupRestFactor leaves the traffic that cleanup runs beside four fifths of the database's time. Without a rest the p99
	// of payments grew twelvefold; cleanup has the whole day.
	cleanupRestFactor = 4
)

// cleanup goes over everything that has expired, every interval and at once at the start.
func cleanup(v *service, s config.Settings, log *slog.Logger) (func(context.Context) error, error) {
	return func(ctx context.Context) error {
		log.Info("cleanup runs", "every", s.CleanupInterval)
		tick := time.NewTicker(s.CleanupInterval)
		defer tick.Stop()
		for {
			if err := cleanOnce(ctx, v, s, log); err != nil && ctx.Err() == nil {
				log.Error("cleanup failed", "error", err) // what was not cleaned is cleaned the next time
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return nil
			}
		}
	}, nil
}

// resting makes a rest of cleanupRestFactor times as long as the work since the last one took, so that cleanup gives way when
// the database is busy.
func resting() func(context.Context) {
	began := time.Now()
	return func(ctx context.Context) {
		select {
		case <-time.After(cleanupRestFactor * time.Since(began)):
		case <-ctx.Done():
		}
		began = time.Now()
	}
}

func cleanOnce(ctx context.Context, v *service, s config.Settings, log *slog.Logger) error {
	canceled, err := v.payments.CancelExpired(ctx)
	if err != nil {
		return err
	}
	keys, err := v.keys.Clean(ctx, s.TombstoneRetention, cleanupBatchMax, resting())
	if err != nil {
		return err
	}
	published, err := outbox.DeletePublished(ctx, v.pool, s.OutboxRetention, cleanupBatchMax, resting())
	if err != nil {
		return err
	}
	handled, err := inbox.Forget(ctx, v.pool, s.InboxRetention, cleanupBatchMax, resting())
	if err != nil {
		return err
	}
	if canceled > 0 || keys != (idempotency.Cleaned{}) || published > 0 || handled > 0 {
		log.Info("cleaned", "canceled", canceled, "scrubbed", keys.Scrubbed, "tombstones", keys.Deleted, "unresolved", keys.Postponed,
			"events", published, "messages", handled)
	}
	return nil
}

type providerCmd struct{}

func (providerCmd) Run(ctx context.Context, s config.Settings, log *slog.Logger) error {
	admin, err := listen("PAYMENTSD_ADMIN_ADDR", s.AdminAddr)
	if err != nil {
		return err
	}
	p, err := openProvider(s, log)
	if err != nil {
		return err
	}
	metrics, err := telemetry.NewMetrics()
	if err != nil {
		return err
	}
	log.Info("fake provider serves", "addr", p.Addr())
	return together(ctx, p.Serve, serve(admin, metrics.Handler(api.Health(alwaysReady)), time.Second))
}

// firstWord is the newest of the secrets: the one that is signed with.
func firstWord(secrets string) string {
	first, _, _ := strings.Cut(secrets, " ")
	return first
}

func openProvider(s config.Settings, log *slog.Logger) (*fake.Server, error) {
	p, err := fake.Open(fake.Config{
		Addr: s.ProviderAddr, Dir: filepath.Join(s.DataDir, "provider"),
		KeyWindow: s.ProviderKeyWindow, LookupLag: s.ProviderLookupLag, WebhookURL: s.WebhookURL, WebhookSecret: firstWord(s.WebhookSecret), Log: log,
	})
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, takenError("PAYMENTSD_PROVIDER_ADDR", s.ProviderAddr)
	}
	if err != nil {
		return nil, fmt.Errorf("fake provider (PAYMENTSD_PROVIDER_ADDR %s, PAYMENTSD_DATA_DIR %s): %w", s.ProviderAddr, s.DataDir, err)
	}
	return p, nil
}

type healthcheckCmd struct{}

func (healthcheckCmd) Run(ctx context.Context, s config.Settings) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second) // below any orchestrator's own limit
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.AdminAddr+"/readyz", nil)
	if err != nil {
		return fmt.Errorf("PAYMENTSD_ADMIN_ADDR: %w", err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("not ready: %s", answer.Status)
	}
	return nil
}
