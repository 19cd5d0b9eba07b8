package faulttest

import (
	"fmt"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// sqlDead makes n DEAD jobs of a queue, which have used up what they had.
const sqlDead = `
WITH made AS (
    INSERT INTO leasehold.finished_jobs (id, queue_id, state, priority, run_at, created_at, finished_at, bytes, attempts_used, expirations,
        lease_no, last_owner, leased_at, lease_length, beats, stage_changes, end_kind, ended_at, counted, sealed, max_attempts, state_reason)
    SELECT nextval('leasehold.job_id_seq'), q.id, 5, 5, now(), now(), now(), 0, 1, 0, 1, 'w', now(), '1 minute', 0, 0, 3, now(), true, false, 1, 'given up'
    FROM leasehold.queues q, generate_series(1, $2::int) WHERE q.name = $1 RETURNING id
)
INSERT INTO leasehold.job_data (job_id, payload) SELECT id, '' FROM made`

// TestAllOfManyDeadJobsAreListedAndDrivenAgain, by pages, while the queue is at work and one
// replica is killed in the middle: whoever holds the token goes on elsewhere.
func TestAllOfManyDeadJobsAreListedAndDrivenAgain(t *testing.T) {
	t.Parallel()
	const dead = 2500
	f := newFleet(t, database(t), 2)
	q := opened(t, f, &pb.Queue{Name: "q"})
	stored(t, f.members[0], 200, &pb.EnqueueRequest{Queue: q})
	f.db.Exec(t, sqlDead, q, dead)
	stop := make(chan struct{})
	var crew sync.WaitGroup
	crew.Go(func() { workUntil(t, f.members[1], q, stop, func() {}) })
	defer crew.Wait()
	defer close(stop)

	listed := map[string]bool{}
	list := &pb.ListJobsRequest{
		Filter: &pb.JobFilter{Queue: &q, States: []pb.JobState{pb.JobState_JOB_STATE_DEAD}}, PageSize: to(int32(1000)),
	}
	for more := true; more; more = list.GetPageToken() != "" {
		page := accepted(t, f.members[0].jobs.ListJobs, list)
		for _, j := range page.GetJobs() {
			if listed[j.GetJobId()] {
				t.Errorf("job %s is listed twice", j.GetJobId())
			}
			listed[j.GetJobId()] = true
		}
		list.PageToken = page.GetNextPageToken()
	}
	if len(listed) != dead {
		t.Errorf("%d dead jobs are listed, want %d", len(listed), dead)
	}

	retry := &pb.RetryJobsRequest{Selection: &pb.JobSelection{Filter: list.GetFilter()}, BatchSize: to(int32(500)), Actor: "on-call"}
	retried, batches := 0, 0
	for more := true; more; more = retry.GetPageToken() != "" {
		m := f.members[batches%2]
		if batches == 2 { // between the answer and the next batch
			f.members[0].Kill()
			m = f.members[1]
		}
		batch := accepted(t, m.queues.RetryJobs, proto.CloneOf(retry))
		for _, r := range batch.GetResults() {
			if r.GetError() != nil {
				t.Errorf("job %s: %v", r.GetJobId(), r.GetError())
			}
		}
		if batches == 2 {
			if err := f.members[0].Start(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		retried, batches = retried+len(batch.GetResults()), batches+1
		retry.PageToken = batch.GetNextPageToken()
	}
	if retried != dead || batches < dead/500 {
		t.Errorf("%d jobs were driven again in %d batches, want %d", retried, batches, dead)
	}
	if left := look[int](t, f, `SELECT count(*)::int FROM leasehold.finished_jobs WHERE state = 5`); left != 0 {
		t.Errorf("%d jobs are still dead", left)
	}
	if acts := look[int](t, f, `SELECT count(DISTINCT job_id)::int FROM leasehold.operator_acts WHERE actor = 'on-call' AND act = 'retry'`); acts != dead {
		t.Errorf("acts on %d jobs are recorded, want %d", acts, dead)
	}
}

// TestADeadJobIsDrivenAgainWithANewBudget, while another job has its key by now. Numbers of
// leases go on, or a worker of before would pass for one of now.
func TestADeadJobIsDrivenAgainWithANewBudget(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 1)
	m := f.members[0]
	q := opened(t, f, &pb.Queue{Name: "q", Policy: &pb.JobPolicy{MaxAttempts: to(int32(2))}})
	enqueue := &pb.EnqueueRequest{Queue: q, IdempotencyKey: to("k")}
	id := accepted(t, m.jobs.Enqueue, enqueue).GetJobId()
	use := func(no int64) (token string) {
		resp := accepted(t, m.leases.AcquireLease, &pb.AcquireLeaseRequest{JobId: &id, LeaseOwner: fmt.Sprint("w", no)})
		if len(resp.GetLeases()) != 1 || resp.GetLeases()[0].GetLeaseNo() != no || resp.GetLeases()[0].GetAttempt() != int32(1+(no-1)%2) {
			t.Fatalf("lease %d: %v", no, resp)
		}
		token = resp.GetLeases()[0].GetLeaseToken()
		accepted(t, m.leases.Fail, &pb.FailRequest{LeaseToken: token, Permanent: no%2 == 0})
		f.db.Exec(t, `UPDATE leasehold.jobs SET run_at = now() - interval '1 second'`)
		return token
	}
	first := use(1)
	use(2)
	f.db.Exec(t, `UPDATE leasehold.finished_jobs SET finished_at = finished_at - interval '8 days'`)
	rival := accepted(t, m.jobs.Enqueue, enqueue)
	if !rival.GetCreated() {
		t.Fatalf("the key was not free: %v", rival)
	}
	accepted(t, m.queues.RetryJobs, &pb.RetryJobsRequest{Selection: &pb.JobSelection{JobIds: []string{id}}})
	use(3)
	if _, err := m.leases.Complete(t.Context(), &pb.CompleteRequest{LeaseToken: first}); reasonIn(err) != "LEASE_SUPERSEDED" {
		t.Errorf("a worker from before is answered %v", err)
	}
	use(4)
	if again := accepted(t, m.jobs.Enqueue, enqueue); again.GetCreated() || again.GetJobId() != rival.GetJobId() {
		t.Errorf("the key answers %v, want job %s", again, rival.GetJobId())
	}
	resp := accepted(t, m.jobs.ListLeases, &pb.ListLeasesRequest{JobId: id})
	if len(resp.GetLeases()) != 4 || stateOf(t, f, id) != "DEAD" {
		t.Errorf("%d leases are on record, the job is %s", len(resp.GetLeases()), stateOf(t, f, id))
	}
	wantSound(t, f, false)
}
