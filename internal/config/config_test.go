package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/printed"
)

func TestSettingsInReadmeAreCurrent(t *testing.T) {
	printed.Check(t, "../../README.md", "settings", Table())
}

func good() Settings {
	return Settings{ProviderAddr: "127.0.0.1:8090", Lease: 30 * time.Second, ProviderTimeout: 10 * time.Second, ProviderKeyWindow: 24 * time.Hour,
		ProviderLookupLag: 2 * time.Second, RecoveryInterval: time.Second, KeyWindow: 24 * time.Hour, DBMaxConns: 1,
		TombstoneRetention: time.Hour, CleanupInterval: time.Minute, OutboxRetention: time.Hour,
		InboxRetention: time.Hour, SetMax: 1, NATSAddr: "127.0.0.1:4222", NATSReplicas: 1, AckWait: time.Second, RelayInterval: time.Second, RelayLease: time.Second}
}

func TestSettingsThatMakeSenseAreTaken(t *testing.T) { require.NoError(t, good().Check()) }

func TestRefusalNamesTheVariable(t *testing.T) {
	for variable, spoil := range map[string]func(*Settings){
		"PAYMENTSD_LEASE is 5s":                func(s *Settings) { s.Lease = 5 * time.Second },
		"PAYMENTSD_LEASE is 0s":                func(s *Settings) { s.Lease = 0 },
		"PAYMENTSD_LEASE is 10.2s":             func(s *Settings) { s.Lease = 10200 * time.Millisecond },
		"PAYMENTSD_PROVIDER_TIMEOUT is -1s":    func(s *Settings) { s.ProviderTimeout = -time.Second },
		"PAYMENTSD_KEY_WINDOW is 0s":           func(s *Settings) { s.KeyWindow = 0 },
		"PAYMENTSD_RECOVERY_INTERVAL is 0s":    func(s *Settings) { s.RecoveryInterval = 0 },
		"PAYMENTSD_PROVIDER_LOOKUP_LAG is -1s": func(s *Settings) { s.ProviderLookupLag = -time.Second },
		"PAYMENTSD_PROVIDER_KEY_WINDOW is 2s":  func(s *Settings) { s.ProviderKeyWindow = 2 * time.Second },
		"PAYMENTSD_DB_MAX_CONNS is 0":          func(s *Settings) { s.DBMaxConns = 0 },
		"PAYMENTSD_NATS_URL must be":           func(s *Settings) { s.NATSURL = "nats://a:4222,foo" },
		"PAYMENTSD_NATS_REPLICAS is 2":         func(s *Settings) { s.NATSReplicas = 2 },
		"PAYMENTSD_KAFKA_BROKERS must be":      func(s *Settings) { s.Broker, s.KafkaBrokers = "kafka", "foo" },
		"PAYMENTSD_RELAY_LEASE is 1ns":         func(s *Settings) { s.RelayLease = 1 },
		"PAYMENTSD_ACK_WAIT is 1ns":            func(s *Settings) { s.AckWait = 1 },
		"PAYMENTSD_SET_MAX is 0":               func(s *Settings) { s.SetMax = 0 },
		"PAYMENTSD_PROVIDER_URL must be a URL": func(s *Settings) { s.ProviderURL = "provider" },
	} {
		s := good()
		spoil(&s)
		require.ErrorContains(t, s.Check(), variable)
	}
}

func TestRefusalReportsEverythingAtOnce(t *testing.T) {
	s := good()
	s.Lease, s.DBMaxConns = time.Second, 0
	err := s.Check()
	require.ErrorContains(t, err, "PAYMENTSD_LEASE")
	require.ErrorContains(t, err, "PAYMENTSD_DB_MAX_CONNS")
}

func TestRolesThatNeedADatabaseSayHowToNameOne(t *testing.T) {
	require.ErrorContains(t, Settings{}.NeedDatabase(), "DATABASE_URL")
	require.NoError(t, Settings{DatabaseURL: "postgres://127.0.0.1/x"}.NeedDatabase())
}
