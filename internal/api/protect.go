package api

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/paymentsd/paymentsd/internal/tenants"
)

// Limits protect the service from its callers, and callers from each other. What they refuse leaves no trace of a key.
type Limits struct {
	InFlightMax    int     // requests that are served at once; 0 is no limit
	RequestsPerSec float64 // of one tenant; 0 is no limit
	RequestsAtOnce int     // of one tenant, above its rate for a moment
}

var (
	errOverloaded  = errors.New("too many requests are in flight")
	errRateLimited = errors.New("tenant is over its rate")
	errForbidden   = errors.New("API key is not for this")
)

// limitConcurrency answers at once what could only wait: the database does not get faster by a longer queue, and a request
// that was refused before its claim can be sent again without a question.
//
// All routes that go through the middleware share its places.
func (s *server) limitConcurrency() func(http.Handler) http.Handler {
	if s.limits.InFlightMax <= 0 {
		return unlimited
	}
	places := make(chan struct{}, s.limits.InFlightMax)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case places <- struct{}{}:
				defer func() { <-places }()
				next.ServeHTTP(w, r)
			default:
				s.fail(w, r, errOverloaded)
			}
		})
	}
}

func unlimited(next http.Handler) http.Handler { return next }

// limitRate keeps each tenant to its rate, over all routes that go through the middleware.
func (s *server) limitRate() func(http.Handler) http.Handler {
	if s.limits.RequestsPerSec <= 0 {
		return unlimited
	}
	tenants := &meters{each: rate.Limit(s.limits.RequestsPerSec), burst: max(1, s.limits.RequestsAtOnce), of: map[string]*rate.Limiter{}}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !tenants.allow(tenantOf(r.Context()), time.Now()) {
				s.fail(w, r, errRateLimited)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

// meters measure tenants. There are as many as there are tenants: only those who were authenticated get here.
type meters struct {
	each  rate.Limit
	burst int

	mu sync.Mutex
	of map[string]*rate.Limiter
}

func (m *meters) allow(tenantID string, now time.Time) bool {
	m.mu.Lock()
	limiter, ok := m.of[tenantID]
	if !ok {
		limiter = rate.NewLimiter(m.each, m.burst)
		m.of[tenantID] = limiter
	}
	m.mu.Unlock()
	return limiter.AllowN(now, 1)
}

// require lets only API keys pass that were issued for the scope.
func (s *server) require(scope tenants.Scope) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !callerOf(r.Context()).May(scope) {
				s.fail(w, r, errForbidden)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

// answeredWithin bounds what needs one look at the database: it takes milliseconds, or the database hangs, and then its caller
// is told so. Keyed calls have deadlines of their own.
const answeredWithin = 6 * time.Second

func inTime(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), answeredWithin)
		defer cancel()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}
