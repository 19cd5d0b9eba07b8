//go:build workers

package workerstest

import (
	"bytes"
	"testing"
	"time"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/faultproxy"
)

const shortLease = 2 * time.Second

// takeOver is another worker, which does the job at once.
func (w *world) takeOver(id string) {
	w.t.Helper()
	owner := "the other"
	got, err := w.leases.AcquireLease(w.t.Context(), &pb.AcquireLeaseRequest{JobId: &id, LeaseOwner: owner})
	if err != nil || len(got.GetLeases()) != 1 {
		w.t.Fatalf("job %s cannot be taken over: %v, %v", id, got, err)
	}
	_, err = w.leases.Complete(w.t.Context(), &pb.CompleteRequest{
		LeaseToken: got.GetLeases()[0].GetLeaseToken(), Result: &pb.Payload{Content: &pb.Payload_Json{Json: `"the other's"`}},
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// goesOn checks that a worker is free again: it does another job.
func (w *world) goesOn(p *process, queue string) {
	w.t.Helper()
	id := w.enqueue(queue, 1, 0)[0]
	w.awaitState(id, "COMPLETED")
	owner := one[string](w, `SELECT owner FROM leasehold.all_leases WHERE job_id = $1::bigint`, id)
	if !p.owns(owner) {
		w.t.Errorf("job %s was done by %q, not by %s", id, owner, p)
	}
}

// TestStoppedWorkerStopsItsWork: a worker is stopped for longer than its lease, and another does the
// job. When it goes on, it ends its work, which would take ten minutes, and is free for the next job.
func TestStoppedWorkerStopsItsWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			w := w.in(t)
			queue := w.createQueue("stopped-"+l.name, l.lease(), pb.OnExpiry_ON_EXPIRY_REQUEUE)
			id := w.enqueue(queue, 1, 600)[0]
			p := start(t, l.name, []string{l.command(t)}, w.replica.GRPC(), queue, 1)
			w.awaitBeat(id)
			p.freeze()
			w.awaitState(id, "PENDING")
			w.takeOver(id)
			p.thaw()
			since := time.Now()
			w.goesOn(p, queue)
			t.Logf("it went on to the next job %.1f s later", time.Since(since).Seconds())
			w.untouched(id)
			p.drain()
		})
	}
}

// untouched checks that a job is as the other worker left it.
func (w *world) untouched(id string) {
	w.t.Helper()
	if got := one[string](w, `SELECT lease_no || ' ' || result FROM leasehold.all_jobs WHERE id = $1::bigint`, id); got != `2 "the other's"` {
		w.t.Errorf("job %s has the result of lease %s", id, got)
	}
}

// in is the world for a test within a test.
func (w *world) in(t *testing.T) *world {
	inner := *w
	inner.t = t
	return &inner
}

// fenceMark is in the result of the workers of examples, and so in their Complete.
var fenceMark = []byte(`"fence"`)

// stoppedAtComplete is a worker that was stopped when it had done its job, on the way of its
// Complete, which is lost, and whose lease has run out.
func (w *world) stoppedAtComplete(l language, queue, state string) (*process, string) {
	w.t.Helper()
	proxy, err := faultproxy.New(w.replica.GRPC())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(proxy.Close)
	p := start(w.t, l.name, []string{l.command(w.t)}, proxy.Addr(), queue, 1)
	lost := proxy.CutAt(faultproxy.ToServer, func(chunk []byte) bool {
		if !bytes.Contains(chunk, fenceMark) {
			return false
		}
		p.freeze() // before it can learn that its call is lost
		return true
	})
	id := w.enqueue(queue, 1, 1)[0]
	await(w.t, "the Complete of "+p.String(), lost)
	w.awaitState(id, state)
	return p, id
}

// TestLateCompleteIsRefused where another has done the job meanwhile.
func TestLateCompleteIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			w := w.in(t)
			queue := w.createQueue("late-"+l.name, l.lease(), pb.OnExpiry_ON_EXPIRY_REQUEUE)
			p, id := w.stoppedAtComplete(l, queue, "PENDING")
			w.takeOver(id)
			p.thaw()
			eventually(t, "its late calls are refused", func() bool {
				return one[int](w, `SELECT coalesce(max(late_calls), 0)::int FROM leasehold.all_leases WHERE job_id = $1::bigint AND lease_no = 1`, id) > 0
			})
			w.goesOn(p, queue)
			t.Logf("%d late calls, the last: %s", one[int](w, `SELECT late_calls::int FROM leasehold.all_leases WHERE job_id = $1::bigint AND lease_no = 1`, id),
				one[string](w, `SELECT last_late_call FROM leasehold.all_leases WHERE job_id = $1::bigint AND lease_no = 1`, id))
			w.untouched(id)
			p.drain()
		})
	}
}

// TestLateCompleteIsAccepted where nobody else has begun: what was done need not be done again.
func TestLateCompleteIsAccepted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			w := w.in(t)
			queue := w.createQueue("held-"+l.name, l.lease(), pb.OnExpiry_ON_EXPIRY_HOLD)
			p, id := w.stoppedAtComplete(l, queue, "STUCK")
			p.thaw()
			w.awaitState(id, "COMPLETED")
			w.completedLate(id)
			w.goesOn(p, queue)
			p.drain()
		})
	}
}

// completedLate checks that a job had one lease, which was completed after its end.
func (w *world) completedLate(id string) {
	w.t.Helper()
	if got := one[string](w, `SELECT string_agg(lease_no || ' ' || ended_by, ', ') FROM leasehold.all_leases WHERE job_id = $1::bigint`, id); got != "1 COMPLETED_LATE" {
		w.t.Errorf("the leases of job %s ended: %s", id, got)
	}
}
