package devpg

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestVersionsAreReadAsPrinted(t *testing.T) {
	for out, want := range map[string]int{
		"postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n": 15,
		"postgres (PostgreSQL) 17.5 (Homebrew)\n":                17,
		"postgres (PostgreSQL) 18beta1\n":                        18,
		"postgres (PostgreSQL) 9.6.24\n":                         9,
	} {
		major, _, ok := parseVersion(out)
		require.True(t, ok, out)
		require.Equal(t, want, major)
	}
	_, _, ok := parseVersion("postgres: error\n")
	require.False(t, ok)
}

func TestNewestIsChosenUnlessTheClusterNeedsAnother(t *testing.T) {
	found := []programs{{dir: "a", major: 15}, {dir: "b", major: 17}, {dir: "c", major: 17}}
	p, ok := choose(found, 0)
	require.True(t, ok)
	require.Equal(t, "b", p.dir)
	p, ok = choose(found, 15)
	require.True(t, ok)
	require.Equal(t, "a", p.dir)
	_, ok = choose(found, 16)
	require.False(t, ok)
}

func TestMissingProgramsAreExplained(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), places: places{path: t.TempDir(), globs: []string{"/nowhere/postgresql/*/bin"}}}
	_, err := Start(context.Background(), cfg)
	requireSentence(t, err, ErrNoPrograms, "/nowhere/postgresql/*/bin", "apt-get install postgresql", "DATABASE_URL")
}

func TestFailedInstallationSaysWhy(t *testing.T) {
	apt := filepath.Join(t.TempDir(), "apt-get")
	require.NoError(t, os.WriteFile(apt, []byte("#!/bin/sh\necho E: no network >&2\nexit 100\n"), 0o755))
	if os.Geteuid() != 0 {
		t.Skip("only root installs")
	}
	_, err := Start(context.Background(), Config{Dir: t.TempDir(), places: places{path: t.TempDir(), apt: apt}})
	requireSentence(t, err, ErrNoPrograms, "E: no network", "DATABASE_URL")
}

func TestClusterOfAnotherMajorVersionIsNotTouched(t *testing.T) {
	cfg := Config{Dir: used(t), Fast: true}
	version := filepath.Join(cfg.Dir, "cluster", "PG_VERSION")
	require.NoError(t, os.WriteFile(version, []byte("14\n"), 0o600))
	_, err := Start(context.Background(), cfg)
	requireSentence(t, err, ErrOtherVersion, "PostgreSQL 14", "move that directory away")
}

func TestUnwritableDirectoryIsExplained(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := Start(context.Background(), Config{Dir: filepath.Join(file, "sub")}) // refuses root too
	requireSentence(t, err, ErrNotWritable, file, "PAYMENTSD_DATA_DIR")

	if os.Geteuid() != 0 {
		shut := filepath.Join(t.TempDir(), "shut")
		require.NoError(t, os.Mkdir(shut, 0o500))
		_, err = Start(context.Background(), Config{Dir: shut})
		requireSentence(t, err, ErrNotWritable, shut, "PAYMENTSD_DATA_DIR")
	}
}

// Root's server runs as another user below a directory that only root can enter.
func TestRootsDirectoryMayBeShutToOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only for root")
	}
	home := t.TempDir()
	require.NoError(t, os.Chmod(home, 0o700))
	cfg := Config{Dir: filepath.Join(home, "checkout", ".data", "postgres"), Fast: true}
	s := start(t, cfg)
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(s.PID()), "status"))
	require.NoError(t, err)
	require.NotContains(t, string(status), "Uid:\t0\t")
	require.Contains(t, string(status), "CapEff:\t0000000000000000", "the server has no privilege")
	exec1(t, s.URL(), "CREATE TABLE kept AS SELECT 42 AS id")
	require.NoError(t, s.Crash())
	require.Equal(t, 1, countKept(t, start(t, cfg).URL()))
}

