package faulttest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// sqlMishaps lets one in twenty statements of the service that write a table end in an error
// that a repetition may not meet again: serialization, deadlock, lock, cancel, too many
// connections, shutdown.
var sqlMishaps = []string{`CREATE TABLE public.mishaps (share float8)`, `INSERT INTO public.mishaps VALUES (0)`, `
CREATE FUNCTION public.mishap() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('application_name') = 'leasehold' AND random() < (SELECT share FROM public.mishaps) THEN
        RAISE EXCEPTION USING MESSAGE = 'a mishap', ERRCODE =
            (ARRAY['40001', '40P01', '55P03', '57014', '53300', '57P03'])[1 + floor(random() * 6)::int];
    END IF;
    RETURN NULL;
END $$`}

// mishapTables are all tables that the service writes in the course of its work.
var mishapTables = []string{
	"jobs", "finished_jobs", "job_data", "job_results", "attempts", "stages", "lease_errors", "checkpoints",
	"idempotency_keys", "acquire_requests", "late_calls", "operator_acts", "service",
}

// persist repeats a call that may be repeated until it is answered; the tries are counted by
// what they met.
func (w *mishapWorker) persist(call string, try func(context.Context) error) (ok bool) {
	for n := 0; w.ctx.Err() == nil; n++ {
		err := try(w.ctx)
		if err == nil || w.ctx.Err() != nil {
			return err == nil
		}
		w.mu.Lock()
		w.met[fmt.Sprintf("%s: %v %s", call, status.Code(err), reasonIn(err))]++
		w.mu.Unlock()
		if !isTransient(err) {
			return false
		}
	}
	return false
}

type mishapWorker struct {
	ctx  context.Context
	mu   sync.Mutex
	met  map[string]int
	done int
}

func (w *mishapWorker) completed() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.done
}

// enqueue stores jobs with a key each, as a producer that must not lose one.
func (w *mishapWorker) enqueue(m *member, queue string, from, to int) {
	for i := from; i < to; i++ {
		key := fmt.Sprint("key ", i)
		w.persist("Enqueue", func(ctx context.Context) error {
			_, err := m.jobs.Enqueue(ctx, &pb.EnqueueRequest{Queue: queue, IdempotencyKey: &key})
			return err
		})
	}
}

// work takes jobs, beats, and ends them in every way.
func (w *mishapWorker) work(m *member, name, queue string) {
	for n := 0; w.ctx.Err() == nil; n++ {
		var leases []*pb.Lease
		id := fmt.Sprint(name, n)
		w.persist("AcquireLease", func(ctx context.Context) error {
			resp, err := m.leases.AcquireLease(ctx, &pb.AcquireLeaseRequest{
				Queues: []string{queue}, LeaseOwner: name, MaxJobs: to(int32(5)), RequestId: &id, LeaseDuration: durationpb.New(time.Minute),
			})
			leases = resp.GetLeases()
			return err
		})
		for _, l := range leases {
			token := l.GetLeaseToken()
			w.persist("Heartbeat", func(ctx context.Context) error {
				_, err := m.leases.Heartbeat(ctx, &pb.HeartbeatRequest{LeaseToken: token, Stage: to("s"), Checkpoint: []byte("c")})
				return err
			})
			w.end(m, queue, token)
		}
	}
}

func (w *mishapWorker) end(m *member, queue, token string) {
	ended := false
	switch rand.N(6) {
	case 0:
		w.persist("Fail", func(ctx context.Context) error {
			_, err := m.leases.Fail(ctx, &pb.FailRequest{LeaseToken: token, RetryAfter: durationpb.New(0), Error: &pb.JobError{Code: "c"}})
			return err
		})
	case 1:
		w.persist("Release", func(ctx context.Context) error {
			_, err := m.leases.Release(ctx, &pb.ReleaseRequest{LeaseToken: token})
			return err
		})
	case 2:
		ended = w.persist("Complete with a follow-up", func(ctx context.Context) error {
			_, err := m.leases.Complete(ctx, &pb.CompleteRequest{
				LeaseToken: token, ThenEnqueue: []*pb.EnqueueRequest{{Queue: "after", Subject: to("follow-up")}},
			})
			return err
		})
	default:
		ended = w.persist("Complete", func(ctx context.Context) error {
			_, err := m.leases.Complete(ctx, &pb.CompleteRequest{LeaseToken: token, Result: &pb.Payload{Content: &pb.Payload_Json{Json: "1"}}})
			return err
		})
	}
	if ended {
		w.mu.Lock()
		w.done++
		w.mu.Unlock()
	}
}

