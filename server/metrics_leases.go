package server

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leasehold/leasehold/store"
)

const (
	// maxQueueLabels bounds the queues that have series of their own.
	maxQueueLabels = 1000
	// otherQueues is the label of the others. No queue can be called that.
	otherQueues = "(other)"
)

// LeaseMetrics count what this replica did to leases. It is the store.Observer of the store
// that the server works on. Queues come from the database's rows, so that nobody can invent a
// label, and all behind the first 1,000 share one.
type LeaseMetrics struct {
	wait, ran  *prometheus.HistogramVec
	ended      *prometheus.CounterVec
	gap        prometheus.Histogram
	doubleRuns prometheus.Counter

	mu     sync.RWMutex
	queues map[string]*leaseSeries
	others *leaseSeries
}

var _ store.Observer = (*LeaseMetrics)(nil)

// leaseSeries are those of one queue, so that the hot calls look up one map.
type leaseSeries struct {
	wait, ran prometheus.Observer
	ended     map[store.End]prometheus.Counter
}

// NewLeaseMetrics registers on the registry that is passed; nil registers nowhere.
func NewLeaseMetrics(registry prometheus.Registerer) (*LeaseMetrics, error) {
	m := &LeaseMetrics{
		queues: map[string]*leaseSeries{},
		wait: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "leasehold_job_wait_seconds",
			Help:    "From when a job was due until this replica leased it, by queue.",
			Buckets: []float64{0.01, 0.1, 1, 10, 60, 600, 3600},
		}, []string{"queue"}),
		ran: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "leasehold_lease_run_seconds",
			Help:    "From the start of a lease until this replica ended it, however it ended, by queue.",
			Buckets: []float64{0.01, 0.1, 1, 10, 60, 600, 3600},
		}, []string{"queue"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "leasehold_leases_ended_total",
			Help: "Leases that this replica ended, by queue and outcome.",
		}, []string{"queue", "outcome"}),
		gap: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "leasehold_heartbeat_gap_seconds",
			Help:    "From the last sign of life of a lease until a heartbeat that renewed it.",
			Buckets: []float64{0.5, 1, 2.5, 5, 10, 20, 30, 60, 300, 1800},
		}),
		doubleRuns: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "leasehold_double_runs_total",
			Help: "Leases whose holder called this replica after another lease of the job had begun: two workers had the job at once.",
		}),
	}
	m.others = m.newSeries(otherQueues)
	if registry == nil {
		return m, nil
	}
	var faults []error
	for _, c := range []prometheus.Collector{m.wait, m.ran, m.ended, m.gap, m.doubleRuns} {
		faults = append(faults, registry.Register(c))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return m, nil
}

func (m *LeaseMetrics) newSeries(queue string) *leaseSeries {
	s := &leaseSeries{
		wait: m.wait.WithLabelValues(queue), ran: m.ran.WithLabelValues(queue), ended: map[store.End]prometheus.Counter{},
	}
	// All of them at once: an alert on their growth must see the first.
	for end, name := range store.Ends {
		s.ended[end] = m.ended.WithLabelValues(queue, name)
	}
	return s
}

// of finds the series of a queue, or those of all the others.
func (m *LeaseMetrics) of(queue string) *leaseSeries {
	m.mu.RLock()
	s, full := m.queues[queue], len(m.queues) >= maxQueueLabels
	m.mu.RUnlock()
	if s != nil {
		return s
	}
	if full || queue == "" {
		return m.others
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.queues[queue] == nil {
		if len(m.queues) >= maxQueueLabels {
			return m.others
		}
		m.queues[queue] = m.newSeries(queue)
	}
	return m.queues[queue]
}

// keep drops the series of queues that are not among those that exist.
func (m *LeaseMetrics) keep(exists map[string]bool) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for queue := range m.queues {
		if exists[queue] {
			continue
		}
		delete(m.queues, queue)
		m.wait.DeleteLabelValues(queue)
		m.ran.DeleteLabelValues(queue)
		m.ended.DeletePartialMatch(prometheus.Labels{"queue": queue})
	}
}

// Leased implements store.Observer.
func (m *LeaseMetrics) Leased(queue string, waited time.Duration) {
	m.of(queue).wait.Observe(waited.Seconds())
}

// Ended implements store.Observer.
func (m *LeaseMetrics) Ended(queue string, end store.End, ran time.Duration) {
	s := m.of(queue)
	s.ran.Observe(ran.Seconds())
	if c := s.ended[end]; c != nil {
		c.Inc()
	}
}

// Beaten implements store.Observer.
func (m *LeaseMetrics) Beaten(gap time.Duration) { m.gap.Observe(gap.Seconds()) }

// DoubleRun implements store.Observer.
func (m *LeaseMetrics) DoubleRun() { m.doubleRuns.Inc() }
