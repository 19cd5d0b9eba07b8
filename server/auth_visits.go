package server

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/server/identity"
	"github.com/leasehold/leasehold/store"
)

// visit is a call by an identity that may not act on every queue.
type visit struct {
	*Server
	ctx     context.Context
	id      *identity.Identity
	role    pb.Role
	handler grpc.UnaryHandler
}

// visits are the rules of the methods: what they touch is checked before the handler runs,
// and what the caller may not see is taken out of the answer.
var visits = map[string]func(*visit, any) (any, error){
	pb.LeaseService_AcquireLease_FullMethodName:   (*visit).acquire,
	pb.LeaseService_Heartbeat_FullMethodName:      (*visit).items,
	pb.LeaseService_Complete_FullMethodName:       (*visit).items,
	pb.LeaseService_Fail_FullMethodName:           (*visit).items,
	pb.LeaseService_Release_FullMethodName:        (*visit).items,
	pb.LeaseService_BatchHeartbeat_FullMethodName: (*visit).items,
	pb.LeaseService_BatchComplete_FullMethodName:  (*visit).items,
	pb.LeaseService_BatchFail_FullMethodName:      (*visit).items,
	pb.LeaseService_BatchRelease_FullMethodName:   (*visit).items,
	pb.LeaseService_ListStuck_FullMethodName:      (*visit).listStuck,
	pb.JobService_Enqueue_FullMethodName:          (*visit).items,
	pb.JobService_BatchEnqueue_FullMethodName:     (*visit).items,
	pb.JobService_GetJob_FullMethodName:           (*visit).getJob,
	pb.JobService_ListJobs_FullMethodName:         (*visit).listJobs,
	pb.JobService_ListLeases_FullMethodName:       (*visit).listLeases,
	pb.JobService_CancelJob_FullMethodName:        (*visit).oneJob,
	pb.QueueService_CreateQueue_FullMethodName:    (*visit).oneQueue,
	pb.QueueService_GetQueue_FullMethodName:       (*visit).oneQueue,
	pb.QueueService_ListQueues_FullMethodName:     (*visit).listQueues,
	pb.QueueService_UpdateQueue_FullMethodName:    (*visit).oneQueue,
	pb.QueueService_DeleteQueue_FullMethodName:    (*visit).oneQueue,
	pb.QueueService_PauseQueue_FullMethodName:     (*visit).oneQueue,
	pb.QueueService_ResumeQueue_FullMethodName:    (*visit).oneQueue,
	pb.QueueService_RetryJobs_FullMethodName:      (*visit).bulk,
	pb.QueueService_CancelJobs_FullMethodName:     (*visit).bulk,
	pb.QueueService_ResolveJob_FullMethodName:     (*visit).oneJob,
	pb.QueueService_Lint_FullMethodName:           (*visit).lint,
}

// items passes on a call whose items are checked behind their conversion (permitted).
func (v *visit) items(req any) (any, error) { return v.handler(v.ctx, req) }

// acquire demands all queues that are asked for: a worker that silently got nothing from one
// of them would be looked for in the wrong place.
func (v *visit) acquire(req any) (any, error) {
	r := req.(*pb.AcquireLeaseRequest)
	if err := v.validator.check(r); err != nil {
		return nil, err // the list has no bound yet
	}
	for _, queue := range r.GetQueues() {
		if err := mayNot(v.id, v.role, queue); err != nil {
			return nil, err
		}
	}
	if r.JobId != nil {
		if _, err := v.job(r.GetJobId()); err != nil {
			return nil, err
		}
	}
	resp, err := v.handler(v.ctx, req)
	if got, ok := resp.(*pb.AcquireLeaseResponse); ok && err == nil {
		for _, l := range got.GetLeases() {
			// The heartbeats of this lease come next, most of them to this replica.
			if id, err := strconv.ParseInt(l.GetJob().GetJobId(), 10, 64); err == nil {
				v.queuesOf.remember(store.JobID(id), l.GetJob().GetQueue())
			}
		}
	}
	return resp, err
}

// job finds the queue of a job and checks it.
func (v *visit) job(text string) (queue string, err error) {
	in := v.intake()
	id := in.jobID("job_id", text)
	if err := in.err(); err != nil {
		return "", err
	}
	queues, err := v.queuesOf.of(v.ctx, id)
	if err != nil {
		return "", err
	}
	queue, exists := queues[id]
	if !exists {
		return "", &store.JobNotFoundError{JobID: id}
	}
	return queue, mayNot(v.id, v.role, queue)
}

func (v *visit) oneJob(req any) (any, error) {
	if _, err := v.job(req.(interface{ GetJobId() string }).GetJobId()); err != nil {
		return nil, err
	}
	return v.handler(v.ctx, req)
}

