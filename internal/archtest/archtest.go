// Package archtest is the architecture as data, and the tests that hold the code to it. For tests only.
package archtest

// Module is the path that every package of ours begins with.
const Module = "github.com/paymentsd/paymentsd/"

// Arrows says, for every package of ours, which others of ours it may import. An edge that is not here fails the build. Each
// package with SQL also has its own generated package below it, which nobody else can import.
var Arrows = map[string][]string{
	"cmd/paymentsd": {"internal/accounts", "internal/api", "internal/broker", "internal/config", "internal/devpg", "internal/idempotency", "internal/inbox",
		"internal/ledger", "internal/outbox", "internal/payments", "internal/provider", "internal/provider/fake", "internal/receipts",
		"internal/telemetry", "internal/tenants", "migrations"},

	"internal/api": {"internal/accounts", "internal/payments", "internal/idempotency", "internal/ledger", "internal/money", "internal/provider",
		"internal/tenants", "docs"},
	"internal/accounts":      {"internal/outbox", "internal/events", "internal/money"},
	"internal/payments":      {"internal/gather", "internal/idempotency", "internal/outbox", "internal/inbox", "internal/provider", "internal/events", "internal/money"},
	"internal/broker":        {"internal/outbox", "internal/inbox", "internal/events"},
	"internal/ledger":        {"internal/inbox", "internal/events", "internal/money"},
	"internal/receipts":      {"internal/inbox", "internal/events", "internal/money"},
	"internal/provider":      {"internal/money"},
	"internal/provider/fake": {"internal/money"}, // not provider: what both sides got from one function could not disagree
	"internal/events":        {"internal/money"},
	"internal/idempotency":   {},
	"internal/outbox":        {},
	"internal/inbox":         {},
	"internal/money":         {},

	// Support: none of them knows what a payment is.
	"internal/gather":    {},
	"internal/tenants":   {},
	"internal/config":    {},
	"internal/telemetry": {},
	"internal/devpg":     {},
	"migrations":         {},
	"docs":               {}, // the documents that the service shows

	// Measurements.
	"bench/cleanup": {"internal/devpg"},
	"bench/floor":   {},
	"bench/service": {"bench/floor", "internal/broker", "internal/devpg"},
	"bench/relay":   {"internal/broker", "internal/devpg", "internal/outbox", "migrations"},

	// What others would write.
	"examples/retryclient": {},

	// For tests only.
	"internal/pgtest":   {"internal/devpg", "migrations"},
	"internal/printed":  {},
	"internal/archtest": {},
}

// Writers says which query file may write which table. The two statements that cross rooms are the one transaction and the
// one writer in payments.sql; nothing else writes a payment, and nobody but them and its own room writes a key.
var Writers = map[string][]string{
	"internal/payments/payments.sql":       {"idempotency_in_progress", "idempotency_requests", "payments", "payment_moves", "outbox_events", "provider_callbacks"},
	"internal/idempotency/idempotency.sql": {"idempotency_in_progress", "idempotency_requests"},
	"internal/outbox/outbox.sql":           {"outbox_events", "outbox_relays", "outbox_shards"},
	"internal/inbox/inbox.sql":             {"consumer_inbox", "dead_letters"},
	"internal/ledger/ledger.sql":           {"ledger_entries"},
	"internal/receipts/receipts.sql":       {"receipts"},
	"internal/accounts/accounts.sql":       {"accounts"},
	"internal/tenants/tenants.sql":         {"tenants", "api_keys", "accounts"},
}

const (
	// FuncLinesMax is a screen.
	FuncLinesMax = 75
	// FileLinesMax is what a reader holds in mind; past it a file is two rooms.
	FileLinesMax = 450
)

// NamesRefused are package names that say nothing about what is inside.
var NamesRefused = []string{"util", "utils", "common", "helpers", "helper", "models", "types", "base", "misc"}
