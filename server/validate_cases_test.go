package server

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

func leaseFaults() []badRequest {
	out := durationFaults("lease_duration", time.Second, 12*time.Hour, "must be between 1 s and 12 h, got ", func(d *durationpb.Duration) (proto.Message, string) {
		return acq(func(r *pb.AcquireLeaseRequest) { r.LeaseDuration = d }), "lease_duration"
	})
	out = append(out, durationFaults("wait", 0, time.Minute, "must be between 0 s and 60 s, got ", func(d *durationpb.Duration) (proto.Message, string) {
		return acq(func(r *pb.AcquireLeaseRequest) { r.Wait = d }), "wait"
	})...)
	out = append(out, durationFaults("retry_after", 0, 1827*24*time.Hour, "must be between 0 s and 1827 days, got ", func(d *durationpb.Duration) (proto.Message, string) {
		return &pb.FailRequest{LeaseToken: testToken, RetryAfter: d}, "retry_after"
	})...)
	out = append(out, durationFaults("release delay", 0, 1827*24*time.Hour, "must be between 0 s and 1827 days, got ", func(d *durationpb.Duration) (proto.Message, string) {
		return &pb.ReleaseRequest{LeaseToken: testToken, Delay: d}, "delay"
	})...)
	for _, n := range []int32{0, -1, 1001, math.MaxInt32} {
		out = append(out, badRequest{name: fmt.Sprint("max_jobs ", n), field: "max_jobs", text: fmt.Sprint("must be between 1 and 1000, got ", n),
			req: acq(func(r *pb.AcquireLeaseRequest) { r.MaxJobs = &n })})
	}
	for _, x := range []float64{-0.1, 1.1, math.NaN(), math.Inf(1)} {
		out = append(out, badRequest{name: fmt.Sprint("progress ", x), field: "progress", text: "must be between 0 and 1, got " + formatFloat(x),
			req: beat(func(r *pb.HeartbeatRequest) { r.Progress = &x })})
	}
	for _, id := range []string{"", "0", "-1", "01", "x", "9223372036854775808", "10000000000000000000", "1 "} {
		out = append(out, badRequest{name: "job_id " + id, field: "job_id", text: "must be a job id",
			req: acq(func(r *pb.AcquireLeaseRequest) { r.Queues, r.JobId = nil, &id })})
	}
	many := make([]string, 101)
	for i := range many {
		many[i] = fmt.Sprint("q", i)
	}
	follow := func(f *pb.EnqueueRequest) []*pb.EnqueueRequest { return []*pb.EnqueueRequest{{Queue: "ok"}, f} }
	return append(out,
		badRequest{name: "no queue and no job", field: "queues", text: "exactly one of queues and job_id", req: acq(func(r *pb.AcquireLeaseRequest) { r.Queues = nil })},
		badRequest{name: "queue and job", field: "queues", text: "exactly one of queues and job_id", req: acq(func(r *pb.AcquireLeaseRequest) { r.JobId = proto.String("1") })},
		badRequest{name: "max_jobs of one", field: "max_jobs", text: "max_jobs must be 1 or unset", req: acq(func(r *pb.AcquireLeaseRequest) {
			r.Queues, r.JobId, r.MaxJobs = nil, proto.String("1"), proto.Int32(2)
		})},
		badRequest{name: "same queue twice", field: "queues", text: "must not name the same value twice", req: acq(func(r *pb.AcquireLeaseRequest) { r.Queues = []string{"a", "a"} })},
		badRequest{name: "101 queues", field: "queues", text: "must have at most 100 items, got 101", req: acq(func(r *pb.AcquireLeaseRequest) { r.Queues = many })},
		badRequest{name: "second queue bad", field: "queues[1]", text: "must be a queue name", req: acq(func(r *pb.AcquireLeaseRequest) { r.Queues = []string{"a", "B"} })},
		badRequest{name: "no owner", field: "lease_owner", text: "must have 1 to 256 bytes, got 0", req: acq(func(r *pb.AcquireLeaseRequest) { r.LeaseOwner = "" })},
		badRequest{name: "owner NUL", field: "lease_owner", text: "must not contain NUL", req: acq(func(r *pb.AcquireLeaseRequest) { r.LeaseOwner = "\x00" })},
		badRequest{name: "request_id", field: "request_id", text: "must have 1 to 256 bytes, got 0", req: acq(func(r *pb.AcquireLeaseRequest) { r.RequestId = proto.String("") })},
		badRequest{name: "no token", field: "lease_token", text: "must have 1 to 256 bytes, got 0", req: beat(func(r *pb.HeartbeatRequest) { r.LeaseToken = "" })},
		badRequest{name: "garbage token", field: "lease_token", text: "must be the lease_token", reason: "INVALID_TOKEN", req: beat(func(r *pb.HeartbeatRequest) { r.LeaseToken = "x" })},
		badRequest{name: "changed token", field: "lease_token", text: "must be the lease_token", reason: "INVALID_TOKEN", req: &pb.CompleteRequest{LeaseToken: "B" + testToken[1:]}},
		badRequest{name: "stage", field: "stage", text: "must have at most 128 bytes, got 129", req: beat(func(r *pb.HeartbeatRequest) { r.Stage = proto.String(strings.Repeat("s", 129)) })},
		badRequest{name: "stage NUL", field: "stage", text: "must not contain NUL", req: beat(func(r *pb.HeartbeatRequest) { r.Stage = proto.String("a\x00") })},
		badRequest{name: "checkpoint", field: "checkpoint", text: "must have at most 65536 bytes, got 65537", reason: "TOO_LARGE", req: beat(func(r *pb.HeartbeatRequest) { r.Checkpoint = make([]byte, 65537) })},
		badRequest{name: "result", field: "result.data", text: "must have at most 1048576 bytes", reason: "TOO_LARGE", req: &pb.CompleteRequest{LeaseToken: testToken, Result: data(1<<20 + 1)}},
		badRequest{name: "result JSON", field: "result.json", text: "must be one JSON value", req: &pb.CompleteRequest{LeaseToken: testToken, Result: jsonPayload("{")}},
		badRequest{name: "101 follow-ups", field: "then_enqueue", text: "must have at most 100 items, got 101", req: &pb.FailRequest{LeaseToken: testToken, ThenEnqueue: slices.Repeat(follow(nil)[:1], 101)}},
		badRequest{name: "follow-up queue", field: "then_enqueue[1].queue", text: "must be a queue name", req: &pb.CompleteRequest{LeaseToken: testToken, ThenEnqueue: follow(&pb.EnqueueRequest{Queue: "B"})}},
		badRequest{name: "follow-up run_at and delay", field: "then_enqueue[1].delay", text: "must not both be set", req: &pb.CompleteRequest{LeaseToken: testToken,
			ThenEnqueue: follow(&pb.EnqueueRequest{Queue: "b", RunAt: timestamppb.Now(), Delay: durationpb.New(0)})}},
		badRequest{name: "follow-up duration", field: "then_enqueue[1].policy.backoff.cap", text: "must be a valid duration", req: &pb.FailRequest{LeaseToken: testToken,
			ThenEnqueue: follow(&pb.EnqueueRequest{Queue: "b", Policy: &pb.JobPolicy{Backoff: &pb.Backoff{Cap: &durationpb.Duration{Seconds: 1, Nanos: -1}}}})}},
		badRequest{name: "follow-up JSON", field: "then_enqueue[1].payload.json", text: "must be one JSON value", req: &pb.FailRequest{LeaseToken: testToken, ThenEnqueue: follow(&pb.EnqueueRequest{Queue: "b", Payload: jsonPayload("x")})}},
		badRequest{name: "follow-up headers", field: "then_enqueue[1].headers", text: "in all", reason: "TOO_LARGE", req: &pb.CompleteRequest{LeaseToken: testToken, ThenEnqueue: follow(&pb.EnqueueRequest{Queue: "b", Headers: headers(64, 254)})}},
	)
}

