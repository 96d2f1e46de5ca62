package pgtest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/devpg"
)

func TestOnlyAbandonedDirectoriesAreSwept(t *testing.T) {
	home := t.TempDir()
	t.Setenv("TMPDIR", home)
	aged := func(name string, age time.Duration, marked bool) string {
		dir := filepath.Join(home, "paymentsd-pgtest-"+name)
		require.NoError(t, os.Mkdir(dir, 0o700))
		if marked {
			require.NoError(t, os.WriteFile(filepath.Join(dir, keptMark), nil, 0o600))
		}
		require.NoError(t, os.Chtimes(dir, time.Now(), time.Now().Add(-age)))
		return dir
	}
	killed := aged("killed", time.Hour, false)
	starting := aged("starting", time.Minute, false)
	failed := aged("failed", time.Hour, true)
	old := aged("old", 48*time.Hour, true)
	running := aged("running", 0, false)
	server, err := devpg.Start(t.Context(), devpg.Config{Dir: running, Fast: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop(context.Background())) })
	require.NoError(t, os.Chtimes(running, time.Now(), time.Now().Add(-48*time.Hour)))

	sweep()
	require.NoDirExists(t, killed)
	require.DirExists(t, starting)
	require.DirExists(t, failed)
	require.NoDirExists(t, old)
	require.DirExists(t, running)
}
