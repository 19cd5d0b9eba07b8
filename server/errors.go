package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// reasonCodes gives each reason its gRPC code. A reason has exactly one.
var reasonCodes = map[pb.ErrorReason]codes.Code{
	pb.ErrorReason_ERROR_REASON_INVALID_REQUEST:        codes.InvalidArgument,
	pb.ErrorReason_ERROR_REASON_TOO_LARGE:              codes.InvalidArgument,
	pb.ErrorReason_ERROR_REASON_INVALID_TOKEN:          codes.InvalidArgument,
	pb.ErrorReason_ERROR_REASON_JOB_NOT_FOUND:          codes.NotFound,
	pb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND:        codes.NotFound,
	pb.ErrorReason_ERROR_REASON_LEASE_SUPERSEDED:       codes.FailedPrecondition,
	pb.ErrorReason_ERROR_REASON_LEASE_EXPIRED:          codes.FailedPrecondition,
	pb.ErrorReason_ERROR_REASON_LEASE_ENDED:            codes.FailedPrecondition,
	pb.ErrorReason_ERROR_REASON_RESULT_CONFLICT:        codes.FailedPrecondition,
	pb.ErrorReason_ERROR_REASON_WRONG_STATE:            codes.FailedPrecondition,
	pb.ErrorReason_ERROR_REASON_IDEMPOTENCY_KEY_REUSED: codes.AlreadyExists,
	pb.ErrorReason_ERROR_REASON_REQUEST_ID_REUSED:      codes.AlreadyExists,
	pb.ErrorReason_ERROR_REASON_QUEUE_EXISTS:           codes.AlreadyExists,
	pb.ErrorReason_ERROR_REASON_OVERLOADED:             codes.ResourceExhausted,
	pb.ErrorReason_ERROR_REASON_RATE_LIMITED:           codes.ResourceExhausted,
	pb.ErrorReason_ERROR_REASON_DATABASE_UNAVAILABLE:   codes.Unavailable,
	pb.ErrorReason_ERROR_REASON_DRAINING:               codes.Unavailable,
	pb.ErrorReason_ERROR_REASON_JOB_BUSY:               codes.Unavailable,
	pb.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN:        codes.Unknown,
	pb.ErrorReason_ERROR_REASON_CREDENTIALS_MISSING:    codes.Unauthenticated,
	pb.ErrorReason_ERROR_REASON_CREDENTIALS_INVALID:    codes.Unauthenticated,
	pb.ErrorReason_ERROR_REASON_ROLE_MISSING:           codes.PermissionDenied,
	pb.ErrorReason_ERROR_REASON_INTERNAL:               codes.Internal,
}

// drainRetryAfter is short because another replica can answer at once; it only keeps a
// client whose connections all lead here from spinning.
const drainRetryAfter = 100 * time.Millisecond

// overloadRetryAfter is about what a full queue of calls takes to be served.
const overloadRetryAfter = time.Second

// OverloadedError refuses a call because too many of its kind wait in this replica.
type OverloadedError struct {
	Lane    string // the method
	Waiting int    // how many calls wait
}

func (e *OverloadedError) Error() string {
	return fmt.Sprintf("%d %s calls wait in this replica already", e.Waiting, e.Lane)
}

// DrainingError ends a parked poll, or refuses a new acquire, while the replica shuts down.
type DrainingError struct{}

func (*DrainingError) Error() string {
	return "this replica is shutting down: use another connection"
}

// invalidTokenError refuses a lease_token or page_token that this database did not give.
type invalidTokenError struct {
	field string
	want  string
}

func (e *invalidTokenError) Error() string { return e.field + " is not valid: it " + e.want }

// panicError stands for a handler that panicked. The stack is for the log only.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.value, e.stack) }

// fault is an error as a client sees it, as the status of a call or as the ItemError of one
// item of a batch.
type fault struct {
	code       codes.Code
	reason     pb.ErrorReason // UNSPECIFIED only where the caller gave up itself
	message    string
	facts      map[string]string
	violations []violation
	subject    string // of a failed precondition, as "jobs/7/leases/2"
	retryAfter time.Duration
	cause      error // what the client must not see; for the log
}