func (v *visit) oneQueue(req any) (any, error) {
	if err := mayNot(v.id, v.role, queueNamed(req)); err != nil {
		return nil, err
	}
	return v.handler(v.ctx, req)
}

// queueNamed is the queue that a request names, empty where it names none or several.
func queueNamed(req any) string {
	switch r := req.(type) {
	case interface{ GetName() string }:
		return r.GetName()
	case interface{ GetQueue() *pb.Queue }:
		return r.GetQueue().GetName()
	case interface{ GetQueue() string }:
		return r.GetQueue()
	case *pb.AcquireLeaseRequest:
		if len(r.GetQueues()) == 1 {
			return r.GetQueues()[0]
		}
	case *pb.GetJobRequest:
		return r.GetKey().GetQueue()
	case *pb.ListJobsRequest:
		return r.GetFilter().GetQueue()
	case bulkRequest:
		return r.GetSelection().GetFilter().GetQueue()
	}
	return ""
}

func (v *visit) getJob(req any) (any, error) {
	r := req.(*pb.GetJobRequest)
	queue, err := r.GetKey().GetQueue(), error(nil)
	if r.GetKey() != nil {
		err = mayNot(v.id, v.role, queue)
	} else {
		queue, err = v.job(r.GetJobId())
	}
	if err != nil {
		return nil, err
	}
	if err := v.mayNotSee(r.GetView(), queue); err != nil {
		return nil, err
	}
	resp, err := v.handler(v.ctx, req)
	if got, ok := resp.(*pb.GetJobResponse); ok && err == nil && !v.id.SeesContents(queue) {
		withoutContents(got.GetJob())
		withoutDetails(got.GetLeases())
	}
	return resp, err
}

// mayNotSee refuses the FULL view of a queue whose payloads the caller may not see: without
// them it would look as if retention had dropped them.
func (v *visit) mayNotSee(view pb.JobView, queue string) error {
	if view == pb.JobView_JOB_VIEW_FULL && !v.id.SeesContents(queue) {
		return &RoleMissingError{Role: pb.Role_ROLE_OPERATOR, Queue: queue}
	}
	return nil
}

func (v *visit) listLeases(req any) (any, error) {
	queue, err := v.job(req.(*pb.ListLeasesRequest).GetJobId())
	if err != nil {
		return nil, err
	}
	resp, err := v.handler(v.ctx, req)
	if got, ok := resp.(*pb.ListLeasesResponse); ok && err == nil && !v.id.SeesContents(queue) {
		withoutDetails(got.GetLeases())
	}
	return resp, err
}

// listed is the queue of a list: the one that the caller asks for, or else the only one that
// it may see. Empty: the answer must be filtered.
func (v *visit) listed(asked string) (string, error) {
	if asked != "" {
		return asked, mayNot(v.id, v.role, asked)
	}
	only, _ := v.id.Only(v.role)
	return only, nil
}

func (v *visit) listJobs(req any) (any, error) {
	r := req.(*pb.ListJobsRequest)
	queue, err := v.listed(r.GetFilter().GetQueue())
	if err != nil {
		return nil, err
	}
	if queue != "" {
		if err := v.mayNotSee(r.GetView(), queue); err != nil {
			return nil, err
		}
		if r.GetFilter().Queue == nil {
			r = proto.CloneOf(r)
			if r.Filter == nil {
				r.Filter = &pb.JobFilter{}
			}
			r.Filter.Queue = &queue
		}
	}
	resp, err := v.handler(v.ctx, r)
	if got, ok := resp.(*pb.ListJobsResponse); ok && err == nil {
		got.Jobs = slices.DeleteFunc(got.GetJobs(), func(j *pb.Job) bool { return !v.id.May(v.role, j.GetQueue()) })
		for _, j := range got.GetJobs() {
			if !v.id.SeesContents(j.GetQueue()) {
				withoutContents(j)
			}
		}
	}
	return resp, err
}

func (v *visit) listStuck(req any) (any, error) {
	r := req.(*pb.ListStuckRequest)
	queue, err := v.listed(r.GetQueue())
	if err != nil {
		return nil, err
	}
	if queue != "" && r.Queue == nil {
		r = proto.CloneOf(r)
		r.Queue = &queue
	}
	resp, err := v.handler(v.ctx, r)
	if got, ok := resp.(*pb.ListStuckResponse); ok && err == nil {
		got.Jobs = slices.DeleteFunc(got.GetJobs(), func(j *pb.StuckJob) bool { return !v.id.May(v.role, j.GetQueue()) })
	}
	return resp, err
}

