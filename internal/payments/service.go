package payments

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/paymentsd/paymentsd/internal/gather"
	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/payments/internal/paymentssql"
	"github.com/paymentsd/paymentsd/internal/provider"
)

// Config are the times that the promises depend on.
type Config struct {
	KeyWindow         time.Duration // how long a finished key is replayed; part of the contract with clients
	TombstoneFor      time.Duration // how long after that a late retry is still told that it is late; 0 is 30 days
	ReuseExpired      bool          // an expired key is free again at once instead
	FingerprintRule   string        // the rule by which new fingerprints are made; "" is RuleV2
	ProviderKeyWindow time.Duration // how long the provider remembers our key; part of its contract with us
	ProviderLookupLag time.Duration // how long after a request the provider's lookup may still not show its charge
	BackgroundMax     int           // payments driven in the background at once; 0 is 1000
	SetMax            int           // payments that share a transaction at most; 0 is 128, 1 lets each have its own
	RecoveryPause     time.Duration // the first pause before an unknown outcome is asked about; it doubles from there
	Committed         func()        // called after a commit that announced an event; it must not block. Nil: nobody wants to know
}

// Render makes the answer that a finished payment's key replays, in the representation the request was made in.
type Render func(p Payment, schemaVersion string) (idempotency.Answer, error)

// Service opens payments and drives them to their end. It is safe for concurrent use, and so are any number of services
// in any number of processes on one database.
type Service struct {
	db       Database
	sql      *paymentssql.Queries
	keys     *idempotency.Keys
	provider provider.Provider
	render   Render
	cfg      Config
	log      *slog.Logger

	openings *gather.Gatherer[opening, paymentssql.OpenPaymentsRow]
	moves    *gather.Gatherer[write, paymentssql.MovePaymentsRow]

	waiting    waiting
	background errgroup.Group // payments driven for clients that did not want to wait
	settling   errgroup.Group // payments that the provider said something about
	draining   context.Context
	drain      context.CancelFunc
}

// Database is a pool of connections.
type Database interface {
	paymentssql.DBTX
	Begin(ctx context.Context) (pgx.Tx, error)
}

// backgroundMax bounds what clients that do not wait can make us do at once.
const backgroundMax = 1000

// tombstoneFor outlives every queue in which a client may keep a retry.
const tombstoneFor = 30 * 24 * time.Hour

// New makes a service on a pool of connections to the primary database.
func New(db Database, keys *idempotency.Keys, p provider.Provider, render Render, cfg Config, log *slog.Logger) *Service {
	cfg.TombstoneFor = cmp.Or(cfg.TombstoneFor, tombstoneFor)
	cfg.FingerprintRule = cmp.Or(cfg.FingerprintRule, RuleV2)
	if cfg.Committed == nil {
		cfg.Committed = func() {}
	}
	s := &Service{db: db, sql: paymentssql.New(), keys: keys, provider: p, render: render, cfg: cfg, log: log}
	s.openings = gather.New(s.openingRules(), s.openSet)
	s.moves = gather.New(s.moveRules(), s.moveSet)
	s.background.SetLimit(cmp.Or(cfg.BackgroundMax, backgroundMax))
	s.settling.SetLimit(settlingMax)
	s.draining, s.drain = context.WithCancel(context.Background())
	return s
}

// Get reads a payment as it is now. It returns ErrNotFound when the tenant has no such payment.
func (s *Service) Get(ctx context.Context, tenantID, paymentID string) (Payment, error) {
	row, err := s.load(ctx, tenantID, paymentID)
	if err != nil {
		return Payment{}, err
	}
	return loaded(row)
}

// History reads the moves a payment made, oldest first. It returns ErrNotFound when the tenant has no such payment.
func (s *Service) History(ctx context.Context, tenantID, paymentID string) ([]Move, error) {
	rows, err := s.sql.ListMoves(ctx, s.db, paymentssql.ListMovesParams{TenantID: tenantID, PaymentID: paymentID})
	if err != nil {
		return nil, unavailable("read history", err)
	}
	var moves []Move
	for _, r := range rows {
		from, version := State(r.FromState), int(r.Version)
		if r.ViaState != "" {
			moves = append(moves, Move{version - 1, from, State(r.ViaState), r.Reason, r.LeaseEpoch, r.MovedAt})
			from = State(r.ViaState)
		}
		moves = append(moves, Move{version, from, State(r.ToState), r.Reason, r.LeaseEpoch, r.MovedAt})
	}
	if len(moves) == 0 {
		return nil, ErrNotFound // every payment has made at least one move
	}
	return moves, nil
}

func (s *Service) load(ctx context.Context, tenantID, paymentID string) (paymentssql.LoadPaymentRow, error) {
	ctx, cancel := context.WithTimeout(ctx, tryFor)
	defer cancel()
	row, err := s.sql.LoadPayment(ctx, s.db, paymentssql.LoadPaymentParams{TenantID: tenantID, PaymentID: paymentID})
	if errors.Is(err, pgx.ErrNoRows) {
		return row, ErrNotFound
	}
	if err != nil {
		return row, unavailable("load payment", err)
	}
	return row, nil
}

// UnknownPayment is the evidence about one payment whose outcome nobody knows, for an operator.
type UnknownPayment struct {
	TenantID, PaymentID, AccountID string
	AmountMinor                    int64
	Currency                       string
	Reason                         string // why recovery could not tell, the last time it tried
	Sends                          int
	Attempts                       int
	Age, SinceFirstSent            time.Duration
	NextAttemptAt                  *time.Time
	NeedsOperator                  bool // recovery only looks any more; it may not send again
}

// Unknown lists payments whose outcome is unknown, oldest first, at most rowsMax of them.
func (s *Service) Unknown(ctx context.Context, rowsMax int) ([]UnknownPayment, error) {
	rows, err := s.sql.ListUnknown(ctx, s.db, int32(rowsMax))
	if err != nil {
		return nil, fmt.Errorf("list unknown payments: %w", err)
	}
	list := make([]UnknownPayment, len(rows))
	for i, r := range rows {
		p := Payment{Sends: int(r.ProviderSends), FirstSentAge: seconds(r.FirstSentAgeSeconds)}
		list[i] = UnknownPayment{
			TenantID: r.TenantID, PaymentID: r.PaymentID, AccountID: r.AccountID, AmountMinor: r.AmountMinor,
			Currency: r.Currency, Reason: r.LastReason, Sends: p.Sends, Attempts: int(r.RecoveryAttempts),
			Age: seconds(r.AgeSeconds), SinceFirstSent: p.FirstSentAge, NextAttemptAt: r.NextAttemptAt,
			NeedsOperator: s.lastSendPassed(p) != "",
		}
	}
	return list, nil
}
