// Package receipts promises that every payment and refund that took effect has one receipt, which is sent at most once unless a
// person decides otherwise.
//
// The consumer only writes a row, receipt_payment_<payment id>; nothing is sent inside a transaction. A sender (sender.go) acquires
// what is due, commits that it is about to send, talks to the mail server, and records what it was told. What it was told is one of:
// sent, provably not sent, refused, unknown. A mail cannot be taken back, so what is unknown is never sent again by itself.
package receipts

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/paymentsd/paymentsd/internal/events"
	"github.com/paymentsd/paymentsd/internal/inbox"
	"github.com/paymentsd/paymentsd/internal/receipts/internal/receiptssql"
)

// ConsumerName is the name under which receipts take events.
const ConsumerName = "receipts"

// NewConsumer makes the consumer that writes receipts, to be sent from the given address. Source is nil when it only handles dead
// letters again.
func NewConsumer(db inbox.Database, source inbox.Source, addresses Addresses, log *slog.Logger) *inbox.Consumer[events.Payment] {
	w := writer{domain: addresses.domain}
	return inbox.New(inbox.Parts[events.Payment]{
		Name: ConsumerName, DB: db, Source: source, Read: read, UnknownVersion: events.ErrUnknownVersion, Apply: w.write, Log: log})
}

// read takes what a payer wants to hear of; everything else needs no receipt.
func read(m inbox.Message) (inbox.Head, events.Payment, error) {
	a, err := events.Read(m.Body)
	if err != nil {
		return inbox.Head{}, events.Payment{}, err
	}
	head := inbox.Head{TenantID: a.TenantID, MessageID: a.ID, AggregateID: a.Subject, Sequence: a.Sequence, TraceParent: a.TraceParent}
	if a.Type != events.PaymentSettled && a.Type != events.RefundSettled {
		head.Skip = "needs_no_receipt"
		return head, events.Payment{}, nil
	}
	return head, *a.Payment, nil
}

type writer struct{ domain string }

// write writes a receipt for each event. The key is the payment's, so a receipt that is there already is this one.
func (w writer) write(ctx context.Context, tx pgx.Tx, fresh []inbox.Received[events.Payment]) error {
	var p receiptssql.InsertReceiptsParams
	for _, r := range fresh {
		amount, err := r.Event.Money()
		if err != nil {
			return &inbox.Refusal{Reason: "no_money", Why: "amount and currency of " + r.Event.PaymentID + " are no money"}
		}
		id := ID(r.Event)
		p.TenantIds = append(p.TenantIds, r.TenantID)
		p.ReceiptIds = append(p.ReceiptIds, id)
		p.PaymentIds = append(p.PaymentIds, r.Event.PaymentID)
		p.AccountIds = append(p.AccountIds, r.Event.AccountID)
		p.AmountsMinor = append(p.AmountsMinor, amount.Minor())
		p.Currencies = append(p.Currencies, amount.Currency().String())
		p.MerchantReferences = append(p.MerchantReferences, r.Event.MerchantReference)
		p.OccurredAt = append(p.OccurredAt, r.Event.OccurredAt)
		p.MessageIds = append(p.MessageIds, id+"."+r.TenantID+"@"+w.domain)
	}
	written, err := receiptssql.New().InsertReceipts(ctx, tx, p)
	if err != nil {
		return fmt.Errorf("write receipts: %w", err)
	}
	if int(written) == len(fresh) {
		return nil
	}
	// Some were there already. The same again is nothing new; something else about one payment has to be seen by a person.
	contradicted, err := receiptssql.New().FindContradictions(ctx, tx, receiptssql.FindContradictionsParams{TenantIds: p.TenantIds,
		ReceiptIds: p.ReceiptIds, AccountIds: p.AccountIds, AmountsMinor: p.AmountsMinor, Currencies: p.Currencies, MerchantReferences: p.MerchantReferences})
	if err != nil {
		return fmt.Errorf("compare receipts: %w", err)
	}
	if len(contradicted) > 0 {
		return &inbox.Refusal{Reason: "contradicts_receipt", Why: contradicted[0] + " is written with another amount, currency, account or reference"}
	}
	return nil
}

// ID is the receipt's id, made of the payment's or refund's and nothing else.
func ID(p events.Payment) string {
	if p.Type == events.RefundSettled {
		return refundPrefix + p.PaymentID
	}
	return paymentPrefix + p.PaymentID
}

const (
	paymentPrefix = "receipt_payment_"
	refundPrefix  = "receipt_refund_"
)

func isOfRefund(receiptID string) bool { return strings.HasPrefix(receiptID, refundPrefix) }
