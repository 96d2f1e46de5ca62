package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/paymentsd/paymentsd/internal/accounts"
	"github.com/paymentsd/paymentsd/internal/api"
	"github.com/paymentsd/paymentsd/internal/broker"
	"github.com/paymentsd/paymentsd/internal/config"
	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/inbox"
	"github.com/paymentsd/paymentsd/internal/outbox"
	"github.com/paymentsd/paymentsd/internal/payments"
	"github.com/paymentsd/paymentsd/internal/provider"
	"github.com/paymentsd/paymentsd/internal/receipts"
	"github.com/paymentsd/paymentsd/internal/telemetry"
	"github.com/paymentsd/paymentsd/internal/tenants"
	"github.com/paymentsd/paymentsd/migrations"
)

// service is what the roles that move payments share.
type service struct {
	pool     *pgxpool.Pool
	tenants  *tenants.Directory
	keys     *idempotency.Keys
	payments *payments.Service
	webhooks *provider.Webhooks // nil: none is believed
	rings    *outbox.Bell
	broker   broker.Broker // of the roles that have to do with events
	metrics  *telemetry.Metrics
}

// openPool connects to the database. Every statement of this service is short; one that is not, or that waits long for a
// lock, is stuck, and its request is better answered than kept.
//
// Every statement finds its rows by an index, whatever their number: so one plan is made for each and kept. Left to itself
// PostgreSQL plans them anew each time, which took more of its time than running them, and begins with scans of whole tables
// because they were empty when it first looked.
func openPool(ctx context.Context, s config.Settings) (*pgxpool.Pool, error) {
	if err := s.NeedDatabase(); err != nil {
		return nil, err
	}
	cfg, err := pgxpool.ParseConfig(s.DatabaseURL)
	if err != nil {
		return nil, errors.New("DATABASE_URL is not a PostgreSQL URL such as postgres://user:password@127.0.0.1:5432/paymentsd")
	}
	cfg.MaxConns = s.DBMaxConns
	cfg.ConnConfig.RuntimeParams["application_name"] = "paymentsd"
	if s.DBPooler == "transaction" { // the next statement may meet another session: nothing may be left in one
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	} else {
		maps.Copy(cfg.ConnConfig.RuntimeParams, sessionSettings)
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("DATABASE_URL: %w", err)
	}
	if err := refusePooler(ctx, pool); err != nil {
		return nil, err
	}
	return pool, nil
}

var sessionSettings = map[string]string{
	"lock_timeout":                        "3s",
	"statement_timeout":                   "10s",
	"idle_in_transaction_session_timeout": "10s",
	"plan_cache_mode":                     "force_generic_plan",
	"enable_seqscan":                      "off",
	"enable_bitmapscan":                   "off",
}

const (
	protocolViolation = "08P01"
	// firstAnswerWithin is how long a start waits to be told that it cannot work. A database that is not there yet may come.
	firstAnswerWithin = 2 * time.Second
)

// refusePooler ends a start that meets a pooler which it has not been told of: poolers do not take session settings.
func refusePooler(ctx context.Context, pool *pgxpool.Pool) error {
	ctx, cancel := context.WithTimeout(ctx, firstAnswerWithin)
	defer cancel()
	err := pool.Ping(ctx)
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == protocolViolation {
		pool.Close()
		return errors.New("DATABASE_URL leads to something that takes no session settings: if it is a pooler in transaction mode, set PAYMENTSD_DB_POOLER=transaction")
	}
	return nil
}

// openService builds everything that moves payments, on a database that is already migrated.
func openService(ctx context.Context, s config.Settings, log *slog.Logger) (*service, error) {
	pool, err := openPool(ctx, s)
	if err != nil {
		return nil, err
	}
	client, err := provider.NewClient(s.Provider(), s.ProviderTimeout)
	if err != nil {
		return nil, fmt.Errorf("PAYMENTSD_PROVIDER_URL: %w", err)
	}
	metrics, err := telemetry.NewMetrics()
	if err != nil {
		return nil, err
	}
	var webhooks *provider.Webhooks
	if s.WebhookSecret != "" {
		if webhooks, err = provider.NewWebhooks(s.WebhookSecret); err != nil {
			return nil, fmt.Errorf("PAYMENTSD_WEBHOOK_SECRET: %w", err)
		}
	}
	keys, rings := idempotency.NewKeys(pool, s.Lease), outbox.NewBell(pool, log)
	v := &service{
		pool: pool, tenants: tenants.NewDirectory(pool), keys: keys, webhooks: webhooks, rings: rings, metrics: metrics,
		payments: payments.New(pool, keys, client, api.Answer, payments.Config{
			KeyWindow: s.KeyWindow, TombstoneFor: s.TombstoneRetention, ReuseExpired: s.ExpiredKeys == "reuse",
			FingerprintRule: s.FingerprintRule, ProviderKeyWindow: s.ProviderKeyWindow, ProviderLookupLag: s.ProviderLookupLag,
			RecoveryPause: s.RecoveryInterval, BackgroundMax: s.InFlightMax, SetMax: s.SetMax, Committed: rings.Ring,
		}, log),
	}
	return v, v.watch(log)
}

// close ends the connections to the broker and the database.
func (v *service) close() {
	if v.broker != nil {
		v.broker.Close()
	}
	v.pool.Close()
}

// bell wakes the relays for as long as ctx is not done.
func (v *service) bell() func(context.Context) error {
	return func(ctx context.Context) error { v.rings.Run(ctx); return nil }
}

