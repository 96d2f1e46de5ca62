package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/paymentsd/paymentsd/internal/config"
	"github.com/paymentsd/paymentsd/internal/inbox"
	"github.com/paymentsd/paymentsd/internal/ledger"
	"github.com/paymentsd/paymentsd/internal/outbox"
	"github.com/paymentsd/paymentsd/internal/receipts"
)

// What the broker refused and what a consumer could not handle is set aside, and stops only the later events of its own
// payment. It waits for a person, who repairs the cause and has it handled again, or gives it up.

// ofRelay stands in the place of a consumer's name for events that the broker refused.
const ofRelay = "relay"

type deadLettersCmd struct {
	List    deadLettersListCmd    `cmd:"" help:"List what was set aside."`
	Redrive deadLettersRedriveCmd `cmd:"" help:"Have it handled again."`
	Discard deadLettersDiscardCmd `cmd:"" help:"Give a message up, for a reason that is kept. What a relay's broker refused cannot be given up."`
}

type deadLettersListCmd struct {
	Consumer  string `help:"Only of this consumer: ledger, receipts, or relay."`
	Discarded bool   `help:"Those that were given up too."`
	Max       int    `default:"1000" help:"How many rows at the most."`
}

func (c deadLettersListCmd) Run(ctx context.Context, s config.Settings) error {
	return withPool(ctx, s, func(pool *pgxpool.Pool) error {
		w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "CONSUMER\tTENANT\tMESSAGE\tSUBJECT\tSEQUENCE\tSINCE\tATTEMPTS\tREASON\tWHY")
		if c.Consumer == "" || c.Consumer == ofRelay {
			refused, err := outbox.ListRefused(ctx, pool, c.Max)
			if err != nil {
				return err
			}
			for _, r := range refused {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%d\trefused\t%s; %d later events wait\n", ofRelay, r.TenantID, r.EventID, r.AggregateID,
					r.Sequence, r.RefusedAt.UTC().Format(time.RFC3339), r.Attempts, r.Refusal, r.Waiting)
			}
		}
		if c.Consumer != ofRelay {
			letters, err := inbox.ListDeadLetters(ctx, pool, inbox.Query{Consumer: c.Consumer, WithDiscarded: c.Discarded, Max: c.Max})
			if err != nil {
				return err
			}
			for _, l := range letters {
				why := l.Error
				if l.Discarded != nil {
					why = fmt.Sprintf("given up by %s: %s", l.Discarded.By, l.Discarded.Why)
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%d\t%s\t%s (%s)\n", l.Consumer, l.TenantID, l.MessageID, l.AggregateID, l.Sequence,
					l.FirstAt.UTC().Format(time.RFC3339), l.Attempts, l.Reason, why, l.Reference)
			}
		}
		return w.Flush()
	})
}

type deadLettersRedriveCmd struct {
	Consumer string `arg:"" enum:"ledger,receipts,relay" help:"Whose message it is: ledger, receipts, or relay."`
	Tenant   string `arg:"" optional:"" help:"Id of the tenant."`
	Message  string `arg:"" optional:"" help:"Id of the message or event."`
	All      bool   `help:"All of this consumer instead of one."`
}

func (c deadLettersRedriveCmd) Run(ctx context.Context, s config.Settings, log *slog.Logger) error {
	if c.All == (c.Message != "") {
		return errors.New("name one message by tenant and id, or say --all")
	}
	return withPool(ctx, s, func(pool *pgxpool.Pool) error {
		var gone, failed int
		var err error
		switch {
		case c.Consumer == ofRelay && c.All:
			var events int64
			events, err = outbox.RedriveAll(ctx, pool)
			gone = int(events)
		case c.Consumer == ofRelay:
			err, gone = outbox.Redrive(ctx, pool, c.Tenant, c.Message), 1
		default:
			consumer := ledger.NewConsumer(pool, nil, log)
			if c.Consumer == receipts.ConsumerName {
				addresses, err := addressesOf(s)
				if err != nil {
					return err
				}
				consumer = receipts.NewConsumer(pool, nil, addresses, log)
			}
			if c.All {
				gone, failed, err = consumer.RedriveAll(ctx)
			} else {
				gone, err = consumer.Redrive(ctx, inbox.Key{TenantID: c.Tenant, MessageID: c.Message})
			}
		}
		if err != nil {
			return err
		}
		if c.Consumer == ofRelay {
			fmt.Printf("to be published again: %d; what the broker refuses again is listed again\n", gone)
			return nil
		}
		fmt.Printf("handled again: %d; failed again: %d\n", gone, failed)
		if failed > 0 {
			return errors.New("some failed again; deadletters list says why")
		}
		return nil
	})
}