// faultOf maps an error to what a client may see of it. It looks through wrapping, and what
// it does not know is INTERNAL with a fixed message, so that no driver text gets out.
func faultOf(err error) fault {
	if f, ok := requestFault(err); ok {
		return f
	}
	for _, of := range []func(error) (fault, bool){credentialFault, leaseFault, nameFault, tryAgainFault, contextFault} {
		if f, ok := of(err); ok {
			return f
		}
	}
	f := newFault(pb.ErrorReason_ERROR_REASON_INTERNAL, "internal error")
	f.cause = err
	return f
}

func newFault(reason pb.ErrorReason, message string, facts ...string) fault {
	f := fault{code: reasonCodes[reason], reason: reason, message: message}
	for i := 0; i+1 < len(facts); i += 2 {
		f.addFact(facts[i], facts[i+1])
	}
	return f
}

func (f *fault) addFact(key, value string) {
	if f.facts == nil {
		f.facts = map[string]string{}
	}
	f.facts[key] = value
}

// requestFault maps what is wrong with the request itself. A refused follow-up comes first:
// unwrapping it would lose which of the follow-ups it was.
func requestFault(err error) (fault, bool) {
	if e, ok := errors.AsType[*store.FollowUpError](err); ok {
		return followUpFault(e), true
	}
	if e, ok := errors.AsType[*invalidRequestError](err); ok {
		return invalidFault(e.violations), true
	}
	if e, ok := errors.AsType[*store.InvalidError](err); ok {
		return invalidFault([]violation{{field: e.Field, description: e.Description, tooLarge: e.TooLarge}}), true
	}
	if e, ok := errors.AsType[*invalidTokenError](err); ok {
		f := newFault(pb.ErrorReason_ERROR_REASON_INVALID_TOKEN, e.Error())
		f.violations = []violation{{field: e.field, description: e.want}}
		return f, true
	}
	return fault{}, false
}

func invalidFault(vs []violation) fault {
	reason := pb.ErrorReason_ERROR_REASON_TOO_LARGE
	for _, v := range vs {
		if !v.tooLarge {
			reason = pb.ErrorReason_ERROR_REASON_INVALID_REQUEST
		}
	}
	f := newFault(reason, (&invalidRequestError{violations: vs}).Error())
	f.violations = vs
	return f
}

func followUpFault(e *store.FollowUpError) fault {
	path := fmt.Sprintf("then_enqueue[%d]", e.Index)
	f := faultOf(e.Err)
	if !strings.HasPrefix(f.message, path) {
		f.message = path + ": " + f.message
	}
	f.facts = maps.Clone(f.facts)
	f.addFact("then_enqueue_index", strconv.Itoa(e.Index))
	prefixed := make([]violation, len(f.violations))
	for i, v := range f.violations {
		if !strings.HasPrefix(v.field, path) {
			v.field = path + "." + v.field
		}
		prefixed[i] = v
	}
	f.violations = prefixed
	return f
}

// leaseFault maps the refusals of R17 and R18, and those by the state of a job or queue.
func leaseFault(err error) (fault, bool) {
	if e, ok := errors.AsType[*store.SupersededError](err); ok {
		f := ofLease(pb.ErrorReason_ERROR_REASON_LEASE_SUPERSEDED, e, e.Lease)
		f.addFact("current_lease_no", strconv.FormatInt(e.CurrentLeaseNo, 10))
		return f, true
	}
	if e, ok := errors.AsType[*store.ExpiredError](err); ok {
		f := ofLease(pb.ErrorReason_ERROR_REASON_LEASE_EXPIRED, e, e.Lease)
		f.addEnd(e.End)
		return f, true
	}
	if e, ok := errors.AsType[*store.EndedError](err); ok {
		f := ofLease(pb.ErrorReason_ERROR_REASON_LEASE_ENDED, e, e.Lease)
		f.addEnd(e.End)
		f.addState(e.State)
		return f, true
	}
	if e, ok := errors.AsType[*store.ConflictError](err); ok {
		return ofLease(pb.ErrorReason_ERROR_REASON_RESULT_CONFLICT, e, e.Lease), true
	}
	if e, ok := errors.AsType[*store.StateError](err); ok {
		f := newFault(pb.ErrorReason_ERROR_REASON_WRONG_STATE, e.Error())
		f.addState(e.State)
		if e.Queue != "" {
			f.subject = "queues/" + e.Queue
			f.addFact("queue", e.Queue)
		} else {
			f.subject = "jobs/" + formatID(e.JobID)
			f.addFact("job_id", formatID(e.JobID))
		}
		return f, true
	}
	return fault{}, false
}

