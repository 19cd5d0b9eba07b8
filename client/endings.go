package client

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

const (
	codePanic      = "panic"
	codeBadPayload = "bad_payload"
	codeBadResult  = "bad_result"
	// codeRefused is the error code of a job whose Complete the service refused.
	codeRefused = "result_refused"

	// strangeDelay puts off a job of a queue that this worker has no handler for.
	strangeDelay = time.Minute
	// textMost is what the contract keeps of an error's message and of its details.
	textMost = 16 << 10
	codeMost = 128
	// endMost bounds one request, which the service refuses at 4 MiB, unread.
	endMost = 4<<20 - 4<<10
	// lateComplete is for how long after the end of its lease a Complete is still tried: it is
	// accepted while nobody else has begun, and what was done should not be done again.
	lateComplete = time.Minute
)

// endKind is the call that ends a lease.
type endKind int

const (
	endComplete endKind = iota
	endFail
	endRelease
	endKinds
)

// ending is the end of one lease on its way to the service. It is never changed once it was sent,
// because a repeated call must say the same.
type ending struct {
	lease    *lease
	kind     endKind
	complete *pb.CompleteRequest
	fail     *pb.FailRequest
	release  *pb.ReleaseRequest
	size     int // bytes
	panicked bool

	tries int // so far
	most  int // how many items a batch with it may have; 0 for any number
}

func (e *ending) measured() *ending {
	switch e.kind {
	case endComplete:
		e.size = proto.Size(e.complete)
	case endFail:
		e.size = proto.Size(e.fail)
	default:
		e.size = proto.Size(e.release)
	}
	return e
}

// until is when to give up.
func (e *ending) until() instant {
	if e.kind == endComplete {
		return e.lease.end().add(lateComplete)
	}
	return e.lease.end()
}

// endingOf says how a lease ends whose handler returned err, under a context with that cause, and
// of which the service said that it is over, if it did. It is nil where nothing may be said about
// the lease any more.
func endingOf(ctx context.Context, l *lease, err, cause error, loss *LostError) *ending {
	expired := loss != nil && loss.Reason == pb.ErrorReason_ERROR_REASON_LEASE_EXPIRED
	if loss != nil && !expired {
		return nil // whatever is said is refused, and would be counted as a second run of the work
	}
	if err == nil {
		return completion(ctx, l)
	}
	if r, ok := errors.AsType[*ReleaseError](err); ok {
		return releasing(l, r.Delay)
	}
	if !interrupted(err, cause) {
		return failing(ctx, l, err)
	}
	if expired {
		return nil // the service has ended it already
	}
	return releasing(l, 0)
}

// interrupted tells whether a handler failed only because it was cancelled. At a shutdown any
// error counts as that: a connection that was closed, say, has its own words for it.
func interrupted(err, cause error) bool {
	if cause == nil {
		return false
	}
	if _, panicked := errors.AsType[*PanicError](err); panicked {
		return false
	}
	if f := failureOf(err); f.Permanent || f.RetryAfter != nil {
		return false
	}
	if _, shutdown := errors.AsType[*ShutdownError](cause); shutdown {
		return true
	}
	return errors.Is(err, context.Canceled) || errors.Is(err, cause) || status.Code(err) == codes.Canceled
}

func completion(ctx context.Context, l *lease) *ending {
	result, err := l.job.result.wire()
	var then []*pb.EnqueueRequest
	if err == nil {
		then, err = requests(ctx, l.job.then)
	}
	e := &ending{lease: l, kind: endComplete, complete: &pb.CompleteRequest{LeaseToken: l.token, Result: result, ThenEnqueue: then}}
	if err == nil && e.measured().size > endMost {
		err = &InvalidError{Field: "result and then_enqueue", Want: "less than 4 MiB together"}
	}
	if err != nil {
		return failing(ctx, l, WithCode(codeRefused, err))
	}
	return e
}

func releasing(l *lease, delay time.Duration) *ending {
	req := &pb.ReleaseRequest{LeaseToken: l.token}
	if delay > 0 {
		req.Delay = durationpb.New(delay)
	}
	return (&ending{lease: l, kind: endRelease, release: req}).measured()
}

func failing(ctx context.Context, l *lease, err error) *ending {
	f := failureOf(err)
	req := &pb.FailRequest{LeaseToken: l.token, Permanent: f.Permanent, Error: &pb.JobError{
		Code: clean(f.Code, codeMost), Message: clean(err.Error(), textMost), Details: clean(f.Details, textMost),
	}}
	e := &ending{lease: l, kind: endFail, fail: req}
	if p, ok := errors.AsType[*PanicError](err); ok {
		e.panicked = true
		req.Error.Code, req.Error.Details = codePanic, clean(string(p.Stack), textMost)
	}
	if f.RetryAfter != nil {
		req.RetryAfter = durationpb.New(max(*f.RetryAfter, 0))
	}
	then, bad := requests(ctx, f.ThenEnqueue)
	if req.ThenEnqueue = then; bad == nil && e.measured().size > endMost {
		bad = &InvalidError{Field: "then_enqueue", Want: "less than 4 MiB together"}
	}
	if bad != nil {
		return e.without(bad.Error())
	}
	return e.measured()
}

// instead is what is said in the place of an end that the service refused for good while the lease
// lives on: without another word it would only expire. It is nil where there is nothing less to say.
func (e *ending) instead(refused *CallError) *ending {
	var req *pb.FailRequest
	why := clean(refused.describe(), textMost)
	switch {
	case e.kind != endFail:
		req = &pb.FailRequest{Error: &pb.JobError{Code: codeRefused, Message: why}}
	case len(e.fail.GetThenEnqueue()) > 0:
		return e.without(why)
	case e.fail.GetRetryAfter() != nil:
		req = &pb.FailRequest{Error: e.fail.GetError(), Permanent: e.fail.GetPermanent()}
	default:
		return nil
	}
	req.LeaseToken = e.lease.token
	return (&ending{lease: e.lease, kind: endFail, fail: req, panicked: e.panicked}).measured()
}

// without is a Fail without its follow-ups: the failure itself must be told.
func (e *ending) without(why string) *ending {
	said := e.fail.GetError()
	return (&ending{lease: e.lease, kind: endFail, panicked: e.panicked, fail: &pb.FailRequest{
		LeaseToken: e.lease.token, Permanent: e.fail.GetPermanent(), RetryAfter: e.fail.GetRetryAfter(),
		Error: &pb.JobError{
			Code: said.GetCode(), Message: said.GetMessage(),
			Details: clean("its follow-ups were refused: "+why+"\n"+said.GetDetails(), textMost),
		},
	}}).measured()
}

// describe is the error with the fields that it names.
func (e *CallError) describe() string {
	text := e.Error()
	for _, f := range e.Fields {
		text += "; " + f.Error()
	}
	return text
}

// clean is text as gRPC can carry it, cut on the boundary of a character.
func clean(text string, most int) string {
	const mark = " …cut"
	if text = strings.ToValidUTF8(text, "\uFFFD"); len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-len(mark)], "") + mark
}
