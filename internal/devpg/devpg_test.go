package devpg

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// parentDirEnv makes this test binary the process that owns a server, to be killed.
const parentDirEnv = "DEVPG_TEST_PARENT_OF"

// orphanEnv lets that server outlive it.
const orphanEnv = "DEVPG_TEST_ORPHAN_SURVIVES"

func TestMain(m *testing.M) {
	if dir := os.Getenv(parentDirEnv); dir != "" {
		beParent(dir)
		return
	}
	code := m.Run()
	if template.dir != "" {
		os.RemoveAll(template.dir)
	}
	os.Exit(code)
}

// beParent starts a server, says where it is, and waits to be killed.
func beParent(dir string) {
	endOrphans = endOrphans && os.Getenv(orphanEnv) == ""
	s, err := Start(context.Background(), Config{Dir: dir, Fast: true})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println("ready", s.PID(), s.URL())
	select {} // the server's own goroutine keeps this from being a deadlock
}

func TestCommittedRowsOutliveStopAndStart(t *testing.T) {
	cfg := Config{Dir: t.TempDir()}
	s := start(t, cfg)
	exec1(t, s.URL(), "CREATE TABLE kept AS SELECT 42 AS id")
	require.Contains(t, s.URL(), "@127.0.0.1:")
	require.NoError(t, s.Stop(context.Background()))
	require.NoError(t, s.Stop(context.Background()), "stopping twice is stopping once")
	require.NoFileExists(t, filepath.Join(cfg.Dir, "cluster", "postmaster.pid"))

	s = start(t, cfg)
	require.Equal(t, 1, countKept(t, s.URL()))
}

func TestCommittedRowsOutliveACrash(t *testing.T) {
	cfg := Config{Dir: used(t), Fast: true}
	s := start(t, cfg)
	exec1(t, s.URL(), "CREATE TABLE kept AS SELECT 42 AS id")
	busy, err := pgx.Connect(context.Background(), s.URL())
	require.NoError(t, err)
	defer busy.Close(context.Background())
	go busy.Exec(context.Background(), "SELECT pg_sleep(1)") //nolint:errcheck // a backend that is in the way for a while
	require.NoError(t, s.Crash())
	<-s.Done()
	require.Equal(t, 1, countKept(t, start(t, cfg).URL()))
}

func TestServerEndsWithItsKilledParent(t *testing.T) {
	if !endOrphans {
		t.Skip("this system does not tell a child that its parent died; the next start adopts it")
	}
	dir := used(t)
	parent, pid, url := startParent(t, dir)
	exec1(t, url, "CREATE TABLE kept AS SELECT 42 AS id")
	require.NoError(t, parent.Process.Kill())
	_ = parent.Wait() //nolint:errcheck // it was killed
	require.Eventually(t, func() bool { return !runsIn(pid, filepath.Join(dir, "cluster")) }, 10*time.Second, 10*time.Millisecond)
	require.Equal(t, 1, countKept(t, start(t, Config{Dir: dir, Fast: true}).URL()))
}

// A start may come while the orphan still shuts down.
func TestStartRightAfterAKillFindsTheData(t *testing.T) {
	dir := used(t)
	for round := range 3 {
		parent, _, url := startParent(t, dir)
		exec1(t, url, "CREATE TABLE IF NOT EXISTS kept (id int)")
		exec1(t, url, "INSERT INTO kept SELECT generate_series(1, 20000)")
		require.NoError(t, parent.Process.Kill())
		_ = parent.Wait() //nolint:errcheck // it was killed
		s := start(t, Config{Dir: dir, Fast: true})
		require.Equal(t, 20000*(round+1), countKept(t, s.URL()))
		require.NoError(t, s.Stop(context.Background()))
	}
}

func TestServerLeftRunningIsAdopted(t *testing.T) {
	dir := used(t)
	parent, pid, url := startParent(t, dir, orphanEnv+"=1")
	exec1(t, url, "CREATE TABLE kept AS SELECT 42 AS id")
	require.NoError(t, parent.Process.Kill())
	_ = parent.Wait() //nolint:errcheck // it was killed

	s := start(t, Config{Dir: dir, Fast: true})
	require.Equal(t, pid, s.PID())
	require.Equal(t, url, s.URL())
	require.Equal(t, 1, countKept(t, s.URL()))
	require.NoError(t, s.Stop(context.Background()))
	<-s.Done()
	require.False(t, runsIn(pid, filepath.Join(dir, "cluster")))
}