// stuckAndBatchFaults are the rest of LeaseService.
func stuckAndBatchFaults() []badRequest {
	return []badRequest{
		{name: "ListStuck queue", field: "queue", text: "must be a queue name", req: &pb.ListStuckRequest{Queue: proto.String("")}},
		{name: "ListStuck diagnosis", field: "diagnoses[0]", text: "must not be unspecified", req: &pb.ListStuckRequest{Diagnoses: []pb.Diagnosis{0}}},
		{name: "ListStuck unknown diagnosis", field: "diagnoses[0]", text: "must be a value that the enum defines, got 99", req: &pb.ListStuckRequest{Diagnoses: []pb.Diagnosis{99}}},
		{name: "ListStuck page", field: "page_size", text: "must be between 1 and 1000, got 0", req: &pb.ListStuckRequest{PageSize: proto.Int32(0)}},
		{name: "ListStuck token", field: "page_token", text: "next_page_token", reason: "INVALID_TOKEN", req: &pb.ListStuckRequest{PageToken: "x"}},
		{name: "no items", field: "items", text: "must have 1 to 1000 items, got 0", req: &pb.BatchHeartbeatRequest{}},
		{name: "1001 beats", field: "items", text: "must have 1 to 1000 items, got 1001", req: &pb.BatchHeartbeatRequest{Items: slices.Repeat([]*pb.HeartbeatRequest{{}}, 1001)}},
		{name: "1001 completes", field: "items", text: "got 1001", req: &pb.BatchCompleteRequest{Items: slices.Repeat([]*pb.CompleteRequest{{}}, 1001)}},
		{name: "1001 fails", field: "items", text: "got 1001", req: &pb.BatchFailRequest{Items: slices.Repeat([]*pb.FailRequest{{}}, 1001)}},
		{name: "1001 releases", field: "items", text: "got 1001", req: &pb.BatchReleaseRequest{Items: slices.Repeat([]*pb.ReleaseRequest{{}}, 1001)}},
		{name: "1001 jobs", field: "items", text: "got 1001", req: &pb.BatchEnqueueRequest{Items: slices.Repeat([]*pb.EnqueueRequest{{}}, 1001)}},
	}
}