type deadLettersDiscardCmd struct {
	Consumer string `arg:"" enum:"ledger,receipts" help:"Whose message it is: ledger or receipts."`
	Tenant   string `arg:"" help:"Id of the tenant; '' when it could not be read."`
	Message  string `arg:"" help:"Id of the message."`
	By       string `required:"" help:"Who decides it."`
	Reason   string `required:"" help:"Why."`
}

func (c deadLettersDiscardCmd) Run(ctx context.Context, s config.Settings) error {
	return withPool(ctx, s, func(pool *pgxpool.Pool) error {
		return inbox.Discard(ctx, pool, c.Consumer, inbox.Key{TenantID: c.Tenant, MessageID: c.Message}, c.By, c.Reason)
	})
}

type republishCmd struct {
	Since time.Duration `default:"24h" help:"Events published within this time, as a duration. What was published longer ago than PAYMENTSD_OUTBOX_RETENTION may be gone."`
}

func (c republishCmd) Run(ctx context.Context, s config.Settings) error {
	if c.Since <= 0 {
		return fmt.Errorf("--since is %v: it must be longer than nothing", c.Since)
	}
	return withPool(ctx, s, func(pool *pgxpool.Pool) error {
		events, err := outbox.Republish(ctx, pool, c.Since)
		if err != nil {
			return err
		}
		fmt.Printf("to be published again: %d\n", events)
		return nil
	})
}

type receiptsCmd struct {
	List    receiptsListCmd    `cmd:"" help:"List receipts of a status."`
	Resend  receiptsResendCmd  `cmd:"" help:"Send one again that failed or may not have arrived, under the same Message-ID."`
	Confirm receiptsConfirmCmd `cmd:"" help:"Say that one which was in doubt has arrived."`
}

type receiptsListCmd struct {
	Status string `default:"UNKNOWN" enum:"PENDING,SENDING,SENT,UNKNOWN,FAILED" help:"Status: PENDING, SENDING, SENT, UNKNOWN or FAILED."`
	Max    int    `default:"1000" help:"How many rows at the most."`
}

func (c receiptsListCmd) Run(ctx context.Context, s config.Settings) error {
	return withPool(ctx, s, func(pool *pgxpool.Pool) error {
		list, err := receipts.List(ctx, pool, c.Status, receipts.Receipt{}, c.Max)
		if err != nil {
			return err
		}
		w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "TENANT\tRECEIPT\tSTATUS\tATTEMPTS\tLAST ERROR\tMESSAGE-ID\tCREATED\tSENT")
		for _, r := range list {
			fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", r.TenantID, r.ID, r.Status, r.Attempts, r.LastError, r.MessageID,
				r.CreatedAt.UTC().Format(time.RFC3339), when(r.SentAt))
		}
		return w.Flush()
	})
}

type receiptsResendCmd struct {
	Tenant  string `arg:"" help:"Id of the tenant."`
	Receipt string `arg:"" help:"Id of the receipt."`
}

func (c receiptsResendCmd) Run(ctx context.Context, s config.Settings) error {
	return withPool(ctx, s, func(pool *pgxpool.Pool) error { return receipts.Resend(ctx, pool, c.Tenant, c.Receipt) })
}

type receiptsConfirmCmd struct {
	Tenant  string `arg:"" help:"Id of the tenant."`
	Receipt string `arg:"" help:"Id of the receipt."`
}

func (c receiptsConfirmCmd) Run(ctx context.Context, s config.Settings) error {
	return withPool(ctx, s, func(pool *pgxpool.Pool) error { return receipts.ConfirmSent(ctx, pool, c.Tenant, c.Receipt) })
}
