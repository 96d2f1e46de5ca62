package receipts

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// Folder keeps mails as files, one for each Message-ID, so a mail that is sent twice is there once. For trying out.
type Folder struct{ dir string }

// NewFolder makes the folder if it is missing.
func NewFolder(dir string) (*Folder, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, errors.New("the folder for mails cannot be made")
	}
	return &Folder{dir}, nil
}

// Within is far more than a disk needs.
func (f *Folder) Within() time.Duration { return 10 * time.Second }

var fileName = regexp.MustCompile(`^[A-Za-z0-9_.@-]{1,200}$`)

// Send writes a mail under a temporary name and then gives it its own, so that nobody reads half of one.
func (f *Folder) Send(_ context.Context, m Mail) Result {
	msg, err := m.encode()
	if err != nil || !fileName.MatchString(m.MessageID) {
		return Result{Refused, "no_recipient", false}
	}
	file, err := os.CreateTemp(f.dir, ".mail-*")
	if err != nil {
		return Result{NotSent, diskReason(err), true}
	}
	_, err = msg.WriteTo(file)
	if err == nil {
		err = file.Sync()
	}
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(file.Name(), filepath.Join(f.dir, m.MessageID+".eml"))
	}
	if err != nil {
		_ = os.Remove(file.Name())
		return Result{NotSent, diskReason(err), true}
	}
	return Result{Outcome: Sent}
}

func diskReason(err error) string {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return "no_folder"
	}
	return "no_disk"
}