func (v *visit) listQueues(req any) (any, error) {
	resp, err := v.handler(v.ctx, req)
	if got, ok := resp.(*pb.ListQueuesResponse); ok && err == nil {
		got.Queues = slices.DeleteFunc(got.GetQueues(), func(q *pb.Queue) bool { return !v.id.May(v.role, q.GetName()) })
		got.Stats = slices.DeleteFunc(got.GetStats(), func(q *pb.QueueStats) bool { return !v.id.May(v.role, q.GetQueue()) })
	}
	return resp, err
}

// lint without a queue tells of the database and of every queue.
func (v *visit) lint(req any) (any, error) {
	r := req.(*pb.LintRequest)
	queue, err := v.listed(r.GetQueue())
	switch {
	case err != nil:
		return nil, err
	case v.id.Everywhere(v.role):
	case queue == "":
		return nil, &RoleMissingError{Role: v.role}
	case r.Queue == nil:
		r = proto.CloneOf(r)
		r.Queue = &queue
	}
	return v.handler(v.ctx, r)
}

// bulk demands the queue of a filter, or refuses the jobs of a list one by one.
func (v *visit) bulk(req any) (any, error) {
	if err := v.validator.check(req.(proto.Message)); err != nil {
		return nil, err // the list has no bound yet
	}
	sel := req.(bulkRequest).GetSelection()
	if sel.GetFilter() != nil || len(sel.GetJobIds()) == 0 {
		if err := mayNot(v.id, v.role, sel.GetFilter().GetQueue()); err != nil {
			return nil, err
		}
		return v.handler(v.ctx, req)
	}
	in := v.intake()
	ids := make([]store.JobID, len(sel.GetJobIds()))
	for i, text := range sel.GetJobIds() {
		ids[i] = in.jobID("selection.job_ids", text)
	}
	if err := in.err(); err != nil {
		return nil, err
	}
	refusals, err := v.mayNotJobs(v.ctx, v.id, v.role, ids)
	if err != nil {
		return nil, err
	}
	allowed, refused := &pb.JobSelection{}, []*pb.BulkResult{}
	for i, refusal := range refusals {
		text := sel.GetJobIds()[i]
		if refusal == nil {
			allowed.JobIds = append(allowed.JobIds, text)
			continue
		}
		refused = append(refused, &pb.BulkResult{JobId: text, Result: &pb.BulkResult_Error{Error: asItemError(v.ctx, refusal)}})
	}
	return v.bulkOf(req, allowed, refused)
}

// bulkOf acts on the jobs that are allowed, and adds the refusals to the answer.
func (v *visit) bulkOf(req any, allowed *pb.JobSelection, refused []*pb.BulkResult) (any, error) {
	switch r := req.(type) {
	case *pb.RetryJobsRequest:
		r = proto.CloneOf(r)
		r.Selection = allowed
		req = r
	case *pb.CancelJobsRequest:
		r = proto.CloneOf(r)
		r.Selection = allowed
		req = r
	}
	var resp any
	var err error
	if len(allowed.GetJobIds()) > 0 {
		if resp, err = v.handler(v.ctx, req); err != nil {
			return nil, err
		}
	}
	switch req.(type) {
	case *pb.RetryJobsRequest:
		got, _ := resp.(*pb.RetryJobsResponse)
		return &pb.RetryJobsResponse{Results: byJob(got.GetResults(), refused), NextPageToken: got.GetNextPageToken()}, nil
	default:
		got, _ := resp.(*pb.CancelJobsResponse)
		return &pb.CancelJobsResponse{Results: byJob(got.GetResults(), refused), NextPageToken: got.GetNextPageToken()}, nil
	}
}

// byJob merges results in the order of job ids, which are numbers without leading zeros.
func byJob(results, more []*pb.BulkResult) []*pb.BulkResult {
	all := slices.Concat(results, more)
	slices.SortStableFunc(all, func(a, b *pb.BulkResult) int {
		return cmp.Or(cmp.Compare(len(a.GetJobId()), len(b.GetJobId())), cmp.Compare(a.GetJobId(), b.GetJobId()))
	})
	return all
}

// withoutContents takes out what only those may see who do the work or look after it.
func withoutContents(j *pb.Job) {
	if j == nil {
		return
	}
	j.Payload, j.Headers, j.Result, j.Checkpoint = nil, nil, nil, nil
	if j.GetLastError() != nil {
		j.LastError.Details = ""
	}
}

func withoutDetails(leases []*pb.LeaseRecord) {
	for _, l := range leases {
		if l.GetError() != nil {
			l.Error.Details = ""
		}
	}
}
