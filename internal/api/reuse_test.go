package api

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// otherCommands are b0 with each of its fields changed in turn.
var otherCommands = map[string]string{
	"amount":            b0With("amount", "100.00"),
	"currency":          b0With("currency", "USD"),
	"accountId":         b0With("accountId", "acc_2"),
	"merchantReference": b0With("merchantReference", "inv-2"),
	"channel":           b0With("channel", "pos"),
}

func TestA2_AnotherCommandUnderTheKeyIsRefusedEveryTime(t *testing.T) {
	b := setup(t)
	first := b.settles("cart-1", b0)
	for field, body := range otherCommands {
		t.Run("A2 "+field, func(t *testing.T) { b.conflicts("cart-1", b.paying("cart-1", body)) })
	}

	before := b.keyRow("cart-1")
	for range 100 {
		a := b.pay("cart-1", otherCommands["amount"])
		require.Equal(t, "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST", a.problem(t).ErrorCode)
		require.Empty(t, a.header.Get("Retry-After"), "asking again is of no use")
	}
	require.Equal(t, before, b.keyRow("cart-1"))

	b.replays(first, b.paying("cart-1", b0))
	require.Len(t, b.charges("inv-1"), 1)
	require.Empty(t, b.charges("inv-2"))
	require.Contains(t, b.logs.String(), "key reused for a different command")
	require.NotContains(t, b.logs.String(), "cart-1")
	require.NotContains(t, b.logs.String(), "inv-2")
}

func TestA2_NamedVersionIsPartOfTheCommand(t *testing.T) {
	b := setup(t)
	b.settles("k", b0)
	b.conflicts("k", b.paying("k", b0, with("Api-Version", version20260501)))

	named := b.settles("named", bodyFor("inv-named"), with("Api-Version", version20260501))
	b.conflicts("named", b.paying("named", bodyFor("inv-named")))
	b.replays(named, b.paying("named", bodyFor("inv-named"), with("Api-Version", version20260501)))
}

func TestA3_ConflictComesBeforeInProgress(t *testing.T) {
	b := setup(t)
	b.slow("inv-1", 2000)
	first := b.start(b.paying("k", b0))
	b.untilSent("inv-1")

	for field, body := range otherCommands {
		t.Run("A3 "+field, func(t *testing.T) { b.conflicts("k", b.paying("k", body)) })
	}
	busy := b.pay("k", b0)
	require.Equal(t, http.StatusConflict, busy.status)
	p := busy.problem(t)
	require.Equal(t, "IDEMPOTENCY_REQUEST_IN_PROGRESS", p.ErrorCode)
	require.True(t, p.Retryable)
	require.NotEmpty(t, busy.header.Get("Retry-After"))

	a := first()
	require.Equal(t, http.StatusCreated, a.status)
	require.Equal(t, a.payment(t).PaymentID, p.PaymentID)
	b.replays(a, b.paying("k", b0))
	require.Len(t, b.charges("inv-1"), 1)
}

func TestA3_ConflictComesBeforeTakeOver(t *testing.T) {
	b := setup(t)
	b.fault("inv-1", "charge", "execute_then_drop", nil)
	pending := b.pay("k", b0)
	require.Equal(t, http.StatusAccepted, pending.status, "%s", pending.body)
	b.leaseOver()

	for field, body := range otherCommands {
		t.Run("A3 "+field, func(t *testing.T) { b.conflicts("k", b.paying("k", body)) })
	}
	settled := b.settles("k", b0)
	require.Equal(t, pending.payment(t).PaymentID, settled.payment(t).PaymentID)
	require.Len(t, b.charges("inv-1"), 1)
}

