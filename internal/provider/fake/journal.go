package fake

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"

	"github.com/go-json-experiment/json"
)

// journal is the provider's memory: a file to which one JSON line is appended for everything that happens.
//
// Each record is one write(2), and there is no fsync. The file has to survive the death of this process, kill -9
// included, and what write(2) has taken belongs to the kernel and not to the process. It does not have to survive the
// death of the machine: a fake has no money to lose.
type journal struct {
	file *os.File
	size int64 // end of the last whole record
}

// record is one line: exactly one of its members is set.
type record struct {
	Attempt *attempt        `json:"attempt,omitempty"` // an order was executed or declined, and its key remembered
	Account *accountBalance `json:"account,omitempty"` // balances were set
	Forget  bool            `json:"forgetKeys,omitempty"`
	Told    string          `json:"told,omitempty"` // the receiver has taken this webhook
}

type accountBalance struct {
	Account string           `json:"account"`
	Minor   map[string]int64 `json:"minorByCurrency"`
}

// openJournal opens or makes the journal in dir and gives every record in it to replay, in order. A last line without an
// end is what a dying process left of a record that nobody was told about; it is cut off.
func openJournal(dir string, log *slog.Logger, replay func(record)) (*journal, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(dir, "journal.jsonl"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	j := &journal{file: file}
	if err := j.load(log, replay); err != nil {
		_ = file.Close() // nothing was written
		return nil, fmt.Errorf("open journal: %w", err)
	}
	return j, nil
}

func (j *journal) load(log *slog.Logger, replay func(record)) error {
	// Two processes with one journal would each miss half of the charges. The kernel drops the lock with the process.
	if err := syscall.Flock(int(j.file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("%s is in use by another provider: %w", j.file.Name(), err)
	}
	lines := bufio.NewReader(j.file)
	for number := 1; ; number++ {
		line, err := lines.ReadBytes('\n')
		switch {
		case errors.Is(err, io.EOF) && len(line) == 0:
			return nil
		case errors.Is(err, io.EOF):
			log.Warn("the provider's journal ends in half a record, which is cut off", "line", number, "bytes", len(line))
			return j.file.Truncate(j.size)
		case err != nil:
			return err
		}
		var r record
		if err := json.Unmarshal(line, &r, json.RejectUnknownMembers(true)); err != nil {
			return fmt.Errorf("%s line %d is damaged: %w", j.file.Name(), number, err)
		}
		replay(r)
		j.size += int64(len(line))
	}
}

// append writes one record. After an error the record is not in the journal.
func (j *journal) append(r record) error {
	line, err := json.Marshal(r, json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("append to journal: %w", err)
	}
	line = append(line, '\n')
	if _, err := j.file.Write(line); err != nil {
		// A full disk may have taken half of the line. Left there, it would run into the next record.
		return errors.Join(fmt.Errorf("append to journal: %w", err), j.file.Truncate(j.size))
	}
	j.size += int64(len(line))
	return nil
}

func (j *journal) close() error { return j.file.Close() }
