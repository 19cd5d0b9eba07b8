package sidecar

import (
	"context"
	"crypto/rand"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

const (
	// piece is how long one call upstream waits for a job. Proxies end a stream without data
	// after a minute or less, and a replica that vanished is noticed after this long at the
	// latest.
	piece = 15 * time.Second
	// maxWait is the longest wait that the contract allows.
	maxWait = time.Minute
	// early is how much sooner than asked the service ends a wait because of a deadline.
	early = 600 * time.Millisecond
	// releasePatience bounds the giving back of leases whose worker has gone.
	releasePatience = 5 * time.Second
)

// leaseCalls is the part of LeaseService that is more than forwarded. The other methods of the
// service are not in its description, so that gRPC gives them to forward.
var leaseCalls = grpc.ServiceDesc{
	ServiceName: pb.LeaseService_ServiceDesc.ServiceName,
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{
		method("AcquireLease", (*Sidecar).acquireLease),
		method("Heartbeat", func(s *Sidecar, ctx context.Context, req *pb.HeartbeatRequest) (*pb.HeartbeatResponse, error) {
			return s.heartbeats.do(ctx, req)
		}),
		method("Complete", func(s *Sidecar, ctx context.Context, req *pb.CompleteRequest) (*pb.CompleteResponse, error) {
			return s.completes.do(ctx, req)
		}),
		method("Fail", func(s *Sidecar, ctx context.Context, req *pb.FailRequest) (*pb.FailResponse, error) {
			return s.fails.do(ctx, req)
		}),
		method("Release", func(s *Sidecar, ctx context.Context, req *pb.ReleaseRequest) (*pb.ReleaseResponse, error) {
			return s.releases.do(ctx, req)
		}),
	},
}

// method describes one method by its function.
func method[Req any, Resp proto.Message](name string, run func(*Sidecar, context.Context, *Req) (Resp, error)) grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: name, Handler: func(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		req := new(Req)
		if err := dec(req); err != nil {
			return nil, err
		}
		handle := func(ctx context.Context, req any) (any, error) { return run(srv.(*Sidecar), ctx, req.(*Req)) }
		if interceptor == nil {
			return handle(ctx, req)
		}
		return interceptor(ctx, req, &grpc.UnaryServerInfo{Server: srv, FullMethod: "/" + pb.LeaseService_ServiceDesc.ServiceName + "/" + name}, handle)
	}}
}

// assemble makes the lanes.
func (s *Sidecar) assemble() {
	beats := pb.NewLeaseServiceClient(s.cfg.Beats)
	s.heartbeats = &lane[*pb.HeartbeatRequest, *pb.HeartbeatResponse]{
		name: "Heartbeat",
		one:  single[pb.HeartbeatRequest, pb.HeartbeatResponse](s.cfg.Beats, pb.LeaseService_Heartbeat_FullMethodName),
		many: func(ctx context.Context, reqs []*pb.HeartbeatRequest) ([]**pb.HeartbeatResponse, error) {
			resp, err := beats.BatchHeartbeat(ctx, &pb.BatchHeartbeatRequest{Items: reqs})
			return answers(resp.GetResults(), (*pb.BatchHeartbeatResult).GetOk), err
		},
	}
	ends := pb.NewLeaseServiceClient(s.cfg.Calls)
	s.completes = &lane[*pb.CompleteRequest, *pb.CompleteResponse]{
		name: "Complete",
		one:  single[pb.CompleteRequest, pb.CompleteResponse](s.cfg.Calls, pb.LeaseService_Complete_FullMethodName),
		many: func(ctx context.Context, reqs []*pb.CompleteRequest) ([]**pb.CompleteResponse, error) {
			resp, err := ends.BatchComplete(ctx, &pb.BatchCompleteRequest{Items: reqs})
			return answers(resp.GetResults(), (*pb.BatchCompleteResult).GetOk), err
		},
	}
	s.fails = &lane[*pb.FailRequest, *pb.FailResponse]{
		name: "Fail",
		one:  single[pb.FailRequest, pb.FailResponse](s.cfg.Calls, pb.LeaseService_Fail_FullMethodName),
		many: func(ctx context.Context, reqs []*pb.FailRequest) ([]**pb.FailResponse, error) {
			resp, err := ends.BatchFail(ctx, &pb.BatchFailRequest{Items: reqs})
			return answers(resp.GetResults(), (*pb.BatchFailResult).GetOk), err
		},
	}
	s.releases = &lane[*pb.ReleaseRequest, *pb.ReleaseResponse]{
		name: "Release",
		one:  single[pb.ReleaseRequest, pb.ReleaseResponse](s.cfg.Calls, pb.LeaseService_Release_FullMethodName),
		many: func(ctx context.Context, reqs []*pb.ReleaseRequest) ([]**pb.ReleaseResponse, error) {
			resp, err := ends.BatchRelease(ctx, &pb.BatchReleaseRequest{Items: reqs})
			return answers(resp.GetResults(), (*pb.BatchReleaseResult).GetOk), err
		},
	}
}

