package pgtest

import (
	"os"
	"path/filepath"
	"time"

	"github.com/paymentsd/paymentsd/internal/devpg"
)

const (
	dirPattern = "paymentsd-pgtest-*"

	// keptMark is in a directory that holds a failed test's database.
	keptMark = "kept"

	// keptFor is how long a failed test's database can be looked at: until tomorrow's run. Each costs some 100 MB.
	keptFor = 24 * time.Hour

	// startingFor protects a directory that another process has made and not yet locked.
	startingFor = 10 * time.Minute
)

// sweep removes what earlier processes left: the directory of one that was killed, and failed tests' databases that are
// old. Whatever it cannot remove stays.
func sweep() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), dirPattern)) //nolint:errcheck // the pattern is well-formed
	for _, dir := range dirs {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() {
			continue
		}
		stays := startingFor
		if _, err := os.Stat(filepath.Join(dir, keptMark)); err == nil {
			stays = keptFor
		}
		if time.Since(info.ModTime()) > stays && !devpg.InUse(dir) {
			_ = os.RemoveAll(dir) //nolint:errcheck // another user's, then
		}
	}
}
