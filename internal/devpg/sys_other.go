//go:build unix && !linux

package devpg

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// endOrphans is something the kernel cannot be asked for here; a server that outlives us is adopted by the next start.
var endOrphans = false

func procAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

func dataDirArg(cluster string, _ account) string { return cluster }

// runsIn reports whether the process is alive and was started on this cluster, going by the second line of the file that
// names it. A reused process id would then not answer with our password.
func runsIn(pid int, cluster string) bool {
	if err := syscall.Kill(pid, 0); err != nil && err != syscall.EPERM {
		return false
	}
	text, err := os.ReadFile(filepath.Join(cluster, "postmaster.pid"))
	if err != nil {
		return false
	}
	lines := strings.Split(string(text), "\n")
	return len(lines) > 1 && filepath.Clean(strings.TrimSpace(lines[1])) == filepath.Clean(cluster)
}
