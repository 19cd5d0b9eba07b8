package server

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// mergeSeries measure the batches of one merger.
type mergeSeries struct {
	size, wait prometheus.Observer
}

// measure registers the metrics of merging on the registry that is passed; nil registers
// nowhere. The label is one of the six calls that are merged.
func (s *mergedStore) measure(registry prometheus.Registerer) error {
	size := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "leasehold_merge_size",
		Help:    "Items of one batch that was made of the calls of many callers, by call.",
		Buckets: []float64{1, 2, 5, 10, 25, 50, 100, 250, 500, 1000},
	}, []string{"call"})
	wait := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "leasehold_merge_wait_seconds",
		Help:    "How long a call waited for its batch to begin, by call.",
		Buckets: []float64{0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5},
	}, []string{"call"})
	series := func(name string) *mergeSeries {
		return &mergeSeries{size: size.WithLabelValues(name), wait: wait.WithLabelValues(name)}
	}
	s.enqueues.seen, s.acquires.seen = series(s.enqueues.name), series(s.acquires.name)
	s.heartbeats.seen, s.completes.seen = series(s.heartbeats.name), series(s.completes.name)
	s.fails.seen, s.releases.seen = series(s.fails.name), series(s.releases.name)
	if registry == nil {
		return nil
	}
	if err := errors.Join(registry.Register(size), registry.Register(wait)); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	return nil
}
