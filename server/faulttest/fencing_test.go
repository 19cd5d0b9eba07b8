package faulttest

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// takenOver leases a job to a first worker, lets the lease run out in real time, and gives it
// to a second one.
func takenOver(t *testing.T, first, second store.Store, id store.JobID) (former, latest store.LeaseRef) {
	t.Helper()
	former = leased(t, first, 1, store.Acquire{JobID: id, Owner: "first"})[0]
	eventually(t, "the second worker has the job", func() bool {
		out, err := acquire(t, second, store.Acquire{JobID: id, Owner: "second", LeaseDuration: to(time.Minute)})
		if err != nil {
			t.Fatal(err)
		}
		if len(out.Leases) == 1 {
			latest = out.Leases[0].Ref()
		}
		return len(out.Leases) == 1
	})
	return former, latest
}

func (s *scene) job(t *testing.T, id store.JobID) *store.Job {
	t.Helper()
	j, err := s.direct.GetJob(t.Context(), id, true)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func (s *scene) records(t *testing.T, id store.JobID) []store.LeaseRecord {
	t.Helper()
	l, err := s.direct.LastLeases(t.Context(), id, 100, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestFormerHolderChangesNothing: after another worker has the job, every call with the
// former token is refused as superseded and leaves the job and its lease as they are; so is
// every token that nobody was given, even where it is sealed with the database's own key.
func TestFormerHolderChangesNothing(t *testing.T) {
	t.Parallel()
	s := newScene(t, 2, []store.Queue{queueOf("q", time.Second)}, "--watcher-interval", "100ms")
	a, b := s.client(t, 0), s.client(t, 1)
	id := s.enqueued(t, a, 1, store.NewJob{Queue: "q"})[0]
	former, latest := takenOver(t, a, b, id)
	if former.LeaseNo != 1 || latest.LeaseNo != 2 {
		t.Fatalf("leases %v and %v", former, latest)
	}
	before := s.job(t, id)
	for name, call := range map[string]func(store.Store, store.LeaseRef) error{
		"Heartbeat": func(by store.Store, ref store.LeaseRef) error { _, err := beatOnce(t, by, ref); return err },
		"Complete":  func(by store.Store, ref store.LeaseRef) error { _, err := completeWith(t, by, ref, "of a"); return err },
		"Fail": func(by store.Store, ref store.LeaseRef) error {
			_, err := failWith(t, by, store.Fail{Lease: ref})
			return err
		},
	} {
		if err := call(a, former); !isError[*store.SupersededError](err) {
			t.Errorf("%s of the former holder: %v", name, err)
		}
		for _, no := range []int64{-1, 0, 3} {
			if err := call(s.remote(t, 0), store.LeaseRef{JobID: id, LeaseNo: no}); err == nil {
				t.Errorf("%s with a guessed lease_no %d was accepted", name, no)
			}
		}
	}
	after := s.job(t, id)
	if after.State != store.Processing || *after.LeaseOwner != "second" || !after.LeaseUntil.Equal(*before.LeaseUntil) || after.AttemptsUsed != before.AttemptsUsed {
		t.Errorf("the job was %+v and is %+v", before, after)
	}
	_, err := s.fleet.members[0].leases.Heartbeat(t.Context(), &pb.HeartbeatRequest{LeaseToken: "AQAAAAAAAAABAAAAAAAAAAIAAAAAAAAAAAAAAAAAAAAA"})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("a token that is sealed with no key: %v", err)
	}
	if _, err := completeWith(t, b, latest, "of b"); err != nil {
		t.Fatal(err)
	}
	if _, err := completeWith(t, a, former, "of a"); !isError[*store.SupersededError](err) {
		t.Errorf("after the end: %v", err)
	}
	if got := s.job(t, id); got.State != store.Completed || string(got.Result.Data) != "of b" {
		t.Errorf("the job is %s with result %v", got.State, got.Result)
	}
	s.judge(t)
}

// TestOnlyCancelCancels: a worker that loses its lease, or ends it, and calls that
// "cancelled" does not make the job CANCELLED.
func TestOnlyCancelCancels(t *testing.T) {
	t.Parallel()
	s := newScene(t, 2, []store.Queue{queueOf("q", time.Second)}, "--watcher-interval", "100ms")
	a, b := s.client(t, 0), s.client(t, 1)
	ids := s.enqueued(t, a, 2, store.NewJob{Queue: "q"})
	cancelled := store.JobError{Code: "cancelled", Message: "the executor was stopped"}
	former, latest := takenOver(t, a, b, ids[0])
	if _, err := failWith(t, a, store.Fail{Lease: former, Error: cancelled, Permanent: true}); !isError[*store.SupersededError](err) {
		t.Errorf("with the former token: %v", err)
	}
	if got := s.job(t, ids[0]); got.State != store.Processing || got.LeaseNo != latest.LeaseNo {
		t.Errorf("the job of the second worker is %s", got.State)
	}
	out, err := failWith(t, b, store.Fail{Lease: latest, Error: cancelled})
	if err != nil || out.State != store.Pending {
		t.Errorf("with the valid token: %s, %v", out.State, err)
	}
	last := leased(t, a, 1, store.Acquire{JobID: ids[1], Owner: "a", LeaseDuration: to(time.Minute)})[0]
	if out, err := failWith(t, a, store.Fail{Lease: last, Error: cancelled, Permanent: true}); err != nil || out.State != store.Dead {
		t.Errorf("permanently: %s, %v", out.State, err)
	}
	s.judge(t)
}

// TestLeaseOutlivesItsReplica: the token alone decides. Whoever has it goes on at another
// replica, and after all of them have been killed and started again.
func TestLeaseOutlivesItsReplica(t *testing.T) {
	t.Parallel()
	s := newScene(t, 3, []store.Queue{queueOf("q", time.Minute)})
	ids := s.enqueued(t, s.client(t, 0), 2, store.NewJob{Queue: "q"})
	refs := leased(t, s.client(t, 0), 2, store.Acquire{Queues: []string{"q"}, Owner: "w"})
	s.fleet.members[0].Kill()
	goOn := func(i int, ref store.LeaseRef) {
		c := s.client(t, i)
		if _, err := beatOnce(t, c, ref); err != nil {
			t.Errorf("Heartbeat at replica %d: %v", i, err)
		}
		if out, err := completeWith(t, c, ref, "done"); err != nil || out.AlreadyApplied || out.Late {
			t.Errorf("Complete at replica %d: %+v, %v", i, out, err)
		}
	}
	goOn(1, refs[0])
	for _, m := range s.fleet.members {
		m.Kill()
	}
	for _, m := range s.fleet.members {
		if err := m.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	goOn(2, refs[1])
	for _, id := range ids {
		if l := s.records(t, id); len(l) != 1 || l[0].End != store.EndCompleted {
			t.Errorf("the leases of job %d are %+v", id, l)
		}
	}
	s.judge(t)
}

// beatUntil renews leases until stopped, three times in each of their durations.
func beatUntil(t *testing.T, by store.Store, every time.Duration, refs []store.LeaseRef) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var beating sync.WaitGroup
	beating.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		items := make([]store.Heartbeat, len(refs))
		for i, ref := range refs {
			items[i].Lease = ref
		}
		for {
			out, err := by.Heartbeat(context.WithoutCancel(ctx), items)
			for _, o := range out {
				if o.Err != nil {
					t.Errorf("a live lease is refused its heartbeat: %v", o.Err)
				}
			}
			if err != nil {
				t.Error(err)
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	return func() { cancel(); beating.Wait() }
}

// TestLivenessIsPerLeaseNotPerName: a worker that died is not kept alive by another that has
// its name, and two of one name have nothing of one another.
func TestLivenessIsPerLeaseNotPerName(t *testing.T) {
	t.Parallel()
	s := newScene(t, 2, []store.Queue{queueOf("q", 4*time.Second)}, "--watcher-interval", "100ms")
	first, second := s.client(t, 0), s.client(t, 1)
	s.enqueued(t, first, 10, store.NewJob{Queue: "q"})
	mine := store.Acquire{Queues: []string{"q"}, Owner: "w-0"}
	dead := leased(t, first, 5, mine)
	live := leased(t, second, 5, mine)
	stop := beatUntil(t, s.client(t, 1), 300*time.Millisecond, live)
	eventually(t, "the leases of the dead worker have ended", func() bool {
		return !slices.ContainsFunc(dead, func(ref store.LeaseRef) bool { return s.records(t, ref.JobID)[0].End == store.EndNone })
	})
	out, err := acquire(t, first, store.Acquire{JobID: live[0].JobID, Owner: "w-0"})
	if err != nil || out.Empty != store.JobLeased {
		t.Errorf("another of that name asks for a job that is leased: %+v, %v", out, err)
	}
	again := leased(t, first, 5, mine)
	stop()
	for i, ref := range dead {
		l := s.records(t, ref.JobID)
		if len(l) != 2 || l[0].End != store.EndExpired || l[0].Beats != 0 {
			t.Errorf("the leases of job %d are %+v", ref.JobID, l)
		}
		if _, err := beatOnce(t, second, ref); !isError[*store.SupersededError](err) {
			t.Errorf("the token of the dead worker: %v", err)
		}
		for _, done := range []store.LeaseRef{again[i], live[i]} {
			if out, err := completeWith(t, first, done, "done"); err != nil || out.Late {
				t.Errorf("lease %v: %+v, %v", done, out, err)
			}
		}
	}
	s.judge(t)
}

// TestTiesOfTimeConfuseNobody: a hundred leases of one worker that were taken, and end, in
// the same microsecond are told apart, and a list of them neither skips nor repeats any.
func TestTiesOfTimeConfuseNobody(t *testing.T) {
	t.Parallel()
	const n = 100
	s := newScene(t, 1, []store.Queue{queueOf("q", time.Second)}, "--watcher-interval", "1h")
	c := s.client(t, 0)
	s.enqueued(t, c, n, store.NewJob{Queue: "q"})
	refs := leased(t, c, n, store.Acquire{Queues: []string{"q"}, Owner: "w"})
	until := s.job(t, refs[0].JobID).LeaseUntil
	for i, ref := range refs {
		if j := s.job(t, ref.JobID); !j.LeaseUntil.Equal(*until) {
			t.Fatalf("job %d is leased until %s, the first until %s: no tie", j.ID, j.LeaseUntil, until)
		}
		if i%2 == 0 {
			if _, err := completeWith(t, c, ref, "done"); err != nil {
				t.Fatal(err)
			}
		}
	}
	seen := map[store.JobID]int{}
	eventually(t, "all that is left is listed as expired", func() bool {
		clear(seen)
		reader := s.remote(t, 0)
		for p := (store.Page{Size: 7}); ; {
			page, err := reader.ListStuck(t.Context(), store.StuckFilter{Diagnoses: []store.Diagnosis{store.LeaseExpired}}, p)
			if err != nil {
				t.Fatal(err)
			}
			for _, j := range page.Jobs {
				seen[j.JobID]++
			}
			if p.After = page.Next; page.Next == 0 {
				return len(seen) == n/2
			}
		}
	})
	for i, ref := range refs {
		if seen[ref.JobID] != i%2 {
			t.Errorf("job %d is listed %d times", ref.JobID, seen[ref.JobID])
		}
		if i%2 == 1 {
			if _, err := completeWith(t, c, ref, "done"); err != nil {
				t.Error(err)
			}
		}
	}
	s.judge(t)
}