// Everything above ran as whoever runs the tests. When that is root, an ordinary user's way is tried too.
func TestOrdinaryUserNeedsNoRoot(t *testing.T) {
	if os.Geteuid() != 0 || runtime.GOOS != "linux" {
		t.Skip("the other tests are this test")
	}
	dir := t.TempDir()
	open := filepath.Join(dir, "nobody")
	require.NoError(t, os.Mkdir(open, 0o700))
	require.NoError(t, os.Chown(open, nobody, nobody))
	letIn(t, dir)
	parent := asNobody(open)
	out, err := parent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, parent.Start())
	line := make([]byte, 512)
	n, err := out.Read(line)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(line[:n]), "ready "), string(line[:n]))
	require.NoError(t, parent.Process.Kill())
	_ = parent.Wait() //nolint:errcheck // it was killed

	// Root later finds a cluster of nobody's and leaves it nobody's.
	s := start(t, Config{Dir: open, Fast: true})
	info, err := os.Stat(filepath.Join(open, "cluster"))
	require.NoError(t, err)
	require.EqualValues(t, nobody, info.Sys().(*syscall.Stat_t).Uid)
	require.NoError(t, s.Stop(context.Background()))

	require.NoError(t, os.Chmod(open, 0o500))
	refused, err := asNobody(filepath.Join(open, "more")).Output()
	require.Error(t, err)
	require.Contains(t, string(refused), ErrNotWritable.Error())
}

// letIn opens a test's directory to other users; it is made shut.
func letIn(t *testing.T, dir string) {
	t.Helper()
	for ; dir != "/"; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		require.NoError(t, err)
		if info.Mode().Perm()&0o001 == 0 {
			require.NoError(t, os.Chmod(dir, 0o755))
		}
	}
}

// nobody is the number that every system gives an account without rights.
const nobody = 65534

// asNobody is startParent's process without root's rights. It is found by a link that asks no permission of its path.
func asNobody(dir string) *exec.Cmd {
	parent := exec.Command("/proc/self/exe")
	parent.Dir = "/"
	parent.Env = append(os.Environ(), parentDirEnv+"="+dir, "TMPDIR=/tmp", "HOME=/nonexistent")
	parent.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return parent
}

// The library that fetches is asked for the programs only: from there on it is the start that every other way shares.
func TestFetchedProgramsStartTheSameWay(t *testing.T) {
	if _, err := exec.LookPath("xz"); err != nil {
		t.Skip("the archive is made with xz")
	}
	have := installed(context.Background(), usualPlaces().dirs())
	require.NotEmpty(t, have)
	repository := repositoryOf(t, have[0].dir)
	to := t.TempDir()
	letIn(t, to)                    // as /var/lib/paymentsd does
	t.Setenv("TMPDIR", t.TempDir()) // the library leaves its log there
	cfg := Config{Dir: t.TempDir(), Fast: true, places: places{path: t.TempDir(), fetch: true, fetchAt: repository, fetchTo: to}}
	s := start(t, cfg)
	exec1(t, s.URL(), "CREATE TABLE kept AS SELECT 42 AS id")
	running, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(s.PID()), "exe"))
	if err == nil {
		require.Equal(t, fetchedDir(cfg, s.files), filepath.Dir(running))
	}
	require.NoError(t, s.Stop(context.Background()))

	cfg.places.fetchAt = "http://127.0.0.1:1" // fetched once, never again
	require.Equal(t, 1, countKept(t, start(t, cfg).URL()))
}

func TestFailedFetchSaysWhy(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()) // the library leaves its log there
	cfg := Config{Dir: t.TempDir(), places: places{path: t.TempDir(), fetch: true, fetchAt: "http://127.0.0.1:1", fetchTo: t.TempDir()}}
	_, err := Start(context.Background(), cfg)
	requireSentence(t, err, ErrNoPrograms, "unable to connect to http://127.0.0.1:1", "DATABASE_URL")
}

// repositoryOf serves the installation in dir in the shape that the fetching library expects.
func repositoryOf(t *testing.T, dir string) string {
	t.Helper()
	var archive bytes.Buffer
	tar := exec.Command("tar", "--dereference", "-cJf", "-", "-C", filepath.Dir(dir), "--exclude=bitcode", "--exclude=llvmjit*", "bin/initdb", "bin/postgres", "bin/pg_ctl", "lib")
	tar.Env = append(os.Environ(), "XZ_OPT=-0")
	tar.Stdout = &archive
	require.NoError(t, tar.Run())
	var jar bytes.Buffer
	z := zip.NewWriter(&jar)
	w, err := z.Create("postgres.txz")
	require.NoError(t, err)
	_, err = w.Write(archive.Bytes())
	require.NoError(t, err)
	require.NoError(t, z.Close())
	sum := sha256.Sum256(jar.Bytes())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ".sha256") {
			_, _ = w.Write([]byte(hex.EncodeToString(sum[:]))) //nolint:errcheck // a test server
			return
		}
		_, _ = w.Write(jar.Bytes()) //nolint:errcheck // a test server
	}))
	t.Cleanup(server.Close)
	return server.URL
}
