package receipts

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/paymentsd/paymentsd/internal/receipts/internal/receiptssql"
)

// What becomes of a receipt, and who moves it on:
//
//	PENDING   to be sent, not before next_attempt_at. A sender acquires it: SENDING.
//	SENDING   a sender has said that it is about to send it, and has a lease. It ends as SENT, FAILED, UNKNOWN, or, when the mail
//	          was provably not taken, as PENDING again. When the lease is over and nothing was recorded, the sender is dead, the mail may
//	          be on its way, and anybody makes it UNKNOWN.
//	SENT      the mail server has it. The end.
//	FAILED    the mail server never takes it, or it has no address. It was provably not sent. A person may have it tried again.
//	UNKNOWN   it may have been sent. No timer and no sender touches it again; a person decides, by looking for its Message-ID.
//
// No transaction is open while a mail server is talked to.

const (
	// workers is how many mails a sender sends at a time; each waits for a mail server most of its time.
	workers = 4
	// leaseMargin is what a lease is longer than a mail: the commits around it, on a database that is busy.
	leaseMargin = 30 * time.Second
	// recordFor is how long a known outcome is tried to be recorded. Longer than a database takes to come back, and within the lease.
	recordFor = leaseMargin - 5*time.Second
	// pauseMin and pauseMax bound the pauses between attempts: a mailbox that is busy is free in seconds, one that is full is
	// emptied in hours.
	pauseMin = 10 * time.Second
	pauseMax = time.Hour
	// downPauseMax ends the pauses sooner when it is the server that is not there: nobody waits for an hour when it comes back.
	downPauseMax = time.Minute
	// abandonedMax bounds a statement.
	abandonedMax = 100
)

// Sender sends receipts. Any number of them may run, in one process or many.
type Sender struct {
	db        receiptssql.DBTX
	sql       *receiptssql.Queries
	mailer    Mailer
	addresses Addresses
	log       *slog.Logger
	recordFor time.Duration
}

// NewSender makes a sender.
func NewSender(db receiptssql.DBTX, mailer Mailer, addresses Addresses, log *slog.Logger) *Sender {
	return &Sender{db, receiptssql.New(), mailer, addresses, log, recordFor}
}

// Run sends what is due, and looks again after a while when nothing is, until ctx is done. It ends what it has begun.
func (s *Sender) Run(ctx context.Context, every time.Duration) error {
	var group sync.WaitGroup
	for range workers {
		group.Go(func() { s.work(ctx, every) })
	}
	group.Wait()
	return nil
}

// work is one worker. It acquires every mail under a name of its own, and uses a name again only when it was not told that it got
// something: what is held under its present name has not been begun.
func (s *Sender) work(ctx context.Context, every time.Duration) {
	me := newName()
	down := 0
	for ctx.Err() == nil {
		found, result, err := s.sendNext(ctx, me)
		if found {
			me = newName()
		}
		switch {
		case err != nil && ctx.Err() != nil:
			return // told to end
		case err != nil:
			s.log.ErrorContext(ctx, "sending receipts failed", "error", err)
		case found && !result.Down:
			down = 0
			continue
		case found:
			down++
			sleep(ctx, backOff(time.Second, down, downPauseMax))
			continue
		}
		if err := s.tidy(ctx, me); err != nil && ctx.Err() == nil {
			s.log.ErrorContext(ctx, "sending receipts failed", "error", err)
		}
		sleep(ctx, every)
	}
}

func newName() string { return "sender_" + rand.Text() }

// tidy gives back what this worker got without being told, and makes unknown what dead senders have left.
func (s *Sender) tidy(ctx context.Context, me string) error {
	if _, err := s.sql.ReleaseUnbegun(ctx, s.db, me); err != nil {
		return fmt.Errorf("release receipts: %w", err)
	}
	_, err := s.DoubtAbandoned(ctx)
	return err
}

