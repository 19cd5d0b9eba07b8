package client_test

import (
	"context"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold/leasehold/client"
	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

const shortLease = 2 * time.Second

// stopped is a worker process that holds the only job and was stopped in its middle, for longer
// than its lease.
func stopped(t *testing.T, w *world, cfg childConfig, next pb.JobState) (*process, string) {
	t.Helper()
	id := w.enqueue(cfg.Queue, 1)[0]
	cfg.Endpoints, cfg.Lease, cfg.Concurrency, cfg.Ledger = w.proxied(), shortLease, 1, w.ledger()
	p := startProcess(t, cfg)
	p.awaitLines("began "+id+" 1", 1)
	p.signal(syscall.SIGSTOP)
	eventually(t, "the lease ends", func() bool { return w.state(id) == next })
	return p, id
}

// takeOver lets another worker do the job, and write its effect.
func takeOver(t *testing.T, w *world, queue, id string) {
	t.Helper()
	start(t, w.straight, client.WorkerConfig{Queues: []string{queue}, Owner: "the other", Handler: func(_ context.Context, job *client.Job) error {
		_, err := settle(w.db.URL, job.ID(), job.LeaseNo())
		return err
	}})
	eventually(t, "the other worker completes the job", func() bool { return w.state(id) == pb.JobState_JOB_STATE_COMPLETED })
}

func (w *world) effects(id string) (times int) {
	return one[int](w, `SELECT times FROM effects WHERE job_id = $1`, id)
}

// TestStoppedWorkerWhoseJobAnotherTook: its handler is cancelled when it goes on; what it writes
// with its old fencing number has no effect, and the job stays the other's.
func TestStoppedWorkerWhoseJobAnotherTook(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	q := w.createQueue(&pb.Queue{Name: "q"})
	p, id := stopped(t, w, childConfig{Queue: q, Stubborn: true}, pb.JobState_JOB_STATE_PENDING)
	takeOver(t, w, q, id)
	p.signal(syscall.SIGCONT)
	p.awaitLines("cancelled "+id, 1)
	if got := p.awaitLines("wrote "+id, 1)[0]; got != "wrote "+id+" 0 <nil>" {
		t.Errorf("the late worker %s", got)
	}
	p.signal(syscall.SIGTERM)
	p.awaitLines("ended <nil>", 1)
	if n := w.effects(id); n != 1 {
		t.Errorf("%d effects", n)
	}
	if got := w.job(id); got.GetJob().GetLeaseNo() != 2 || got.GetLeases()[1].GetLeaseOwner() != "the other" || got.GetLeases()[0].GetLateCalls().GetCount() == 0 {
		t.Errorf("on record: %v", got)
	}
}

// TestLateCompleteIsRefused where another took the job and no heartbeat told of it.
func TestLateCompleteIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	q := w.createQueue(&pb.Queue{Name: "q"})
	p, id := stopped(t, w, childConfig{Queue: q, Stubborn: true, HoldBeats: true}, pb.JobState_JOB_STATE_PENDING)
	takeOver(t, w, q, id)
	p.signal(syscall.SIGCONT)
	if got := p.awaitLines("cancelled "+id, 1)[0]; got != "cancelled "+id+" *client.ExpiredError" {
		t.Errorf("the late worker was %s", got)
	}
	eventually(t, "its Complete is refused", func() bool {
		late := w.job(id).GetLeases()[0].GetLateCalls()
		return late.GetCount() == 1 && late.GetLastCall() == "Complete"
	})
	if n := w.effects(id); n != 1 {
		t.Errorf("%d effects", n)
	}
}

// TestStoppedWorkerWhoseJobNobodyTook: what it completes is accepted, late; nobody else had begun.
func TestStoppedWorkerWhoseJobNobodyTook(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		queue *pb.Queue
		then  pb.JobState
	}{
		"requeued": {&pb.Queue{Name: "q"}, pb.JobState_JOB_STATE_PENDING},
		"held":     {&pb.Queue{Name: "q", OnExpiry: pb.OnExpiry_ON_EXPIRY_HOLD}, pb.JobState_JOB_STATE_STUCK},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			p, id := stopped(t, w, childConfig{Queue: w.createQueue(c.queue), Stubborn: true}, c.then)
			p.signal(syscall.SIGCONT)
			p.awaitLines("cancelled "+id, 1)
			eventually(t, "the job is completed", func() bool { return w.state(id) == pb.JobState_JOB_STATE_COMPLETED })
			got := w.job(id)
			if !got.GetJob().GetCompletedLate() || len(got.GetLeases()) != 1 || w.effects(id) != 1 {
				t.Errorf("on record: %v, %d effects", got, w.effects(id))
			}
		})
	}
}

