package main

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/paymentsd/paymentsd/internal/broker"
	"github.com/paymentsd/paymentsd/internal/config"
	"github.com/paymentsd/paymentsd/internal/ledger"
	"github.com/paymentsd/paymentsd/internal/outbox"
	"github.com/paymentsd/paymentsd/internal/receipts"
)

type relayCmd struct{}

func (relayCmd) Run(ctx context.Context, s config.Settings, log *slog.Logger) error {
	return work(ctx, s, log, relay)
}

type consumeCmd struct {
	Ledger   consumeLedgerCmd   `cmd:"" help:"Post what was paid and given back."`
	Receipts consumeReceiptsCmd `cmd:"" help:"Write the receipts that are to be sent."`
}

type consumeLedgerCmd struct{}

func (consumeLedgerCmd) Run(ctx context.Context, s config.Settings, log *slog.Logger) error {
	return work(ctx, s, log, consumeLedger)
}

type consumeReceiptsCmd struct{}

func (consumeReceiptsCmd) Run(ctx context.Context, s config.Settings, log *slog.Logger) error {
	return work(ctx, s, log, consumeReceipts)
}

type sendReceiptsCmd struct{}

func (sendReceiptsCmd) Run(ctx context.Context, s config.Settings, log *slog.Logger) error {
	return work(ctx, s, log, sendReceipts)
}

// connect opens the broker, once for all parts of the process. It does not wait for it: events wait in the outbox.
func (v *service) connect(s config.Settings, log *slog.Logger) (broker.Broker, error) {
	if v.broker != nil {
		return v.broker, nil
	}
	b, err := broker.Open(broker.Config{
		Kind: s.Broker, Log: log, AckWait: s.AckWait,
		NATSURL: s.NATS(), NATSCredentials: s.NATSCredentials, NATSCA: s.NATSCA, NATSReplicas: s.NATSReplicas,
		KafkaBrokers: strings.FieldsFunc(s.KafkaBrokers, func(r rune) bool { return r == ',' || r == ' ' }),
	})
	if err != nil {
		return nil, fmt.Errorf("PAYMENTSD_BROKER %s: %w", s.Broker, err)
	}
	v.broker = b
	return b, nil
}

func relay(v *service, s config.Settings, log *slog.Logger) (func(context.Context) error, error) {
	b, err := v.connect(s, log)
	if err != nil {
		return nil, err
	}
	r := outbox.NewRelay(v.pool, b.Publisher(), outbox.RelayConfig{Interval: s.RelayInterval, LeaseFor: s.RelayLease, Log: log})
	return func(ctx context.Context) error {
		log.Info("relay runs", "broker", s.Broker)
		r.Run(ctx)
		return nil
	}, nil
}

func consumeLedger(v *service, s config.Settings, log *slog.Logger) (func(context.Context) error, error) {
	b, err := v.connect(s, log)
	if err != nil {
		return nil, err
	}
	return ledger.NewConsumer(v.pool, b.Source(ledger.ConsumerName), log).Run, nil
}

func consumeReceipts(v *service, s config.Settings, log *slog.Logger) (func(context.Context) error, error) {
	b, err := v.connect(s, log)
	if err != nil {
		return nil, err
	}
	addresses, err := addressesOf(s)
	if err != nil {
		return nil, err
	}
	return receipts.NewConsumer(v.pool, b.Source(receipts.ConsumerName), addresses, log).Run, nil
}

const (
	// smtpStepWithin is what one step of a mail may take; servers that greylist or scan take some seconds.
	smtpStepWithin = 20 * time.Second
	// receiptsEvery is how often a sender that has nothing to do looks again: a receipt is not urgent.
	receiptsEvery = time.Second
)

func sendReceipts(v *service, s config.Settings, log *slog.Logger) (func(context.Context) error, error) {
	addresses, err := addressesOf(s)
	if err != nil {
		return nil, err
	}
	mailer, err := openMailer(s)
	if err != nil {
		return nil, err
	}
	sender := receipts.NewSender(v.pool, mailer, addresses, log)
	return func(ctx context.Context) error { return sender.Run(ctx, receiptsEvery) }, nil
}

func addressesOf(s config.Settings) (receipts.Addresses, error) {
	a, err := receipts.ParseAddresses(s.ReceiptsFrom, s.ReceiptsTo)
	if err != nil {
		return a, fmt.Errorf("PAYMENTSD_RECEIPTS_FROM, PAYMENTSD_RECEIPTS_TO: %w", err)
	}
	return a, nil
}

func openMailer(s config.Settings) (receipts.Mailer, error) {
	if s.SMTPURL == "" {
		folder, err := receipts.NewFolder(filepath.Join(s.DataDir, "mail"))
		if err != nil {
			return nil, fmt.Errorf("PAYMENTSD_DATA_DIR: %w", err)
		}
		return folder, nil
	}
	mailer, err := receipts.NewSMTP(s.SMTPURL, s.ReceiptsFrom, smtpStepWithin)
	if err != nil {
		return nil, fmt.Errorf("PAYMENTSD_SMTP_URL: %w", err)
	}
	return mailer, nil
}
