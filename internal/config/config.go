// Package config promises that the service never runs with settings that make no sense together: it reads them once, says
// of each what it is, in which unit and why it is so, and refuses by the name of the variable.
package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Settings are all settings of all roles. The struct tags are the documentation: --help shows them, README.md prints them.
type Settings struct {
	DatabaseURL string `name:"database-url" env:"DATABASE_URL" placeholder:"URL" help:"PostgreSQL, as a URL. Empty: paymentsd dev keeps a private one in its data directory; every other role needs it."`

	HTTPAddr     string `name:"http-addr" env:"PAYMENTSD_HTTP_ADDR" default:"127.0.0.1:8080" help:"Address of the API, host:port. Loopback, because a service that takes payments should not be reachable by accident."`
	AdminAddr    string `name:"admin-addr" env:"PAYMENTSD_ADMIN_ADDR" default:"127.0.0.1:9090" help:"Address of health, metrics and profiles, host:port. Apart from the API, because it is for operators alone."`
	ProviderAddr string `name:"provider-addr" env:"PAYMENTSD_PROVIDER_ADDR" default:"127.0.0.1:8090" help:"Address on which the fake provider listens, host:port."`
	ProviderURL  string `name:"provider-url" env:"PAYMENTSD_PROVIDER_URL" placeholder:"URL" help:"Where the provider is called, as an http or https URL. Empty: the fake provider at PAYMENTSD_PROVIDER_ADDR."`
	DataDir      string `name:"data-dir" env:"PAYMENTSD_DATA_DIR" default:".data" help:"Directory of the private PostgreSQL and of the fake provider's journal."`

	Lease             time.Duration `name:"lease" env:"PAYMENTSD_LEASE" default:"30s" help:"How long a request owns its key before others may take it over, as a duration. Longer than the provider time-out, or a slow call would be taken for a dead one."`
	ProviderTimeout   time.Duration `name:"provider-timeout" env:"PAYMENTSD_PROVIDER_TIMEOUT" default:"10s" help:"How long one call to the provider may take, as a duration. After it the outcome is unknown, so too short costs certainty, too long costs patience."`
	ProviderKeyWindow time.Duration `name:"provider-key-window" env:"PAYMENTSD_PROVIDER_KEY_WINDOW" default:"24h" help:"How long the provider remembers our keys, as a duration; its contract, not our wish. Nine tenths into it nothing is sent again."`
	ProviderLookupLag time.Duration `name:"provider-lookup-lag" env:"PAYMENTSD_PROVIDER_LOOKUP_LAG" default:"2s" help:"How long a charge may be missing from the provider's lookup, as a duration; its contract. Before that, not found proves nothing."`
	RecoveryInterval  time.Duration `name:"recovery-interval" env:"PAYMENTSD_RECOVERY_INTERVAL" default:"1s" help:"How often recovery looks for work, and its first pause for an unknown payment, as a duration. The scan is one index probe, so a second is cheap."`
	KeyWindow         time.Duration `name:"key-window" env:"PAYMENTSD_KEY_WINDOW" default:"24h" help:"How long a finished key is replayed, as a duration; part of the contract, published in every keyed answer."`

	TombstoneRetention time.Duration `name:"tombstone-retention" env:"PAYMENTSD_TOMBSTONE_RETENTION" default:"720h" help:"How long after that a late retry is still told that it is late, as a duration. Longer than any queue in which a client keeps its retries."`
	ExpiredKeys        string        `name:"expired-keys" env:"PAYMENTSD_EXPIRED_KEYS" default:"refuse" enum:"refuse,reuse" help:"What a retry after the window is: refuse (409, names the payment) or reuse (a new operation). Refuse, because a late retry that pays again is a surprise."`
	FingerprintRule    string        `name:"fingerprint-rule" env:"PAYMENTSD_FINGERPRINT_RULE" default:"v2" enum:"v1,v2" help:"Rule by which new fingerprints are made: v1 or v2. Stay on v1 until every instance knows v2."`
	OutboxRetention    time.Duration `name:"outbox-retention" env:"PAYMENTSD_OUTBOX_RETENTION" default:"72h" help:"How long a published event is kept, as a duration. Long enough to look into what consumers say they did not get."`
	CleanupInterval    time.Duration `name:"cleanup-interval" env:"PAYMENTSD_CLEANUP_INTERVAL" default:"1m" help:"How often cleanup looks for work, as a duration. Nothing depends on it but the size of the tables."`

	Broker          string        `name:"broker" env:"PAYMENTSD_BROKER" default:"nats" enum:"nats,kafka" help:"Broker that events go through: nats (JetStream) or kafka."`
	NATSURL         string        `name:"nats-url" env:"PAYMENTSD_NATS_URL" placeholder:"URL" help:"NATS server or cluster, as nats or tls URLs separated by commas. Empty: paymentsd dev runs one of its own at PAYMENTSD_NATS_ADDR, and the other roles look for it there."`
	NATSAddr        string        `name:"nats-addr" env:"PAYMENTSD_NATS_ADDR" default:"127.0.0.1:4222" help:"Address of the embedded NATS server of paymentsd dev, host:port."`
	NATSCredentials string        `name:"nats-credentials" env:"PAYMENTSD_NATS_CREDENTIALS" placeholder:"FILE" help:"File with NATS user credentials (a JWT and its key). Empty: what the URL says, if anything."`
	NATSCA          string        `name:"nats-ca" env:"PAYMENTSD_NATS_CA" placeholder:"FILE" help:"File with the certificate authority of the NATS server, in PEM. Empty: the system's."`
	NATSReplicas    int           `name:"nats-replicas" env:"PAYMENTSD_NATS_REPLICAS" default:"1" help:"Servers of a NATS cluster that store each event, a number: 1, 3 or 5. More than one needs a cluster."`
	KafkaBrokers    string        `name:"kafka-brokers" env:"PAYMENTSD_KAFKA_BROKERS" placeholder:"HOST:PORT,…" help:"Kafka brokers to begin with, separated by commas. Needed with PAYMENTSD_BROKER=kafka."`
	RelayInterval   time.Duration `name:"relay-interval" env:"PAYMENTSD_RELAY_INTERVAL" default:"1s" help:"How often the relay looks for events although nobody woke it, as a duration. Notifications wake it; this is for those that get lost."`
	RelayLease      time.Duration `name:"relay-lease" env:"PAYMENTSD_RELAY_LEASE" default:"10s" help:"How long a relay owns its share of the outbox without renewing it, as a duration. When a relay dies, its events wait this long."`
	AckWait         time.Duration `name:"ack-wait" env:"PAYMENTSD_ACK_WAIT" default:"30s" help:"How long a consumer may work on its messages before the broker gives them to another instance, as a duration. When a consumer dies, its messages wait this long."`
	InboxRetention  time.Duration `name:"inbox-retention" env:"PAYMENTSD_INBOX_RETENTION" default:"168h" help:"How long consumers remember the messages they have handled, as a duration. Not what keeps effects single: business keys do, for ever."`
	SMTPURL         string        `name:"smtp-url" env:"PAYMENTSD_SMTP_URL" placeholder:"URL" help:"Where receipts are sent: smtp://user:password@host:25, smtps:// for TLS from the start. Empty: mails are written into the folder mail of PAYMENTSD_DATA_DIR."`
	ReceiptsFrom    string        `name:"receipts-from" env:"PAYMENTSD_RECEIPTS_FROM" default:"receipts@paymentsd.example" help:"Sender of receipts, a mail address."`
	ReceiptsTo      string        `name:"receipts-to" env:"PAYMENTSD_RECEIPTS_TO" default:"{account}@{tenant}.example" help:"Recipient of receipts, a mail address in which {tenant} and {account} are replaced. The service knows accounts, not people; the mail system knows who reads what."`
	WebhookSecret   string        `name:"webhook-secret" env:"PAYMENTSD_WEBHOOK_SECRET" placeholder:"SECRET" help:"Secret with which the provider signs its webhooks (Standard Webhooks: whsec_ and base64), or two separated by a space while it is changed. Empty: no webhook is believed; paymentsd dev makes one up. Whoever knows it can say that a payment was charged."`
	WebhookURL      string        `name:"webhook-url" env:"PAYMENTSD_WEBHOOK_URL" placeholder:"URL" help:"Where the fake provider sends webhooks, an http URL. Empty: nowhere; paymentsd dev sends them to itself."`

	SetMax      int     `name:"set-max" env:"PAYMENTSD_SET_MAX" default:"128" help:"Payments that share one database transaction at most, a number; 1 gives each its own. They share one only when they meet, so nobody waits for company."`
	InFlightMax int     `name:"in-flight-max" env:"PAYMENTSD_IN_FLIGHT_MAX" default:"2000" help:"Requests that one process serves at once, a number; more are refused (503) before they claim anything. 0 is no limit. Each costs some 30 kB."`
	TenantRate  float64 `name:"tenant-rate" env:"PAYMENTSD_TENANT_RATE" default:"0" help:"Requests a second that one process takes of one tenant, a number; more are refused (429). 0 is no limit, because what is fair depends on the contract."`
	TenantBurst int     `name:"tenant-burst" env:"PAYMENTSD_TENANT_BURST" default:"100" help:"Requests that a tenant may make at once above its rate, a number."`

	DBMaxConns int32  `name:"db-max-conns" env:"PAYMENTSD_DB_MAX_CONNS" default:"16" help:"Connections to PostgreSQL, a number. Few, because more writers than it has processors make it slower; 1 works."`
	DBPooler   string `name:"db-pooler" env:"PAYMENTSD_DB_POOLER" default:"none" enum:"none,transaction" help:"What stands between this service and PostgreSQL: none, or transaction for a pooler in transaction mode such as pgbouncer. Statements are not kept prepared then, and the session settings that README.md lists have to be the database role's own."`
	LogLevel   string `name:"log-level" env:"PAYMENTSD_LOG_LEVEL" default:"info" enum:"debug,info,warn,error" help:"Least level that is logged: debug, info, warn or error."`
}

