package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/client"
	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/internal/replica"
	"github.com/leasehold/leasehold/store/postgres"
	"github.com/leasehold/leasehold/store/postgres/backdoor"
)

const (
	patience = time.Minute
	// childEnv makes the test binary the program itself, so that it can be killed.
	childEnv = "RECONCILIATION_TEST_CHILD"
	lease    = 3 * time.Second
)

func TestMain(m *testing.M) {
	text := os.Getenv(childEnv)
	if text == "" {
		os.Exit(pgtest.Run(m))
	}
	var args []string
	if err := json.Unmarshal([]byte(text), &args); err != nil {
		panic(err)
	}
	err := run(context.Background(), config{service: args[0], database: args[1], provider: args[2], lease: lease})
	fmt.Fprintln(os.Stderr, "ended", err)
}

// world is the service, the database of the application and the provider. Only the workers are
// processes of their own.
type world struct {
	t        *testing.T
	replica  *replica.Replica
	service  *client.Service
	url      string // of the application's database
	payments *payments
	fake     *fakeProvider
	provider *httptest.Server

	mu    sync.Mutex
	asked []string           // pages, by what they come after
	hook  func(after string) // what a test does before a page is answered
}

func migrate(ctx context.Context, url string) error {
	return postgres.Migrate(ctx, url, slog.New(slog.DiscardHandler))
}

func newWorld(t *testing.T, payments int) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w := &world{t: t, fake: newFakeProvider(payments)}
	w.fake.asked = w.note
	w.startService(ctx)
	w.url = pgtest.Database(t, nil)
	var err error
	if w.payments, err = connectPayments(ctx, w.url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.payments.close)
	if err := w.payments.seed(ctx, w.fake.list); err != nil {
		t.Fatal(err)
	}
	w.provider = httptest.NewServer(w.fake)
	t.Cleanup(w.provider.Close)
	return w
}

func (w *world) startService(ctx context.Context) {
	w.t.Helper()
	dir := w.t.TempDir()
	binary, err := replica.Build(ctx, dir)
	if err != nil {
		w.t.Fatal(err)
	}
	db := pgtest.Database(w.t, migrate)
	w.replica, err = replica.Start(ctx, replica.Config{Binary: binary, DatabaseURL: db, Dir: dir, Args: []string{"--watcher-interval", "100ms"}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(w.replica.Kill)
	// As if the service had run for long: else nothing expires in the first seconds.
	backdoor.Open(w.t, db).SetWritable(w.t, time.Hour, 0)
	if w.service, err = client.Connect([]string{w.replica.GRPC()}, client.ConnectConfig{}); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(w.service.Close)
}

// note remembers which page was asked for.
func (w *world) note(after string) {
	w.mu.Lock()
	w.asked = append(w.asked, after)
	hook := w.hook
	w.mu.Unlock()
	if hook != nil {
		hook(after)
	}
}

func (w *world) before(hook func(after string)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hook = hook
}

// pages are those that were asked for so far.
func (w *world) pages() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.asked)
}

// start runs the program.
func (w *world) start() *exec.Cmd {
	w.t.Helper()
	program, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	text, err := json.Marshal([]string{w.replica.GRPC(), w.url, w.provider.URL})
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	said := &replica.Said{}
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		kill(cmd)
		if w.t.Failed() {
			w.t.Logf("process %d said:\n%s", cmd.Process.Pid, said)
		}
	})
	return cmd
}

// kill ends a process as a crash does.
func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill() // it may have been killed before
	_ = cmd.Wait()
}

func (w *world) eventually(what string, is func() bool) {
	w.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-deadline.C:
			w.t.Fatalf("never came about: %s; pages %q", what, w.pages())
		}
	}
}

// jobs are all of a queue.
func (w *world) jobs(queue string) (out []*pb.Job) {
	w.t.Helper()
	jobs := pb.NewJobServiceClient(w.service.Conn())
	for token := ""; ; {
		page, err := jobs.ListJobs(w.t.Context(), &pb.ListJobsRequest{
			Filter: &pb.JobFilter{Queue: &queue}, PageSize: new(int32(1000)), PageToken: token,
		})
		if err != nil {
			w.t.Fatal(err)
		}
		out = append(out, page.GetJobs()...)
		if token = page.GetNextPageToken(); token == "" {
			return out
		}
	}
}

// leases are all that a job had.
func (w *world) leases(job *pb.Job) []*pb.LeaseRecord {
	w.t.Helper()
	page, err := pb.NewJobServiceClient(w.service.Conn()).ListLeases(w.t.Context(), &pb.ListLeasesRequest{JobId: job.GetJobId()})
	if err != nil {
		w.t.Fatal(err)
	}
	return page.GetLeases()
}

