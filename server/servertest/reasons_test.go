package servertest

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/server/servertest/remote"
	"github.com/leasehold/leasehold/store"
)

// reasonCase produces one reason by a real cause. The code is that of section 8.
type reasonCase struct {
	reason pb.ErrorReason
	code   codes.Code
	name   string
	cause  func(t *testing.T, w *world) (*seen, want)
}

const (
	invalid      = codes.InvalidArgument
	precondition = codes.FailedPrecondition
)

// elsewhere are reasons that nothing of this server can cause, or that other tests produce.
var elsewhere = map[pb.ErrorReason]string{
	pb.ErrorReason_ERROR_REASON_UNSPECIFIED:         "never sent",
	pb.ErrorReason_ERROR_REASON_OVERLOADED:          "takes 10,000 waiting calls; the tests of merging produce it",
	pb.ErrorReason_ERROR_REASON_RATE_LIMITED:        "there are no rates",
	pb.ErrorReason_ERROR_REASON_CREDENTIALS_MISSING: "there are no credentials",
	pb.ErrorReason_ERROR_REASON_CREDENTIALS_INVALID: "there are no credentials",
	pb.ErrorReason_ERROR_REASON_ROLE_MISSING:        "there are no credentials",
}

// TestEveryReasonByItsCause produces every reason of an error through a real connection,
// from what really causes it, and checks all that a client sees (design section 8, R5).
func TestEveryReasonByItsCause(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, sql := range sqlBug {
		w.db.Exec(t, sql)
	}
	t.Run("R34_a_key_makes_the_outcome_known", func(t *testing.T) {
		t.Parallel()
		w.keyThroughCut(t)
	})
	covered := map[pb.ErrorReason]bool{}
	for _, group := range [][]reasonCase{requestCases, nameCases, leaseCases, stateCases, reuseCases, troubleCases} {
		for _, c := range group {
			covered[c.reason] = true
			word := strings.TrimPrefix(c.reason.String(), "ERROR_REASON_")
			t.Run(word+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				got, expected := c.cause(t, w)
				expected.code, expected.reason = c.code, word
				got.assert(t, expected)
			})
		}
	}
	for n := range pb.ErrorReason_name {
		r := pb.ErrorReason(n)
		if _, known := elsewhere[r]; covered[r] == known {
			t.Errorf("%s is produced: %t, said to be produced elsewhere: %t", r, covered[r], known)
		}
	}
}

