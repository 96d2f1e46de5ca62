package api

import (
	"errors"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/payments"
)

// The provider has charged, and then making the answer fails: by a panic, or by an error.
func TestG5_FailureAfterTheChargeKeepsTheKey(t *testing.T) {
	for name, fails := range map[string]func() error{
		"panic": func() error { panic("render: secret-detail") },
		"error": func() error { return errors.New("render: secret-detail") },
	} {
		t.Run("G5 "+name, func(t *testing.T) {
			var broken atomic.Bool
			b := setup(t, func(s *settings) {
				s.render = func(p payments.Payment, version string) (idempotency.Answer, error) {
					if broken.Load() {
						if err := fails(); err != nil {
							return idempotency.Answer{}, err
						}
					}
					return Answer(p, version)
				}
			})
			broken.Store(true)
			failed := b.pay("k", b0)
			require.Equal(t, http.StatusInternalServerError, failed.status, "%s", failed.body)
			p := failed.problem(t)
			require.Equal(t, "INTERNAL", p.ErrorCode)
			require.True(t, p.Retryable)
			require.False(t, p.SafeNewKey)
			require.NotContains(t, string(failed.body), "secret-detail")
			require.Contains(t, b.logs.String(), "secret-detail", "operators learn why")

			require.Equal(t, 1, b.count(`SELECT count(*) FROM idempotency_requests WHERE status = 'IN_PROGRESS'`), "the key is kept")
			require.Equal(t, "IDEMPOTENCY_REQUEST_IN_PROGRESS", b.pay("k", b0).problem(t).ErrorCode)
			b.conflicts("k", b.paying("k", bodyFor("inv-2")))
			b.rejects(b.paying("k-2", b0), http.StatusConflict, "DUPLICATE_MERCHANT_REFERENCE")

			b.leaseOver()
			require.Equal(t, http.StatusInternalServerError, b.pay("k", b0).status, "still broken: a retry does no harm")
			b.leaseOver()
			_, err := b.service.Recover(t.Context())
			require.Error(t, err, "nor does recovery")

			broken.Store(false)
			b.leaseOver()
			found, err := b.service.Recover(t.Context())
			require.NoError(t, err)
			require.True(t, found)
			a := b.pay("k", b0)
			require.Equal(t, http.StatusCreated, a.status, "%s", a.body)
			require.True(t, a.replayed())
			require.Len(t, b.charges("inv-1"), 1)
			b.wire("inv-1") // one charge request was all
		})
	}
}
