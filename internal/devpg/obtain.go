package devpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// fetchedVersion is pinned: the cluster's files belong to one major version, so a newer default of the library must not
// reach a directory that exists.
const (
	fetchedVersion = embeddedpostgres.V17
	fetchedMajor   = 17
)

// obtain installs PostgreSQL where it may, else fetches it. It returns what it got and, for the error message, why the
// rest failed.
func obtain(ctx context.Context, cfg Config, files layout) (got []programs, reasons string) {
	if cfg.places.apt != "" {
		cfg.Log.Info("PostgreSQL is not installed: installing Debian's package postgresql, which can take a minute")
		if err := aptInstall(ctx, cfg); err != nil {
			reasons += fmt.Sprintf("; installing Debian's package failed (%v)", err)
		} else if got = installed(ctx, cfg.places.dirs()); len(got) > 0 {
			return got, reasons
		}
	}
	if cfg.places.fetch {
		cfg.Log.Info("PostgreSQL is not installed: fetching it, which can take a minute", "version", string(fetchedVersion))
		if err := fetch(cfg, files); err != nil {
			reasons += fmt.Sprintf("; fetching it failed (%v)", err)
		}
		got = installed(ctx, []string{fetchedDir(cfg, files)})
	}
	return got, reasons
}

// createclusterDir is read by Debian's postgresql-common when its server package is installed.
const createclusterDir = "/etc/postgresql-common/createcluster.d"

// aptInstall installs the server without the cluster and the running service that Debian adds to it: we want the programs,
// and port 5432 is not ours to take. Processes that need it at the same time (the test binaries of several packages) take
// turns, and all but the first find it done.
func aptInstall(ctx context.Context, cfg Config) error {
	if err := os.MkdirAll(createclusterDir, 0o755); err != nil {
		return err
	}
	turn, err := os.Open(createclusterDir)
	if err != nil {
		return err
	}
	defer turn.Close()
	if err := syscall.Flock(int(turn.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", createclusterDir, err)
	}
	if len(installed(ctx, cfg.places.dirs())) > 0 {
		return nil
	}
	quiet := filepath.Join(createclusterDir, "paymentsd.conf")
	if err := os.WriteFile(quiet, []byte("create_main_cluster = false\n"), 0o644); err != nil {
		return err
	}
	defer os.Remove(quiet) // a server the machine's owner installs later is the owner's business again
	for _, args := range [][]string{
		{"update"},
		{"install", "--yes", "--no-install-recommends", "--option=DPkg::Lock::Timeout=300", "postgresql"}, // another apt may be at work
	} {
		cmd := exec.CommandContext(ctx, cfg.places.apt, args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w: %s", args[0], err, lastLines(string(out)))
		}
	}
	return nil
}

// fetchedRoot is where fetch puts the programs. Root's go to a place that the server's account can reach.
func fetchedRoot(cfg Config, files layout) string {
	name := "postgresql-" + string(fetchedVersion)
	switch {
	case cfg.places.fetchTo != "":
		return filepath.Join(cfg.places.fetchTo, name)
	case os.Geteuid() == 0:
		return filepath.Join("/var/lib/paymentsd", name)
	default:
		return filepath.Join(files.dir, name)
	}
}

func fetchedDir(cfg Config, files layout) string {
	return filepath.Join(fetchedRoot(cfg, files), "bin")
}

// fetch lets the library bring the programs. It also tries them, on a cluster that is thrown away, but not the way we
// start them: for root, say, that must fail. So only that they are all there counts here, and our own start judges them.
func fetch(cfg Config, files layout) error {
	root := fetchedRoot(cfg, files)
	if err := os.MkdirAll(filepath.Dir(root), 0o755); err != nil {
		return err
	}
	scratch, err := os.MkdirTemp(filepath.Dir(root), "fetch-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	port, err := freePort(0)
	if err != nil {
		return err
	}
	part := filepath.Join(scratch, "programs")
	var said bytes.Buffer
	conf := embeddedpostgres.DefaultConfig().
		Version(fetchedVersion).Port(uint32(port)).Logger(io.Writer(&said)).StartTimeout(time.Minute).
		BinariesPath(part).CachePath(scratch).
		RuntimePath(filepath.Join(scratch, "run")).DataPath(filepath.Join(scratch, "data"))
	if cfg.places.fetchAt != "" {
		conf = conf.BinaryRepositoryURL(cfg.places.fetchAt)
	}
	trial := embeddedpostgres.NewDatabase(conf)
	tried := trial.Start()
	if tried == nil {
		tried = trial.Stop()
	}
	// The library makes its run directory when the programs are all there.
	if _, err := os.Stat(filepath.Join(scratch, "run")); err != nil {
		return fmt.Errorf("%s %s", lastLines(errors.Join(tried, err).Error()), lastLines(said.String()))
	}
	// Renamed when complete: an interrupted fetch is not taken for an installation.
	if err := os.RemoveAll(root); err != nil {
		return err
	}
	return os.Rename(part, root)
}
