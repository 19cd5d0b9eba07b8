package remote

import (
	"context"
	"errors"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// Enqueue is store.Store.Enqueue.
func (r *Store) Enqueue(ctx context.Context, items []store.NewJob) ([]store.Enqueued, error) {
	return method[store.NewJob, store.Enqueued, *pb.EnqueueRequest, *pb.EnqueueResponse, *pb.BatchEnqueueResult]{
		in: newJobOut, one: r.jobs.Enqueue, out: enqueuedIn,
		batch: func(ctx context.Context, reqs []*pb.EnqueueRequest) ([]*pb.BatchEnqueueResult, error) {
			resp, err := r.jobs.BatchEnqueue(ctx, &pb.BatchEnqueueRequest{Items: reqs})
			return resp.GetResults(), err
		},
	}.call(ctx, items)
}

func view(full bool) pb.JobView {
	if full {
		return pb.JobView_JOB_VIEW_FULL
	}
	return pb.JobView_JOB_VIEW_BASIC
}

func byID(id store.JobID) *pb.GetJobRequest {
	return &pb.GetJobRequest{By: &pb.GetJobRequest_JobId{JobId: idOut(id)}}
}

// GetJob is store.Store.GetJob.
func (r *Store) GetJob(ctx context.Context, id store.JobID, full bool) (*store.Job, error) {
	req := byID(id)
	req.View = view(full)
	return r.getJob(ctx, req)
}

// GetJobByKey is store.Store.GetJobByKey.
func (r *Store) GetJobByKey(ctx context.Context, queue, key string, full bool) (*store.Job, error) {
	j, err := r.getJob(ctx, &pb.GetJobRequest{
		By: &pb.GetJobRequest_Key{Key: &pb.JobKey{Queue: queue, IdempotencyKey: key}}, View: view(full),
	})
	if e, ok := errors.AsType[*store.JobNotFoundError](err); ok {
		e.Key = key
	}
	return j, err
}

func (r *Store) getJob(ctx context.Context, req *pb.GetJobRequest) (*store.Job, error) {
	resp, err := r.jobs.GetJob(ctx, req)
	if err != nil {
		return nil, storeError(err)
	}
	j := jobIn(resp.GetJob())
	stored, err := r.Direct.GetJob(ctx, j.ID, false)
	if err != nil {
		return nil, err
	}
	UnsetDefaults(&j.Policy, stored.Policy)
	return &j, nil
}

// ListJobs is store.Store.ListJobs.
func (r *Store) ListJobs(ctx context.Context, f store.JobFilter, full bool, p store.Page) (store.JobPage, error) {
	if p.Bytes != 0 {
		return r.Direct.ListJobs(ctx, f, full, p)
	}
	token, err := r.pageToken(p.After)
	if err != nil {
		return store.JobPage{}, err
	}
	resp, err := r.jobs.ListJobs(ctx, &pb.ListJobsRequest{
		Filter: filterOut(f), View: view(full), PageSize: to(int32(p.Size)), PageToken: token,
	})
	if err != nil {
		return store.JobPage{}, storeError(err)
	}
	out := store.JobPage{Next: r.position(resp.GetNextPageToken())}
	for _, j := range resp.GetJobs() {
		out.Jobs = append(out.Jobs, jobIn(j))
	}
	return out, nil
}

// ListLeases is store.Store.ListLeases.
func (r *Store) ListLeases(ctx context.Context, id store.JobID, p store.Page) (store.LeasePage, error) {
	if p.Bytes != 0 {
		return r.Direct.ListLeases(ctx, id, p)
	}
	token, err := r.pageToken(p.After)
	if err != nil {
		return store.LeasePage{}, err
	}
	resp, err := r.jobs.ListLeases(ctx, &pb.ListLeasesRequest{JobId: idOut(id), PageSize: to(int32(p.Size)), PageToken: token})
	if err != nil {
		return store.LeasePage{}, storeError(err)
	}
	return store.LeasePage{Leases: recordsIn(resp.GetLeases()), Next: r.position(resp.GetNextPageToken())}, nil
}

// LastLeases is store.Store.LastLeases, with the byte cap of the service.
func (r *Store) LastLeases(ctx context.Context, id store.JobID, n, _ int) ([]store.LeaseRecord, error) {
	req := byID(id)
	req.RecentLeases = to(int32(n))
	resp, err := r.jobs.GetJob(ctx, req)
	return recordsIn(resp.GetLeases()), storeError(err)
}

// OperatorActs is store.Store.OperatorActs.
func (r *Store) OperatorActs(ctx context.Context, id store.JobID) (acts []store.OperatorAct, err error) {
	resp, err := r.jobs.GetJob(ctx, byID(id))
	for _, a := range resp.GetOperatorActs() {
		acts = append(acts, store.OperatorAct{At: a.GetAt().AsTime(), Act: a.GetAct(), Actor: a.GetActor(), Note: a.GetNote()})
	}
	return acts, storeError(err)
}

// CancelJob is store.Store.CancelJob.
func (r *Store) CancelJob(ctx context.Context, id store.JobID, by store.Actor) (store.CancelResult, error) {
	resp, err := r.jobs.CancelJob(ctx, &pb.CancelJobRequest{JobId: idOut(id), Actor: by.Name, Note: by.Note})
	if err != nil {
		return store.CancelResult{}, storeError(err)
	}
	return store.CancelResult{
		Requested: resp.GetOutcome() == pb.CancelOutcome_CANCEL_OUTCOME_REQUESTED, State: store.State(resp.GetState()),
	}, nil
}

// JobQueues is store.Store.JobQueues, which no method of the API offers.
func (r *Store) JobQueues(ctx context.Context, ids []store.JobID) (map[store.JobID]string, error) {
	return r.Direct.JobQueues(ctx, ids)
}