// TestHeartbeatsUnderDuress: one processor, handlers that compute, half of the heartbeats delayed
// by 0.8 of the lease and one that hangs for ever: no lease is lost.
func TestHeartbeatsUnderDuress(t *testing.T) {
	t.Parallel()
	const lease, jobs = 5 * time.Second, 3
	w := newWorld(t, 1)
	q := w.createQueue(&pb.Queue{Name: "q"})
	ids := w.enqueue(q, jobs)
	p := startProcess(t, childConfig{Endpoints: w.proxied(), Queue: q, Lease: lease, Concurrency: jobs, Busy: true, Hinder: true}, "GOMAXPROCS=1")
	p.awaitLines("began", jobs)
	eventually(t, "every lease is renewed for three times its length", func() bool {
		return one[bool](w, `SELECT bool_and(lease_until > leased_at + 3 * lease_length) FROM leasehold.all_leases WHERE queue = $1`, q) ||
			len(p.said("cancelled")) > 0
	})
	p.finish()
	eventually(t, "the jobs are completed", func() bool { return w.count(q, "COMPLETED") == jobs || len(p.said("cancelled")) > 0 })
	if lost := p.said("cancelled"); len(lost) > 0 {
		t.Fatalf("%v", lost)
	}
	for _, id := range ids {
		if n := len(w.job(id).GetLeases()); n != 1 {
			t.Errorf("job %s had %d leases", id, n)
		}
	}
}

// TestProcessesKilledAtRandom: three worker processes share a queue, and are killed, or stopped and
// continued, again and again. Every job is completed by one of its leases, and no effect is older
// than the one that another lease had left.
func TestProcessesKilledAtRandom(t *testing.T) {
	t.Parallel()
	const jobs, rounds = 500, 4
	w := newWorld(t, 2)
	q := w.createQueue(&pb.Queue{Name: "q", Policy: &pb.JobPolicy{MaxExpirations: new(int32(100))}})
	w.enqueue(q, jobs)
	cfg := childConfig{Endpoints: w.proxied(), Queue: q, Lease: shortLease, Concurrency: 5, Ledger: w.ledger(), Work: 250 * time.Millisecond}
	workers := []*process{startProcess(t, cfg), startProcess(t, cfg), startProcess(t, cfg)}
	done := func() bool { return w.count(q, "COMPLETED") == jobs }
	expired := func() int {
		return one[int](w, `SELECT count(*)::int FROM leasehold.all_leases WHERE ended_by = 'EXPIRED'`)
	}
	for round := range rounds {
		victim := &workers[rand.N(len(workers))]
		eventually(t, "it works", func() bool { return len((*victim).said("began")) >= 5 || done() })
		if round%2 == 0 {
			_ = (*victim).cmd.Process.Kill() // as a crash does
			*victim = startProcess(t, cfg)
			continue
		}
		before := expired()
		(*victim).signal(syscall.SIGSTOP)
		eventually(t, "its leases run out", func() bool { return expired() > before || done() })
		(*victim).signal(syscall.SIGCONT)
	}
	eventually(t, "all jobs are completed", done)
	for _, p := range workers {
		p.signal(syscall.SIGTERM)
		p.awaitLines("ended <nil>", 1)
	}
	if n := one[int](w, `SELECT count(*)::int FROM leasehold.all_leases WHERE ended_by IN ('COMPLETED', 'COMPLETED_LATE')`); n != jobs {
		t.Errorf("%d completions of %d jobs", n, jobs)
	}
	if n := one[int](w, `SELECT count(*)::int FROM effects`); n != jobs {
		t.Errorf("%d of %d jobs had an effect", n, jobs)
	}
	if n := one[int](w, `SELECT count(*)::int FROM effects e JOIN leasehold.all_jobs j ON j.id::text = e.job_id
		WHERE e.fence > j.lease_no OR e.times > e.fence`); n != 0 {
		t.Errorf("%d jobs have effects that belong to no lease", n)
	}
}
