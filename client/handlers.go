package client

import (
	"context"

	"google.golang.org/protobuf/proto"
)

// Handler does the work of one job. It may run many times at once, for different jobs; and a job
// may run more than once, also beside itself: give job.LeaseNo to what it changes.
//
// It must return soon after ctx is cancelled; context.Cause(ctx) tells why: *LostError,
// *ExpiredError, *CancelRequestedError or *ShutdownError. What its error means, see FailError. A
// panic fails the job and nothing else.
type Handler func(ctx context.Context, job *Job) error

// JSON is a handler of jobs whose payload is JSON of an In. A payload that cannot be read is a
// permanent failure, with code "bad_payload".
func JSON[In any](do func(ctx context.Context, job *Job, in In) error) Handler {
	return func(ctx context.Context, job *Job) error {
		var in In
		if err := job.Payload().DecodeJSON(&in); err != nil {
			return badPayload(err)
		}
		return do(ctx, job, in)
	}
}

// JSONResult is JSON for a handler that returns the job's result, which is kept as JSON.
func JSONResult[In, Out any](do func(ctx context.Context, job *Job, in In) (Out, error)) Handler {
	return JSON(func(ctx context.Context, job *Job, in In) error {
		out, err := do(ctx, job, in)
		if err != nil {
			return err
		}
		result, err := JSONPayload(out)
		if err != nil {
			return WithCode(codeBadResult, err)
		}
		job.SetResult(result)
		return nil
	})
}

// Proto is a handler of jobs whose payload is a protobuf message, in binary or in JSON form. In
// must be a generated message type, as *pb.Payment. A payload that cannot be read is a permanent
// failure, with code "bad_payload".
func Proto[In proto.Message](do func(ctx context.Context, job *Job, in In) error) Handler {
	var none In
	kind := none.ProtoReflect().Type() // also of a nil message
	return func(ctx context.Context, job *Job) error {
		in := kind.New().Interface().(In)
		if err := job.Payload().DecodeProto(in); err != nil {
			return badPayload(err)
		}
		return do(ctx, job, in)
	}
}

// ProtoResult is Proto for a handler that returns the job's result, which is kept in binary form.
func ProtoResult[In, Out proto.Message](do func(ctx context.Context, job *Job, in In) (Out, error)) Handler {
	return Proto(func(ctx context.Context, job *Job, in In) error {
		out, err := do(ctx, job, in)
		if err != nil {
			return err
		}
		result, err := ProtoPayload(out)
		if err != nil {
			return WithCode(codeBadResult, err)
		}
		job.SetResult(result)
		return nil
	})
}

// ByQueue is a handler that hands each job to the handler of its queue. A job of another queue is
// given back for a minute, without using an attempt: a worker of the next version may know it.
func ByQueue(handlers map[string]Handler) Handler {
	return func(ctx context.Context, job *Job) error {
		if do, ok := handlers[job.Queue()]; ok {
			return do(ctx, job)
		}
		return Release(strangeDelay)
	}
}

func badPayload(err error) error { return WithCode(codeBadPayload, Permanent(err)) }
