package faulttest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

const (
	// strangerHolds is how long the stranger's transaction stays open: longer than every
	// timeout of the service.
	strangerHolds = 12 * time.Second
	// strangerBound is far above what a call takes that waits for nobody, and far below how
	// long the locks are held.
	strangerBound = 6 * time.Second
	// lockedCallTime is the deadline of a call about what the stranger holds.
	lockedCallTime = 3 * time.Second
	jobBusy        = "JOB_BUSY"
	tooLate        = "no answer within the deadline"
)

// TestR32_AnOpenTransactionOfAStranger holds rows of jobs and an idempotency key. Who asks
// for something else is answered as if there were none, also where calls are merged; who
// asks for what it holds is told so within its deadline, and succeeds afterwards.
func TestR32_AnOpenTransactionOfAStranger(t *testing.T) {
	t.Parallel()
	s := newStrangersVictim(t)
	tx := s.lock(t)
	until := time.Now().Add(strangerHolds)
	var calling sync.WaitGroup
	for i := range s.free {
		calling.Go(func() { s.others(t, i, until) })
	}
	for name, call := range s.lockedCalls() {
		calling.Go(func() { s.wantBusy(t, name, call, until) })
	}
	calling.Wait()
	rest := accepted(t, s.members[1].leases.AcquireLease, &pb.AcquireLeaseRequest{Queues: []string{"due", "work"}, LeaseOwner: "w", MaxJobs: to(int32(1000))})
	if made, leased := s.made.Load(), s.leased.Load()+int64(len(rest.GetLeases())); made == 0 || leased != made {
		t.Errorf("of %d jobs beside the locks %d could be leased", made, leased)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("beside the locks %d calls were answered, the slowest after %v", s.answered.Load(), time.Duration(s.slowest.Load()))
	for name, call := range s.lockedCalls() {
		if reason := s.try(call); reason != "" {
			t.Errorf("%s after the locks: %s", name, reason)
		}
	}
}

// strangersVictim is a service some of whose rows are locked.
type strangersVictim struct {
	*fleet
	free   []*pb.Lease          // nobody locks them
	locked map[string]*pb.Lease // by the call that they are for
	due    string               // a job that is ready, and locked

	answered, slowest atomic.Int64 // calls of others
	made, leased      atomic.Int64 // jobs of others
}

func newStrangersVictim(t *testing.T) *strangersVictim {
	t.Helper()
	s := &strangersVictim{fleet: newFleet(t, database(t), 2, "--watcher-interval", "1s"), locked: map[string]*pb.Lease{}}
	m := s.members[0]
	for _, name := range []string{"q", "due", "work"} {
		accepted(t, m.queues.CreateQueue, &pb.CreateQueueRequest{Queue: &pb.Queue{Name: name, Policy: policyOf(time.Minute, 0, 0)}})
	}
	lease := func() *pb.Lease {
		id := accepted(t, m.jobs.Enqueue, &pb.EnqueueRequest{Queue: "q"}).GetJobId()
		return accepted(t, m.leases.AcquireLease, &pb.AcquireLeaseRequest{JobId: &id, LeaseOwner: "w"}).GetLeases()[0]
	}
	// Free and locked ones lie side by side.
	for _, call := range []string{"Heartbeat", "BatchHeartbeat", "Complete", "Fail", "Release", "CancelJob"} {
		s.free = append(s.free, lease())
		s.locked[call] = lease()
	}
	s.due = accepted(t, m.jobs.Enqueue, &pb.EnqueueRequest{Queue: "due"}).GetJobId()
	return s
}

// lock takes the locks in a transaction that stays open.
func (s *strangersVictim) lock(t *testing.T) pgx.Tx {
	t.Helper()
	tx, err := s.db.SQL.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // it may have ended
	ids := []string{s.due}
	for _, l := range s.locked {
		ids = append(ids, l.GetJob().GetJobId())
	}
	for sql, args := range map[string][]any{
		`SELECT FROM leasehold.jobs WHERE id = ANY ($1::text[]::bigint[]) ORDER BY id FOR UPDATE`: {ids},
		// A key as whoever enqueues takes it: its lock first.
		`SELECT pg_advisory_xact_lock(hashtextextended('held', q.id)) FROM leasehold.queues q WHERE q.name = 'work'`:                                      nil,
		`INSERT INTO leasehold.idempotency_keys (queue_id, key, job_id, digest) SELECT q.id, 'held', 0, '' FROM leasehold.queues q WHERE q.name = 'work'`: nil,
	} {
		if _, err := tx.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	return tx
}

// lockedCalls ask for what the stranger holds.
func (s *strangersVictim) lockedCalls() map[string]func(context.Context) error {
	m, token := s.members[1], func(call string) string { return s.locked[call].GetLeaseToken() }
	return map[string]func(context.Context) error{
		"Heartbeat": func(ctx context.Context) error {
			_, err := m.leases.Heartbeat(ctx, &pb.HeartbeatRequest{LeaseToken: token("Heartbeat")})
			return err
		},
		"BatchHeartbeat": func(ctx context.Context) error {
			resp, err := m.leases.BatchHeartbeat(ctx, &pb.BatchHeartbeatRequest{Items: []*pb.HeartbeatRequest{
				{LeaseToken: s.free[0].GetLeaseToken()}, {LeaseToken: token("BatchHeartbeat")},
			}})
			return s.secondOf(resp.GetResults(), err)
		},
		"Complete": func(ctx context.Context) error {
			_, err := m.leases.Complete(ctx, &pb.CompleteRequest{LeaseToken: token("Complete")})
			return err
		},
		"Fail": func(ctx context.Context) error {
			_, err := m.leases.Fail(ctx, &pb.FailRequest{LeaseToken: token("Fail")})
			return err
		},
		"Release": func(ctx context.Context) error {
			_, err := m.leases.Release(ctx, &pb.ReleaseRequest{LeaseToken: token("Release")})
			return err
		},
		"CancelJob": func(ctx context.Context) error {
			_, err := m.jobs.CancelJob(ctx, &pb.CancelJobRequest{JobId: s.locked["CancelJob"].GetJob().GetJobId(), Actor: "on-call"})
			return err
		},
		"AcquireLease by id": func(ctx context.Context) error {
			_, err := m.leases.AcquireLease(ctx, &pb.AcquireLeaseRequest{JobId: &s.due, LeaseOwner: "w"})
			return err
		},
		"Enqueue": func(ctx context.Context) error {
			_, err := m.jobs.Enqueue(ctx, &pb.EnqueueRequest{Queue: "work", IdempotencyKey: to("held")})
			return err
		},
	}
}

// secondOf checks that the first of two results is good and answers the second.
func (s *strangersVictim) secondOf(results []*pb.BatchHeartbeatResult, err error) error {
	if err != nil {
		return err
	}
	if results[0].GetOk() == nil {
		return fmt.Errorf("the item beside the locked one is answered %v", results[0])
	}
	if e := results[1].GetError(); e != nil {
		return errReason(e.GetReason().String()[len("ERROR_REASON_"):])
	}
	return nil
}

// errReason is the error of an item of a batch.
type errReason string

func (e errReason) Error() string { return string(e) }

// try makes a call and returns the reason of its refusal, "" for none.
func (s *strangersVictim) try(call func(context.Context) error) string {
	ctx, cancel := context.WithTimeout(context.Background(), lockedCallTime)
	defer cancel()
	err := call(ctx)
	if reason, is := err.(errReason); is { //nolint:errorlint // it is made here, and never wrapped
		return string(reason)
	}
	if status.Code(err) == codes.DeadlineExceeded {
		return tooLate
	}
	if reason := reasonIn(err); reason != "" || err == nil {
		return reason
	}
	return err.Error()
}

// wantBusy calls again and again, as clients do, and is told that another transaction holds
// what it asks for. On a machine that is busy an answer may come too late, but not each.
func (s *strangersVictim) wantBusy(t *testing.T, name string, call func(context.Context) error, until time.Time) {
	told := 0
	for time.Until(until) > lockedCallTime {
		switch reason := s.try(call); reason {
		case jobBusy:
			told++
		case tooLate:
		default:
			t.Errorf("%s under the lock: %q", name, reason)
			return
		}
	}
	if told == 0 {
		t.Errorf("%s under the lock was never told of it", name)
	}
}

// others makes the calls that have nothing to do with the locks, at the replica that the
// locked ones are made at as well, so that they are merged.
func (s *strangersVictim) others(t *testing.T, i int, until time.Time) {
	m := s.members[1]
	for n := 0; time.Now().Before(until) && !t.Failed(); n++ {
		key := fmt.Sprint("key ", i, " ", n)
		timed(t, s, m.leases.Heartbeat, &pb.HeartbeatRequest{LeaseToken: s.free[i].GetLeaseToken()})
		timed(t, s, m.jobs.Enqueue, &pb.EnqueueRequest{Queue: "work", IdempotencyKey: &key})
		timed(t, s, m.jobs.Enqueue, &pb.EnqueueRequest{Queue: "work"})
		got := timed(t, s, m.leases.AcquireLease, &pb.AcquireLeaseRequest{Queues: []string{"due", "work"}, LeaseOwner: "w", MaxJobs: to(int32(3))})
		s.made.Add(2)
		s.leased.Add(int64(len(got.GetLeases())))
		for k, l := range got.GetLeases() {
			switch k {
			case 0:
				timed(t, s, m.leases.Complete, &pb.CompleteRequest{LeaseToken: l.GetLeaseToken()})
			case 1:
				timed(t, s, m.leases.Fail, &pb.FailRequest{LeaseToken: l.GetLeaseToken(), RetryAfter: durationpb.New(time.Hour)})
			default:
				timed(t, s, m.leases.Release, &pb.ReleaseRequest{LeaseToken: l.GetLeaseToken(), Delay: durationpb.New(time.Hour)})
			}
		}
		timed(t, s, m.jobs.GetJob, &pb.GetJobRequest{By: &pb.GetJobRequest_JobId{JobId: s.due}})
	}
}

// timed makes a call that must succeed, soon.
func timed[Req, Resp any](t *testing.T, s *strangersVictim, method func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req) Resp {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	started := time.Now()
	resp, err := method(ctx, req)
	took := time.Since(started)
	if err != nil || took > strangerBound {
		t.Errorf("a call that asks for nothing that is locked, %T, was answered after %v: %v", req, took, err)
	}
	s.answered.Add(1)
	for slowest := s.slowest.Load(); int64(took) > slowest && !s.slowest.CompareAndSwap(slowest, int64(took)); {
		slowest = s.slowest.Load()
	}
	return resp
}
