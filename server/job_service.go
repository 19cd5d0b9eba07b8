package server

import (
	"context"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// jobService is JobService. Its methods are documented in the proto.
type jobService struct {
	pb.UnimplementedJobServiceServer
	*Server
}

func (j *jobService) enqueues() operation[*pb.EnqueueRequest, store.NewJob, store.Enqueued, *pb.EnqueueResponse] {
	return operation[*pb.EnqueueRequest, store.NewJob, store.Enqueued, *pb.EnqueueResponse]{
		in: j.enqueueIn, run: j.permittedEnqueue, out: enqueueOut,
	}
}

func (j *jobService) Enqueue(ctx context.Context, req *pb.EnqueueRequest) (*pb.EnqueueResponse, error) {
	return j.enqueues().one(ctx, req)
}

func (j *jobService) BatchEnqueue(ctx context.Context, req *pb.BatchEnqueueRequest) (*pb.BatchEnqueueResponse, error) {
	outcomes, err := j.enqueues().batch(ctx, j.validator, req.GetItems())
	if err != nil {
		return nil, err
	}
	resp := &pb.BatchEnqueueResponse{}
	for _, o := range outcomes {
		r := &pb.BatchEnqueueResult{Result: &pb.BatchEnqueueResult_Ok{Ok: o.ok}}
		if o.err != nil {
			r.Result = &pb.BatchEnqueueResult_Error{Error: asItemError(ctx, o.err)}
		}
		resp.Results = append(resp.Results, r)
	}
	return resp, nil
}

func (j *jobService) GetJob(ctx context.Context, req *pb.GetJobRequest) (*pb.GetJobResponse, error) {
	full := req.GetView() == pb.JobView_JOB_VIEW_FULL
	job, err := j.findJob(ctx, req, full)
	if err != nil {
		return nil, err
	}
	resp := &pb.GetJobResponse{Job: jobOut(job, full)}
	if resp.OperatorActs, err = j.operatorActs(ctx, job.ID); err != nil {
		return nil, err
	}
	if req.GetExplain() {
		if resp.Explanation, err = j.explain(ctx, job.ID); err != nil {
			return nil, err
		}
	}
	if n := int(req.GetRecentLeases()); n > 0 {
		resp.Leases, err = j.recentLeases(ctx, job.ID, n, proto.Size(resp))
	}
	return resp, err
}

func (j *jobService) operatorActs(ctx context.Context, id store.JobID) (out []*pb.OperatorAct, err error) {
	acts, err := j.store.OperatorActs(ctx, id)
	for _, a := range acts {
		out = append(out, &pb.OperatorAct{At: timestamppb.New(a.At), Act: a.Act, Actor: a.Actor, Note: a.Note})
	}
	return out, err
}

func (j *jobService) findJob(ctx context.Context, req *pb.GetJobRequest, full bool) (*store.Job, error) {
	if key := req.GetKey(); key != nil {
		return j.store.GetJobByKey(ctx, key.GetQueue(), key.GetIdempotencyKey(), full)
	}
	in := j.intake()
	id := in.jobID("job_id", req.GetJobId())
	if err := in.err(); err != nil {
		return nil, err
	}
	return j.store.GetJob(ctx, id, full)
}

// recentLeases reads the latest leases that have room beside used bytes, oldest first.
func (j *jobService) recentLeases(ctx context.Context, id store.JobID, n, used int) ([]*pb.LeaseRecord, error) {
	records, err := j.store.LastLeases(ctx, id, n, maxAnswerBytes-used)
	if err != nil {
		return nil, err
	}
	leases := make([]*pb.LeaseRecord, len(records))
	for i := range records {
		leases[len(records)-1-i] = leaseRecordOut(&records[i]) // latest first: the oldest give way
	}
	leases = leases[:fitting(leases, used)]
	slices.Reverse(leases)
	return leases, nil
}

func (j *jobService) ListJobs(ctx context.Context, req *pb.ListJobsRequest) (*pb.ListJobsResponse, error) {
	filter, full := filterIn(req.GetFilter()), req.GetView() == pb.JobView_JOB_VIEW_FULL
	scope := pageScope{"ListJobs", filter}
	page, err := j.page(scope, req.PageSize, req.GetPageToken())
	if err != nil {
		return nil, err
	}
	found, err := j.store.ListJobs(ctx, filter, full, page)
	if err != nil {
		return nil, err
	}
	resp := &pb.ListJobsResponse{}
	for i := range found.Jobs {
		resp.Jobs = append(resp.Jobs, jobOut(&found.Jobs[i], full))
	}
	if n := fitting(resp.Jobs, 0); n < len(resp.Jobs) {
		resp.Jobs, found.Next = resp.Jobs[:n], int64(found.Jobs[n-1].ID)
	}
	resp.NextPageToken = j.pages.seal(scope, found.Next)
	return resp, nil
}

func (j *jobService) ListLeases(ctx context.Context, req *pb.ListLeasesRequest) (*pb.ListLeasesResponse, error) {
	in := j.intake()
	id := in.jobID("job_id", req.GetJobId())
	scope := pageScope{"ListLeases", id}
	page, err := j.page(scope, req.PageSize, req.GetPageToken())
	if err := firstError(in.err(), err); err != nil {
		return nil, err
	}
	found, err := j.store.ListLeases(ctx, id, page)
	if err != nil {
		return nil, err
	}
	resp := &pb.ListLeasesResponse{}
	for i := range found.Leases {
		resp.Leases = append(resp.Leases, leaseRecordOut(&found.Leases[i]))
	}
	if n := fitting(resp.Leases, 0); n < len(resp.Leases) {
		resp.Leases, found.Next = resp.Leases[:n], found.Leases[n-1].LeaseNo
	}
	resp.NextPageToken = j.pages.seal(scope, found.Next)
	return resp, nil
}

func (j *jobService) CancelJob(ctx context.Context, req *pb.CancelJobRequest) (*pb.CancelJobResponse, error) {
	in := j.intake()
	id := in.jobID("job_id", req.GetJobId())
	if err := in.err(); err != nil {
		return nil, err
	}
	done, err := j.store.CancelJob(ctx, id, store.Actor{Name: req.GetActor(), Note: req.GetNote()})
	if err != nil {
		return nil, err
	}
	outcome := pb.CancelOutcome_CANCEL_OUTCOME_CANCELLED
	if done.Requested {
		outcome = pb.CancelOutcome_CANCEL_OUTCOME_REQUESTED
	}
	return &pb.CancelJobResponse{Outcome: outcome, State: pb.JobState(done.State)}, nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
