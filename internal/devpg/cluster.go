package devpg

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// dirLock is held for as long as this process owns the directory; the kernel drops it when the process dies.
type dirLock struct{ file *os.File }

func lockDir(files layout) (*dirLock, error) {
	f, err := os.OpenFile(files.lock, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, notWritable(files.dir, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		owner, _ := os.ReadFile(files.lock) //nolint:errcheck // only decorates the sentence
		f.Close()
		return nil, fmt.Errorf("%w: %s belongs to the running process %s; stop that one, or set PAYMENTSD_DATA_DIR to another directory",
			ErrInUse, files.dir, strings.TrimSpace(string(owner)))
	}
	if err := f.Truncate(0); err != nil {
		f.Close()
		return nil, notWritable(files.dir, err)
	}
	if _, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		f.Close()
		return nil, notWritable(files.dir, err)
	}
	return &dirLock{file: f}, nil
}

func (l *dirLock) release() { l.file.Close() }

// InUse reports whether a process owns the directory: a running one, or one that we may not ask about.
func InUse(dir string) bool {
	f, err := os.Open(filepath.Join(dir, lockName))
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close() // gives the lock back
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil
}

// account is whom the server runs as.
type account struct {
	uid, gid int
	other    bool // not us: the process is root, and PostgreSQL refuses to be
}

// accountFor keeps the owner of an existing cluster. For a new one it is us, and for root the user that Debian's package
// made, else nobody.
func accountFor(files layout) (account, error) {
	if os.Geteuid() != 0 {
		return account{uid: os.Geteuid(), gid: os.Getegid()}, nil
	}
	info, err := os.Stat(files.cluster)
	if err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 {
			return account{uid: int(st.Uid), gid: int(st.Gid), other: true}, nil
		}
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.Atoi(u.Uid)
		gid, gidErr := strconv.Atoi(u.Gid)
		if uidErr == nil && gidErr == nil && uid > 0 {
			return account{uid: uid, gid: gid, other: true}, nil
		}
	}
	return account{}, fmt.Errorf("%w: PostgreSQL refuses to run as root and there is no user postgres or nobody to run it as; start paymentsd as an ordinary user",
		ErrNotStarted)
}

// major reads which major version made the cluster; 0 is no cluster yet.
func (l layout) major() (int, error) {
	text, err := os.ReadFile(filepath.Join(l.cluster, "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, notWritable(l.dir, err)
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("read %s/PG_VERSION: %w", l.cluster, err)
	}
	return major, nil
}

// password returns the one the cluster was made with, or makes one for a cluster to come.
func (l layout) password() (string, error) {
	text, err := os.ReadFile(l.secret)
	if err == nil && len(text) > 0 {
		return strings.TrimSpace(string(text)), nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", notWritable(l.dir, err)
	}
	if _, err := os.Stat(l.cluster); err == nil {
		return "", fmt.Errorf("%w: %s is missing, so nobody can log in; put it back, or move %s away to start with an empty database",
			ErrNotStarted, l.secret, l.dir)
	}
	made := rand.Text()
	return made, writePrivate(l.secret, made+"\n")
}

// writePrivate replaces a file in one step with one that only its owner can read.
func writePrivate(name, text string) error {
	part := name + ".part"
	if err := os.WriteFile(part, []byte(text), 0o600); err != nil {
		return notWritable(filepath.Dir(name), err)
	}
	if err := os.Rename(part, name); err != nil {
		return notWritable(filepath.Dir(name), err)
	}
	return nil
}

// initCluster makes the cluster beside its final place and renames it, so that whatever interrupts it, the next start
// finds either all of it or none.
func initCluster(ctx context.Context, cfg Config, files layout, progs programs, as account, password string) error {
	if err := os.RemoveAll(files.fresh); err != nil {
		return notWritable(files.dir, err)
	}
	if err := os.Mkdir(files.fresh, 0o700); err != nil {
		return notWritable(files.dir, err)
	}
	secret, err := passwordFile(as, password)
	if err != nil {
		return err
	}
	defer secret.Close()
	args := []string{
		"--username=" + User, "--encoding=UTF8", "--locale=C", "--auth=scram-sha-256", "--data-checksums",
		// The server's account can open a file we hold open, wherever that file lies.
		"--pwfile=/dev/fd/" + strconv.Itoa(passwordFD),
	}
	if cfg.Fast {
		args = append(args, "--no-sync")
	}
	cmd, done, err := clusterCommand(ctx, filepath.Join(progs.dir, "initdb"), files.fresh, as, args, secret)
	if err != nil {
		return err
	}
	defer done()
	runtime.LockOSThread() // it, too, is told when the thread that started it ends; see launchOn
	defer runtime.UnlockOSThread()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: initdb in %s: %w: %s", ErrNotStarted, files.fresh, err, lastLines(string(out)))
	}
	if err := os.Rename(files.fresh, files.cluster); err != nil {
		return notWritable(files.dir, err)
	}
	return nil
}

