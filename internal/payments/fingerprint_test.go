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
// stay for ever: as long as a row in any database may hold a v1 fingerprint, this build has to make the same one.
func TestFingerprintV1NeverChanges(t *testing.T) {
	content, err := os.ReadFile("testdata/fingerprints_v1.json")
	require.NoError(t, err)
	var vectors []struct {
		Name              string                  `json:"name"`
		APIVersion        *string                 `json:"apiVersion"`
		AccountID         string                  `json:"accountId"`
		Amount            string                  `json:"amount"`
		Currency          string                  `json:"currency"`
		MerchantReference string                  `json:"merchantReference"`
		Channel           string                  `json:"channel"`
		Fingerprint       idempotency.Fingerprint `json:"fingerprint"`
	}
	require.NoError(t, json.Unmarshal(content, &vectors, json.RejectUnknownMembers(true)))
	require.Len(t, vectors, 14, "no vector is ever taken away")
	for _, v := range vectors {
		t.Run(v.Name, func(t *testing.T) {
			amount, err := money.Canonical(v.Amount)
			require.NoError(t, err)
			c := Command{
				// Neither the scope nor the version that the server resolved is part of it.
				Scope:         idempotency.Scope{TenantID: "any tenant", Operation: "any operation", Key: "any key"},
				SchemaVersion: "any version",
				Said:          Said{AccountID: v.AccountID, MerchantReference: v.MerchantReference, Channel: v.Channel, Amount: amount, Currency: v.Currency},
			}
			if v.APIVersion != nil {
				c.Said.APIVersion = *v.APIVersion
			}
			made, err := c.Fingerprint("v1")
			require.NoError(t, err)
			require.Equal(t, v.Fingerprint, made)
			same, err := v.Fingerprint.Means(c)
			require.NoError(t, err)
			require.True(t, same)
		})
	}
}

// A row of a rule that this build does not know proves nothing, neither equality nor difference.
func TestFingerprintOfAnotherRuleIsNotGuessed(t *testing.T) {
	for _, stored := range []idempotency.Fingerprint{"v3:00", "", "v1", "V1:00", "v1 :00"} {
		same, err := stored.Means(Command{})
		require.False(t, same)
		if stored.Rule() != "v1" {
			require.ErrorIs(t, err, idempotency.ErrUnknownRule, "%q", stored)
		}
	}
}
