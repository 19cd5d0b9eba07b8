package server

import (
	"context"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// queueService is QueueService. Its methods are documented in the proto.
type queueService struct {
	pb.UnimplementedQueueServiceServer
	*Server
}

func (q *queueService) CreateQueue(ctx context.Context, req *pb.CreateQueueRequest) (*pb.CreateQueueResponse, error) {
	queue, err := q.store.CreateQueue(ctx, queueIn(req.GetQueue()))
	if err != nil {
		return nil, err
	}
	return &pb.CreateQueueResponse{Queue: queueOut(queue)}, nil
}

func (q *queueService) GetQueue(ctx context.Context, req *pb.GetQueueRequest) (*pb.GetQueueResponse, error) {
	queue, err := q.store.GetQueue(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	resp := &pb.GetQueueResponse{Queue: queueOut(queue)}
	if req.GetWithStats() {
		stats, err := q.stats(ctx, []*pb.Queue{resp.Queue})
		if err != nil {
			return nil, err
		}
		resp.Stats = stats[0]
	}
	return resp, nil
}

func (q *queueService) ListQueues(ctx context.Context, req *pb.ListQueuesRequest) (*pb.ListQueuesResponse, error) {
	scope := pageScope{method: "ListQueues"}
	after, err := q.pages.openName(scope, req.GetPageToken())
	if err != nil {
		return nil, err
	}
	size := pageSize(req.PageSize)
	queues, err := q.store.ListQueues(ctx, after, size+1) // one more tells whether there is a next page
	if err != nil {
		return nil, err
	}
	resp := &pb.ListQueuesResponse{}
	if len(queues) > size {
		queues = queues[:size]
		resp.NextPageToken = q.pages.sealName(scope, queues[size-1].Name)
	}
	for i := range queues {
		resp.Queues = append(resp.Queues, queueOut(&queues[i]))
	}
	if req.GetWithStats() {
		resp.Stats, err = q.stats(ctx, resp.Queues)
	}
	return resp, err
}

// stats counts the jobs of queues, in their order.
func (q *queueService) stats(ctx context.Context, queues []*pb.Queue) ([]*pb.QueueStats, error) {
	names := make([]string, len(queues))
	for i, queue := range queues {
		names[i] = queue.GetName()
	}
	found, err := q.store.QueueStats(ctx, names)
	out := make([]*pb.QueueStats, len(found))
	for i := range found {
		out[i] = statsOut(found[i])
	}
	return out, err
}

func (q *queueService) UpdateQueue(ctx context.Context, req *pb.UpdateQueueRequest) (*pb.UpdateQueueResponse, error) {
	in := q.intake()
	update := in.queueUpdate(req)
	if err := in.err(); err != nil {
		return nil, err
	}
	queue, err := q.store.UpdateQueue(ctx, update)
	if err != nil {
		return nil, err
	}
	return &pb.UpdateQueueResponse{Queue: queueOut(queue)}, nil
}

func (q *queueService) DeleteQueue(ctx context.Context, req *pb.DeleteQueueRequest) (*pb.DeleteQueueResponse, error) {
	if err := q.store.DeleteQueue(ctx, req.GetName()); err != nil {
		return nil, err
	}
	return &pb.DeleteQueueResponse{}, nil
}

func (q *queueService) PauseQueue(ctx context.Context, req *pb.PauseQueueRequest) (*pb.PauseQueueResponse, error) {
	by := store.Actor{Name: req.GetActor(), Note: req.GetNote()}
	queue, err := q.store.PauseQueue(ctx, req.GetName(), by)
	if err != nil {
		return nil, err
	}
	return &pb.PauseQueueResponse{Queue: queueOut(queue)}, nil
}

func (q *queueService) ResumeQueue(ctx context.Context, req *pb.ResumeQueueRequest) (*pb.ResumeQueueResponse, error) {
	queue, err := q.store.ResumeQueue(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	q.wakes.someReady(queue.Name)
	return &pb.ResumeQueueResponse{Queue: queueOut(queue)}, nil
}

func (q *queueService) RetryJobs(ctx context.Context, req *pb.RetryJobsRequest) (*pb.RetryJobsResponse, error) {
	act, scope, err := q.bulkIn("RetryJobs", req)
	if err != nil {
		return nil, err
	}
	done, err := q.store.RetryJobs(ctx, act)
	if err != nil {
		return nil, err
	}
	q.wakes.retried(act, done)
	return &pb.RetryJobsResponse{Results: bulkOut(ctx, done), NextPageToken: q.pages.seal(scope, done.Next)}, nil
}

func (q *queueService) CancelJobs(ctx context.Context, req *pb.CancelJobsRequest) (*pb.CancelJobsResponse, error) {
	act, scope, err := q.bulkIn("CancelJobs", req)
	if err != nil {
		return nil, err
	}
	done, err := q.store.CancelJobs(ctx, act)
	if err != nil {
		return nil, err
	}
	return &pb.CancelJobsResponse{Results: bulkOut(ctx, done), NextPageToken: q.pages.seal(scope, done.Next)}, nil
}

func (q *queueService) ResolveJob(ctx context.Context, req *pb.ResolveJobRequest) (*pb.ResolveJobResponse, error) {
	in := q.intake()
	resolution := in.resolution(req)
	if err := in.err(); err != nil {
		return nil, err
	}
	job, err := q.store.ResolveJob(ctx, resolution)
	if err != nil {
		return nil, err
	}
	return &pb.ResolveJobResponse{Job: jobOut(job, false)}, nil
}

// bulkRequest is what RetryJobsRequest and CancelJobsRequest have in common.
type bulkRequest interface {
	GetSelection() *pb.JobSelection
	GetDryRun() bool
	GetPageToken() string
	GetActor() string
	GetNote() string
	GetBatchSize() int32
}

func (q *queueService) bulkIn(method string, req bulkRequest) (store.BulkAct, pageScope, error) {
	in := q.intake()
	act := store.BulkAct{
		Selection: in.selection(req.GetSelection(), int(req.GetBatchSize())),
		DryRun:    req.GetDryRun(),
		Actor:     store.Actor{Name: req.GetActor(), Note: req.GetNote()},
	}
	// Not bound to the size of batches, which may change from one to the next, nor to
	// dry_run: what was looked at page by page is then done page by page.
	scope := pageScope{method, store.Selection{IDs: act.Selection.IDs, Filter: act.Selection.Filter}}
	after, err := q.pages.open(scope, req.GetPageToken())
	act.Selection.Page.After = after
	return act, scope, firstError(in.err(), err)
}

func bulkOut(ctx context.Context, done store.BulkResult) []*pb.BulkResult {
	results := make([]*pb.BulkResult, len(done.Items))
	for i, item := range done.Items {
		results[i] = &pb.BulkResult{JobId: formatID(item.JobID), Result: &pb.BulkResult_State{State: pb.JobState(item.State)}}
		if item.Err != nil {
			results[i].Result = &pb.BulkResult_Error{Error: asItemError(ctx, item.Err)}
		}
	}
	return results
}