// done tells whether every job of both queues is completed.
func (w *world) done() bool {
	scans, settlements := w.jobs(queueScan), w.jobs(queueSettle)
	return len(scans) > 0 && !slices.ContainsFunc(append(scans, settlements...), func(j *pb.Job) bool {
		return j.GetState() != pb.JobState_JOB_STATE_COMPLETED
	})
}

// entries counts the bookings of each payment.
func (w *world) entries() map[string]int {
	w.t.Helper()
	rows, err := w.payments.pool.Query(w.t.Context(), `SELECT payment_id FROM entries`)
	if err != nil {
		w.t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		w.t.Fatal(err)
	}
	counts := map[string]int{}
	for _, id := range ids {
		counts[id]++
	}
	return counts
}

// mustBeReconciled holds the ledger against what the provider has: every payment that succeeded there
// and was open here is booked once, and no other is.
func (w *world) mustBeReconciled() {
	w.t.Helper()
	got := w.entries()
	wanted := 0
	for i, p := range w.fake.list {
		want := 0
		if i%3 == 0 && p.Status == "succeeded" { // as seed leaves them open
			want = 1
			wanted++
		}
		if got[p.ID] != want {
			w.t.Errorf("%s, %s, is booked %d times, want %d", p.ID, p.Status, got[p.ID], want)
		}
	}
	if settlements := len(w.jobs(queueSettle)); settlements != wanted {
		w.t.Errorf("%d settlements for %d payments", settlements, wanted)
	}
}

// TestKilledInTheMiddle: the process is killed while it waits for the third page. Another goes on from
// the checkpoint behind the second, and every payment that was found, by whichever of the two, is
// settled once.
func TestKilledInTheMiddle(t *testing.T) {
	const total = 600
	w := newWorld(t, total)
	third := w.fake.list[2*pageMost-1].ID
	reached, release := make(chan struct{}), make(chan struct{})
	t.Cleanup(sync.OnceFunc(func() { close(release) }))
	var once sync.Once
	w.before(func(after string) {
		if after == third {
			once.Do(func() {
				w.before(nil) // the next who asks is answered
				close(reached)
				<-release
			})
		}
	})
	victim := w.start()
	select {
	case <-reached:
	case <-time.After(patience):
		t.Fatalf("the third page was never asked for; pages %q", w.pages())
	}
	kill(victim)
	w.start()
	w.eventually("all jobs are completed", w.done)

	pages := w.pages()
	if want := []string{"", w.fake.list[pageMost-1].ID, third, third}; !slices.Equal(pages[:min(len(pages), 4)], want) {
		t.Errorf("pages were asked for behind %q, want first %q", pages, want)
	}
	slices.Sort(pages)
	if twice := len(pages) - len(slices.Compact(pages)); twice != 1 {
		t.Errorf("%d pages were asked for twice, want the one of the crash", twice)
	}
	scans := w.jobs(queueScan)
	if l := w.leases(scans[0]); len(l) != 2 || l[0].GetEnd() != pb.LeaseEnd_LEASE_END_EXPIRED || l[1].GetEnd() != pb.LeaseEnd_LEASE_END_COMPLETED {
		t.Errorf("the leases of the first scan: %v", l)
	}
	if len(scans) < 2 {
		t.Errorf("%d scans; the findings of %d payments do not fit into one", len(scans), total)
	}
	w.mustBeReconciled()

	// The scan of another day finds nothing that is open, and settles nothing again.
	producer, err := client.NewProducer(w.service, client.ProducerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if err := startScan(t.Context(), producer, "another day"); err != nil {
		t.Fatal(err)
	}
	w.eventually("the second scan is completed", func() bool { return len(w.jobs(queueScan)) > len(scans) && w.done() })
	w.mustBeReconciled()
}

// TestTwoScansAtOnce: both find the same payments, which become one job each.
func TestTwoScansAtOnce(t *testing.T) {
	w := newWorld(t, 120)
	producer, err := client.NewProducer(w.service, client.ProducerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if err := prepare(t.Context(), w.service); err != nil {
		t.Fatal(err)
	}
	if err := startScan(t.Context(), producer, "another"); err != nil {
		t.Fatal(err)
	}
	// Both scans have asked for the first page before either is answered.
	both := make(chan struct{})
	meet := sync.OnceFunc(func() { close(both) })
	t.Cleanup(meet)
	w.before(func(after string) {
		if after == "" {
			if slices.Index(w.pages(), "") != len(w.pages())-1 {
				meet()
			}
			<-both
		}
	})
	w.start()
	w.eventually("all jobs are completed", w.done)
	w.mustBeReconciled()
}
