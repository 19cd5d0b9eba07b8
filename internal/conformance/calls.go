package conformance

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// outcome is the answer for one lease.
type outcome[Resp any] struct {
	ok      Resp
	word    string // for the history
	refused *refusal
}

func accepted[Resp any](ok Resp, again bool) outcome[Resp] {
	if again {
		return outcome[Resp]{ok: ok, word: answerAgain}
	}
	return outcome[Resp]{ok: ok, word: answerOK}
}

func refused[Resp any](reason pb.ErrorReason) outcome[Resp] {
	r := refuse(reason)
	return outcome[Resp]{refused: r, word: r.word()}
}

// tokened is a request about one lease.
type tokened interface {
	proto.Message
	GetLeaseToken() string
}

// each answers the items of one call: all of them in the history, each as its fault says.
func each[Req tokened, Resp any](
	ctx context.Context, s *service, method string, items []Req, act func(*call, Req) outcome[Resp],
) ([]outcome[Resp], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls, faults, whole := make([]*call, len(items)), make([]fault, len(items)), fault{}
	for i, item := range items {
		calls[i] = s.arrive(&call{method: method, lease: s.tokens[item.GetLeaseToken()]})
		faults[i] = s.faultOf(calls[i])
		whole.hang = whole.hang || faults[i].hang
		whole.lose = whole.lose || faults[i].lose
		whole.delay = max(whole.delay, faults[i].delay)
	}
	if whole.hang {
		s.answerAll(calls, answerHung)
		return nil, s.outside(func() error { return s.hang(ctx) })
	}
	out := make([]outcome[Resp], len(items))
	for i, item := range items {
		out[i] = one(s, calls[i], faults[i], item, act)
	}
	if whole.delay > 0 {
		_ = s.outside(func() error { s.sleep(ctx, whole.delay); return nil })
	}
	if whole.lose {
		s.answerAll(calls, answerCut)
		return nil, s.outside(func() error { s.conns.cut(ctx); return status.Error(codes.Unavailable, "the connection is cut") })
	}
	for i, c := range calls {
		s.answer(c, out[i].word)
	}
	return out, nil
}

// one answers one item.
func one[Req tokened, Resp any](s *service, c *call, f fault, item Req, act func(*call, Req) outcome[Resp]) outcome[Resp] {
	l := c.lease
	switch {
	case l == nil:
		return refused[Resp](pb.ErrorReason_ERROR_REASON_INVALID_TOKEN)
	case f.refuse != nil:
		if f.refuse.losesLease() && l.loss == nil {
			l.loss = f.refuse
		}
		return outcome[Resp]{refused: f.refuse, word: f.refuse.word()}
	case l.loss != nil && (c.method != callComplete || l.loss.reason != pb.ErrorReason_ERROR_REASON_LEASE_EXPIRED):
		return outcome[Resp]{refused: l.loss, word: l.loss.word()}
	}
	l.cancel = l.cancel || f.cancel
	return act(c, item)
}

// outside runs f without the lock.
func (s *service) outside(f func() error) error {
	s.mu.Unlock()
	defer s.mu.Lock()
	return f()
}

func (s *service) answerAll(calls []*call, said string) {
	for _, c := range calls {
		s.answer(c, said)
	}
}

func (s *service) sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-s.closing:
	}
}

func (s *service) beat(c *call, _ *pb.HeartbeatRequest) outcome[*pb.HeartbeatResponse] {
	l := c.lease
	if l.ended != "" {
		return refused[*pb.HeartbeatResponse](pb.ErrorReason_ERROR_REASON_LEASE_ENDED)
	}
	if c.at > l.until() {
		l.loss = refuse(pb.ErrorReason_ERROR_REASON_LEASE_EXPIRED)
		return outcome[*pb.HeartbeatResponse]{refused: l.loss, word: l.loss.word()}
	}
	l.since, c.asksToCancel = c.at, l.cancel
	return accepted(&pb.HeartbeatResponse{
		Remaining: durationpb.New(l.length), NextHeartbeatIn: durationpb.New(l.advised()),
		LeaseUntil: timestamppb.New(time.Now().Add(l.length)), CancelRequested: l.cancel,
	}, false)
}