// watch shows what waits: for an answer, for recovery, for the relay.
func (v *service) watch(log *slog.Logger) error {
	return v.metrics.Watch(log, []telemetry.Gauge{
		{Name: "idempotency.in_progress.age.max", Unit: "s", What: "age of the oldest key in progress"},
		{Name: "idempotency.unknown_state.count", What: "keys whose outcome nobody knows"},
		{Name: "idempotency.unknown_state.age.max", Unit: "s", What: "age of the oldest of them"},
		{Name: "outbox.unpublished.count", What: "events that are not published yet"},
		{Name: "outbox.unpublished.age.max", Unit: "s", What: "age of the oldest of them"},
		{Name: "outbox.refused.count", What: "events that the broker refused and that wait for an operator"},
		{Name: "inbox.dead_letters.count", What: "messages that consumers could not handle and that wait for an operator"},
		{Name: "inbox.dead_letters.age.max", Unit: "s", What: "age of the oldest of them"},
		{Name: "receipts.pending.count", What: "receipts that are not sent yet"},
		{Name: "receipts.unknown.count", What: "receipts that may have been sent, which an operator has to look into"},
		{Name: "receipts.failed.count", What: "receipts that the mail server refused"},
	}, func(ctx context.Context) ([]float64, error) {
		keys, err := v.keys.Unresolved(ctx)
		if err != nil {
			return nil, err
		}
		backlog, err := outbox.Unpublished(ctx, v.pool)
		if err != nil {
			return nil, err
		}
		letters, err := inbox.CountDeadLetters(ctx, v.pool)
		if err != nil {
			return nil, err
		}
		mails, err := receipts.CountOpen(ctx, v.pool)
		return []float64{keys.InProgressOldest.Seconds(), float64(keys.Unknown), keys.UnknownOldest.Seconds(),
			float64(backlog.Events), backlog.Oldest.Seconds(), float64(backlog.Refused),
			float64(letters.Letters), letters.Oldest.Seconds(),
			float64(mails.Pending), float64(mails.Unknown), float64(mails.Failed)}, err
	})
}

// ready is nil when a payment can be made: the database answers, takes writes, and has the schema this binary needs.
func (v *service) ready(ctx context.Context) error {
	var readOnly bool
	if err := v.pool.QueryRow(ctx, `SELECT current_setting('transaction_read_only')::boolean`).Scan(&readOnly); err != nil {
		return fmt.Errorf("ask database: %w", err)
	}
	if readOnly {
		return errors.New("the database takes no writes")
	}
	return migrations.Current(ctx, v.pool)
}

// workerReady is nil when a worker can work: with the broker too, if it has to do with events.
func (v *service) workerReady(ctx context.Context) error {
	if err := v.ready(ctx); err != nil || v.broker == nil {
		return err
	}
	return v.broker.Ready(ctx)
}

// serveAPI serves the API until ctx is done, and then waits for what it began, in the background too.
func (v *service) serveAPI(l net.Listener, s config.Settings, log *slog.Logger) func(context.Context) error {
	return func(ctx context.Context) error {
		defer v.payments.Drain()
		return serve(l, v.api(s, log), drainFor(s))(ctx)
	}
}

func (v *service) api(s config.Settings, log *slog.Logger) http.Handler {
	register := accounts.NewRegister(v.pool)
	register.Committed = v.rings.Ring
	return api.NewHandler(api.Parts{
		Payments: v.payments, Accounts: register, Tenants: v.tenants, Webhooks: v.webhooks, Ledger: v.pool,
		Ready: v.ready, Log: log,
		Limits: api.Limits{InFlightMax: s.InFlightMax, RequestsPerSec: s.TenantRate, RequestsAtOnce: s.TenantBurst},
	})
}

// alwaysReady is the readiness of a role that needs nothing.
func alwaysReady(context.Context) error { return nil }

// listen takes an address before anything is started, so that a taken one costs one sentence and no half-started service.
func listen(variable, addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, takenError(variable, addr)
	case err != nil:
		return nil, fmt.Errorf("%s: cannot listen on %q: %w", variable, addr, err)
	}
	return l, nil
}

func takenError(variable, addr string) error {
	return fmt.Errorf("%s: %s is taken by another program; stop it, or set %s to another address", variable, addr, variable)
}

const (
	headerBytesMax = 64 << 10         // a legal request has less than 1 kB of them; up to here what is too long gets a proper refusal
	headersWithin  = 5 * time.Second  // a client that sends headers slower than this is no client
	requestWithin  = 15 * time.Second // the whole request, body included
)

// serve answers on a listener until ctx is done, and then lets what runs end, for as long as it may take. Keyed requests
// run on when their client is gone, so their server must wait for them: drainFor is longer than any of them needs.
func serve(l net.Listener, handler http.Handler, drainFor time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		server := &http.Server{
			Handler: handler, MaxHeaderBytes: headerBytesMax, ReadHeaderTimeout: headersWithin, ReadTimeout: requestWithin,
			WriteTimeout: requestWithin + drainFor, IdleTimeout: 2 * time.Minute,
		}
		failed := make(chan error, 1)
		go func() { failed <- server.Serve(l) }()
		select {
		case err := <-failed:
			return fmt.Errorf("serve %s: %w", l.Addr(), err)
		case <-ctx.Done():
		}
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainFor)
		defer cancel()
		if err := server.Shutdown(drain); err != nil {
			_ = server.Close() // what is still running is what a crash would leave: recovery finishes it
		}
		return nil
	}
}

// drainFor is how long a role waits at its end for what runs: a lease covers the longest provider call and its commits.
func drainFor(s config.Settings) time.Duration { return 2 * s.Lease }

// together runs parts until ctx is done or one of them fails, which ends the others.
func together(ctx context.Context, parts ...func(context.Context) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, part := range parts {
		g.Go(func() error { return part(ctx) })
	}
	return g.Wait()
}
