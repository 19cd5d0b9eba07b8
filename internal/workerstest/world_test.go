//go:build workers

package workerstest

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/leasehold/leasehold/client"
	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/internal/replica"
	"github.com/leasehold/leasehold/store/postgres"
	"github.com/leasehold/leasehold/store/postgres/backdoor"
)

const (
	// patience bounds every wait for something that must come about, on a busy machine.
	patience = 2 * time.Minute
	// leftovers is how long what a killed worker left behind may hold its output open.
	leftovers = time.Second
)

// world is a service over a database of its own.
type world struct {
	t       *testing.T
	db      *backdoor.Database
	replica *replica.Replica
	service *client.Service
	leases  pb.LeaseServiceClient
	queues  pb.QueueServiceClient
}

func migrate(ctx context.Context, url string) error {
	return postgres.Migrate(ctx, url, slog.New(slog.DiscardHandler))
}

// newWorld starts a service whose watcher sweeps ten times a second.
func newWorld(t *testing.T) *world {
	t.Helper()
	build(t)
	url := pgtest.Database(t, migrate)
	w := &world{t: t, db: backdoor.Open(t, url)}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var err error
	w.replica, err = replica.Start(ctx, replica.Config{
		Binary: binaries.service, DatabaseURL: url, Dir: t.TempDir(), Args: []string{"--watcher-interval", "100ms"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.replica.Kill)
	// As if the service had run for long: else nothing expires in the first seconds.
	w.db.SetWritable(t, time.Hour, 0)
	if w.service, err = client.Connect([]string{w.replica.GRPC()}, client.ConnectConfig{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.service.Close)
	w.leases, w.queues = pb.NewLeaseServiceClient(w.service.Conn()), pb.NewQueueServiceClient(w.service.Conn())
	return w
}

// createQueue makes a queue whose jobs may expire as often as the tests make them.
func (w *world) createQueue(name string, lease time.Duration, onExpiry pb.OnExpiry) string {
	w.t.Helper()
	_, err := w.queues.CreateQueue(w.t.Context(), &pb.CreateQueueRequest{Queue: &pb.Queue{
		Name: name, OnExpiry: onExpiry,
		Policy: &pb.JobPolicy{LeaseDuration: durationpb.New(lease), MaxExpirations: new(int32(1000)), MaxAttempts: new(int32(1000))},
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	return name
}

// enqueue stores n jobs that take so many seconds each, and returns their ids.
func (w *world) enqueue(queue string, n, seconds int) []string {
	w.t.Helper()
	p, err := client.NewProducer(w.service, client.ProducerConfig{})
	if err != nil {
		w.t.Fatal(err)
	}
	jobs := make([]client.NewJob, n)
	for i := range jobs {
		jobs[i] = client.NewJob{Queue: queue, Payload: client.Payload{Data: fmt.Appendf(nil, `{"seconds":%d}`, seconds), JSON: true}}
	}
	results, err := p.EnqueueBatch(w.t.Context(), jobs)
	if err != nil {
		w.t.Fatal(err)
	}
	ids := make([]string, n)
	for i, r := range results {
		ids[i] = r.JobID
	}
	return ids
}

// one is the value that a statement returns.
func one[T any](w *world, sql string, args ...any) (v T) {
	w.t.Helper()
	if err := w.db.SQL.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// state is where a job stands.
func (w *world) state(id string) string {
	w.t.Helper()
	return one[string](w, `SELECT state FROM leasehold.all_jobs WHERE id = $1::bigint`, id)
}

func (w *world) awaitState(id, state string) {
	w.t.Helper()
	eventually(w.t, "job "+id+" is "+state, func() bool { return w.state(id) == state })
}

// awaitBeat waits until a worker surely works on a job.
func (w *world) awaitBeat(id string) {
	w.t.Helper()
	eventually(w.t, "the lease of job "+id+" is renewed", func() bool {
		return one[bool](w, `SELECT coalesce(max(beats), 0) > 0 FROM leasehold.all_leases WHERE job_id = $1::bigint`, id)
	})
}

// completed is how many jobs of a queue are.
func (w *world) completed(queue string) int {
	w.t.Helper()
	return one[int](w, `SELECT count(*)::int FROM leasehold.all_jobs WHERE queue = $1 AND state = 'COMPLETED'`, queue)
}

// await waits for a signal.
func await(t *testing.T, what string, signal <-chan struct{}) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	select {
	case <-signal:
	case <-deadline.C:
		t.Fatalf("never came: %s", what)
	}
}

// eventually waits for a condition that something else brings about.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	if !within(is) {
		t.Fatalf("never came about: %s", what)
	}
}

// within tells whether a condition came about.
func within(is func() bool) bool {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-deadline.C:
			return false
		}
	}
	return true
}
