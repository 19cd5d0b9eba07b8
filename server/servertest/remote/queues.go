package remote

import (
	"cmp"
	"context"
	"fmt"

	"google.golang.org/protobuf/types/known/fieldmaskpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// queueAnswer is an answer that is a queue.
type queueAnswer interface{ GetQueue() *pb.Queue }

func queueOf[A queueAnswer](answer A, err error) (*store.Queue, error) {
	if err != nil {
		return nil, storeError(err)
	}
	q := queueIn(answer.GetQueue())
	return &q, nil
}

// CreateQueue is store.Store.CreateQueue.
func (r *Store) CreateQueue(ctx context.Context, q store.Queue) (*store.Queue, error) {
	return queueOf(r.queues.CreateQueue(ctx, &pb.CreateQueueRequest{Queue: queueOut(q)}))
}

// EnsureQueues is store.Store.EnsureQueues.
func (r *Store) EnsureQueues(ctx context.Context, names []string) error {
	return r.Direct.EnsureQueues(ctx, names)
}

// GetQueue is store.Store.GetQueue.
func (r *Store) GetQueue(ctx context.Context, name string) (*store.Queue, error) {
	return queueOf(r.queues.GetQueue(ctx, &pb.GetQueueRequest{Name: name}))
}

// ListQueues is store.Store.ListQueues. It goes on from names at which a page has ended.
func (r *Store) ListQueues(ctx context.Context, after string, size int) ([]store.Queue, error) {
	r.mu.Lock()
	token, known := r.names[after]
	r.mu.Unlock()
	switch {
	case after == "":
	case !known:
		return nil, fmt.Errorf("no page ended at %q", after)
	case token == "":
		return nil, nil // that page was the last
	}
	resp, err := r.queues.ListQueues(ctx, &pb.ListQueuesRequest{PageSize: to(int32(size)), PageToken: token})
	if err != nil {
		return nil, storeError(err)
	}
	var out []store.Queue
	for _, q := range resp.GetQueues() {
		out = append(out, queueIn(q))
	}
	if len(out) > 0 {
		r.mu.Lock()
		r.names[out[len(out)-1].Name] = resp.GetNextPageToken()
		r.mu.Unlock()
	}
	return out, nil
}

// UpdateQueue is store.Store.UpdateQueue.
func (r *Store) UpdateQueue(ctx context.Context, u store.QueueUpdate) (*store.Queue, error) {
	mask := &fieldmaskpb.FieldMask{}
	for _, f := range u.Fields {
		mask.Paths = append(mask.Paths, string(f))
	}
	return queueOf(r.queues.UpdateQueue(ctx, &pb.UpdateQueueRequest{Queue: queueOut(u.Queue), UpdateMask: mask}))
}

// DeleteQueue is store.Store.DeleteQueue.
func (r *Store) DeleteQueue(ctx context.Context, name string) error {
	_, err := r.queues.DeleteQueue(ctx, &pb.DeleteQueueRequest{Name: name})
	return storeError(err)
}

// PauseQueue is store.Store.PauseQueue.
func (r *Store) PauseQueue(ctx context.Context, name string, by store.Actor) (*store.Queue, error) {
	return queueOf(r.queues.PauseQueue(ctx, &pb.PauseQueueRequest{Name: name, Actor: by.Name, Note: by.Note}))
}

// ResumeQueue is store.Store.ResumeQueue.
func (r *Store) ResumeQueue(ctx context.Context, name string) (*store.Queue, error) {
	return queueOf(r.queues.ResumeQueue(ctx, &pb.ResumeQueueRequest{Name: name}))
}

// RetryJobs is store.Store.RetryJobs.
func (r *Store) RetryJobs(ctx context.Context, act store.BulkAct) (store.BulkResult, error) {
	token, err := r.pageToken(act.Selection.Page.After)
	if err != nil {
		return store.BulkResult{}, err
	}
	resp, err := r.queues.RetryJobs(ctx, &pb.RetryJobsRequest{
		Selection: selectionOut(act.Selection), DryRun: act.DryRun, BatchSize: batchSize(act), PageToken: token,
		Actor: act.Actor.Name, Note: act.Actor.Note,
	})
	return r.bulkIn(resp.GetResults(), resp.GetNextPageToken(), err)
}

// CancelJobs is store.Store.CancelJobs.
func (r *Store) CancelJobs(ctx context.Context, act store.BulkAct) (store.BulkResult, error) {
	token, err := r.pageToken(act.Selection.Page.After)
	if err != nil {
		return store.BulkResult{}, err
	}
	resp, err := r.queues.CancelJobs(ctx, &pb.CancelJobsRequest{
		Selection: selectionOut(act.Selection), DryRun: act.DryRun, BatchSize: batchSize(act), PageToken: token,
		Actor: act.Actor.Name, Note: act.Actor.Note,
	})
	return r.bulkIn(resp.GetResults(), resp.GetNextPageToken(), err)
}

func batchSize(act store.BulkAct) *int32 {
	if act.Selection.Page.Size == 0 {
		return nil
	}
	return to(int32(act.Selection.Page.Size))
}

func selectionOut(s store.Selection) *pb.JobSelection {
	out := &pb.JobSelection{JobIds: idsOut(s.IDs)}
	if s.Filter != nil {
		out.Filter = filterOut(*s.Filter)
	}
	return out
}

func (r *Store) bulkIn(results []*pb.BulkResult, next string, err error) (store.BulkResult, error) {
	if err != nil {
		return store.BulkResult{}, storeError(err)
	}
	out := store.BulkResult{Next: r.position(next)}
	for _, b := range results {
		out.Items = append(out.Items, store.BulkItem{
			JobID: JobID(b.GetJobId()), State: store.State(b.GetState()), Err: itemError(b.GetError()),
		})
	}
	return out, nil
}

// ResolveJob is store.Store.ResolveJob.
func (r *Store) ResolveJob(ctx context.Context, res store.Resolution) (*store.Job, error) {
	req := &pb.ResolveJobRequest{
		JobId: idOut(res.JobID), Actor: cmp.Or(res.Actor.Name, "nobody"), Note: cmp.Or(res.Actor.Note, "none"),
		Resolution: &pb.ResolveJobRequest_Dead{Dead: &pb.ResolvedDead{}},
	}
	if res.Result != nil {
		req.Resolution = &pb.ResolveJobRequest_Completed{Completed: &pb.ResolvedCompleted{Result: payloadOut(*res.Result)}}
	}
	resp, err := r.queues.ResolveJob(ctx, req)
	if err != nil {
		return nil, storeError(err)
	}
	j := jobIn(resp.GetJob())
	return &j, nil
}
