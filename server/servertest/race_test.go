package servertest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

const (
	racers    = 64
	racedJobs = 1000
	// starts is from how many places the racers by id start: a few from each, on several
	// replicas, side by side.
	starts = 16
	// readers look at what is on record in the end.
	readers = 8
)

// race is one queue of jobs, and who was given what.
type race struct {
	queue string
	ids   []string

	mu    sync.Mutex
	given map[string][]grant // by job
}

// grant is what the answer of an acquire says of one lease.
type grant struct {
	owner   string
	leaseNo int64
	attempt int32
	token   string
}

func newRace(t *testing.T, w *world) *race {
	t.Helper()
	r := &race{queue: w.queue(t), given: map[string][]grant{}}
	req := &pb.BatchEnqueueRequest{}
	for i := range racedJobs {
		req.Items = append(req.Items, &pb.EnqueueRequest{Queue: r.queue, Payload: bytesOf(fmt.Sprint(i))})
	}
	for _, result := range accepted(t, w.jobs.BatchEnqueue, req).GetResults() {
		r.ids = append(r.ids, result.GetOk().GetJobId())
	}
	if slices.Contains(r.ids, "") {
		t.Fatal("a job was not stored")
	}
	return r
}

// note takes down the leases of an answer, and tells whether all jobs are out.
func (r *race) note(owner string, resp *pb.AcquireLeaseResponse) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range resp.GetLeases() {
		g := grant{owner: owner, leaseNo: l.GetLeaseNo(), attempt: l.GetAttempt(), token: l.GetLeaseToken()}
		r.given[l.GetJob().GetJobId()] = append(r.given[l.GetJob().GetJobId()], g)
	}
	return len(r.given) == racedJobs
}

// byQueue takes jobs of the queue until all are out.
func (r *race) byQueue(ctx context.Context, leases pb.LeaseServiceClient, n int) error {
	owner := fmt.Sprint("worker-", n)
	for {
		resp, err := leases.AcquireLease(ctx, &pb.AcquireLeaseRequest{Queues: []string{r.queue}, LeaseOwner: owner, MaxJobs: to(int32(1 + n%8))})
		if err != nil {
			return err
		}
		// Others may hold the last rows locked: empty is the end only when all are out.
		if out := r.note(owner, resp); out && len(resp.GetLeases()) == 0 {
			return nil
		}
		if reason := resp.GetEmptyReason(); len(resp.GetLeases()) == 0 && reason != pb.EmptyReason_EMPTY_REASON_NO_READY_JOBS {
			return fmt.Errorf("a queue without ready jobs answers %s", reason)
		}
	}
}

// byID asks for every job by its id, but for those that somebody is known to have.
func (r *race) byID(ctx context.Context, leases pb.LeaseServiceClient, n int) error {
	owner := fmt.Sprint("worker-", n)
	from := n % starts * (racedJobs / starts)
	for _, id := range slices.Concat(r.ids[from:], r.ids[:from]) {
		if r.isOut(id) {
			continue
		}
		resp, err := leases.AcquireLease(ctx, &pb.AcquireLeaseRequest{JobId: &id, LeaseOwner: owner})
		if err != nil {
			return fmt.Errorf("job %s: %w", id, err)
		}
		r.note(owner, resp)
		if reason := resp.GetEmptyReason(); len(resp.GetLeases()) == 0 && reason != pb.EmptyReason_EMPTY_REASON_JOB_LEASED {
			return fmt.Errorf("job %s that somebody has leased answers %s", id, reason)
		}
	}
	return nil
}

func (r *race) isOut(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.given[id]) > 0
}

// TestRaceOfThreeReplicas: 64 workers, each with a connection of its own to one of three
// replicas, race for 1,000 jobs; each job is leased once, and lease_no and history agree.
func TestRaceOfThreeReplicas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	replicas := []*replica{w.replica, startReplica(t, w.db.URL), startReplica(t, w.db.URL)}
	for name, run := range map[string]func(r *race, ctx context.Context, leases pb.LeaseServiceClient, n int) error{
		"by_id": (*race).byID,
		"by_queue": func(r *race, ctx context.Context, leases pb.LeaseServiceClient, n int) error {
			if n%8 == 0 { // both ways meet on the same jobs
				return r.byID(ctx, leases, n)
			}
			return r.byQueue(ctx, leases, n)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRace(t, w)
			group, ctx := errgroup.WithContext(t.Context())
			start := make(chan struct{})
			for n := range racers {
				leases := pb.NewLeaseServiceClient(dial(t, replicas[n%len(replicas)].addr))
				group.Go(func() error {
					<-start
					return run(r, ctx, leases, n)
				})
			}
			close(start)
			if err := group.Wait(); err != nil {
				t.Fatal(err)
			}
			r.assert(t, replicas)
		})
	}
}

// assert compares the answers with the jobs and with the history of each.
func (r *race) assert(t *testing.T, replicas []*replica) {
	t.Helper()
	jobs := accepted(t, replicas[0].jobs.ListJobs, &pb.ListJobsRequest{Filter: &pb.JobFilter{Queue: &r.queue}, PageSize: to(int32(racedJobs))}).GetJobs()
	if len(jobs) != racedJobs {
		t.Fatalf("%d jobs are listed, want %d", len(jobs), racedJobs)
	}
	var next atomic.Int64
	var group errgroup.Group
	for n := range readers {
		group.Go(func() error {
			for i := next.Add(1) - 1; i < racedJobs; i = next.Add(1) - 1 {
				if err := r.check(t.Context(), replicas[n%len(replicas)], jobs[i]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}

func (r *race) check(ctx context.Context, on *replica, j *pb.Job) error {
	given := r.given[j.GetJobId()]
	if len(given) != 1 || given[0].leaseNo != 1 || given[0].attempt != 1 || given[0].token == "" {
		return fmt.Errorf("job %s was given as %+v, want one first lease", j.GetJobId(), given)
	}
	if j.GetState() != pb.JobState_JOB_STATE_PROCESSING || j.GetLeaseNo() != 1 || j.GetLeaseOwner() != given[0].owner {
		return fmt.Errorf("job %s is %v, given as %+v", j.GetJobId(), j, given)
	}
	history, err := on.jobs.ListLeases(ctx, &pb.ListLeasesRequest{JobId: j.GetJobId()})
	if err != nil {
		return err
	}
	ls := history.GetLeases()
	if len(ls) != 1 || ls[0].GetLeaseNo() != 1 || ls[0].GetLeaseOwner() != given[0].owner || ls[0].GetEndedAt() != nil ||
		ls[0].GetEnd() != pb.LeaseEnd_LEASE_END_UNSPECIFIED {
		return fmt.Errorf("the history of job %s is %v, given as %+v", j.GetJobId(), ls, given)
	}
	return nil
}
