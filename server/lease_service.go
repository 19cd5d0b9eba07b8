package server

import (
	"context"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// leaseService is LeaseService. Its methods are documented in the proto. AcquireLease is in
// acquire.go. Nothing here waits for an acquire: heartbeats and ends of leases have
// mergers and connections of their own, because a lease that cannot be renewed in time is work done twice.
type leaseService struct {
	pb.UnimplementedLeaseServiceServer
	*Server
}

func (l *leaseService) heartbeats() operation[*pb.HeartbeatRequest, store.Heartbeat, store.Beaten, *pb.HeartbeatResponse] {
	return operation[*pb.HeartbeatRequest, store.Heartbeat, store.Beaten, *pb.HeartbeatResponse]{
		in: l.heartbeatIn, run: l.permittedHeartbeat, out: l.heartbeatOut,
	}
}

func (l *leaseService) completes() operation[*pb.CompleteRequest, store.Complete, store.Completion, *pb.CompleteResponse] {
	return operation[*pb.CompleteRequest, store.Complete, store.Completion, *pb.CompleteResponse]{
		in: l.completeIn, run: l.permittedComplete, out: completeOut,
	}
}

func (l *leaseService) fails() operation[*pb.FailRequest, store.Fail, store.Ended, *pb.FailResponse] {
	return operation[*pb.FailRequest, store.Fail, store.Ended, *pb.FailResponse]{
		in: l.failIn, run: l.permittedFail, out: failOut,
	}
}

func (l *leaseService) releases() operation[*pb.ReleaseRequest, store.Release, store.Ended, *pb.ReleaseResponse] {
	return operation[*pb.ReleaseRequest, store.Release, store.Ended, *pb.ReleaseResponse]{
		in: l.releaseIn, run: l.permittedRelease, out: releaseOut,
	}
}

func (l *leaseService) Heartbeat(ctx context.Context, req *pb.HeartbeatRequest) (*pb.HeartbeatResponse, error) {
	return l.heartbeats().one(ctx, req)
}

func (l *leaseService) Complete(ctx context.Context, req *pb.CompleteRequest) (*pb.CompleteResponse, error) {
	return l.completes().one(ctx, req)
}

func (l *leaseService) Fail(ctx context.Context, req *pb.FailRequest) (*pb.FailResponse, error) {
	return l.fails().one(ctx, req)
}

func (l *leaseService) Release(ctx context.Context, req *pb.ReleaseRequest) (*pb.ReleaseResponse, error) {
	return l.releases().one(ctx, req)
}

func (l *leaseService) BatchHeartbeat(ctx context.Context, req *pb.BatchHeartbeatRequest) (*pb.BatchHeartbeatResponse, error) {
	outcomes, err := l.heartbeats().batch(ctx, l.validator, req.GetItems())
	if err != nil {
		return nil, err
	}
	resp := &pb.BatchHeartbeatResponse{}
	for _, o := range outcomes {
		r := &pb.BatchHeartbeatResult{Result: &pb.BatchHeartbeatResult_Ok{Ok: o.ok}}
		if o.err != nil {
			r.Result = &pb.BatchHeartbeatResult_Error{Error: asItemError(ctx, o.err)}
		}
		resp.Results = append(resp.Results, r)
	}
	return resp, nil
}

func (l *leaseService) BatchComplete(ctx context.Context, req *pb.BatchCompleteRequest) (*pb.BatchCompleteResponse, error) {
	outcomes, err := l.completes().batch(ctx, l.validator, req.GetItems())
	if err != nil {
		return nil, err
	}
	resp := &pb.BatchCompleteResponse{Results: make([]*pb.BatchCompleteResult, 0, len(outcomes))}
	for _, o := range outcomes {
		r := plainCompleted
		switch {
		case o.err != nil:
			r = &pb.BatchCompleteResult{Result: &pb.BatchCompleteResult_Error{Error: asItemError(ctx, o.err)}}
		case o.ok != plainCompletion:
			r = &pb.BatchCompleteResult{Result: &pb.BatchCompleteResult_Ok{Ok: o.ok}}
		}
		resp.Results = append(resp.Results, r)
	}
	return resp, nil
}

func (l *leaseService) BatchFail(ctx context.Context, req *pb.BatchFailRequest) (*pb.BatchFailResponse, error) {
	outcomes, err := l.fails().batch(ctx, l.validator, req.GetItems())
	if err != nil {
		return nil, err
	}
	resp := &pb.BatchFailResponse{}
	for _, o := range outcomes {
		r := &pb.BatchFailResult{Result: &pb.BatchFailResult_Ok{Ok: o.ok}}
		if o.err != nil {
			r.Result = &pb.BatchFailResult_Error{Error: asItemError(ctx, o.err)}
		}
		resp.Results = append(resp.Results, r)
	}
	return resp, nil
}

func (l *leaseService) BatchRelease(ctx context.Context, req *pb.BatchReleaseRequest) (*pb.BatchReleaseResponse, error) {
	outcomes, err := l.releases().batch(ctx, l.validator, req.GetItems())
	if err != nil {
		return nil, err
	}
	resp := &pb.BatchReleaseResponse{}
	for _, o := range outcomes {
		r := &pb.BatchReleaseResult{Result: &pb.BatchReleaseResult_Ok{Ok: o.ok}}
		if o.err != nil {
			r.Result = &pb.BatchReleaseResult_Error{Error: asItemError(ctx, o.err)}
		}
		resp.Results = append(resp.Results, r)
	}
	return resp, nil
}

func (l *leaseService) ListStuck(ctx context.Context, req *pb.ListStuckRequest) (*pb.ListStuckResponse, error) {
	filter := stuckFilterIn(req)
	scope := pageScope{"ListStuck", filter}
	page, err := l.page(scope, req.PageSize, req.GetPageToken())
	if err != nil {
		return nil, err
	}
	found, err := l.store.ListStuck(ctx, filter, page)
	if err != nil {
		return nil, err
	}
	resp := &pb.ListStuckResponse{NextPageToken: l.pages.seal(scope, found.Next)}
	for i := range found.Jobs {
		resp.Jobs = append(resp.Jobs, stuckOut(&found.Jobs[i]))
	}
	return resp, nil
}
