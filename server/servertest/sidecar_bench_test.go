package servertest

import (
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// BenchmarkSidecar tells what a sidecar adds to a call: the median of one that goes straight to a
// replica, and of the same beside a sidecar, in turns.
func BenchmarkSidecar(b *testing.B) {
	r := startReplica(b, newDatabase(b).URL)
	if _, err := r.queues.CreateQueue(b.Context(), &pb.CreateQueueRequest{Queue: &pb.Queue{Name: "q"}}); err != nil {
		b.Fatal(err)
	}
	beside := pb.NewJobServiceClient(besideSidecar(b, r.conn, prometheus.NewRegistry()))
	ways := map[string]pb.JobServiceClient{"straight": r.jobs, "beside": beside}
	took := map[string][]time.Duration{}
	for b.Loop() {
		for name, jobs := range ways {
			start := time.Now()
			if _, err := jobs.Enqueue(b.Context(), &pb.EnqueueRequest{Queue: "q"}); err != nil {
				b.Fatal(err)
			}
			took[name] = append(took[name], time.Since(start))
		}
	}
	median := func(name string) float64 {
		slices.Sort(took[name])
		return took[name][len(took[name])/2].Seconds() * 1e3
	}
	b.ReportMetric(median("straight"), "ms-straight")
	b.ReportMetric(median("beside"), "ms-beside")
	b.ReportMetric(median("beside")-median("straight"), "ms-added")
}