// The process dies while it waits for the provider: what it leaves is an IN_PROGRESS key whose lease runs out.
func TestA3_ConflictComesBeforeTakeOverOfADeadOwner(t *testing.T) {
	b := setup(t)
	b.slow("inv-1", 1500)
	stalled := b.start(b.paying("k", b0))
	b.untilSent("inv-1")
	b.leaseOver()

	b.conflicts("k", b.paying("k", otherCommands["amount"]))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM idempotency_requests WHERE lease_epoch = 1 AND locked_until < now()`))

	// The original takes over at once; its look-up finds nothing yet, or the provider's key in use: nobody may say more.
	require.Contains(t, []int{http.StatusAccepted, http.StatusCreated}, b.pay("k", b0).status)
	stalled()
	b.leaseOver()
	require.Equal(t, http.StatusCreated, b.pay("k", b0).status)
	require.Len(t, b.charges("inv-1"), 1)
}

func TestB1_SpellingsThatMeanTheSame(t *testing.T) {
	b := setup(t)
	first := b.settles("k", b0)
	for name, body := range map[string]string{
		"members reversed":  `{"merchantReference":"inv-1","currency":"EUR","amount":"10.00","accountId":"acc_1"}`,
		"spaces":            `  { "accountId" : "acc_1" , "amount" : "10.00" , "currency" : "EUR" , "merchantReference" : "inv-1" }  `,
		"newlines":          "{\n\t\"accountId\":\"acc_1\",\n\"amount\":\"10.00\",\n\"currency\":\"EUR\",\n\"merchantReference\":\"inv-1\"\n}\n",
		"CRLF":              "{\r\n\"accountId\":\"acc_1\",\r\n\"amount\":\"10.00\",\r\n\"currency\":\"EUR\",\r\n\"merchantReference\":\"inv-1\"}\r\n",
		"escaped value":     b0WithRaw("merchantReference", `"inv\u002d1"`),
		"upper-case escape": b0WithRaw("merchantReference", `"inv\u002D1"`),
		"escaped name":      `{"account\u0049d":"acc_1","amount":"10.00","currency":"EUR","merchantReference":"inv-1"}`,
		"amount 10.0":       b0With("amount", "10.0"),
		"currency eur":      b0With("currency", "eur"),
		"channel null":      b0WithRaw("channel", "null"),
		"channel web":       b0With("channel", "web"),
	} {
		t.Run("B1 "+name, func(t *testing.T) { b.replays(first, b.paying("k", body)) })
	}
	for name, value := range map[string]string{"Date": "Tue, 01 Dec 2026 10:00:00 GMT", "User-Agent": "another/2",
		"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "Prefer": "wait=1", "Accept-Encoding": "gzip"} {
		t.Run("B1 header "+name, func(t *testing.T) { b.replays(first, b.paying("k", b0, without(name), with(name, value))) })
	}
	t.Run("B1 content type with charset", func(t *testing.T) {
		b.replays(first, b.paying("k", b0, without("Content-Type"), with("Content-Type", `Application/JSON; charset="UTF-8"`)))
	})

	slash := b.settles("slash", b0With("merchantReference", "inv/2"))
	b.replays(slash, b.paying("slash", b0WithRaw("merchantReference", `"inv\/2"`)))
}

func TestB1_ReferencesThatLookAlikeAreDifferent(t *testing.T) {
	b := setup(t)
	for i, pair := range [][2]string{
		{"caf\u00e9", "cafe\u0301"}, {"inv-3", "inv-3 "}, {"inv-4", " inv-4"}, {"Inv-5", "inv-5"}, {"ﬁ-6", "fi-6"}, {"ß-7", "ss-7"},
		{"inv-8\u00a0", "inv-8 "}, {"inv\u200b-9", "inv-9"},
	} {
		t.Run(fmt.Sprintf("B1 %q", pair[1]), func(t *testing.T) {
			key := fmt.Sprintf("k%d", i)
			first := b.settles(key, bodyFor(pair[0]))
			require.Equal(t, pair[0], first.payment(t).MerchantReference, "kept as it was given")
			require.Equal(t, pair[0], b.wire(pair[0]).Reference, "sent as it was given")
			b.conflicts(key, b.paying(key, bodyFor(pair[1])))
			// And the business key holds them apart too.
			b.settles(key+"-other", bodyFor(pair[1]))
			require.Len(t, b.charges(pair[1]), 1)
		})
	}
}
