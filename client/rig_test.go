package client_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/leasehold/leasehold/client"
	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/faultproxy"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/internal/replica"
	"github.com/leasehold/leasehold/store/postgres"
	"github.com/leasehold/leasehold/store/postgres/backdoor"
)

const (
	// patience bounds every wait for something that must come about, on a busy machine.
	patience = time.Minute
	callTime = 10 * time.Second
)

// service is the binary of the service, built by the first test that needs it.
var service = struct {
	once sync.Once
	dir  string
	path string
	err  error
}{}

func TestMain(m *testing.M) {
	if address := os.Getenv(childEnv); address != "" {
		os.Exit(child(address))
	}
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	flag.Parse() // what the command line says comes second, and stays
	code := pgtest.Run(m)
	if err := os.RemoveAll(service.dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

func binary(t testing.TB) string {
	t.Helper()
	service.once.Do(func() {
		if service.dir, service.err = os.MkdirTemp("", "leasehold-client-"); service.err == nil {
			service.path, service.err = replica.Build(context.Background(), service.dir)
		}
	})
	if service.err != nil {
		t.Fatal(service.err)
	}
	return service.path
}

func migrate(ctx context.Context, url string) error {
	return postgres.Migrate(ctx, url, slog.New(slog.DiscardHandler))
}

// world is a service of some replicas over a database of its own, each behind a proxy.
type world struct {
	t        testing.TB
	db       *backdoor.Database
	replicas []*replica.Replica
	proxies  []*faultproxy.Proxy
	straight *client.Service // past the proxies
	leases   pb.LeaseServiceClient
	jobs     pb.JobServiceClient
	queues   pb.QueueServiceClient
}

// newWorld starts n replicas whose watchers sweep ten times a second.
func newWorld(t testing.TB, n int, args ...string) *world {
	t.Helper()
	url := pgtest.Database(t, migrate)
	w := &world{t: t, db: backdoor.Open(t, url)}
	var addresses []string
	for range n {
		r := w.replica(url, append([]string{"--watcher-interval", "100ms"}, args...))
		p, err := faultproxy.New(r.GRPC())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		w.replicas, w.proxies, addresses = append(w.replicas, r), append(w.proxies, p), append(addresses, r.GRPC())
	}
	// As if the service had run for long: else nothing expires in the first seconds.
	w.db.SetWritable(t, time.Hour, 0)
	w.straight = connect(t, addresses)
	w.leases, w.jobs, w.queues = pb.NewLeaseServiceClient(w.straight.Conn()), pb.NewJobServiceClient(w.straight.Conn()), pb.NewQueueServiceClient(w.straight.Conn())
	return w
}

func (w *world) replica(url string, args []string) *replica.Replica {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := replica.Start(ctx, replica.Config{Binary: binary(w.t), DatabaseURL: url, Dir: w.t.TempDir(), Args: args})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		r.Kill()
		if w.t.Failed() {
			w.t.Logf("the replica at %s said:\n%s", r.GRPC(), r.Log())
		}
	})
	return r
}

// proxied are the addresses of the replicas, through their proxies.
func (w *world) proxied() []string {
	var addresses []string
	for _, p := range w.proxies {
		addresses = append(addresses, p.Addr())
	}
	return addresses
}

func connect(t testing.TB, endpoints []string, options ...grpc.DialOption) *client.Service {
	t.Helper()
	s, err := client.Connect(endpoints, client.ConnectConfig{DialOptions: options})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func (w *world) createQueue(q *pb.Queue) string {
	w.t.Helper()
	accepted(w.t, w.queues.CreateQueue, &pb.CreateQueueRequest{Queue: q})
	return q.GetName()
}

// enqueue stores n jobs with the payload {"n":i}, and returns their ids.
func (w *world) enqueue(queue string, n int) []string {
	w.t.Helper()
	p, err := client.NewProducer(w.straight, client.ProducerConfig{})
	if err != nil {
		w.t.Fatal(err)
	}
	jobs := make([]client.NewJob, n)
	for i := range jobs {
		jobs[i] = client.NewJob{Queue: queue, Payload: client.Payload{Data: fmt.Appendf(nil, `{"n":%d}`, i), JSON: true}}
	}
	results, err := p.EnqueueBatch(context.Background(), jobs)
	if err != nil {
		w.t.Fatal(err)
	}
	ids := make([]string, n)
	for i, r := range results {
		ids[i] = r.JobID
	}
	return ids
}

// job reads a job with the records of its leases.
func (w *world) job(id string) *pb.GetJobResponse {
	w.t.Helper()
	leases := int32(100)
	return accepted(w.t, w.jobs.GetJob, &pb.GetJobRequest{
		By: &pb.GetJobRequest_JobId{JobId: id}, View: pb.JobView_JOB_VIEW_FULL, RecentLeases: &leases,
	})
}

func (w *world) state(id string) pb.JobState { return w.job(id).GetJob().GetState() }

// count is how many jobs of a queue are in a state.
func (w *world) count(queue, state string) int {
	w.t.Helper()
	return one[int](w, `SELECT count(*)::int FROM leasehold.all_jobs WHERE queue = $1 AND state = $2`, queue, state)
}

// one is the value that a statement returns.
func one[T any](w *world, sql string, args ...any) (v T) {
	w.t.Helper()
	if err := w.db.SQL.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// worker is a Worker that runs until the end of its test, or until stop.
type worker struct {
	*client.Worker
	t     testing.TB
	ended chan struct{}
	err   error
}

// start runs a worker. A test that expects no error of Run calls stop.
func start(t testing.TB, s *client.Service, cfg client.WorkerConfig) *worker {
	t.Helper()
	w, err := client.NewWorker(s, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return run(t, w)
}

func run(t testing.TB, w *client.Worker) *worker {
	r := &worker{Worker: w, t: t, ended: make(chan struct{})}
	go func() {
		defer close(r.ended)
		r.err = w.Run(context.Background())
	}()
	t.Cleanup(func() {
		w.Hurry()
		await(t, "the end of Run after Hurry", r.ended)
	})
	return r
}

// stop shuts the worker down and returns what Run returned.
func (w *worker) stop() error {
	w.t.Helper()
	w.Shutdown()
	await(w.t, "the end of Run", w.ended)
	return w.err
}

// stopNow is stop without the grace.
func (w *worker) stopNow() error {
	w.t.Helper()
	w.Hurry()
	await(w.t, "the end of Run", w.ended)
	return w.err
}

// await waits for a signal.
func await[T any](t testing.TB, what string, signal <-chan T) T {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	select {
	case v := <-signal:
		return v
	case <-deadline.C:
		stacks := make([]byte, 1<<20)
		t.Fatalf("never came: %s\n%s", what, stacks[:runtime.Stack(stacks, true)])
	}
	panic("not reached")
}

// eventually waits for a condition that something else brings about.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("never came about: %s", what)
		}
	}
}

// accepted makes a call that must succeed.
func accepted[Req, Resp any](t testing.TB, method func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req) Resp {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	resp, err := method(ctx, req, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	return resp
}