// DoubtAbandoned makes unknown what was being sent by senders whose lease is over, and says how many there were.
func (s *Sender) DoubtAbandoned(ctx context.Context) (int, error) {
	rows, err := s.sql.DoubtAbandoned(ctx, s.db, abandonedMax)
	if err != nil {
		return 0, fmt.Errorf("look for abandoned receipts: %w", err)
	}
	if rows > 0 {
		s.log.WarnContext(ctx, "receipts are in doubt", "receipts", rows, "reason", "sender_gone")
		countResult(ctx, int(rows), Result{Outcome: Unknown, Reason: "sender_gone"})
	}
	return int(rows), nil
}

// SendDue sends one receipt that is due, and reports whether there was one.
func (s *Sender) SendDue(ctx context.Context) (found bool, err error) {
	found, _, err = s.sendNext(ctx, newName())
	return found, err
}

func (s *Sender) sendNext(ctx context.Context, me string) (found bool, result Result, err error) {
	row, err := s.sql.AcquireDueReceipt(ctx, s.db, receiptssql.AcquireDueReceiptParams{LeaseFor: s.mailer.Within() + leaseMargin, SenderID: me})
	if errors.Is(err, pgx.ErrNoRows) {
		return false, result, nil
	}
	if err != nil {
		return false, result, fmt.Errorf("acquire receipt: %w", err)
	}
	// The intent is durable. Whoever tells us to end must wait for the outcome, or nobody will ever know it.
	ctx = context.WithoutCancel(ctx)
	began := time.Now()
	mail, err := s.addresses.compose(row)
	if err != nil {
		result = Result{Outcome: Refused, Reason: "no_recipient"}
	} else {
		result = s.send(ctx, mail)
	}
	countResult(ctx, 1, result)
	s.log.InfoContext(ctx, "receipt", "tenant", row.TenantID, "receipt", row.ReceiptID, "attempt", row.Attempts, "outcome", result.Outcome.String(), "reason", result.Reason,
		"took", time.Since(began))
	return true, result, s.record(ctx, row, result)
}

// send is the mailer's Send, of which a panic proves nothing.
func (s *Sender) send(ctx context.Context, m Mail) (result Result) {
	defer func() {
		if recover() != nil {
			result = Result{Outcome: Unknown, Reason: "panic"}
		}
	}()
	return s.mailer.Send(ctx, m)
}

// record writes down what is known, and tries for a while when the database does not take it: what is not recorded is unknown for
// ever.
func (s *Sender) record(ctx context.Context, row receiptssql.AcquireDueReceiptRow, result Result) error {
	p := receiptssql.RecordOutcomeParams{TenantID: row.TenantID, ReceiptID: row.ReceiptID, LeaseEpoch: row.LeaseEpoch, LastError: result.Reason}
	switch result.Outcome {
	case Sent:
		p.Status, p.LastError = StatusSent, ""
	case Refused:
		p.Status = StatusFailed
	case NotSent:
		p.Status, p.NextAttemptIn = StatusPending, backOff(pauseMin, int(row.Attempts), pauseMax)
		if result.Down {
			p.NextAttemptIn = min(p.NextAttemptIn, downPauseMax)
		}
	default:
		p.Status = StatusUnknown
	}
	ctx, cancel := context.WithTimeout(ctx, s.recordFor)
	defer cancel()
	for failures := 1; ; failures++ {
		rows, err := s.sql.RecordOutcome(ctx, s.db, p)
		if err == nil {
			if rows == 0 {
				s.log.WarnContext(ctx, "write refused", "receipt", row.ReceiptID, "epoch", row.LeaseEpoch, "outcome", p.Status, "reason", "recorded before, or decided by somebody else")
			}
			return nil
		}
		if sleep(ctx, backOff(100*time.Millisecond, failures, 5*time.Second)); ctx.Err() != nil {
			return fmt.Errorf("record that receipt %s of %s is %s: %w", row.ReceiptID, row.TenantID, p.Status, err)
		}
	}
}

// backOff doubles with every attempt and differs between receipts.
func backOff(first time.Duration, attempts int, most time.Duration) time.Duration {
	pause := most
	if attempts < 20 { // beyond that the shift says nothing any more
		pause = min(most, first<<max(attempts-1, 0))
	}
	return pause*3/4 + mathrand.N(pause/2)
}

// sleep waits, or until ctx is done.
func sleep(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