func (s *service) complete(c *call, req *pb.CompleteRequest) outcome[*pb.CompleteResponse] {
	l := c.lease
	said := proto.CloneOf(req)
	said.LeaseToken = ""
	for _, job := range said.GetThenEnqueue() {
		job.Headers = nil // trace contexts differ from try to try
	}
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(said)
	if err != nil {
		return refused[*pb.CompleteResponse](pb.ErrorReason_ERROR_REASON_INTERNAL)
	}
	c.result = string(text)
	ids := make([]string, len(req.GetThenEnqueue()))
	for i := range ids {
		ids[i] = "1"
	}
	switch {
	case l.ended == "":
		l.ended, l.endedAt, l.result = callComplete, c.at, c.result
		return accepted(&pb.CompleteResponse{Late: c.at > l.until(), ThenEnqueueJobIds: ids}, false)
	case l.ended != callComplete:
		return refused[*pb.CompleteResponse](pb.ErrorReason_ERROR_REASON_LEASE_ENDED)
	case l.result != c.result:
		return refused[*pb.CompleteResponse](pb.ErrorReason_ERROR_REASON_RESULT_CONFLICT)
	}
	return accepted(&pb.CompleteResponse{AlreadyApplied: true, ThenEnqueueJobIds: ids}, true)
}

// end is Fail and Release: whether it is a repetition, or why it is refused.
func (s *service) end(c *call) (again bool, r *refusal) {
	l := c.lease
	switch {
	case l.ended == c.method:
		return true, nil
	case l.ended != "":
		return false, refuse(pb.ErrorReason_ERROR_REASON_LEASE_ENDED)
	case c.at > l.until():
		return false, refuse(pb.ErrorReason_ERROR_REASON_LEASE_EXPIRED)
	}
	l.ended, l.endedAt = c.method, c.at
	return false, nil
}

func (s *service) fail(c *call, req *pb.FailRequest) outcome[*pb.FailResponse] {
	again, r := s.end(c)
	if r != nil {
		return outcome[*pb.FailResponse]{refused: r, word: r.word()}
	}
	state := pb.JobState_JOB_STATE_PENDING
	if req.GetPermanent() {
		state = pb.JobState_JOB_STATE_DEAD
	}
	return accepted(&pb.FailResponse{State: state, AttemptsLeft: 24, AlreadyApplied: again}, again)
}

func (s *service) release(c *call, _ *pb.ReleaseRequest) outcome[*pb.ReleaseResponse] {
	again, r := s.end(c)
	if r != nil {
		return outcome[*pb.ReleaseResponse]{refused: r, word: r.word()}
	}
	state := pb.JobState_JOB_STATE_PENDING
	if c.lease.cancel {
		state = pb.JobState_JOB_STATE_CANCELLED
	}
	return accepted(&pb.ReleaseResponse{State: state, AlreadyApplied: again}, again)
}

// single is a call about one lease.
func single[Req tokened, Resp any](
	ctx context.Context, s *service, method string, req Req, act func(*call, Req) outcome[Resp],
) (none Resp, err error) {
	out, err := each(ctx, s, method, []Req{req}, act)
	if err != nil {
		return none, err
	}
	if r := out[0].refused; r != nil {
		return none, refusedCall(ctx, r)
	}
	return out[0].ok, nil
}

// batch is a call about many. What the service would refuse as a whole is refused as a whole.
func batch[Req tokened, Resp any](
	ctx context.Context, s *service, method string, items []Req, act func(*call, Req) outcome[Resp],
) ([]outcome[Resp], error) {
	if len(items) == 0 || len(items) > 1000 {
		return nil, refusedCall(ctx, refuse(pb.ErrorReason_ERROR_REASON_INVALID_REQUEST))
	}
	out, err := each(ctx, s, method, items, act)
	if err != nil {
		return nil, err
	}
	first := out[0].refused
	if first == nil || !first.ofCall() {
		return out, nil
	}
	for _, o := range out {
		if o.refused == nil || o.refused.reason != first.reason {
			return out, nil
		}
	}
	return nil, refusedCall(ctx, first)
}

// refusedCall is the status of a call, with the reason in the trailer as well.
func refusedCall(ctx context.Context, r *refusal) error {
	// It fails only outside a call, where nobody waits for a trailer.
	_ = grpc.SetTrailer(ctx, metadata.Pairs(reasonTrailer, r.word()))
	return r.err()
}
