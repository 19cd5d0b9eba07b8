package main

import (
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// poolFigure is one metric of the pool of connections to the database.
type poolFigure struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(*pgxpool.Stat) float64
}

// poolMetrics reads the pool when it is asked: its figures are counters in memory.
type poolMetrics struct {
	pool    *pgxpool.Pool
	figures []poolFigure
}

func newPoolMetrics(pool *pgxpool.Pool) *poolMetrics {
	m := &poolMetrics{pool: pool}
	add := func(kind prometheus.ValueType, name, help string, read func(*pgxpool.Stat) float64) {
		m.figures = append(m.figures, poolFigure{prometheus.NewDesc("leasehold_pool_"+name, help, nil, nil), kind, read})
	}
	add(prometheus.GaugeValue, "connections_max", "How many connections to the database this replica may have, without the one for LISTEN.",
		func(s *pgxpool.Stat) float64 { return float64(s.MaxConns()) })
	add(prometheus.GaugeValue, "connections_used", "Connections to the database that are in use.",
		func(s *pgxpool.Stat) float64 { return float64(s.AcquiredConns()) })
	add(prometheus.GaugeValue, "connections_idle", "Connections to the database that are open and idle.",
		func(s *pgxpool.Stat) float64 { return float64(s.IdleConns()) })
	add(prometheus.CounterValue, "connections_opened_total", "Connections to the database that were opened.",
		func(s *pgxpool.Stat) float64 { return float64(s.NewConnsCount()) })
	add(prometheus.CounterValue, "acquires_total", "How often a connection was taken from the pool.",
		func(s *pgxpool.Stat) float64 { return float64(s.AcquireCount()) })
	add(prometheus.CounterValue, "acquires_waited_total", "How often none was idle and a connection was waited for.",
		func(s *pgxpool.Stat) float64 { return float64(s.EmptyAcquireCount()) })
	add(prometheus.CounterValue, "acquires_given_up_total", "How often the wait for a connection was given up.",
		func(s *pgxpool.Stat) float64 { return float64(s.CanceledAcquireCount()) })
	add(prometheus.CounterValue, "acquire_seconds_total", "How long connections were waited for in all.",
		func(s *pgxpool.Stat) float64 { return s.AcquireDuration().Seconds() })
	return m
}

// Describe implements prometheus.Collector.
func (m *poolMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, f := range m.figures {
		out <- f.desc
	}
}

// Collect implements prometheus.Collector.
func (m *poolMetrics) Collect(out chan<- prometheus.Metric) {
	stat := m.pool.Stat()
	for _, f := range m.figures {
		out <- prometheus.MustNewConstMetric(f.desc, f.kind, f.read(stat))
	}
}