var requestCases = []reasonCase{
	{pb.ErrorReason_ERROR_REASON_INVALID_REQUEST, invalid, "two_fields", func(t *testing.T, w *world) (*seen, want) {
		req := &pb.EnqueueRequest{Queue: w.queue(t), Priority: to(int32(0)), Policy: &pb.JobPolicy{MaxRuntime: seconds(0)}}
		return refused(t, w.jobs.Enqueue, req), want{fields: []string{"priority", "policy.max_runtime"}}
	}},
	{pb.ErrorReason_ERROR_REASON_INVALID_REQUEST, invalid, "by_the_database's_clock", func(t *testing.T, w *world) (*seen, want) {
		req := &pb.EnqueueRequest{Queue: w.queue(t), RunAt: timestamppb.New(time.Now().Add(store.MaxAhead + time.Hour))}
		return refused(t, w.jobs.Enqueue, req), want{fields: []string{"run_at"}}
	}},
	{pb.ErrorReason_ERROR_REASON_INVALID_REQUEST, invalid, "of_a_follow-up_by_the_database's_clock", func(t *testing.T, w *world) (*seen, want) {
		l := w.leased(t)
		follow := []*pb.EnqueueRequest{{Queue: l.GetJob().GetQueue()}, {Queue: l.GetJob().GetQueue(), RunAt: timestamppb.New(time.Now().Add(store.MaxAhead + time.Hour))}}
		got := refused(t, w.leases.Complete, &pb.CompleteRequest{LeaseToken: l.GetLeaseToken(), ThenEnqueue: follow})
		accepted(t, w.leases.Heartbeat, beat(l)) // the lease lives on
		return got, want{fields: []string{"then_enqueue[1].run_at"}, facts: map[string]string{"then_enqueue_index": "1"}}
	}},
	{pb.ErrorReason_ERROR_REASON_TOO_LARGE, invalid, "payload", func(t *testing.T, w *world) (*seen, want) {
		req := &pb.EnqueueRequest{Queue: w.queue(t), Payload: bytesOf(strings.Repeat("x", store.MaxPayloadBytes+1))}
		return refused(t, w.jobs.Enqueue, req), want{fields: []string{"payload.data"}}
	}},
	{pb.ErrorReason_ERROR_REASON_TOO_LARGE, invalid, "checkpoint", func(t *testing.T, w *world) (*seen, want) {
		req := beat(w.leased(t))
		req.Checkpoint = make([]byte, store.MaxCheckpointBytes+1)
		return refused(t, w.leases.Heartbeat, req), want{fields: []string{"checkpoint"}}
	}},
	{pb.ErrorReason_ERROR_REASON_INVALID_TOKEN, invalid, "lease_token_of_another_database", func(t *testing.T, w *world) (*seen, want) {
		ref := store.LeaseRef{JobID: remote.JobID(w.leased(t).GetJob().GetJobId()), LeaseNo: 1}
		foreign := store.NewTokens(make([]byte, 32)).Seal(ref)
		return refused(t, w.leases.Heartbeat, &pb.HeartbeatRequest{LeaseToken: foreign}), want{fields: []string{"lease_token"}}
	}},
	{pb.ErrorReason_ERROR_REASON_INVALID_TOKEN, invalid, "page_token_of_another_filter", func(t *testing.T, w *world) (*seen, want) {
		q := w.queue(t)
		for range 2 {
			w.enqueue(t, &pb.EnqueueRequest{Queue: q})
		}
		page := accepted(t, w.jobs.ListJobs, &pb.ListJobsRequest{Filter: &pb.JobFilter{Queue: &q}, PageSize: to(int32(1))})
		other := &pb.ListJobsRequest{Filter: &pb.JobFilter{Queue: to(w.queue(t))}, PageToken: page.GetNextPageToken()}
		return refused(t, w.jobs.ListJobs, other), want{fields: []string{"page_token"}}
	}},
}

const nobody = "1152921504606846976" // 1<<60: no job has got that far

var nameCases = []reasonCase{
	{pb.ErrorReason_ERROR_REASON_JOB_NOT_FOUND, codes.NotFound, "by_id", func(t *testing.T, w *world) (*seen, want) {
		return refused(t, w.jobs.GetJob, byID(nobody)), want{facts: map[string]string{"job_id": nobody}}
	}},
	{pb.ErrorReason_ERROR_REASON_JOB_NOT_FOUND, codes.NotFound, "by_key", func(t *testing.T, w *world) (*seen, want) {
		q := w.queue(t)
		req := &pb.GetJobRequest{By: &pb.GetJobRequest_Key{Key: &pb.JobKey{Queue: q, IdempotencyKey: "no-such-key"}}}
		return refused(t, w.jobs.GetJob, req), want{facts: map[string]string{"queue": q}}
	}},
	{pb.ErrorReason_ERROR_REASON_JOB_NOT_FOUND, codes.NotFound, "to_lease", func(t *testing.T, w *world) (*seen, want) {
		req := &pb.AcquireLeaseRequest{JobId: to(nobody), LeaseOwner: "w", Wait: seconds(60)}
		return refused(t, w.leases.AcquireLease, req), want{facts: map[string]string{"job_id": nobody}}
	}},
	{pb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND, codes.NotFound, "to_enqueue", func(t *testing.T, w *world) (*seen, want) {
		return refused(t, w.jobs.Enqueue, &pb.EnqueueRequest{Queue: "no-such-queue"}), want{facts: map[string]string{"queue": "no-such-queue"}}
	}},
	{pb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND, codes.NotFound, "to_lease", func(t *testing.T, w *world) (*seen, want) {
		req := &pb.AcquireLeaseRequest{Queues: []string{w.queue(t), "no-such-queue"}, LeaseOwner: "w", Wait: seconds(60)}
		return refused(t, w.leases.AcquireLease, req), want{facts: map[string]string{"queue": "no-such-queue"}}
	}},
	{pb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND, codes.NotFound, "of_a_follow-up", func(t *testing.T, w *world) (*seen, want) {
		l := w.leased(t)
		follow := []*pb.EnqueueRequest{{Queue: l.GetJob().GetQueue()}, {Queue: "no-such-queue"}}
		got := refused(t, w.leases.Fail, &pb.FailRequest{LeaseToken: l.GetLeaseToken(), ThenEnqueue: follow})
		accepted(t, w.leases.Heartbeat, beat(l)) // the lease lives on
		return got, want{facts: map[string]string{"queue": "no-such-queue", "then_enqueue_index": "1"}}
	}},
}

