// Command paymentsd is every role of the service in one binary: the API, the recovery worker, the fake provider, the
// migrations, what operators need, and "dev", which is all of them in one process with a database of its own.
//
// This package reads the environment, builds every dependency by hand, and runs one role.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/paymentsd/paymentsd/internal/config"
)

// commands is the command line. Each role is a struct with a Run method.
type commands struct {
	config.Settings

	Dev          devCmd          `cmd:"" help:"Everything in one process, with a private PostgreSQL: the way to try it."`
	API          apiCmd          `cmd:"" help:"Serve the API."`
	Recover      recoverCmd      `cmd:"" help:"Find out what became of payments whose owner died or could not know."`
	Cleanup      cleanupCmd      `cmd:"" help:"End what has expired: keys, tombstones, published events, payments nobody asks for any more."`
	Relay        relayCmd        `cmd:"" help:"Publish committed events to the broker."`
	Consume      consumeCmd      `cmd:"" help:"Take events from the broker."`
	SendReceipts sendReceiptsCmd `cmd:"" help:"Send the receipts that are written."`
	Provider     providerCmd     `cmd:"" help:"Serve the fake payment provider."`
	Migrate      migrateCmd      `cmd:"" help:"Bring the database to the newest schema."`
	Tenant       tenantCmd       `cmd:"" help:"Make tenants and their accounts."`
	APIKey       apiKeyCmd       `cmd:"" name:"apikey" help:"Issue, list and revoke API keys."`
	Unknowns     unknownsCmd     `cmd:"" help:"List payments whose outcome nobody knows yet."`
	Republish    republishCmd    `cmd:"" help:"Publish events again that were published within some time: after the broker has lost them."`
	DeadLetters  deadLettersCmd  `cmd:"" name:"deadletters" help:"Look at events and messages that were set aside, and have them handled again."`
	Receipts     receiptsCmd     `cmd:"" help:"Look at receipts, and decide about those that are in doubt."`
	Healthcheck  healthcheckCmd  `cmd:"" help:"Exit with 0 when the process at PAYMENTSD_ADMIN_ADDR is ready; for containers."`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			fmt.Fprintln(os.Stderr, "paymentsd: "+line)
		}
		os.Exit(1)
	}
}

func run(args []string) error {
	var c commands
	parser, err := kong.New(&c, kong.Name("paymentsd"),
		kong.Description("Payments whose second request is safe.\n\nEvery setting is a flag and an environment variable."),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, FlagsLast: true}), kong.UsageOnError())
	if err != nil {
		return err
	}
	dropEmptyEnvironment()
	chosen, err := parser.Parse(args)
	if err != nil {
		return nameVariable(err)
	}
	if err := c.Check(); err != nil {
		return err
	}

	// The first Ctrl-C or SIGTERM ends the role in good order; a second one ends it at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	chosen.BindTo(ctx, (*context.Context)(nil))
	return chosen.Run(c.Settings, logger(c.LogLevel))
}

func logger(level string) *slog.Logger {
	var l slog.Level
	_ = l.UnmarshalText([]byte(level)) // kong has checked the name
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l}))
}