// leaseMargin is what a lease must be longer than the provider call inside it: the two commits around the call, on a
// database that is busy.
const leaseMargin = 500 * time.Millisecond

// Check refuses what makes no sense. It reports everything at once, each by the name of its variable.
func (s Settings) Check() error {
	var wrong refusals
	refuse := wrong.refuse
	for variable, d := range map[string]time.Duration{
		"PAYMENTSD_LEASE": s.Lease, "PAYMENTSD_PROVIDER_TIMEOUT": s.ProviderTimeout, "PAYMENTSD_KEY_WINDOW": s.KeyWindow,
		"PAYMENTSD_RECOVERY_INTERVAL": s.RecoveryInterval, "PAYMENTSD_PROVIDER_KEY_WINDOW": s.ProviderKeyWindow,
		"PAYMENTSD_TOMBSTONE_RETENTION": s.TombstoneRetention, "PAYMENTSD_CLEANUP_INTERVAL": s.CleanupInterval,
		"PAYMENTSD_OUTBOX_RETENTION": s.OutboxRetention, "PAYMENTSD_INBOX_RETENTION": s.InboxRetention,
		"PAYMENTSD_RELAY_INTERVAL": s.RelayInterval,
	} {
		if d <= 0 {
			refuse(variable, "is %v: it must be longer than nothing", d)
		}
	}
	if s.ProviderLookupLag < 0 {
		refuse("PAYMENTSD_PROVIDER_LOOKUP_LAG", "is %v: it cannot be negative", s.ProviderLookupLag)
	}
	// An owner that goes on with a lease does not renew it while nine tenths of it are left.
	if s.Lease-s.Lease/10 < s.ProviderTimeout+leaseMargin {
		refuse("PAYMENTSD_LEASE", "is %v: nine tenths of it must be at least PAYMENTSD_PROVIDER_TIMEOUT (%v) and %v more, or a call that is merely slow would be taken for a dead one",
			s.Lease, s.ProviderTimeout, leaseMargin)
	}
	if s.ProviderKeyWindow > 0 && s.ProviderKeyWindow*9/10 <= s.ProviderLookupLag {
		refuse("PAYMENTSD_PROVIDER_KEY_WINDOW", "is %v: nine tenths of it must be longer than PAYMENTSD_PROVIDER_LOOKUP_LAG (%v), or a lost request could never be sent again",
			s.ProviderKeyWindow, s.ProviderLookupLag)
	}
	s.checkBroker(refuse)
	if s.SetMax < 1 {
		refuse("PAYMENTSD_SET_MAX", "is %d: it must be at least 1", s.SetMax)
	}
	if s.InFlightMax < 0 {
		refuse("PAYMENTSD_IN_FLIGHT_MAX", "is %d: it cannot be negative", s.InFlightMax)
	}
	if s.TenantRate < 0 {
		refuse("PAYMENTSD_TENANT_RATE", "is %v: it cannot be negative", s.TenantRate)
	}
	if s.TenantRate > 0 && s.TenantBurst < 1 {
		refuse("PAYMENTSD_TENANT_BURST", "is %d: it must be at least 1", s.TenantBurst)
	}
	if s.DBMaxConns < 1 {
		refuse("PAYMENTSD_DB_MAX_CONNS", "is %d: it must be at least 1", s.DBMaxConns)
	}
	if u, err := url.Parse(s.Provider()); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		refuse("PAYMENTSD_PROVIDER_URL", "must be a URL such as http://127.0.0.1:8090")
	}
	return errors.Join(wrong...)
}