// single makes one call as it came, with the metadata of its caller.
func single[Req, Resp any](conn grpc.ClientConnInterface, method string) func(context.Context, *Req) (*Resp, outcome) {
	return func(ctx context.Context, req *Req) (*Resp, outcome) {
		resp := new(Resp)
		return resp, invoke(ctx, conn, method, req, resp)
	}
}

// answers are those of a batch, nil where an item failed.
func answers[Result any, Resp any](results []*Result, ok func(*Result) *Resp) []**Resp {
	out := make([]**Resp, len(results))
	for i, r := range results {
		if answer := ok(r); answer != nil {
			out[i] = &answer
		}
	}
	return out
}

// acquireLease forwards an acquire. Its wait goes upstream in pieces, and a try that fails goes on
// at another replica. Without a request id of the caller's own it gets one, so that an answer that
// was lost is given again and no lease is forgotten.
func (s *Sidecar) acquireLease(ctx context.Context, req *pb.AcquireLeaseRequest) (*pb.AcquireLeaseResponse, error) {
	start := time.Now()
	up := proto.CloneOf(req)
	own := up.RequestId == nil
	if own {
		id := "sidecar-" + rand.Text()
		up.RequestId = &id
	}
	for {
		if s.draining() {
			o := refusal(codes.Unavailable, "DRAINING", "the sidecar shuts down: no more leases", time.Second)
			setMetadata(ctx, o)
			return nil, o.err
		}
		asked := time.Now()
		wait := rest(req.GetWait(), asked.Sub(start))
		resp, o := s.acquirePiece(ctx, up, wait)
		if o.err == nil {
			resp.Waited = durationpb.New(asked.Sub(start) + resp.GetWaited().AsDuration())
		}
		switch {
		case o.err != nil && s.draining() && ctx.Err() == nil:
			continue // says so
		case o.err != nil:
			setMetadata(ctx, o)
			return nil, explained(o)
		case len(resp.GetLeases()) > 0:
			setMetadata(ctx, o)
			return s.delivered(ctx, resp, own)
		case time.Since(asked) < wait-early || rest(req.GetWait(), time.Since(start)) <= early || ctx.Err() != nil:
			setMetadata(ctx, o)
			return resp, nil
		}
	}
}

// rest is what is left of a wait, one piece at most.
func rest(wait *durationpb.Duration, passed time.Duration) time.Duration {
	return min(max(0, wait.AsDuration()-passed), piece)
}

// acquirePiece is one piece of an acquire, repeated as persist does. A wait that the service
// refuses goes upstream as it is.
func (s *Sidecar) acquirePiece(ctx context.Context, up *pb.AcquireLeaseRequest, wait time.Duration) (*pb.AcquireLeaseResponse, outcome) {
	ctx, cancel := s.untilDrain(ctx)
	defer cancel()
	resp := &pb.AcquireLeaseResponse{}
	if asked := up.GetWait(); asked.IsValid() && asked.AsDuration() > 0 && asked.AsDuration() <= maxWait {
		up.Wait = durationpb.New(wait)
	}
	o := persistFor(ctx, true, wait+tryTimeout, func(ctx context.Context) outcome {
		proto.Reset(resp)
		return invoke(ctx, s.cfg.Polls, pb.LeaseService_AcquireLease_FullMethodName, up, resp)
	})
	return resp, o
}

// delivered answers leases, or gives them back where nobody waits for them any more. With a
// request id of the caller's own it may ask again and be given the same leases.
func (s *Sidecar) delivered(ctx context.Context, resp *pb.AcquireLeaseResponse, own bool) (*pb.AcquireLeaseResponse, error) {
	if ctx.Err() == nil || !own {
		return resp, nil
	}
	back := &pb.BatchReleaseRequest{}
	for _, l := range resp.GetLeases() {
		back.Items = append(back.Items, &pb.ReleaseRequest{LeaseToken: l.GetLeaseToken()})
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), releasePatience)
	defer cancel()
	o := persist(bounded, true, func(ctx context.Context) outcome {
		return invoke(ctx, s.cfg.Calls, pb.LeaseService_BatchRelease_FullMethodName, back, &pb.BatchReleaseResponse{})
	})
	if o.err != nil {
		s.cfg.Log.WarnContext(ctx, "leases of a worker that has gone run until they expire", "leases", len(back.GetItems()), "error", o.err)
	}
	return nil, ctx.Err()
}