var leaseCases = []reasonCase{
	{pb.ErrorReason_ERROR_REASON_LEASE_SUPERSEDED, precondition, "Heartbeat", func(t *testing.T, w *world) (*seen, want) {
		l := w.leased(t)
		w.expire(t, l)
		w.release(t, w.lease(t, l.GetJob().GetJobId()))
		w.lease(t, l.GetJob().GetJobId())
		return refused(t, w.leases.Heartbeat, beat(l)), want{facts: factsOf(l, "current_lease_no", "3"), subject: subjectOf(l)}
	}},
	{pb.ErrorReason_ERROR_REASON_LEASE_SUPERSEDED, precondition, "Complete", func(t *testing.T, w *world) (*seen, want) {
		l := w.leased(t)
		w.expire(t, l)
		w.complete(t, w.lease(t, l.GetJob().GetJobId()), "of the second")
		got := refused(t, w.leases.Complete, &pb.CompleteRequest{LeaseToken: l.GetLeaseToken(), Result: bytesOf("of the first")})
		return got, want{facts: factsOf(l, "current_lease_no", "2"), subject: subjectOf(l)}
	}},
	{pb.ErrorReason_ERROR_REASON_LEASE_EXPIRED, precondition, "ended_by_the_watcher", func(t *testing.T, w *world) (*seen, want) {
		l := w.leased(t)
		w.expire(t, l)
		return refused(t, w.leases.Heartbeat, beat(l)), want{facts: factsOf(l, "lease_end", "EXPIRED"), subject: subjectOf(l)}
	}},
	{pb.ErrorReason_ERROR_REASON_LEASE_EXPIRED, precondition, "Fail", func(t *testing.T, w *world) (*seen, want) {
		l := w.leased(t)
		w.expire(t, l)
		got := refused(t, w.leases.Fail, &pb.FailRequest{LeaseToken: l.GetLeaseToken(), Error: &pb.JobError{Code: "declined"}})
		return got, want{facts: factsOf(l, "lease_end", "EXPIRED"), subject: subjectOf(l)}
	}},
	{pb.ErrorReason_ERROR_REASON_LEASE_EXPIRED, precondition, "at_max_runtime", func(t *testing.T, w *world) (*seen, want) {
		l := w.lease(t, w.enqueue(t, &pb.EnqueueRequest{Queue: w.queue(t), Policy: &pb.JobPolicy{MaxRuntime: seconds(60)}}))
		w.db.Age(t, remote.JobID(l.GetJob().GetJobId()), time.Hour)
		return refused(t, w.leases.Heartbeat, beat(l)), want{facts: factsOf(l), subject: subjectOf(l)}
	}},
	{pb.ErrorReason_ERROR_REASON_LEASE_ENDED, precondition, "by_its_holder", func(t *testing.T, w *world) (*seen, want) {
		l := w.leased(t)
		w.release(t, l)
		got := refused(t, w.leases.Complete, &pb.CompleteRequest{LeaseToken: l.GetLeaseToken()})
		return got, want{facts: factsOf(l, "lease_end", "RELEASED", "state", "PENDING"), subject: subjectOf(l)}
	}},
	{pb.ErrorReason_ERROR_REASON_LEASE_ENDED, precondition, "by_CancelJob", func(t *testing.T, w *world) (*seen, want) {
		l := w.leased(t)
		w.expire(t, l)
		accepted(t, w.jobs.CancelJob, &pb.CancelJobRequest{JobId: l.GetJob().GetJobId()})
		got := refused(t, w.leases.Complete, &pb.CompleteRequest{LeaseToken: l.GetLeaseToken()})
		return got, want{facts: factsOf(l, "lease_end", "EXPIRED", "state", "CANCELLED"), subject: subjectOf(l)}
	}},
	{pb.ErrorReason_ERROR_REASON_RESULT_CONFLICT, precondition, "another_result", func(t *testing.T, w *world) (*seen, want) {
		l := w.leased(t)
		w.complete(t, l, "first")
		got := refused(t, w.leases.Complete, &pb.CompleteRequest{LeaseToken: l.GetLeaseToken(), Result: bytesOf("second")})
		return got, want{facts: factsOf(l), subject: subjectOf(l)}
	}},
}

