package payments

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/provider"
	"github.com/paymentsd/paymentsd/internal/provider/fake"
)

// later makes a payment's sends look as if they had been made that much earlier.
func (h *house) later(d time.Duration) {
	_, err := h.pool.Exec(h.t.Context(), `UPDATE payments SET first_sent_at = first_sent_at - $1::interval, last_sent_at = last_sent_at - $1::interval`, d)
	require.NoError(h.t, err)
}

func (h *house) stateOf(c Command) (state, reason string) {
	require.NoError(h.t, h.pool.QueryRow(h.t.Context(), `SELECT state, last_reason FROM payments WHERE merchant_reference = $1`, c.Said.MerchantReference).Scan(&state, &reason))
	return state, reason
}

// recoverOnce is one look of the worker, with all pauses skipped.
func (h *house) recoverOnce(s *Service) {
	h.leaseOver()
	found, err := s.Recover(h.t.Context())
	require.NoError(h.t, err)
	require.True(h.t, found)
}

// The lease ends while the provider is still working. A retry, another retry and the worker take over, one after another;
// the provider is asked, and the first owner's late success changes nothing.
func TestG1_LeaseShorterThanTheCallChargesOnce(t *testing.T) {
	h := setup(t)
	h.timeout = 5 * time.Second
	c := h.command()
	h.fault(c.Said.MerchantReference, "charge", "delay", 1, delayMS(1500))
	first := make(chan string, 1)
	go func() { first <- kind(h.service(nil, nil).Create(context.Background(), c)) }()
	require.Eventually(t, func() bool { return h.posts(c.Said.MerchantReference) == 1 }, 5*time.Second, 5*time.Millisecond)

	for range 3 {
		h.leaseOver()
		require.Equal(t, "pending", kind(h.service(nil, nil).Create(t.Context(), c)))
		h.leaseOver()
		_, err := h.service(nil, nil).Recover(t.Context())
		require.NoError(t, err)
	}
	require.Contains(t, []string{"first", "replay", "pending"}, <-first)
	h.recoverAll(h.service(nil, nil))
	require.Equal(t, "replay", kind(h.service(nil, nil).Create(t.Context(), c)))
	require.Len(t, h.charges(c.Said.MerchantReference), 1)
	h.audit()
}

// A row was left in each state, and twenty retries and the worker come at once: one rescuer, one charge, all agree.
func TestG3_ManyRescuersOneRescue(t *testing.T) {
	for name, leave := range map[string]func(*house, *Service, Command){
		"LOCAL_PAYMENT_CREATED": func(h *house, s *Service, c Command) {
			_, err := s.open(t.Context(), h.openingOf(s, c))
			require.NoError(t, err)
		},
		"PROVIDER_REQUEST_SENT": func(h *house, s *Service, c Command) {
			require.False(t, die(func() { _, _ = h.wired(&tripwire{at: 3, after: true}).Create(t.Context(), c) }))
		},
		"UNKNOWN_REQUIRES_RECOVERY": func(h *house, s *Service, c Command) {
			h.fault(c.Said.MerchantReference, "charge", "execute_then_drop", 1)
			require.Equal(t, "pending", kind(s.Create(t.Context(), c)))
		},
		"PROVIDER_CONFIRMED": func(h *house, s *Service, c Command) {
			require.False(t, die(func() { _, _ = h.wired(&tripwire{at: 4}).Create(t.Context(), c) }))
			_, err := h.pool.Exec(t.Context(), `UPDATE payments SET state = 'PROVIDER_CONFIRMED', provider_charge_id = 'ch_000001', version = 3 WHERE merchant_reference = $1`, c.Said.MerchantReference)
			require.NoError(t, err)
			_, err = h.pool.Exec(t.Context(), `INSERT INTO payment_moves SELECT tenant_id, payment_id, 3, 'PROVIDER_REQUEST_SENT', 'PROVIDER_CONFIRMED', 'answered', 1 FROM payments WHERE merchant_reference = $1`, c.Said.MerchantReference)
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := setup(t)
			s, c := h.service(nil, nil), h.command()
			leave(h, s, c)
			state, _ := h.stateOf(c)
			require.Equal(t, name, state)
			h.leaseOver()
			got := atOnce(21, func(i int) string {
				if i == 0 {
					_, err := s.Recover(t.Context())
					require.NoError(t, err)
					return "worker"
				}
				return kind(s.Create(t.Context(), c))
			})
			require.LessOrEqual(t, got["first"], 1, got)
			require.Equal(t, 20, got["first"]+got["busy"]+got["replay"]+got["pending"], got)
			h.recoverAll(s)
			require.Equal(t, "replay", kind(s.Create(t.Context(), c)))
			require.Len(t, h.charges(c.Said.MerchantReference), 1)
			h.audit()
		})
	}
}