func ofLease(reason pb.ErrorReason, err error, l store.LeaseRef) fault {
	no := strconv.FormatInt(l.LeaseNo, 10)
	f := newFault(reason, err.Error(), "job_id", formatID(l.JobID), "lease_no", no)
	f.subject = "jobs/" + formatID(l.JobID) + "/leases/" + no
	return f
}

func (f *fault) addEnd(e store.End) {
	if e != store.EndNone {
		f.addFact("lease_end", strings.TrimPrefix(pb.LeaseEnd(e).String(), "LEASE_END_"))
	}
}

func (f *fault) addState(s store.State) {
	if s != 0 {
		f.addFact("state", s.String())
	}
}

// nameFault maps what is not there, and what is there already.
func nameFault(err error) (fault, bool) {
	if e, ok := errors.AsType[*store.JobNotFoundError](err); ok {
		f := newFault(pb.ErrorReason_ERROR_REASON_JOB_NOT_FOUND, e.Error())
		if e.JobID != 0 {
			f.addFact("job_id", formatID(e.JobID))
		} else {
			f.addFact("queue", e.Queue)
		}
		return f, true
	}
	if e, ok := errors.AsType[*store.QueueNotFoundError](err); ok {
		return newFault(pb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND, e.Error(), "queue", e.Queue), true
	}
	if e, ok := errors.AsType[*store.QueueExistsError](err); ok {
		return newFault(pb.ErrorReason_ERROR_REASON_QUEUE_EXISTS, e.Error(), "queue", e.Queue), true
	}
	if e, ok := errors.AsType[*store.KeyReusedError](err); ok {
		return newFault(pb.ErrorReason_ERROR_REASON_IDEMPOTENCY_KEY_REUSED, e.Error(),
			"job_id", formatID(e.JobID), "queue", e.Queue), true
	}
	if e, ok := errors.AsType[*store.RequestReusedError](err); ok {
		return newFault(pb.ErrorReason_ERROR_REASON_REQUEST_ID_REUSED, e.Error()), true
	}
	return fault{}, false
}

// tryAgainFault maps what another call, now or later, may do better.
func tryAgainFault(err error) (fault, bool) {
	if e, ok := errors.AsType[*store.BusyError](err); ok {
		f := newFault(pb.ErrorReason_ERROR_REASON_JOB_BUSY, e.Error())
		if e.JobID != 0 {
			f.addFact("job_id", formatID(e.JobID))
		}
		f.retryAfter = store.RetryAfter(e)
		return f, true
	}
	if e, ok := errors.AsType[*store.UnavailableError](err); ok {
		f := newFault(pb.ErrorReason_ERROR_REASON_DATABASE_UNAVAILABLE, e.Error())
		f.retryAfter, f.cause = store.RetryAfter(e), e.Cause
		return f, true
	}
	if e, ok := errors.AsType[*store.OutcomeUnknownError](err); ok {
		f := newFault(pb.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN, e.Error())
		f.cause = e.Cause
		return f, true
	}
	if e, ok := errors.AsType[*OverloadedError](err); ok {
		f := newFault(pb.ErrorReason_ERROR_REASON_OVERLOADED, e.Error())
		f.retryAfter = overloadRetryAfter
		f.addFact("method", e.Lane)
		return f, true
	}
	if e, ok := errors.AsType[*DrainingError](err); ok {
		f := newFault(pb.ErrorReason_ERROR_REASON_DRAINING, e.Error())
		f.retryAfter = drainRetryAfter
		return f, true
	}
	return fault{}, false
}

// contextFault maps a caller that is gone or out of time. It has no reason: the caller's
// own gRPC library has made this very status already, and nobody reads ours.
func contextFault(err error) (fault, bool) {
	if errors.Is(err, context.Canceled) {
		return fault{code: codes.Canceled, message: "the caller cancelled the call"}, true
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fault{code: codes.DeadlineExceeded, message: "the caller's deadline has passed"}, true
	}
	return fault{}, false
}
