package conformance

import (
	"context"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// Heartbeat renews a lease.
func (s *service) Heartbeat(ctx context.Context, req *pb.HeartbeatRequest) (*pb.HeartbeatResponse, error) {
	return single(ctx, s, callBeat, req, s.beat)
}

// Complete ends a lease and its job.
func (s *service) Complete(ctx context.Context, req *pb.CompleteRequest) (*pb.CompleteResponse, error) {
	return single(ctx, s, callComplete, req, s.complete)
}

// Fail ends a lease with an error.
func (s *service) Fail(ctx context.Context, req *pb.FailRequest) (*pb.FailResponse, error) {
	return single(ctx, s, callFail, req, s.fail)
}

// Release gives a lease back.
func (s *service) Release(ctx context.Context, req *pb.ReleaseRequest) (*pb.ReleaseResponse, error) {
	return single(ctx, s, callRelease, req, s.release)
}

// BatchHeartbeat is Heartbeat for many leases.
func (s *service) BatchHeartbeat(ctx context.Context, req *pb.BatchHeartbeatRequest) (*pb.BatchHeartbeatResponse, error) {
	out, err := batch(ctx, s, callBeat, req.GetItems(), s.beat)
	if err != nil {
		return nil, err
	}
	resp := &pb.BatchHeartbeatResponse{}
	for _, o := range out {
		r := &pb.BatchHeartbeatResult{Result: &pb.BatchHeartbeatResult_Ok{Ok: o.ok}}
		if o.refused != nil {
			r.Result = &pb.BatchHeartbeatResult_Error{Error: o.refused.item()}
		}
		resp.Results = append(resp.Results, r)
	}
	return resp, nil
}

// BatchComplete is Complete for many leases.
func (s *service) BatchComplete(ctx context.Context, req *pb.BatchCompleteRequest) (*pb.BatchCompleteResponse, error) {
	out, err := batch(ctx, s, callComplete, req.GetItems(), s.complete)
	if err != nil {
		return nil, err
	}
	resp := &pb.BatchCompleteResponse{}
	for _, o := range out {
		r := &pb.BatchCompleteResult{Result: &pb.BatchCompleteResult_Ok{Ok: o.ok}}
		if o.refused != nil {
			r.Result = &pb.BatchCompleteResult_Error{Error: o.refused.item()}
		}
		resp.Results = append(resp.Results, r)
	}
	return resp, nil
}

// BatchFail is Fail for many leases.
func (s *service) BatchFail(ctx context.Context, req *pb.BatchFailRequest) (*pb.BatchFailResponse, error) {
	out, err := batch(ctx, s, callFail, req.GetItems(), s.fail)
	if err != nil {
		return nil, err
	}
	resp := &pb.BatchFailResponse{}
	for _, o := range out {
		r := &pb.BatchFailResult{Result: &pb.BatchFailResult_Ok{Ok: o.ok}}
		if o.refused != nil {
			r.Result = &pb.BatchFailResult_Error{Error: o.refused.item()}
		}
		resp.Results = append(resp.Results, r)
	}
	return resp, nil
}

// BatchRelease is Release for many leases.
func (s *service) BatchRelease(ctx context.Context, req *pb.BatchReleaseRequest) (*pb.BatchReleaseResponse, error) {
	out, err := batch(ctx, s, callRelease, req.GetItems(), s.release)
	if err != nil {
		return nil, err
	}
	resp := &pb.BatchReleaseResponse{}
	for _, o := range out {
		r := &pb.BatchReleaseResult{Result: &pb.BatchReleaseResult_Ok{Ok: o.ok}}
		if o.refused != nil {
			r.Result = &pb.BatchReleaseResult_Error{Error: o.refused.item()}
		}
		resp.Results = append(resp.Results, r)
	}
	return resp, nil
}
