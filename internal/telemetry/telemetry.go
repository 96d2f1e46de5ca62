// Package telemetry serves what operators look at: health, metrics and profiles, on an address of their own.
package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
)

// Metrics collects every instrument of the process and shows it in Prometheus' format.
type Metrics struct {
	registry *prometheus.Registry
	provider *sdkmetric.MeterProvider
}

// NewMetrics starts collecting. Instruments made before, through the global meter, are included.
func NewMetrics() (*Metrics, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithoutScopeInfo())
	if err != nil {
		return nil, fmt.Errorf("start metrics: %w", err)
	}
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))
	otel.SetMeterProvider(provider)
	return &Metrics{registry, provider}, nil
}

// Gauge is a value that is read when somebody looks.
type Gauge struct {
	Name, Unit, What string
}

// gaugesWithin bounds the reading of gauges, so that a database that hangs does not hang its observers.
const gaugesWithin = 2 * time.Second

// Watch registers gauges that are read together, by one call: read returns a value for each, in their order.
func (m *Metrics) Watch(log *slog.Logger, gauges []Gauge, read func(context.Context) ([]float64, error)) error {
	meter := m.provider.Meter("github.com/paymentsd/paymentsd/internal/telemetry")
	instruments := make([]metric.Float64ObservableGauge, len(gauges))
	observables := make([]metric.Observable, len(gauges))
	for i, g := range gauges {
		instrument, err := meter.Float64ObservableGauge(g.Name, metric.WithUnit(g.Unit), metric.WithDescription(g.What))
		if err != nil {
			return fmt.Errorf("watch %s: %w", g.Name, err)
		}
		instruments[i], observables[i] = instrument, instrument
	}
	_, err := meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		ctx, cancel := context.WithTimeout(ctx, gaugesWithin)
		defer cancel()
		values, err := read(ctx)
		if err != nil {
			log.WarnContext(ctx, "gauges could not be read", "error", err)
			return nil // the other metrics are still worth showing
		}
		for i, v := range values {
			o.ObserveFloat64(instruments[i], v)
		}
		return nil
	}, observables...)
	if err != nil {
		return fmt.Errorf("watch gauges: %w", err)
	}
	return nil
}

// Handler serves /metrics and /debug/pprof beside the health handler it is given.
func (m *Metrics) Handler(health http.Handler) http.Handler {
	r := chi.NewRouter()
	r.Handle("/metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	r.HandleFunc("/debug/pprof/", pprof.Index)
	r.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	r.HandleFunc("/debug/pprof/profile", pprof.Profile)
	r.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	r.HandleFunc("/debug/pprof/trace", pprof.Trace)
	r.HandleFunc("/debug/pprof/{profile}", pprof.Index)
	r.Mount("/", health)
	return r
}
