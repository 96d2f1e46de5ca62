package payments

import (
	"os"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/money"
)

// The vectors were computed by a second program, written from the description of the encoding in another language. They
// stay for ever: as long as a row in any database may hold a fingerprint of a rule, every build has to make the same one.
func TestFingerprintsNeverChange(t *testing.T) {
	for rule, atLeast := range map[string]int{RuleV1: 14, RuleV2: 15} {
		content, err := os.ReadFile("testdata/fingerprints_" + rule + ".json")
		require.NoError(t, err)
		var vectors []vector
		require.NoError(t, json.Unmarshal(content, &vectors, json.RejectUnknownMembers(true)))
		require.GreaterOrEqual(t, len(vectors), atLeast, "no vector is ever taken away")
		for _, v := range vectors {
			t.Run(rule+" "+v.Name, func(t *testing.T) {
				made, err := v.command(t).Fingerprint(rule)
				require.NoError(t, err)
				require.Equal(t, v.Fingerprint, made)
				same, err := v.Fingerprint.Means(v.command(t))
				require.NoError(t, err)
				require.True(t, same)
			})
		}
	}
}

// vector is what a client said, in null what it did not say, and the fingerprint of that.
type vector struct {
	Name              string                  `json:"name"`
	APIVersion        string                  `json:"apiVersion"`
	AccountID         string                  `json:"accountId"`
	Amount            string                  `json:"amount"`
	Currency          string                  `json:"currency"`
	MerchantReference string                  `json:"merchantReference"`
	Channel           string                  `json:"channel"`
	Description       string                  `json:"description"`
	Fingerprint       idempotency.Fingerprint `json:"fingerprint"`
}

func (v vector) command(t *testing.T) Command {
	t.Helper()
	amount, err := money.Canonical(v.Amount)
	require.NoError(t, err)
	return Command{
		// Neither the scope nor the version that the server resolved is part of it.
		Scope:         idempotency.Scope{TenantID: "any tenant", Operation: OperationCreate, Key: "any key"},
		SchemaVersion: "any version",
		Said: Said{APIVersion: v.APIVersion, AccountID: v.AccountID, Amount: amount, Currency: v.Currency,
			MerchantReference: v.MerchantReference, Channel: v.Channel, Description: v.Description},
	}
}

// A row of a rule that this build does not know proves nothing, neither equality nor difference.
func TestFingerprintOfAnotherRuleIsNotGuessed(t *testing.T) {
	for _, stored := range []idempotency.Fingerprint{"v3:00", "", "V1:00", "v1 :00"} {
		same, err := stored.Means(Command{})
		require.False(t, same)
		require.ErrorIs(t, err, idempotency.ErrUnknownRule, "%q", stored)
	}
	same, err := idempotency.Fingerprint("v1").Means(Command{})
	require.NoError(t, err)
	require.False(t, same)
}

// A command that an old rule cannot express is not the command that a row of that rule was made of.
func TestFingerprintOfAnOlderRuleTellsNewFieldsApart(t *testing.T) {
	plain := Command{Said: Said{AccountID: "acc_1", Amount: "10", Currency: "EUR", MerchantReference: "inv-1", Channel: "web"}}
	described := plain
	described.Said.Description = "two coffees"
	stored, err := plain.Fingerprint(RuleV1)
	require.NoError(t, err)
	same, err := stored.Means(described)
	require.NoError(t, err)
	require.False(t, same)
}
