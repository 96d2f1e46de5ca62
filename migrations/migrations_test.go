package migrations_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/pgtest"
	"github.com/paymentsd/paymentsd/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func connect(t *testing.T) (*pgx.Conn, string) {
	url := pgtest.URL(t)
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	return conn, url
}

func tables(t *testing.T, conn *pgx.Conn) (n int) {
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'goose_db_version'`).Scan(&n))
	return n
}

func TestEveryMigrationGoesDownAndUpAgain(t *testing.T) {
	conn, url := connect(t)
	full := tables(t, conn)
	require.NotZero(t, full)
	require.NoError(t, migrations.Current(t.Context(), conn))
	require.NoError(t, migrations.Down(t.Context(), url))
	require.Zero(t, tables(t, conn), "a down migration leaves something behind")
	require.ErrorContains(t, migrations.Current(t.Context(), conn), "run paymentsd migrate")
	require.NoError(t, migrations.Up(t.Context(), url))
	require.Equal(t, full, tables(t, conn))
	require.NoError(t, migrations.Current(t.Context(), conn))
}

func TestUpMayRunInManyProcessesAtOnce(t *testing.T) {
	conn, url := connect(t)
	require.NoError(t, migrations.Down(t.Context(), url))
	const processes = 4
	done := make(chan error, processes)
	for range processes {
		go func() { done <- migrations.Up(t.Context(), url) }()
	}
	for range processes {
		require.NoError(t, <-done)
	}
	require.NoError(t, migrations.Current(t.Context(), conn))
}

// Every primary key and unique constraint contains tenant_id, so that the schema can be distributed by tenant. The leases of
// the relays are about no tenant's data.
func TestEveryUniqueKeyContainsTheTenant(t *testing.T) {
	conn, _ := connect(t)
	rows, err := conn.Query(t.Context(), `
		SELECT c.relname, NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) AND a.attname = 'tenant_id')
		FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
		JOIN pg_namespace n ON n.oid = t.relnamespace
		WHERE i.indisunique AND n.nspname = 'public' AND t.relname NOT IN ('goose_db_version', 'outbox_relays', 'outbox_shards')`)
	require.NoError(t, err)
	defer rows.Close()
	found := 0
	for rows.Next() {
		var index string
		var without bool
		require.NoError(t, rows.Scan(&index, &without))
		require.False(t, without, "%s does not contain tenant_id", index)
		found++
	}
	require.NoError(t, rows.Err())
	require.NotZero(t, found)
}