// TestNoLoopAndNoJobIsLostToErrorsThatPass: one statement in twenty fails with an error that
// a repetition may not meet. What is repeated inside is not seen outside, the rest asks to be
// tried again, and nothing of the background ends.
func TestNoLoopAndNoJobIsLostToErrorsThatPass(t *testing.T) {
	t.Parallel()
	const jobs = 150
	f := newFleet(t, database(t), 2, "--watcher-interval", "300ms")
	q := opened(t, f, &pb.Queue{Name: "q", Policy: &pb.JobPolicy{MaxAttempts: to(int32(1000)), MaxExpirations: to(int32(1000)), Backoff: &pb.Backoff{Initial: durationpb.New(0)}}})
	opened(t, f, &pb.Queue{Name: "after"})
	for _, sql := range sqlMishaps {
		f.db.Exec(t, sql)
	}
	for _, table := range mishapTables {
		f.db.Exec(t, `CREATE TRIGGER mishap AFTER INSERT OR UPDATE OR DELETE ON leasehold.`+table+` FOR EACH STATEMENT EXECUTE FUNCTION public.mishap()`)
	}
	f.db.Exec(t, `UPDATE public.mishaps SET share = 0.05`)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w := &mishapWorker{ctx: ctx, met: map[string]int{}}
	var all sync.WaitGroup
	for n := range 3 {
		all.Go(func() { w.enqueue(f.members[n%2], q, n*jobs/3, (n+1)*jobs/3) })
		all.Go(func() { w.work(f.members[n%2], fmt.Sprint("w", n, "/"), q) })
	}
	eventually(t, "all jobs are done, and those who did them know", func() bool { return w.completed() >= jobs })
	cancel()
	all.Wait()
	if done := look[int](t, f, `SELECT count(*)::int FROM leasehold.finished_jobs WHERE state = 4`); done != jobs || w.completed() != jobs {
		t.Errorf("%d of %d jobs are done, their holders completed %d", done, jobs, w.completed())
	}
	for _, m := range f.members {
		wantLoopsGoOn(t, m)
	}
	f.db.Exec(t, `UPDATE public.mishaps SET share = 0`)
	t.Logf("what the workers met: %v", w.met)
	for _, what := range slices.Sorted(maps.Keys(w.met)) {
		if !strings.HasSuffix(what, " JOB_BUSY") && !strings.HasSuffix(what, " DATABASE_UNAVAILABLE") {
			t.Errorf("a passing error was answered as %s", what)
		}
	}
	if n := look[int](t, f, `SELECT count(*)::int FROM leasehold.all_jobs WHERE queue = 'q'`); n != jobs {
		t.Errorf("%d jobs are stored, want %d", n, jobs)
	}
	if n := look[int](t, f, `SELECT (count(*) - count(DISTINCT parent_id))::int FROM leasehold.jobs WHERE parent_id IS NOT NULL`); n != 0 {
		t.Errorf("%d follow-ups too many", n)
	}
	mayExpire(t, f)
	f.db.Exec(t, sqlOverdue)
	eventually(t, "nothing is leased", func() bool { return look[int](t, f, `SELECT count(*)::int FROM leasehold.jobs WHERE state = 2`) == 0 })
	wantSound(t, f, true)
}

// wantLoopsGoOn checks that each loop of the background makes passes that go well.
func wantLoopsGoOn(t *testing.T, m *member) {
	t.Helper()
	before := gauges(t, m)
	for _, loop := range []string{"stamper", "watcher", "readiness"} {
		name := `leasehold_loop_passes_total{loop="` + loop + `",outcome="ok"}`
		eventually(t, "the next pass of the "+loop, func() bool { return gauges(t, m)[name] > before[name] })
		if n := before[`leasehold_loop_passes_total{loop="`+loop+`",outcome="panic"}`]; n > 0 {
			t.Errorf("the %s panicked %v times", loop, n)
		}
	}
}
