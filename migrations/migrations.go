// Package migrations is the only statement of the schema. The SQL files are embedded in the binary, applied by goose, and
// read by sqlc, so code, queries and database cannot disagree.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the database/sql driver that goose needs
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed *.sql
var files embed.FS

// Up brings the database at url to the newest schema. It is safe to run from several processes at once: the others wait.
func Up(ctx context.Context, url string) error {
	return with(url, func(p *goose.Provider) error {
		_, err := p.Up(ctx)
		return err
	})
}

// Down takes every migration back, newest first, and leaves an empty schema.
func Down(ctx context.Context, url string) error {
	return with(url, func(p *goose.Provider) error {
		_, err := p.DownTo(ctx, 0)
		return err
	})
}

// Current returns nil when the database has every migration that this binary knows. One that has more is current too: an
// older binary beside a newer one must go on working.
func Current(ctx context.Context, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}) error {
	var applied int64
	err := db.QueryRow(ctx, "SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied").Scan(&applied)
	if err != nil {
		return fmt.Errorf("read schema version: %w", err)
	}
	if newest := newest(); applied < newest {
		return fmt.Errorf("schema is at version %d, this binary needs %d: run paymentsd migrate", applied, newest)
	}
	return nil
}

// newest is the version of the last embedded migration: the number its file name begins with.
func newest() int64 {
	names, _ := fs.Glob(files, "*.sql") // the pattern is well-formed
	version, err := goose.NumericComponent(names[len(names)-1])
	if err != nil {
		panic(err) // a misnamed file: found by the first test that runs
	}
	return version
}

func with(url string, do func(*goose.Provider) error) error {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	defer db.Close()
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithSessionLocker(locker))
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if err := do(provider); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}