func jobFaults() []badRequest {
	sel := func(s *pb.JobSelection) *pb.RetryJobsRequest { return &pb.RetryJobsRequest{Selection: s} }
	byID, long := &pb.JobSelection{JobIds: []string{"1"}}, strings.Repeat("a", 1025)
	resolve := func(change func(*pb.ResolveJobRequest)) *pb.ResolveJobRequest {
		r := &pb.ResolveJobRequest{JobId: "1", Actor: "a", Note: "n", Resolution: &pb.ResolveJobRequest_Dead{Dead: &pb.ResolvedDead{}}}
		change(r)
		return r
	}
	return []badRequest{
		{name: "GetJob of nothing", field: "by", text: "exactly one", req: &pb.GetJobRequest{}},
		{name: "GetJob id", field: "job_id", text: "must be a job id", req: &pb.GetJobRequest{By: &pb.GetJobRequest_JobId{JobId: "0"}}},
		{name: "GetJob large id", field: "job_id", text: "up to 9223372036854775807", req: &pb.GetJobRequest{By: &pb.GetJobRequest_JobId{JobId: "9999999999999999999"}}},
		{name: "GetJob key", field: "key.idempotency_key", text: "must have 1 to 256 bytes", req: &pb.GetJobRequest{By: &pb.GetJobRequest_Key{Key: &pb.JobKey{Queue: "q"}}}},
		{name: "GetJob view", field: "view", text: "must be a value that the enum defines, got 9", req: &pb.GetJobRequest{By: &pb.GetJobRequest_JobId{JobId: "1"}, View: 9}},
		{name: "GetJob leases", field: "recent_leases", text: "must be between 0 and 100, got 101", req: &pb.GetJobRequest{By: &pb.GetJobRequest_JobId{JobId: "1"}, RecentLeases: proto.Int32(101)}},
		{name: "ListJobs page 0", field: "page_size", text: "must be between 1 and 1000, got 0", req: &pb.ListJobsRequest{PageSize: proto.Int32(0)}},
		{name: "ListJobs page 1001", field: "page_size", text: "must be between 1 and 1000, got 1001", req: &pb.ListJobsRequest{PageSize: proto.Int32(1001)}},
		{name: "ListJobs state", field: "filter.states[0]", text: "must not be unspecified", req: &pb.ListJobsRequest{Filter: &pb.JobFilter{States: []pb.JobState{0}}}},
		{name: "ListJobs subject", field: "filter.subject", text: "must have 1 to 256 bytes, got 0", req: &pb.ListJobsRequest{Filter: &pb.JobFilter{Subject: proto.String("")}}},
		{name: "ListJobs error code", field: "filter.error_code", text: "must have 1 to 128 bytes, got 129", req: &pb.ListJobsRequest{Filter: &pb.JobFilter{ErrorCode: proto.String(strings.Repeat("e", 129))}}},
		{name: "ListJobs time", field: "filter.created_before", text: "must be a valid timestamp", req: &pb.ListJobsRequest{Filter: &pb.JobFilter{CreatedBefore: &timestamppb.Timestamp{Nanos: -1}}}},
		{name: "ListJobs token", field: "page_token", text: "next_page_token", reason: "INVALID_TOKEN", req: &pb.ListJobsRequest{PageToken: "AAAA"}},
		{name: "ListJobs long token", field: "page_token", text: "must have at most 512 bytes, got 513", req: &pb.ListJobsRequest{PageToken: strings.Repeat("A", 513)}},
		{name: "ListLeases id", field: "job_id", text: "must be a job id", req: &pb.ListLeasesRequest{}},
		{name: "ListLeases page", field: "page_size", text: "got -1", req: &pb.ListLeasesRequest{JobId: "1", PageSize: proto.Int32(-1)}},
		{name: "CancelJob id", field: "job_id", text: "must be a job id", req: &pb.CancelJobRequest{JobId: "x"}},
		{name: "CancelJob actor", field: "actor", text: "must have at most 256 bytes, got 257", req: &pb.CancelJobRequest{JobId: "1", Actor: strings.Repeat("a", 257)}},
		{name: "CancelJob note", field: "note", text: "must have at most 1024 bytes, got 1025", req: &pb.CancelJobRequest{JobId: "1", Note: long}},
		{name: "CreateQueue of nothing", field: "queue", text: "is required", req: &pb.CreateQueueRequest{}},
		{name: "CreateQueue name", field: "queue.name", text: "must be a queue name", req: &pb.CreateQueueRequest{Queue: &pb.Queue{}}},
		{name: "CreateQueue expiry", field: "queue.on_expiry", text: "must be a value that the enum defines, got 7", req: &pb.CreateQueueRequest{Queue: &pb.Queue{Name: "q", OnExpiry: 7}}},
		{name: "GetQueue", field: "name", text: "must be a queue name", req: &pb.GetQueueRequest{}},
		{name: "ListQueues", field: "page_size", text: "got 1001", req: &pb.ListQueuesRequest{PageSize: proto.Int32(1001)}},
		{name: "ListQueues token", field: "page_token", text: "next_page_token", reason: "INVALID_TOKEN", req: &pb.ListQueuesRequest{PageToken: "!"}},
		{name: "UpdateQueue without mask", field: "update_mask", text: "is required", req: &pb.UpdateQueueRequest{Queue: &pb.Queue{Name: "q"}}},
		{name: "UpdateQueue empty mask", field: "update_mask", text: "at least one", req: &pb.UpdateQueueRequest{Queue: &pb.Queue{Name: "q"}, UpdateMask: &fieldmaskpb.FieldMask{}}},
		{name: "UpdateQueue path", field: "update_mask.paths[1]", text: `must be "policy"`, req: &pb.UpdateQueueRequest{Queue: &pb.Queue{Name: "q"}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"policy", "name"}}}},
		{name: "DeleteQueue", field: "name", text: "must be a queue name", req: &pb.DeleteQueueRequest{Name: "Q"}},
		{name: "PauseQueue", field: "name", text: "must be a queue name", req: &pb.PauseQueueRequest{}},
		{name: "PauseQueue note", field: "note", text: "must have at most 1024 bytes, got 1025", req: &pb.PauseQueueRequest{Name: "q", Note: long}},
		{name: "ResumeQueue", field: "name", text: "must be a queue name", req: &pb.ResumeQueueRequest{}},
		{name: "RetryJobs of nothing", field: "selection", text: "is required", req: &pb.RetryJobsRequest{}},
		{name: "RetryJobs empty", field: "selection.job_ids", text: "exactly one of job_ids and filter", req: sel(&pb.JobSelection{})},
		{name: "RetryJobs both", field: "selection.job_ids", text: "exactly one of job_ids and filter", req: sel(&pb.JobSelection{JobIds: []string{"1"}, Filter: &pb.JobFilter{}})},
		{name: "RetryJobs id", field: "selection.job_ids[0]", text: "must be a job id", req: sel(&pb.JobSelection{JobIds: []string{"a"}})},
		{name: "RetryJobs large id", field: "selection.job_ids[0]", text: "up to 9223372036854775807", req: sel(&pb.JobSelection{JobIds: []string{"9999999999999999999"}})},
		{name: "RetryJobs 1001 ids", field: "selection.job_ids", text: "must have at most 1000 items, got 1001", req: sel(&pb.JobSelection{JobIds: slices.Repeat([]string{"1"}, 1001)})},
		{name: "RetryJobs batch", field: "batch_size", text: "must be between 1 and 1000, got 0", req: &pb.RetryJobsRequest{Selection: byID, BatchSize: proto.Int32(0)}},
		{name: "RetryJobs token", field: "page_token", text: "next_page_token", reason: "INVALID_TOKEN", req: &pb.RetryJobsRequest{Selection: byID, PageToken: "x"}},
		{name: "CancelJobs of nothing", field: "selection", text: "is required", req: &pb.CancelJobsRequest{}},
		{name: "CancelJobs batch", field: "batch_size", text: "got 1001", req: &pb.CancelJobsRequest{Selection: byID, BatchSize: proto.Int32(1001)}},
		{name: "ResolveJob id", field: "job_id", text: "must be a job id", req: resolve(func(r *pb.ResolveJobRequest) { r.JobId = "" })},
		{name: "ResolveJob without", field: "resolution", text: "exactly one", req: resolve(func(r *pb.ResolveJobRequest) { r.Resolution = nil })},
		{name: "ResolveJob actor", field: "actor", text: "must have 1 to 256 bytes, got 0", req: resolve(func(r *pb.ResolveJobRequest) { r.Actor = "" })},
		{name: "ResolveJob note", field: "note", text: "must have 1 to 1024 bytes, got 0", req: resolve(func(r *pb.ResolveJobRequest) { r.Note = "" })},
		{name: "ResolveJob JSON", field: "completed.result.json", text: "must be one JSON value", req: resolve(func(r *pb.ResolveJobRequest) {
			r.Resolution = &pb.ResolveJobRequest_Completed{Completed: &pb.ResolvedCompleted{Result: jsonPayload("nope")}}
		})},
	}
}
