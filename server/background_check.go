package server

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leasehold/leasehold/store"
)

// readinessCheck looks once a second whether the replica should get calls.
type readinessCheck struct {
	server *Server
	ready  *Readiness
	log    *slog.Logger

	isReady, stampAge, sweepAge, partitions prometheus.Gauge
}

func newReadinessCheck(s *Server, ready *Readiness, cfg BackgroundConfig) (*readinessCheck, error) {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	c := &readinessCheck{
		server: s, ready: ready, log: cfg.Log,
		isReady:    gauge("leasehold_ready", "1 while this replica should get calls, else 0."),
		stampAge:   gauge("leasehold_stamp_age_seconds", "Age of the last stamp of any replica, as last read: above 3 s no lease expires. Of the database: aggregate with max, not sum."),
		sweepAge:   gauge("leasehold_sweep_age_seconds", "Age of the last finished sweep of any replica, as last read. Of the database: aggregate with max, not sum."),
		partitions: gauge("leasehold_partitions_ahead", "Partitions that lie ahead of the next job, as last read: the fewest of all tables. Of the database: aggregate with min, not sum."),
	}
	if cfg.Registry == nil {
		return c, nil
	}
	for _, g := range []prometheus.Collector{c.isReady, c.stampAge, c.sweepAge, c.partitions} {
		if err := cfg.Registry.Register(g); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return c, nil
}

// runOnce looks once. A database that does not answer is a finding, and no failure of the
// look: the loop goes on at its pace, so that a database that is back is seen at once.
func (c *readinessCheck) runOnce(ctx context.Context) error {
	before := strings.Join(c.ready.Reasons(), "; ")
	h, err := c.server.store.Health(ctx)
	reasons := strings.Join(c.ready.observe(h, err), "; ")
	c.server.SetServing(reasons == "")
	c.isReady.Set(map[bool]float64{true: 1}[reasons == ""])
	if err == nil {
		c.measure(h)
	}
	switch {
	case reasons == "" && before != "":
		c.log.InfoContext(ctx, "this replica is ready")
	case reasons != "" && before == "":
		c.log.WarnContext(ctx, "this replica is not ready", "reasons", reasons)
	}
	return nil
}

func (c *readinessCheck) measure(h store.Health) {
	c.stampAge.Set(h.StampAge.Seconds())
	c.sweepAge.Set(h.SweepAge.Seconds())
	c.partitions.Set(float64(h.PartitionsAhead))
}
