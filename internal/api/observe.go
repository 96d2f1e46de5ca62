package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/paymentsd/paymentsd/internal/payments"
	"github.com/paymentsd/paymentsd/internal/tenants"
)

var requestSeconds = func() metric.Float64Histogram {
	h, err := otel.Meter("github.com/paymentsd/paymentsd/internal/api").Float64Histogram("http.server.request.duration",
		metric.WithUnit("s"), metric.WithDescription("HTTP requests by route and status"),
		metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30))
	if err != nil {
		panic(err) // a malformed name: found by the first test that runs
	}
	return h
}()

// observe counts, times and logs every request: by route, never by path, key or body.
func (s *server) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		watched := middleware.NewWrapResponseWriter(w, r.ProtoMajor)
		next.ServeHTTP(watched, r)
		route, took := routeOf(r), time.Since(began)
		requestSeconds.Record(context.WithoutCancel(r.Context()), took.Seconds(), metric.WithAttributes(
			attribute.String("http.request.method", r.Method), attribute.String("http.route", route),
			attribute.Int("http.response.status_code", watched.Status())))
		s.log.DebugContext(r.Context(), "request", "method", r.Method, "route", route, "status", watched.Status(), "took", took)
	})
}

// routeOf is the pattern that the request matched, so that metrics and logs hold no identifiers.
func routeOf(r *http.Request) string {
	if c := chi.RouteContext(r.Context()); c != nil && c.RoutePattern() != "" {
		return c.RoutePattern()
	}
	return "none"
}

// catchPanics turns a panic into a 500. Whatever was claimed stays claimed: its lease runs out, and recovery finishes it.
func (s *server) catchPanics(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			switch p := recover(); p {
			case nil:
			case http.ErrAbortHandler:
				panic(p)
			default:
				s.fail(w, r, fmt.Errorf("%w: panic: %v", errPanicked, p))
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// unavailableUnlessRefused: an authentication that failed for want of a database is no refusal.
func unavailableUnlessRefused(err error) error {
	if errors.Is(err, tenants.ErrUnknownAPIKey) {
		return err
	}
	return fmt.Errorf("%w: %w", payments.ErrUnavailable, err)
}

// Health serves /healthz (the process lives) and /readyz (a payment can be made now).
func Health(ready Ready) http.Handler {
	r := chi.NewRouter()
	routeHealth(r, ready)
	return r
}

func routeHealth(r chi.Router, ready Ready) {
	r.Get("/healthz", func(w http.ResponseWriter, _ *http.Request) { writeHealth(w, http.StatusOK, "alive") })
	r.Get("/readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), readyWithin)
		defer cancel()
		if err := ready(ctx); err != nil {
			writeHealth(w, http.StatusServiceUnavailable, "not ready")
			return
		}
		writeHealth(w, http.StatusOK, "ready")
	})
}

// readyWithin is as long as an orchestrator's probe is willing to wait, less a little.
const readyWithin = 2 * time.Second

func writeHealth(w http.ResponseWriter, status int, word string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "{\"status\":%q}\n", word)
}