// The database's clock judges leases, ages and expiry. Here it is two minutes ahead of the process's, and two behind.
func TestG4_ClocksThatDisagreeChangeNothing(t *testing.T) {
	for _, skew := range []string{"120 s", "-120 s"} {
		t.Run(skew, func(t *testing.T) {
			h := setup(t)
			conn := h.pool.Config().ConnConfig.Database
			for _, sql := range []string{
				`CREATE SCHEMA skewed`,
				fmt.Sprintf(`CREATE FUNCTION skewed.now() RETURNS timestamptz STABLE LANGUAGE sql AS $$ SELECT pg_catalog.now() + interval '%s' $$`, skew),
				fmt.Sprintf(`ALTER DATABASE %q SET search_path = skewed, pg_catalog, public`, conn),
			} {
				_, err := h.pool.Exec(t.Context(), sql)
				require.NoError(t, err)
			}
			h.pool.Reset() // connections made from now on live in the other time
			require.Equal(t, 1, h.count(`SELECT (abs(extract(epoch FROM now() - clock_timestamp())) > 100)::int`))

			s := h.service(nil, nil)
			c := h.command()
			h.fault(c.Said.MerchantReference, "charge", "delay", 1, delayMS(300))
			first := make(chan string, 1)
			go func() { first <- kind(s.Create(context.Background(), c)) }()
			require.Eventually(t, func() bool { return h.posts(c.Said.MerchantReference) == 1 }, 5*time.Second, 5*time.Millisecond)
			require.Equal(t, "busy", kind(s.Create(t.Context(), c)), "the lease is good")
			found, err := s.Recover(t.Context())
			require.NoError(t, err)
			require.False(t, found, "nothing is due")
			require.Equal(t, "first", <-first)
			require.Equal(t, "replay", kind(s.Create(t.Context(), c)), "the key has not expired")

			lost := h.command()
			h.fault(lost.Said.MerchantReference, "charge", "drop_before_execute", 1)
			require.Equal(t, "pending", kind(s.Create(t.Context(), lost)))
			h.recoverAll(s)
			require.Equal(t, "replay", kind(s.Create(t.Context(), lost)))
			h.audit()
		})
	}
}

// After the provider's yes, everything that can fail on our side fails in turn. The key is never set free.
func TestG5_FailureAfterTheEffectKeepsTheKey(t *testing.T) {
	failing := errors.New("injected")
	for name, sabotage := range map[string]func(*house, *Service){
		"rendering fails": func(_ *house, s *Service) {
			s.render = func(Payment, string) (idempotency.Answer, error) { return idempotency.Answer{}, failing }
		},
		"rendering panics": func(_ *house, s *Service) {
			s.render = func(Payment, string) (idempotency.Answer, error) { panic(failing) }
		},
		"the outbox refuses": func(h *house, _ *Service) {
			_, err := h.pool.Exec(t.Context(), `ALTER TABLE outbox_events ADD CONSTRAINT no_more CHECK (event_type <> 'PaymentSettled')`)
			require.NoError(t, err)
		},
		"the key cannot be completed": func(h *house, _ *Service) {
			_, err := h.pool.Exec(t.Context(), `ALTER TABLE idempotency_requests ADD CONSTRAINT no_more CHECK (status <> 'COMPLETED')`)
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := setup(t)
			c, broken := h.command(), h.service(nil, nil)
			sabotage(h, broken)
			_ = die(func() {
				defer func() { _ = recover() }()
				result, err := broken.Create(t.Context(), c)
				require.False(t, err == nil && !result.Pending, "it cannot have succeeded")
			})
			h.leaseOver()
			_, _ = broken.Recover(t.Context()) // the worker does not get further, and lives
			require.Equal(t, 1, h.count(`SELECT count(*) FROM idempotency_requests WHERE status IN ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY')`))

			for _, table := range []string{"outbox_events", "idempotency_requests"} {
				_, err := h.pool.Exec(t.Context(), `ALTER TABLE `+table+` DROP CONSTRAINT IF EXISTS no_more`)
				require.NoError(t, err)
			}
			h.recoverAll(h.service(nil, nil))
			require.Equal(t, "replay", kind(h.service(nil, nil).Create(t.Context(), c)))
			require.Len(t, h.charges(c.Said.MerchantReference), 1)
			require.Equal(t, 1, h.posts(c.Said.MerchantReference))
			h.audit()
		})
	}
}