// shortest is what the times between processes have to be longer than: a commit and a notification have to fit in.
const shortest = 100 * time.Millisecond

// refusals are what is wrong with settings, each by the name of its variable.
type refusals []error

func (r *refusals) refuse(variable, why string, args ...any) {
	*r = append(*r, fmt.Errorf("%s %s", variable, fmt.Sprintf(why, args...)))
}

// checkBroker refuses settings of the broker that cannot be right.
func (s Settings) checkBroker(refuse func(variable, why string, args ...any)) {
	for _, server := range strings.Split(s.NATS(), ",") {
		u, err := url.Parse(strings.TrimSpace(server))
		if err != nil || u.Host == "" || !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) {
			refuse("PAYMENTSD_NATS_URL", "must be URLs such as nats://127.0.0.1:4222, separated by commas")
			break
		}
	}
	if s.NATSReplicas != 1 && s.NATSReplicas != 3 && s.NATSReplicas != 5 {
		refuse("PAYMENTSD_NATS_REPLICAS", "is %d: it must be 1, 3 or 5", s.NATSReplicas)
	}
	if s.Broker == "kafka" {
		for _, server := range strings.Split(s.KafkaBrokers, ",") {
			if host, port, err := net.SplitHostPort(strings.TrimSpace(server)); err != nil || host == "" || port == "" {
				refuse("PAYMENTSD_KAFKA_BROKERS", "must be host:port, or several separated by commas")
				break
			}
		}
	}
	for variable, d := range map[string]time.Duration{"PAYMENTSD_RELAY_LEASE": s.RelayLease, "PAYMENTSD_ACK_WAIT": s.AckWait} {
		if d < shortest {
			refuse(variable, "is %v: it must be at least %v", d, shortest)
		}
	}
}

// NeedDatabase refuses a role that cannot do without DATABASE_URL.
func (s Settings) NeedDatabase() error {
	if s.DatabaseURL == "" {
		return errors.New("DATABASE_URL is not set: name the PostgreSQL to use, for example postgres://user:password@127.0.0.1:5432/paymentsd")
	}
	return nil
}

// NATS is where the NATS server is.
func (s Settings) NATS() string {
	if s.NATSURL != "" {
		return s.NATSURL
	}
	return "nats://" + s.NATSAddr
}

// Provider is the base URL at which the provider is called.
func (s Settings) Provider() string {
	if s.ProviderURL != "" {
		return s.ProviderURL
	}
	return "http://" + s.ProviderAddr
}

// Table prints the settings for README.md.
func Table() string {
	var b strings.Builder
	b.WriteString("| variable | default | what it is, in which unit, and why |\n|---|---|---|\n")
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Settings]()) {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f.Tag.Get("env"), quoted(f.Tag.Get("default")), f.Tag.Get("help"))
	}
	return b.String()
}

func quoted(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}
