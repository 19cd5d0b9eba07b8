package loop

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts the passes of loops. A nil Metrics counts nothing.
type Metrics struct {
	passes  *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	last    *prometheus.GaugeVec
}

// The outcomes of a pass.
const (
	outcomeOK    = "ok"
	outcomeError = "error"
	outcomePanic = "panic"
)

// NewMetrics registers on the registry that is passed; nil registers nowhere.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		passes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "leasehold_loop_passes_total",
			Help: "Passes of background loops, by loop and outcome (ok, error, panic).",
		}, []string{"loop", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "leasehold_loop_pass_seconds",
			Help:    "How long a pass of a background loop took.",
			Buckets: []float64{0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10, 60},
		}, []string{"loop"}),
		last: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "leasehold_loop_last_success_timestamp_seconds",
			Help: "When a pass of a background loop last went well, 0 before the first.",
		}, []string{"loop"}),
	}
	if registry == nil {
		return m, nil
	}
	var faults []error
	for _, c := range []prometheus.Collector{m.passes, m.seconds, m.last} {
		faults = append(faults, registry.Register(c))
	}
	return m, errors.Join(faults...)
}

// expect makes the series of a loop, so that an alert on their growth sees the first failure.
func (m *Metrics) expect(name string) {
	if m == nil {
		return
	}
	for _, outcome := range []string{outcomeOK, outcomeError, outcomePanic} {
		m.passes.WithLabelValues(name, outcome)
	}
	m.last.WithLabelValues(name)
}

func (m *Metrics) passed(name string, err error, took time.Duration) {
	if m == nil {
		return
	}
	m.seconds.WithLabelValues(name).Observe(took.Seconds())
	m.passes.WithLabelValues(name, outcomeOf(err)).Inc()
	if err == nil {
		m.last.WithLabelValues(name).SetToCurrentTime()
	}
}

func outcomeOf(err error) string {
	if err == nil {
		return outcomeOK
	}
	if _, ok := errors.AsType[*PanicError](err); ok {
		return outcomePanic
	}
	return outcomeError
}