// Refused, reset, timed out: three truths. Only "no byte was written" is retryable without recovery.
func TestG6_WhatFailedDecidesWhatIsKnown(t *testing.T) {
	h := setup(t)
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := nobody.Addr().String()
	require.NoError(t, nobody.Close())
	unreachable, err := provider.NewClient("http://"+address, h.timeout)
	require.NoError(t, err)

	c := h.command()
	_, err = h.service(nil, unreachable).Create(t.Context(), c)
	e, ok := errors.AsType[*ProviderUnavailableError](err)
	require.True(t, ok, err)
	require.NotEmpty(t, e.PaymentID)
	state, _ := h.stateOf(c)
	require.Equal(t, "LOCAL_PAYMENT_CREATED", state)
	require.Zero(t, h.count(`SELECT provider_sends FROM payments`), "a send that did not leave the house uses up none of those that may")
	h.leaseOver()
	found, err := h.service(nil, nil).Recover(t.Context())
	require.NoError(t, err)
	require.False(t, found, "a payment that was provably not sent waits for its client")
	result, err := h.service(nil, nil).Create(t.Context(), c)
	require.NoError(t, err)
	require.Contains(t, string(result.Answer.Body), e.PaymentID, "the retry runs on the same payment")

	for _, name := range []string{"reset_mid_request", "execute_then_drop", "drop_before_execute", "error_before", "error_after",
		"truncated_body", "unreadable_body", "wrong_amount", "rate_limited", "in_progress"} {
		c := h.command()
		h.fault(c.Said.MerchantReference, "charge", name, 1)
		require.Equal(t, "pending", kind(h.service(nil, nil).Create(t.Context(), c)), name)
		state, _ := h.stateOf(c)
		require.Equal(t, "UNKNOWN_REQUIRES_RECOVERY", state, name)
		h.recoverAll(h.service(nil, nil))
		require.Equal(t, "replay", kind(h.service(nil, nil).Create(t.Context(), c)), name)
		require.Len(t, h.charges(c.Said.MerchantReference), 1, name)
	}
	h.audit()
}

// A resend that could not be sent proves nothing about the send before it.
func TestNotSentAgainIsNoProofAboutTheFirstSend(t *testing.T) {
	h := setup(t)
	c := h.command()
	h.fault(c.Said.MerchantReference, "charge", "drop_before_execute", 1)
	require.Equal(t, "pending", kind(h.service(nil, nil).Create(t.Context(), c)))
	h.recoverOnce(h.service(nil, notSending{h.client()}))
	state, reason := h.stateOf(c)
	require.Equal(t, "UNKNOWN_REQUIRES_RECOVERY", state)
	require.Equal(t, "refused", reason)
}

// notSending looks up, but cannot send.
type notSending struct{ provider.Provider }

func (notSending) Send(context.Context, provider.Order) provider.Result {
	return provider.Result{Outcome: provider.NotSent, Reason: "refused"}
}

func TestG7_TheProvidersOwnIdempotencyAnswers(t *testing.T) {
	t.Run("in progress three times", func(t *testing.T) {
		h := setup(t)
		c := h.command()
		h.fault(c.Said.MerchantReference, "charge", "in_progress", 3)
		require.Equal(t, "pending", kind(h.service(nil, nil).Create(t.Context(), c)))
		h.recoverAll(h.service(nil, nil))
		require.Equal(t, "replay", kind(h.service(nil, nil).Create(t.Context(), c)))
		require.Equal(t, 4, h.posts(c.Said.MerchantReference))
		h.audit()
	})
	t.Run("the same 500 for ever", func(t *testing.T) {
		h := setup(t)
		c := h.command()
		h.fault(c.Said.MerchantReference, "charge", "error_forever", 1)
		require.Equal(t, "pending", kind(h.service(nil, nil).Create(t.Context(), c)))
		h.recoverAll(h.service(nil, nil))
		require.Equal(t, "replay", kind(h.service(nil, nil).Create(t.Context(), c)))
		require.Equal(t, 1, h.posts(c.Said.MerchantReference), "the lookup found it: no second POST")
		h.audit()
	})
	t.Run("errors without end", func(t *testing.T) {
		h := setup(t)
		c := h.command()
		h.fault(c.Said.MerchantReference, "charge", "error_before", 100)
		require.Equal(t, "pending", kind(h.service(nil, nil).Create(t.Context(), c)))
		for range 3 * sendsMax {
			h.recoverOnce(h.service(nil, nil))
		}
		require.Equal(t, sendsMax, h.posts(c.Said.MerchantReference), "then it only asks")
		state, reason := h.stateOf(c)
		require.Equal(t, "UNKNOWN_REQUIRES_RECOVERY", state)
		require.Equal(t, "absent_after_last_send", reason)
		unknown, err := h.service(nil, nil).Unknown(t.Context(), 10)
		require.NoError(t, err)
		require.Len(t, unknown, 1)
		require.True(t, unknown[0].NeedsOperator)
	})
}

