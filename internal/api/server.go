// Package api is the HTTP contract: it decodes strictly, validates, canonicalises, calls, and renders. openapi.yaml states
// the contract; problems.go holds the one table from errors to answers.
package api

import (
	"context"
	_ "embed"
	"log/slog"
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/paymentsd/paymentsd/internal/accounts"
	"github.com/paymentsd/paymentsd/internal/payments"
	"github.com/paymentsd/paymentsd/internal/provider"
	"github.com/paymentsd/paymentsd/internal/tenants"
)

// OpenAPI is the contract, as it is served at /openapi.yaml.
//
//go:embed openapi.yaml
var OpenAPI []byte

// Parts is what the API is made of.
type Parts struct {
	Payments *payments.Service
	Accounts *accounts.Register
	Tenants  *tenants.Directory
	Webhooks *provider.Webhooks // nil: no webhook is believed
	Ledger   Database           // where the ledger is read
	Ready    Ready
	Limits   Limits
	Log      *slog.Logger
}

type server struct {
	payments *payments.Service
	accounts *accounts.Register
	tenants  *tenants.Directory
	webhooks *provider.Webhooks
	ledger   Database
	limits   Limits
	log      *slog.Logger
}

// Ready reports whether a payment could be made now, and if not, why.
type Ready func(context.Context) error

// NewHandler serves the API. What refuses a request comes in this order: too many at once, no known caller, too many of this
// caller, not for this caller; then the request itself is looked at.
func NewHandler(parts Parts) http.Handler {
	s := &server{parts.Payments, parts.Accounts, parts.Tenants, parts.Webhooks, parts.Ledger, parts.Limits, parts.Log}
	r := chi.NewRouter()
	r.Use(s.observe, s.catchPanics, joinTrace, middleware.GetHead)
	r.NotFound(func(w http.ResponseWriter, r *http.Request) { s.fail(w, r, errRouteNotFound) })
	r.MethodNotAllowed(s.methodNotAllowed)

	routeHealth(r, parts.Ready) // not mounted: a mount at the root would take every path that no method fits
	r.Get("/openapi.yaml", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/yaml")
		_, _ = w.Write(OpenAPI)
	})
	r.Get("/docs", s.getDocs())
	limitConcurrency := s.limitConcurrency() // made once: a group runs its middlewares anew for every route
	r.With(limitConcurrency, inTime).Post("/provider/webhooks", s.postWebhook)
	r.Group(func(r chi.Router) {
		r.Use(limitConcurrency, s.authenticate, s.limitRate())
		pay, refund := r.With(s.require(tenants.Pay)), r.With(s.require(tenants.Refund))
		read, put := r.With(s.require(tenants.Read), inTime), r.With(s.require(tenants.Pay), inTime)
		pay.Post("/payments", s.keyed(payments.OperationCreate, readPayment))
		refund.Post("/payments/{id}/refunds", s.keyed(payments.OperationRefund, readRefund))
		read.Get("/payments", s.reading(s.showPayments))
		read.Get("/payments/{id}", s.reading(s.showPayment))
		read.Get("/payments/{id}/history", s.reading(s.showHistory))
		read.Get("/payments/{id}/refunds", s.reading(s.showRefunds))
		read.Get("/payments/{id}/refunds/{refundId}", s.reading(s.showRefund))
		read.Get("/payments/{id}/refunds/{refundId}/history", s.reading(s.showRefundHistory))
		read.Get("/idempotency-keys/{operation}/{key}", s.getKey)
		read.Get("/accounts/{id}", s.getAccount)
		read.Get("/accounts/{id}/ledger", s.reading(s.showLedger))
		put.Put("/accounts/{id}", s.putAccount)
		put.Put("/accounts/{id}/settings/default-currency", s.putDefaultCurrency)
	})
	return r
}

// methodNotAllowed also names the methods that the resource does know, as RFC 9110, section 15.5.6, has it.
func (s *server) methodNotAllowed(w http.ResponseWriter, r *http.Request) {
	routes := chi.RouteContext(r.Context()).Routes
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut} {
		if !routes.Match(chi.NewRouteContext(), method, r.URL.Path) {
			continue
		}
		w.Header().Add("Allow", method)
		if method == http.MethodGet {
			w.Header().Add("Allow", http.MethodHead)
		}
	}
	s.fail(w, r, errMethodNotAllowed)
}

// authenticate finds the tenant, before anything else is looked at.
func (s *server) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller, err := s.tenants.Authenticate(r.Context(), bearer(r.Header))
		if err != nil {
			s.fail(w, r, unavailableUnlessRefused(err))
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey, caller)))
	})
}

// bearer is the API key of "Authorization: Bearer …" (RFC 6750), "" when there is not exactly one.
func bearer(h http.Header) string {
	values := h.Values("Authorization")
	if len(values) != 1 {
		return ""
	}
	scheme, secret, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(secret)
}
