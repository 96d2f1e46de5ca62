package devpg

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Each of these comes wrapped in a sentence that names the directory and says what to do.
var (
	ErrNotWritable  = errors.New("the data directory is not writable")
	ErrInUse        = errors.New("the data directory is in use")
	ErrNoPrograms   = errors.New("no PostgreSQL found")
	ErrOtherVersion = errors.New("the data directory was made by another PostgreSQL")
	ErrPortTaken    = errors.New("the port is taken")
	ErrNotStarted   = errors.New("PostgreSQL did not start")
)

// notWritable turns a refusal of the file system into the sentence; any other error keeps its own words.
func notWritable(dir string, err error) error {
	reason := err
	var path *fs.PathError
	if errors.As(err, &path) {
		reason = fmt.Errorf("%s: %w", path.Path, path.Err)
	}
	return fmt.Errorf("%w: %w; make %s writable for user id %d, or set PAYMENTSD_DATA_DIR to a directory that is",
		ErrNotWritable, reason, dir, os.Geteuid())
}
