package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"time"

	"github.com/paymentsd/paymentsd/internal/api"
	"github.com/paymentsd/paymentsd/internal/config"
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
	defer v.pool.Close()
	log.Info("api serves", "addr", public.Addr().String())
	return together(ctx,
		serve(public, api.NewHandler(v.payments, v.tenants, v.ready, log), drainFor(s)),
		serve(admin, v.metrics.Handler(api.Health(v.ready)), time.Second))
}

type recoverCmd struct{}

func (recoverCmd) Run(ctx context.Context, s config.Settings, log *slog.Logger) error {
	admin, err := listen("PAYMENTSD_ADMIN_ADDR", s.AdminAddr)
	if err != nil {
		return err
	}
	v, err := openService(ctx, s, log)
	if err != nil {
		return err
	}
	defer v.pool.Close()
	log.Info("recovery runs", "every", s.RecoveryInterval)
	return together(ctx, recovery(v, s), serve(admin, v.metrics.Handler(api.Health(v.ready)), time.Second))
}

func recovery(v *service, s config.Settings) func(context.Context) error {
	return func(ctx context.Context) error {
		v.payments.RunRecovery(ctx, s.RecoveryInterval)
		return nil
	}
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

func openProvider(s config.Settings, log *slog.Logger) (*fake.Server, error) {
	p, err := fake.Open(fake.Config{
		Addr: s.ProviderAddr, Dir: filepath.Join(s.DataDir, "provider"),
		KeyWindow: s.ProviderKeyWindow, LookupLag: s.ProviderLookupLag, Log: log,
	})
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
