package client

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The outcomes of a lease, as the metrics name them.
const (
	outcomeCompleted     = "completed"
	outcomeLate          = "completed_late"
	outcomeFailed        = "failed"
	outcomeFailedForGood = "failed_permanently"
	outcomePanicked      = "panicked"
	outcomeReleased      = "released"
	// outcomeLost is a lease whose end the service did not accept, or was never told.
	outcomeLost = "lost"
)

var outcomes = []string{
	outcomeCompleted, outcomeLate, outcomeFailed, outcomeFailedForGood, outcomePanicked, outcomeReleased, outcomeLost,
}

// otherQueue is the label of a queue that was not asked for, which the service never answers.
const otherQueue = "other"

// metrics are those of a worker. Workers that share a registry share them.
type metrics struct {
	queues  map[string]*queueMetrics
	beats   *prometheus.CounterVec
	polls   *prometheus.CounterVec
	cancels *prometheus.CounterVec
	slots   prometheus.Gauge
	held    prometheus.Gauge
}

// queueMetrics are resolved once, because looking labels up costs as much as a job that does nothing.
type queueMetrics struct {
	leases  prometheus.Counter
	seconds prometheus.Observer
	ends    map[string]prometheus.Counter
}

// newMetrics registers the metrics of a worker; nobody sees them where registry is nil.
func newMetrics(registry prometheus.Registerer, queues []string) (*metrics, error) {
	var faults []error
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return register(registry, &faults, prometheus.NewCounterVec(prometheus.CounterOpts{Name: "leasehold_worker_" + name, Help: help}, labels))
	}
	gauge := func(name, help string) prometheus.Gauge {
		return register(registry, &faults, prometheus.NewGauge(prometheus.GaugeOpts{Name: "leasehold_worker_" + name, Help: help}))
	}
	m := &metrics{
		queues:  map[string]*queueMetrics{},
		beats:   counter("heartbeat_calls_total", "BatchHeartbeat calls, by gRPC code.", "code"),
		polls:   counter("acquire_calls_total", "AcquireLease calls, by gRPC code.", "code"),
		cancels: counter("handler_cancels_total", "Handlers whose context was cancelled, by cause.", "cause"),
		slots:   gauge("slots", "How many jobs the worker may hold at once."),
		held:    gauge("leases", "Leases that the worker holds."),
	}
	leases := counter("leases_total", "Leases taken.", "queue")
	ends := counter("ends_total", "Leases ended, by outcome.", "queue", "outcome")
	seconds := register(registry, &faults, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "leasehold_worker_handler_seconds", Help: "How long handlers ran.",
		Buckets: prometheus.ExponentialBuckets(0.001, 4, 12),
	}, []string{"queue"}))
	for _, queue := range append([]string{otherQueue}, queues...) {
		q := &queueMetrics{leases: leases.WithLabelValues(queue), seconds: seconds.WithLabelValues(queue), ends: map[string]prometheus.Counter{}}
		for _, outcome := range outcomes {
			q.ends[outcome] = ends.WithLabelValues(queue, outcome)
		}
		m.queues[queue] = q
	}
	return m, errors.Join(faults...)
}

// register registers a collector, or finds the one that another worker has registered.
func register[C prometheus.Collector](registry prometheus.Registerer, faults *[]error, c C) C {
	if registry == nil {
		return c
	}
	err := registry.Register(c)
	if twice, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if existing, same := twice.ExistingCollector.(C); same {
			return existing
		}
	}
	if err != nil {
		*faults = append(*faults, err)
	}
	return c
}

func (m *metrics) of(queue string) *queueMetrics {
	if q := m.queues[queue]; q != nil {
		return q
	}
	return m.queues[otherQueue]
}

func (m *metrics) ran(queue string, took time.Duration) { m.of(queue).seconds.Observe(took.Seconds()) }

func (m *metrics) ended(e *ending, outcome string) { m.of(e.lease.job.Queue()).ends[outcome].Inc() }

func (m *metrics) beat(failed *CallError) { m.beats.WithLabelValues(codeOf(failed)).Inc() }

func (m *metrics) poll(failed *CallError) { m.polls.WithLabelValues(codeOf(failed)).Inc() }

func codeOf(failed *CallError) string {
	if failed == nil {
		return "OK"
	}
	return failed.Code.String()
}

// cancelled counts a handler that was cancelled, by the kind of its cause.
func (m *metrics) cancelled(cause error) {
	word := "other"
	if _, ok := errors.AsType[*LostError](cause); ok {
		word = "lost"
	} else if _, ok := errors.AsType[*ExpiredError](cause); ok {
		word = "expired"
	} else if _, ok := errors.AsType[*CancelRequestedError](cause); ok {
		word = "cancel_requested"
	} else if _, ok := errors.AsType[*ShutdownError](cause); ok {
		word = "shutdown"
	}
	m.cancels.WithLabelValues(word).Inc()
}
