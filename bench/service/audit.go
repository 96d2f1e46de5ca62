package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// audit proves that nobody was told anything else than what happened: a fast service that is wrong does not win.
func (b *bench) audit(ctx context.Context) error {
	toldTotal := 0
	for name, db := range b.w.databases {
		var settled, unsettled int
		err := db.pool.QueryRow(ctx, `SELECT count(*) FILTER (WHERE state = 'COMPLETED'), count(*) FILTER (WHERE state <> 'COMPLETED') FROM payments`).
			Scan(&settled, &unsettled)
		if err != nil {
			return fmt.Errorf("audit: %w", err)
		}
		if told := b.settled[name]; settled != told || unsettled != 0 {
			b.problems = append(b.problems, fmt.Sprintf("%s: clients were told of %d settled payments, the database has %d, and %d others", name, told, settled, unsettled))
		}
		toldTotal += b.settled[name]
	}
	charged, err := charges(filepath.Join(b.w.dir, "provider", "journal.jsonl"))
	if err != nil {
		return err
	}
	if charged != toldTotal-b.uncharged {
		b.problems = append(b.problems, fmt.Sprintf("clients were told of %d settled payments, the provider moved money %d times", toldTotal-b.uncharged, charged))
	}
	b.say("audit: the provider moved money %d times", charged)
	return nil
}

// charges counts what the provider's journal says was executed, refunds included.
func charges(journal string) (n int, err error) {
	f, err := os.Open(journal)
	if err != nil {
		return 0, fmt.Errorf("audit: %w", err)
	}
	defer f.Close()
	for lines := bufio.NewReaderSize(f, 1<<20); ; {
		line, err := lines.ReadSlice('\n')
		if bytes.Contains(line, []byte(`"status":"succeeded"`)) {
			n++
		}
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, fmt.Errorf("audit: %w", err)
		}
	}
}
