package api

import (
	"net/http"

	"go.opentelemetry.io/otel/propagation"
)

// joinTrace lets what a request causes belong to its caller's trace (https://www.w3.org/TR/trace-context/). A traceparent that is
// not valid, or is there twice, is ignored: nobody's payment fails for it.
func joinTrace(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.Header.Values("traceparent")) == 1 {
			r = r.WithContext(propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header)))
		}
		next.ServeHTTP(w, r)
	})
}