// The provider forgot our key before we came back: to send again would charge again, and "not found" may be forgetfulness.
func TestG9_PastTheProvidersWindowNothingIsSent(t *testing.T) {
	h := setup(t)
	s, c := h.service(nil, nil), h.command()
	h.fault(c.Said.MerchantReference, "charge", "execute_then_drop", 1)
	require.Equal(t, "pending", kind(s.Create(t.Context(), c)))
	h.control("POST", "/control/forget-keys", nil)
	h.fault(c.Said.MerchantReference, "lookup", "not_found", 1000)
	h.later(25 * time.Hour)
	for range 5 {
		h.recoverOnce(s)
		h.leaseOver()
		require.Equal(t, "pending", kind(s.Create(t.Context(), c)))
	}
	_, reason := h.stateOf(c)
	require.Equal(t, "absent_past_provider_key_window", reason)
	require.Equal(t, 1, h.posts(c.Said.MerchantReference))
	require.Len(t, h.charges(c.Said.MerchantReference), 1)
	require.Equal(t, 1, h.count(`SELECT count(*) FROM idempotency_requests WHERE status = 'UNKNOWN_REQUIRES_RECOVERY'`), "the key stays reserved")
}

// Within the lag of the provider's lookup, "not found" is no news, and the worker comes back when it is.
func TestNotFoundWithinTheLookupLagProvesNothing(t *testing.T) {
	h := setup(t)
	h.cfg.ProviderLookupLag = 10 * time.Second
	h.openBank(fake.Config{Addr: "127.0.0.1:0", Dir: t.TempDir(), LookupLag: 10 * time.Second})
	s, c := h.service(nil, nil), h.command()
	h.fault(c.Said.MerchantReference, "charge", "execute_then_drop", 1)
	require.Equal(t, "pending", kind(s.Create(t.Context(), c)))
	h.recoverOnce(s)
	_, reason := h.stateOf(c)
	require.Equal(t, "absent_within_lookup_lag", reason)
	require.Equal(t, 1, h.posts(c.Said.MerchantReference))
	rest := h.count(`SELECT extract(epoch FROM next_attempt_at - now())::int FROM idempotency_requests`)
	require.InDelta(t, 10, rest, 2)
}

// After the provider's yes the database takes no writes for a while. Nothing is sent again, and it heals by itself.
func TestG13_DatabaseThatRefusesWritesStopsCalls(t *testing.T) {
	h := setup(t)
	readOnly := func(on string) {
		conn, err := h.pool.Acquire(t.Context())
		require.NoError(t, err)
		defer h.pool.Reset()
		defer conn.Release()
		_, err = conn.Exec(t.Context(), `SET default_transaction_read_only = off`)
		require.NoError(t, err)
		_, err = conn.Exec(t.Context(), fmt.Sprintf(`ALTER DATABASE %q SET default_transaction_read_only = %s`, h.pool.Config().ConnConfig.Database, on))
		require.NoError(t, err)
	}
	c := h.command()
	s := h.service(nil, slowProvider{h.client(), func() { readOnly("on") }})
	require.Equal(t, "pending", kind(s.Create(t.Context(), c)))
	for range 5 {
		_, err := h.service(nil, nil).Recover(t.Context())
		require.ErrorIs(t, err, ErrUnavailable)
		require.Contains(t, []string{"busy", "unavailable"}, kind(h.service(nil, nil).Create(t.Context(), c)))
		require.Equal(t, "unavailable", kind(h.service(nil, nil).Create(t.Context(), h.command())))
	}
	require.Equal(t, 1, h.posts(c.Said.MerchantReference), "no sent mark, no call")
	readOnly("off")
	h.recoverAll(h.service(nil, nil))
	require.Equal(t, "replay", kind(h.service(nil, nil).Create(t.Context(), c)))
	require.Equal(t, 1, h.posts(c.Said.MerchantReference))
	h.audit()
}
