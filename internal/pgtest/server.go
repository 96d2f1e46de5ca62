package pgtest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/devpg"
	"github.com/paymentsd/paymentsd/migrations"
)

// Dedicated is a PostgreSQL of one test's own, to be killed and started again. Its URL stays the same.
type Dedicated struct {
	*devpg.Server
	cfg devpg.Config
}

// Server starts a dedicated PostgreSQL with the schema in its database. It ends with the test.
func Server(t testing.TB, settings map[string]string) *Dedicated {
	t.Helper()
	d := &Dedicated{cfg: devpg.Config{Dir: t.TempDir(), Fast: true, Settings: settings}}
	d.Start(t)
	d.cfg.Port = d.Port()
	require.NoError(t, migrations.Up(context.Background(), d.URL()))
	t.Cleanup(func() {
		if err := d.Stop(context.Background()); err != nil {
			t.Errorf("stop the test's PostgreSQL: %v", err)
		}
	})
	return d
}

// Start brings the server back after Crash or Stop, at the same URL.
func (d *Dedicated) Start(t testing.TB) {
	t.Helper()
	s, err := devpg.Start(context.Background(), d.cfg)
	require.NoError(t, err)
	d.Server = s
}
