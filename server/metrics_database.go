package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leasehold/leasehold/internal/loop"
	"github.com/leasehold/leasehold/store"
)

const (
	statisticsInterval = 15 * time.Second
	// statisticsBudget is what one pass takes of the database at most, beyond the page that it
	// has begun: a tenth of one connection. The next pass goes on where it stopped.
	statisticsBudget = 1500 * time.Millisecond
	statisticsPage   = 50
	// statisticsPageTimeout bounds one page.
	statisticsPageTimeout = 5 * time.Second
	statisticsTimeout     = 12 * time.Second
	statisticsStart       = 2 * time.Second

	leasesInterval = 30 * time.Second
	leasesTimeout  = 10 * time.Second
	leasesStart    = 10 * time.Second
	// recentLeases is the time that the figures of the newest leases are about.
	recentLeases = 15 * time.Minute
)

// statistics reads figures of the database for the metrics. A scrape finds what was read last
// and asks the database nothing, however often it comes. Every replica reads the same.
type statistics struct {
	store  store.Store
	leases *LeaseMetrics
	none   bool // nobody would see the figures

	counts    *prometheus.GaugeVec
	oldest    *prometheus.GaugeVec
	paused    *prometheus.GaugeVec
	recent    *prometheus.GaugeVec
	byTime    *prometheus.GaugeVec
	double    *prometheus.GaugeVec
	gapShare  *prometheus.GaugeVec
	gapMax    *prometheus.GaugeVec
	overdue   prometheus.Gauge
	left      prometheus.Gauge
	after     string          // the queue behind which the next page begins
	round     map[string]bool // queues of the round under way
	measured  map[string]bool // queues that have figures of jobs
	sampled   map[string]bool // queues that have figures of leases
	now       func() time.Time
	pageSize  int
	maxQueues int
}

func newStatistics(st store.Store, cfg BackgroundConfig) (*statistics, error) {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "leasehold_database_" + name, Help: help + " Of the database: aggregate with max, not sum.",
		}, append([]string{"queue"}, labels...))
	}
	one := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "leasehold_database_" + name, Help: help + " Of the database: aggregate with max, not sum.",
		})
	}
	s := &statistics{
		store: st, leases: cfg.Leases, none: cfg.Registry == nil, now: time.Now, pageSize: statisticsPage, maxQueues: maxQueueLabels,
		round: map[string]bool{}, measured: map[string]bool{}, sampled: map[string]bool{},
		counts: gauge("jobs", "Jobs by queue and state (ready, scheduled, processing, stuck, dead), as last read; each number stops at 10,000.", "state"),
		oldest: gauge("oldest_ready_job_age_seconds",
			"How long the oldest ready job of a queue has been due, as last read; 0 where none is ready."),
		paused: gauge("queue_paused", "1 where a queue is paused, else 0, as last read."),
		recent: gauge("recent_leases", "Leases among the newest 21,000 that began within the last 15 minutes, by queue."),
		byTime: gauge("recent_leases_ended_by_time", "Recent leases that expired, overran or stalled, or were completed late, by queue."),
		double: gauge("recent_double_runs", "Recent leases whose holder called after another lease of the job had begun, by queue."),
		gapShare: gauge("recent_heartbeat_gap_ratio",
			"The largest gap between signs of life as a part of the lease's length, of recent leases, 99th percentile by queue; near 1 leases are about to expire under living workers."),
		gapMax:  gauge("recent_heartbeat_gap_max_seconds", "The largest gap between signs of life of recent leases, by queue."),
		overdue: one("overdue_leases", "Leases that ran out more than 2 minutes ago and were not ended, among the oldest 10,000 leased jobs."),
		left:    one("queues_left_out", "1 where there are more queues than the 1,000 with figures of their own, else 0."),
	}
	if s.none {
		return s, nil
	}
	var faults []error
	for _, c := range []prometheus.Collector{s.counts, s.oldest, s.paused, s.recent, s.byTime, s.double, s.gapShare, s.gapMax, s.overdue, s.left} {
		faults = append(faults, cfg.Registry.Register(c))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return s, nil
}

