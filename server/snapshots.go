package server

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leasehold/leasehold/internal/loop"
	"github.com/leasehold/leasehold/store"
)

const (
	snapshotsInterval = 15 * time.Second
	snapshotsTimeout  = 5 * time.Second
	// snapshotsStart spreads the replicas.
	snapshotsStart = 5 * time.Second
	// snapshotIsOld is when a holder is named in the log: with tens of thousands of jobs a
	// second, each minute leaves millions of dead entries behind.
	snapshotIsOld = 5 * time.Minute
)

// snapshotWatch measures who keeps the database from removing dead rows.
type snapshotWatch struct {
	store        store.Maintenance
	log          *slog.Logger
	age          *prometheus.GaugeVec
	transactions *prometheus.GaugeVec
	named        string
}

func newSnapshotWatch(st store.Maintenance, cfg BackgroundConfig) (*snapshotWatch, error) {
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"holder"})
	}
	w := &snapshotWatch{
		store: st, log: cfg.Log,
		age: gauge("leasehold_oldest_snapshot_seconds",
			"How long the oldest transaction that holds back vacuum has been open, as last read. A slot has no time. Of the database: aggregate with max, not sum."),
		transactions: gauge("leasehold_oldest_snapshot_transactions",
			"How many transactions have begun since the oldest that holds back vacuum, as last read. Of the database: aggregate with max, not sum."),
	}
	if cfg.Registry == nil {
		return w, nil
	}
	for _, g := range []prometheus.Collector{w.age, w.transactions} {
		if err := cfg.Registry.Register(g); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return w, nil
}

func (w *snapshotWatch) job() backgroundJob {
	return backgroundJob{runOnce: w.runOnce, cfg: loop.Config{
		Name: "snapshots", Interval: snapshotsInterval, Timeout: snapshotsTimeout, StartWithin: snapshotsStart,
	}}
}

func (w *snapshotWatch) runOnce(ctx context.Context) error {
	held, err := w.store.HeldSnapshots(ctx)
	if err != nil {
		return err
	}
	for _, holder := range store.Holders {
		w.age.WithLabelValues(holder).Set(0)
		w.transactions.WithLabelValues(holder).Set(0)
	}
	oldest := store.HeldSnapshot{}
	for _, h := range held {
		w.age.WithLabelValues(h.Holder).Set(h.For.Seconds())
		w.transactions.WithLabelValues(h.Holder).Set(float64(h.Transactions))
		if h.For > oldest.For {
			oldest = h
		}
	}
	switch {
	case oldest.For < snapshotIsOld:
		w.named = ""
	case oldest.Name != w.named:
		w.named = oldest.Name
		w.log.WarnContext(ctx, "an old transaction keeps dead rows from being removed: end it, or tables and scans grow",
			"holder", oldest.Holder, "name", oldest.Name, "open_for", oldest.For, "transactions", oldest.Transactions)
	}
	return nil
}