// passwordFile is an open file that has no name any more and belongs to the server's account.
func passwordFile(as account, password string) (*os.File, error) {
	f, err := os.CreateTemp("", "paymentsd-*")
	if err != nil {
		return nil, fmt.Errorf("make a temporary file: %w", err)
	}
	_, err = f.WriteString(password + "\n")
	if err == nil {
		_, err = f.Seek(0, 0) // /dev/fd shares the position on some systems
	}
	if err == nil && as.other {
		err = f.Chown(as.uid, as.gid)
	}
	if err = errors.Join(err, os.Remove(f.Name())); err != nil {
		f.Close()
		return nil, fmt.Errorf("hand over the password: %w", err)
	}
	return f, nil
}

// dataDirFD and passwordFD are where a child finds what clusterCommand hands it: exec numbers extra files from 3.
const (
	dataDirFD  = 3
	passwordFD = 4
)

// clusterCommand prepares a program that works on a cluster directory. It runs as the server's account, in a process
// group of its own: a Ctrl-C in the terminal must reach us first, so that work in flight can end before the database does.
// done releases what the running program no longer needs from us.
func clusterCommand(ctx context.Context, program, cluster string, as account, args []string, extra *os.File) (*exec.Cmd, func(), error) {
	if as.other {
		if err := chownTree(cluster, as); err != nil {
			return nil, nil, notWritable(cluster, err)
		}
	}
	dir, err := os.Open(cluster)
	if err != nil {
		return nil, nil, notWritable(cluster, err)
	}
	cmd := exec.CommandContext(ctx, program, append([]string{"-D", dataDirArg(cluster, as)}, args...)...)
	cmd.Dir = "/" // ours may be one the account cannot enter
	cmd.Env = childEnv()
	cmd.ExtraFiles = []*os.File{dir}
	if extra != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, extra)
	}
	cmd.WaitDelay = stopGrace // a cancelled initdb may leave a child that holds our pipe
	cmd.SysProcAttr = procAttr()
	if as.other {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(as.uid), Gid: uint32(as.gid)}
	}
	return cmd, func() { dir.Close() }, nil
}

// chownTree gives the account the cluster and nothing above it. It does nothing when the account has it already.
func chownTree(cluster string, as account) error {
	info, err := os.Stat(cluster)
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) == as.uid {
		return nil
	}
	return filepath.WalkDir(cluster, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, as.uid, as.gid)
	})
}

// childEnv is ours without PG*: a PGDATA or PGPORT in the developer's shell is meant for another server.
func childEnv() []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PG") && !strings.HasPrefix(v, "LC_") && !strings.HasPrefix(v, "LANG") {
			env = append(env, v)
		}
	}
	return append(env, "LC_ALL=C")
}

func connURL(password string, port int, database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(User, password),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

func createDatabase(ctx context.Context, adminURL string) error {
	conn, err := pgx.Connect(ctx, adminURL)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var exists bool
	if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", Database).Scan(&exists); err != nil {
		return err
	}
	if exists {
		return nil
	}
	_, err = conn.Exec(ctx, "CREATE DATABASE "+Database)
	return err
}