func TestStalePIDFileOfALivingStrangerDoesNotStopTheStart(t *testing.T) {
	cfg := Config{Dir: used(t), Fast: true}
	s := start(t, cfg)
	pidFile := filepath.Join(cfg.Dir, "cluster", "postmaster.pid")
	text, err := os.ReadFile(pidFile)
	require.NoError(t, err)
	require.NoError(t, s.Crash())

	// Its process id now belongs to a program of the same user, as happens in a restarted container.
	as, err := accountFor(s.files)
	require.NoError(t, err)
	stranger := exec.Command("sleep", "60")
	if as.other {
		stranger.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(as.uid), Gid: uint32(as.gid)}}
	}
	require.NoError(t, stranger.Start())
	t.Cleanup(func() { stranger.Process.Kill(); stranger.Wait() }) //nolint:errcheck // it sleeps
	_, rest, _ := strings.Cut(string(text), "\n")
	require.NoError(t, os.WriteFile(pidFile, []byte(strconv.Itoa(stranger.Process.Pid)+"\n"+rest), 0o600))

	start(t, cfg)
}

func TestServerIsNotInTheTerminalsProcessGroup(t *testing.T) {
	s := start(t, Config{Dir: used(t), Fast: true})
	group, err := syscall.Getpgid(s.PID())
	require.NoError(t, err)
	require.Equal(t, s.PID(), group)
}

func TestSecretsAreForTheOwnerOnly(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), Fast: true}
	s := start(t, cfg)
	for _, name := range []string{"password", "postgres.log"} {
		info, err := os.Stat(filepath.Join(cfg.Dir, name))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), name)
	}
	noPassword := strings.Replace(s.URL(), s.URL()[strings.Index(s.URL(), User+":"):strings.Index(s.URL(), "@")], User, 1)
	_, err := pgx.Connect(context.Background(), noPassword)
	require.Error(t, err, "the server must ask for the password")
}

func TestInterruptedInitIsStartedOver(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), Fast: true}
	half := filepath.Join(cfg.Dir, "cluster.new")
	require.NoError(t, os.Mkdir(half, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(half, "PG_VERSION"), []byte("9\n"), 0o600))
	start(t, cfg)
}

func TestDedicatedPortThatIsTakenIsNamed(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	_, err = Start(context.Background(), Config{Dir: used(t), Fast: true, Port: port})
	requireSentence(t, err, ErrPortTaken, fmt.Sprintf("127.0.0.1:%d", port))
}

func TestSecondProcessIsToldWhoUsesTheDirectory(t *testing.T) {
	dir := used(t)
	require.False(t, InUse(dir))
	parent, _, _ := startParent(t, dir)
	require.True(t, InUse(dir))
	_, err := Start(context.Background(), Config{Dir: dir, Fast: true})
	requireSentence(t, err, ErrInUse, strconv.Itoa(parent.Process.Pid), "PAYMENTSD_DATA_DIR")
	require.NoError(t, parent.Process.Kill())
	_ = parent.Wait() //nolint:errcheck // it was killed
	start(t, Config{Dir: dir, Fast: true})
}

var template struct {
	once sync.Once
	dir  string
}

// used returns a directory that has been started before: a copy, because making one takes longer than most tests here.
func used(t *testing.T) string {
	t.Helper()
	template.once.Do(func() {
		dir, err := os.MkdirTemp("", "devpg-test-*") // outlives the first test that asks; TestMain removes it
		require.NoError(t, err)
		s, err := Start(context.Background(), Config{Dir: dir, Fast: true})
		require.NoError(t, err)
		require.NoError(t, s.Stop(context.Background()))
		template.dir = dir
	})
	require.NotEmpty(t, template.dir, "making the template failed")
	dir := t.TempDir()
	out, err := exec.Command("cp", "-a", template.dir+"/.", dir).CombinedOutput()
	require.NoError(t, err, string(out))
	return dir
}

func start(t *testing.T, cfg Config) *Server {
	t.Helper()
	s, err := Start(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop(context.Background())) })
	return s
}

// startParent runs beParent in a process of its own.
func startParent(t *testing.T, dir string, env ...string) (parent *exec.Cmd, pid int, url string) {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	parent = exec.Command(exe)
	parent.Env = append(append(os.Environ(), parentDirEnv+"="+dir), env...)
	out, err := parent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, parent.Start())
	t.Cleanup(func() { parent.Process.Kill(); parent.Wait() }) //nolint:errcheck // it may be gone
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	n, err := fmt.Sscanf(line, "ready %d %s", &pid, &url)
	require.NoError(t, err, line)
	require.Equal(t, 2, n)
	return parent, pid, url
}

func exec1(t *testing.T, url, sql string) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	require.NoError(t, err)
	defer conn.Close(context.Background())
	_, err = conn.Exec(context.Background(), sql)
	require.NoError(t, err)
}

func countKept(t *testing.T, url string) (n int) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	require.NoError(t, err)
	defer conn.Close(context.Background())
	require.NoError(t, conn.QueryRow(context.Background(), "SELECT count(*) FROM kept").Scan(&n))
	return n
}

// requireSentence: an error for a person is one line, and names what it is about.
func requireSentence(t *testing.T, err, kind error, words ...string) {
	t.Helper()
	require.ErrorIs(t, err, kind)
	require.NotContains(t, err.Error(), "\n")
	for _, w := range words {
		require.Contains(t, err.Error(), w)
	}
}
