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

	"github.com/paymentsd/paymentsd/internal/accounts"
	"github.com/paymentsd/paymentsd/internal/api"
	"github.com/paymentsd/paymentsd/internal/config"
	"github.com/paymentsd/paymentsd/internal/tenants"
	"github.com/paymentsd/paymentsd/migrations"
)

type migrateCmd struct {
	Demo bool `env:"PAYMENTSD_DEMO" help:"Make the demo tenants acme and globex too, with API keys that everybody knows."`
	Down bool `help:"Take every migration back instead. All data are lost."`
}

func (c migrateCmd) Run(ctx context.Context, s config.Settings, log *slog.Logger) error {
	if err := s.NeedDatabase(); err != nil {
		return err
	}
	if c.Down {
		return migrations.Down(ctx, s.DatabaseURL)
	}
	if err := migrations.Up(ctx, s.DatabaseURL); err != nil {
		return err
	}
	log.Info("schema is current")
	if !c.Demo {
		return nil
	}
	return withDirectory(ctx, s, func(d *tenants.Directory) error { return d.Demo(ctx) })
}

type tenantCmd struct {
	Create  tenantCreateCmd  `cmd:"" help:"Make a tenant."`
	Pin     tenantPinCmd     `cmd:"" help:"Say which version of the API answers requests that name none."`
	Account tenantAccountCmd `cmd:"" help:"Open an account of a tenant."`
}

type tenantCreateCmd struct {
	Tenant string `arg:"" help:"Id of the tenant: lower-case letters, digits, underscores, hyphens."`
}

func (c tenantCreateCmd) Run(ctx context.Context, s config.Settings) error {
	return withDirectory(ctx, s, func(d *tenants.Directory) error { return d.Create(ctx, c.Tenant) })
}

type tenantPinCmd struct {
	Tenant  string `arg:"" help:"Id of the tenant."`
	Version string `arg:"" help:"A version of the API, such as 2026-05-01."`
}

func (c tenantPinCmd) Run(ctx context.Context, s config.Settings) error {
	if !api.KnowsVersion(c.Version) {
		return fmt.Errorf("this API has no version %q", c.Version)
	}
	return withDirectory(ctx, s, func(d *tenants.Directory) error { return d.PinAPIVersion(ctx, c.Tenant, c.Version) })
}

type tenantAccountCmd struct {
	Tenant  string `arg:"" help:"Id of the tenant."`
	Account string `arg:"" help:"Id of the account."`
}

func (c tenantAccountCmd) Run(ctx context.Context, s config.Settings) error {
	return withPool(ctx, s, func(pool *pgxpool.Pool) error {
		_, _, err := accounts.NewRegister(pool).Put(ctx, c.Tenant, c.Account, accounts.Open)
		return err
	})
}

type apiKeyCmd struct {
	Issue  apiKeyIssueCmd  `cmd:"" help:"Issue an API key and print its secret, once."`
	List   apiKeyListCmd   `cmd:"" help:"List a tenant's API keys."`
	Revoke apiKeyRevokeCmd `cmd:"" help:"Revoke an API key; a second later nobody accepts it."`
}

type apiKeyIssueCmd struct {
	Tenant string          `arg:"" help:"Id of the tenant."`
	Name   string          `arg:"" help:"A name for the API key, to revoke it by."`
	Scopes []tenants.Scope `name:"scope" enum:"read,pay,refund" default:"read,pay,refund" help:"What it may be used for: read, pay, refund."`
}

func (c apiKeyIssueCmd) Run(ctx context.Context, s config.Settings) error {
	if len(c.Scopes) == 0 {
		return errors.New("--scope is empty: name what the API key may be used for, or leave the flag out for everything")
	}
	return withDirectory(ctx, s, func(d *tenants.Directory) error {
		secret, err := d.IssueAPIKey(ctx, c.Tenant, c.Name, c.Scopes...)
		if err == nil {
			fmt.Println(secret)
		}
		return err
	})
}

type apiKeyListCmd struct {
	Tenant string `arg:"" help:"Id of the tenant."`
}

func (c apiKeyListCmd) Run(ctx context.Context, s config.Settings) error {
	return withDirectory(ctx, s, func(d *tenants.Directory) error {
		keys, err := d.APIKeys(ctx, c.Tenant)
		if err != nil {
			return err
		}
		w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "NAME\tSCOPES\tISSUED\tREVOKED")
		for _, k := range keys {
			fmt.Fprintf(w, "%s\t%v\t%s\t%s\n", k.Name, k.Scopes, k.CreatedAt.UTC().Format(time.RFC3339), when(k.RevokedAt))
		}
		return w.Flush()
	})
}

type apiKeyRevokeCmd struct {
	Tenant string `arg:"" help:"Id of the tenant."`
	Name   string `arg:"" help:"Name of the API key."`
}

func (c apiKeyRevokeCmd) Run(ctx context.Context, s config.Settings) error {
	return withDirectory(ctx, s, func(d *tenants.Directory) error { return d.RevokeAPIKey(ctx, c.Tenant, c.Name) })
}

func withDirectory(ctx context.Context, s config.Settings, do func(*tenants.Directory) error) error {
	return withPool(ctx, s, func(pool *pgxpool.Pool) error {
		err := do(tenants.NewDirectory(pool))
		if err == nil || errors.Is(err, tenants.ErrNotFound) || errors.Is(err, tenants.ErrExists) {
			return err
		}
		return fmt.Errorf("DATABASE_URL: %w", err)
	})
}

// withPool connects to the database for one command of an operator.
func withPool(ctx context.Context, s config.Settings, do func(*pgxpool.Pool) error) error {
	pool, err := openPool(ctx, s)
	if err != nil {
		return err
	}
	defer pool.Close()
	return do(pool)
}

type unknownsCmd struct {
	Max int `default:"1000" help:"How many rows at the most, the oldest first."`
}

// Run lists the evidence. An operator decides by it, with the provider's own records beside it; this service never will.
func (c unknownsCmd) Run(ctx context.Context, s config.Settings, log *slog.Logger) error {
	v, err := openService(ctx, s, log)
	if err != nil {
		return err
	}
	defer v.pool.Close()
	list, err := v.payments.Unknown(ctx, c.Max)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TENANT\tPAYMENT\tACCOUNT\tMINOR UNITS\tCURRENCY\tAGE\tSENDS\tATTEMPTS\tLAST REASON\tNEXT LOOK\tRECOVERY")
	for _, u := range list {
		may := "goes on"
		if u.NeedsOperator {
			may = "only looks; needs a person"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t%d\t%d\t%s\t%s\t%s\n", u.TenantID, u.PaymentID, u.AccountID, u.AmountMinor, u.Currency,
			u.Age.Round(time.Second), u.Sends, u.Attempts, u.Reason, when(u.NextAttemptAt), may)
	}
	return w.Flush()
}

func when(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}
