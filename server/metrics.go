package server

import (
	"fmt"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are those of the gRPC side. Labels are method and code, which are bounded; never
// a name that a client chose.
type metrics struct {
	rpcs        *grpcprom.ServerMetrics
	undelivered prometheus.Counter
}

// rpcBuckets reach from a heartbeat on an idle database to a poll of 60 s.
var rpcBuckets = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60}

// newMetrics registers on the registry that is passed; nil registers nowhere.
func newMetrics(registry prometheus.Registerer, ws *waiters) (*metrics, error) {
	m := &metrics{
		rpcs: grpcprom.NewServerMetrics(grpcprom.WithServerHandlingTimeHistogram(grpcprom.WithHistogramBuckets(rpcBuckets))),
		undelivered: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "leasehold_undelivered_leases_total",
			Help: "Leases given back because their caller was gone before the answer.",
		}),
	}
	parked := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "leasehold_parked_polls",
		Help: "AcquireLease calls that wait for a job in this replica.",
	}, func() float64 { return float64(ws.count()) })
	if registry == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.rpcs, m.undelivered, parked} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}
