package devpg

import (
	"os"
	"strconv"
	"syscall"
)

// endOrphans: the kernel sends the server a fast shutdown when we die without having said so (kill -9). Tests of adoption
// turn it off.
var endOrphans = true

func procAttr() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if endOrphans {
		attr.Pdeathsig = syscall.SIGINT
	}
	return attr
}

// dataDirArg names the cluster for the child. When it runs as another user the path may lead through a directory that only
// root can enter (/root/…/.data), so it is named by the descriptor we opened: no permission is asked of the path, and no
// privilege is given to the server.
func dataDirArg(cluster string, as account) string {
	if as.other {
		return "/proc/self/fd/" + strconv.Itoa(dataDirFD)
	}
	return cluster
}

// runsIn reports whether the process is alive (a zombie is not) and works in the cluster, as a postmaster does. Process
// ids are reused, quickly so in containers, and the file that names one may have been copied with its directory.
func runsIn(pid int, cluster string) bool {
	cwd, err := os.Stat("/proc/" + strconv.Itoa(pid) + "/cwd")
	if err != nil {
		return false
	}
	dir, err := os.Stat(cluster)
	return err == nil && os.SameFile(cwd, dir)
}
