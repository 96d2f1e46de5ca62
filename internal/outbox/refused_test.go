package outbox_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/outbox"
	"github.com/paymentsd/paymentsd/internal/pgtest"
)

// refusing answers like a broker that will never take the events of these aggregates.
func refusing(prefix string) func(outbox.Recorded) error {
	return func(e outbox.Recorded) error {
		if strings.HasPrefix(e.AggregateID, prefix) {
			return fmt.Errorf("%w: it is larger than the broker takes", outbox.ErrRefused)
		}
		return nil
	}
}

func TestFiveHundredRefusedEventsAtTheHeadStopNobodyElse(t *testing.T) {
	h := newHouse(t, pgtest.Pool(t))
	h.tape.answers(refusing("bad_"))
	h.fill("bad_", 500, 1)
	h.fill("bad_", 500, 2)
	h.fill("good_", 500, 1)
	h.relay(h.tape)
	h.untilPublished(1000)
	h.untilRefused(500)
	require.Len(t, h.tape.all(), 500)
	backlog, err := outbox.Unpublished(t.Context(), h.pool)
	require.NoError(t, err)
	require.EqualValues(t, 1000, backlog.Events)
	require.EqualValues(t, 500, backlog.Refused)

	list, err := outbox.ListRefused(t.Context(), h.pool, 100)
	require.NoError(t, err)
	require.Len(t, list, 100)
	require.Equal(t, "evt_bad_1_1", list[0].EventID)
	require.Equal(t, 1, list[0].Waiting)
	require.Equal(t, 1, list[0].Attempts)
	require.Equal(t, "acme", list[0].TenantID)
	require.Contains(t, list[0].Refusal, "larger than the broker takes")
	require.WithinDuration(t, time.Now(), list[0].RefusedAt, time.Minute)

	h.tape.answers(nil)
	redriven, err := outbox.RedriveAll(t.Context(), h.pool)
	require.NoError(t, err)
	require.EqualValues(t, 500, redriven)
	h.untilPublished(0)
	requireInOrder(t, h.tape.all())
	require.Len(t, h.tape.all(), 1500)
}

func TestLaterEventsWaitBehindARefusedOneAndFollowItInOrder(t *testing.T) {
	h := newHouse(t, pgtest.Pool(t))
	h.tape.answers(refusing("pay_bad"))
	h.append("pay_bad", 1, 2)
	h.append("pay_good", 1, 2)
	h.relay(h.tape)
	h.untilPublished(2)
	h.append("pay_bad", 3)
	h.append("pay_good", 3)
	h.untilPublished(3)
	require.Equal(t, 1, h.count(`SELECT count(*) FROM outbox_events WHERE refused_at IS NOT NULL`), "the later ones wait, they are not refused")

	require.ErrorIs(t, outbox.Redrive(t.Context(), h.pool, "acme", "evt_pay_bad_2"), outbox.ErrNotRefused)
	require.ErrorIs(t, outbox.Redrive(t.Context(), h.pool, "other", "evt_pay_bad_1"), outbox.ErrNotRefused)
	require.ErrorIs(t, outbox.Redrive(t.Context(), h.pool, "acme", ""), outbox.ErrNotRefused)
	h.tape.answers(nil)
	require.NoError(t, outbox.Redrive(t.Context(), h.pool, "acme", "evt_pay_bad_1"))
	h.untilPublished(0)
	requireInOrder(t, h.tape.all())
	require.ErrorIs(t, outbox.Redrive(t.Context(), h.pool, "acme", "evt_pay_bad_1"), outbox.ErrNotRefused)
}

func TestAnotherTenantsEventsOfTheSameNameDoNotWait(t *testing.T) {
	h := newHouse(t, pgtest.Pool(t))
	h.tape.answers(func(e outbox.Recorded) error {
		if e.TenantID == "acme" {
			return outbox.ErrRefused
		}
		return nil
	})
	h.append("acc_1", 1)
	h.relay(h.tape)
	h.untilRefused(1)
	_, err := h.pool.Exec(t.Context(), `INSERT INTO outbox_events (tenant_id, event_id, aggregate_id, sequence, event_type, payload)
		SELECT 'other', event_id, aggregate_id, sequence, event_type, payload FROM outbox_events`)
	require.NoError(t, err)
	h.untilPublished(1)
	require.Equal(t, "other", h.tape.all()[0].TenantID)
}

func TestEventThatFailsByItselfIsHeldBackAndInTheEndSetAside(t *testing.T) {
	h := newHouse(t, pgtest.Pool(t))
	h.tape.answers(func(e outbox.Recorded) error {
		if e.AggregateID == "pay_odd" {
			return errAway
		}
		return nil
	})
	h.append("pay_odd", 1, 2)
	h.relay(h.tape)
	good := 0
	untilBlamed := func(what string) { // alone it is an outage: only beside others that are taken can it be to blame
		for h.count(`SELECT count(*) FROM outbox_events WHERE event_id = 'evt_pay_odd_1' AND `+what) == 0 {
			require.Less(t, good, 1000)
			good++
			h.append("pay_good", good)
		}
	}
	untilBlamed(`attempts = 1 AND held_until > now() AND refused_at IS NULL`)
	h.untilPublished(2)

	_, err := h.pool.Exec(t.Context(), `UPDATE outbox_events SET attempts = 9, held_until = now() WHERE event_id = 'evt_pay_odd_1'`)
	require.NoError(t, err)
	untilBlamed(`refused_at IS NOT NULL`)
	h.untilPublished(2)
	list, err := outbox.ListRefused(t.Context(), h.pool, 10)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, "evt_pay_odd_1", list[0].EventID)
	require.Equal(t, 10, list[0].Attempts)
	require.Contains(t, list[0].Refusal, "failed 10 times")
}

func TestEventThatMakesThePublisherPanicIsFoundAndSetAside(t *testing.T) {
	h := newHouse(t, pgtest.Pool(t))
	h.tape.answers(func(e outbox.Recorded) error {
		if e.AggregateID == "pay_evil" {
			panic("secret")
		}
		return nil
	})
	h.append("pay_1", 1)
	h.append("pay_evil", 1)
	h.append("pay_2", 1)
	h.relay(h.tape)
	h.untilPublished(1)
	h.untilRefused(1)
	list, err := outbox.ListRefused(t.Context(), h.pool, 10)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Contains(t, list[0].Refusal, "panic")
	require.NotContains(t, list[0].Refusal+h.log.String(), "secret")
}

func TestRefusalIsASentenceThatPostgreSQLTakes(t *testing.T) {
	h := newHouse(t, pgtest.Pool(t))
	h.tape.answers(func(outbox.Recorded) error {
		return fmt.Errorf("%w: \x00%s\xff", outbox.ErrRefused, strings.Repeat("é", 300))
	})
	h.append("pay_1", 1)
	h.relay(h.tape)
	h.untilRefused(1)
}