var stateCases = []reasonCase{
	{pb.ErrorReason_ERROR_REASON_WRONG_STATE, precondition, "of_a_job", func(t *testing.T, w *world) (*seen, want) {
		l := w.leased(t)
		w.complete(t, l, "done")
		id := l.GetJob().GetJobId()
		got := refused(t, w.jobs.CancelJob, &pb.CancelJobRequest{JobId: id})
		return got, want{facts: map[string]string{"job_id": id, "state": "COMPLETED"}, subject: "jobs/" + id}
	}},
	{pb.ErrorReason_ERROR_REASON_WRONG_STATE, precondition, "nothing_to_resolve", func(t *testing.T, w *world) (*seen, want) {
		id := w.enqueue(t, &pb.EnqueueRequest{Queue: w.queue(t)})
		req := &pb.ResolveJobRequest{JobId: id, Actor: "a", Note: "n", Resolution: &pb.ResolveJobRequest_Dead{Dead: &pb.ResolvedDead{}}}
		return refused(t, w.queues.ResolveJob, req), want{facts: map[string]string{"job_id": id, "state": "PENDING"}, subject: "jobs/" + id}
	}},
	{pb.ErrorReason_ERROR_REASON_WRONG_STATE, precondition, "of_a_queue", func(t *testing.T, w *world) (*seen, want) {
		q := w.leased(t).GetJob().GetQueue()
		return refused(t, w.queues.DeleteQueue, &pb.DeleteQueueRequest{Name: q}), want{facts: map[string]string{"queue": q}, subject: "queues/" + q}
	}},
}

var reuseCases = []reasonCase{
	{pb.ErrorReason_ERROR_REASON_IDEMPOTENCY_KEY_REUSED, codes.AlreadyExists, "another_payload", func(t *testing.T, w *world) (*seen, want) {
		q := w.queue(t)
		id := w.enqueue(t, &pb.EnqueueRequest{Queue: q, IdempotencyKey: to("k"), Payload: bytesOf("first")})
		got := refused(t, w.jobs.Enqueue, &pb.EnqueueRequest{Queue: q, IdempotencyKey: to("k"), Payload: bytesOf("second")})
		return got, want{facts: map[string]string{"queue": q, "job_id": id}}
	}},
	{pb.ErrorReason_ERROR_REASON_REQUEST_ID_REUSED, codes.AlreadyExists, "other_arguments", func(t *testing.T, w *world) (*seen, want) {
		q := w.queue(t)
		w.enqueue(t, &pb.EnqueueRequest{Queue: q})
		req := &pb.AcquireLeaseRequest{Queues: []string{q}, LeaseOwner: "w", RequestId: to(q + "/1")}
		accepted(t, w.leases.AcquireLease, req)
		req.MaxJobs = to(int32(2))
		return refused(t, w.leases.AcquireLease, req), want{}
	}},
	{pb.ErrorReason_ERROR_REASON_QUEUE_EXISTS, codes.AlreadyExists, "CreateQueue", func(t *testing.T, w *world) (*seen, want) {
		q := w.queue(t)
		got := refused(t, w.queues.CreateQueue, &pb.CreateQueueRequest{Queue: &pb.Queue{Name: q}})
		return got, want{facts: map[string]string{"queue": q}}
	}},
}