func (s *statistics) jobs() []backgroundJob {
	if s.none {
		return nil
	}
	return []backgroundJob{
		{runOnce: s.countJobs, cfg: loop.Config{
			Name: "statistics", Interval: statisticsInterval, Timeout: statisticsTimeout, StartWithin: statisticsStart,
		}},
		{runOnce: s.sampleLeases, cfg: loop.Config{
			Name: "leases", Interval: leasesInterval, Timeout: leasesTimeout, StartWithin: leasesStart,
		}},
	}
}

// countJobs goes through the queues page by page until all are counted or its time is over. A
// page that fails is passed over, so that one queue that cannot be counted in time does not
// hide those behind it.
func (s *statistics) countJobs(ctx context.Context) error {
	began := s.now()
	for {
		size := min(s.pageSize, s.maxQueues-len(s.round))
		queues, err := s.store.ListQueues(ctx, s.after, size+1)
		if err != nil {
			return err
		}
		more := len(queues) > size
		queues = queues[:min(size, len(queues))]
		if len(queues) > 0 {
			s.after = queues[len(queues)-1].Name
			if err := s.countPage(ctx, queues); err != nil {
				return err
			}
		}
		full := len(s.round) >= s.maxQueues
		if full || !more {
			s.endRound(full && more)
			return nil
		}
		if s.now().Sub(began) >= statisticsBudget {
			return nil
		}
	}
}

func (s *statistics) countPage(ctx context.Context, queues []store.Queue) error {
	names := make([]string, len(queues))
	for i, q := range queues {
		names[i] = q.Name
		s.round[q.Name] = true
	}
	bounded, cancel := context.WithTimeout(ctx, statisticsPageTimeout)
	defer cancel()
	stats, err := s.store.QueueStats(bounded, names)
	if err != nil {
		return err
	}
	for i, q := range stats {
		s.measured[q.Queue] = true
		for state, n := range map[string]int64{
			"ready": q.Ready, "scheduled": q.Scheduled, "processing": q.Processing, "stuck": q.Stuck, "dead": q.Dead,
		} {
			s.counts.WithLabelValues(q.Queue, state).Set(float64(n))
		}
		age := 0.0
		if q.OldestAge != nil {
			age = q.OldestAge.Seconds()
		}
		s.oldest.WithLabelValues(q.Queue).Set(age)
		s.paused.WithLabelValues(q.Queue).Set(map[bool]float64{true: 1}[queues[i].PausedAt != nil])
	}
	return nil
}

// endRound drops the figures of queues that are gone.
func (s *statistics) endRound(leftOut bool) {
	for queue := range s.measured {
		if s.round[queue] {
			continue
		}
		delete(s.measured, queue)
		s.counts.DeletePartialMatch(prometheus.Labels{"queue": queue})
		s.oldest.DeleteLabelValues(queue)
		s.paused.DeleteLabelValues(queue)
	}
	s.left.Set(map[bool]float64{true: 1}[leftOut])
	if !leftOut {
		s.leases.keep(s.round)
	}
	s.after, s.round = "", map[string]bool{}
}

// sampleLeases measures the newest leases, a bounded number of rows on any history.
func (s *statistics) sampleLeases(ctx context.Context) error {
	facts, err := s.store.LintFacts(ctx, store.LintQuery{LookBack: recentLeases, MaxTransactionAge: time.Hour})
	if err != nil {
		return err
	}
	s.overdue.Set(float64(facts.Overdue))
	seen := map[string]bool{}
	for _, q := range facts.Queues[:min(len(facts.Queues), s.maxQueues)] {
		seen[q.Queue], s.sampled[q.Queue] = true, true
		s.recent.WithLabelValues(q.Queue).Set(float64(q.Leases))
		s.byTime.WithLabelValues(q.Queue).Set(float64(q.ByTime))
		s.double.WithLabelValues(q.Queue).Set(float64(q.DoubleRuns))
		s.gapShare.WithLabelValues(q.Queue).Set(q.GapShareP99)
		s.gapMax.WithLabelValues(q.Queue).Set(q.GapMax.Seconds())
	}
	for queue := range s.sampled {
		if seen[queue] {
			continue
		}
		delete(s.sampled, queue)
		for _, g := range []*prometheus.GaugeVec{s.recent, s.byTime, s.double, s.gapShare, s.gapMax} {
			g.DeleteLabelValues(queue)
		}
	}
	return nil
}
