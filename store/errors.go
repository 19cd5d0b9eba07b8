package store

import (
	"errors"
	"fmt"
	"time"
)

// SupersededError refuses a call of a former holder: a later lease exists.
type SupersededError struct {
	Lease          LeaseRef
	CurrentLeaseNo int64
}

func (e *SupersededError) Error() string {
	return fmt.Sprintf("lease %d of job %d was superseded by lease %d", e.Lease.LeaseNo, e.Lease.JobID, e.CurrentLeaseNo)
}

// ExpiredError refuses a call on a lease that was ended by its time, or that no heartbeat
// can lengthen any more (max_runtime, cancel_grace).
type ExpiredError struct {
	Lease LeaseRef
	End   End // EndNone where it reached its cap and has not been ended yet
}

func (e *ExpiredError) Error() string {
	return fmt.Sprintf("lease %d of job %d has expired", e.Lease.LeaseNo, e.Lease.JobID)
}

// EndedError refuses a call on a lease that was ended by a call.
type EndedError struct {
	Lease LeaseRef
	End   End
	State State // of the job
}

func (e *EndedError) Error() string {
	return fmt.Sprintf("lease %d of job %d was ended before; the job is %s", e.Lease.LeaseNo, e.Lease.JobID, e.State)
}

// ConflictError refuses a second Complete with another result or other follow-ups.
type ConflictError struct{ Lease LeaseRef }

func (e *ConflictError) Error() string {
	return fmt.Sprintf("lease %d of job %d was completed with another result or other follow-up jobs", e.Lease.LeaseNo, e.Lease.JobID)
}

// StateError refuses a call that the state of the job or queue does not allow.
type StateError struct {
	JobID JobID  // 0 where about a queue
	Queue string // empty where about a job
	State State
	Want  string // what the call needs, in words
}

func (e *StateError) Error() string {
	if e.Queue != "" {
		return fmt.Sprintf("queue %q: %s", e.Queue, e.Want)
	}
	return fmt.Sprintf("job %d is %s: %s", e.JobID, e.State, e.Want)
}

// JobNotFoundError says that there is no such job, neither live nor in the kept history. By key where JobID is 0.
type JobNotFoundError struct {
	JobID JobID
	Queue string
	Key   string
}

func (e *JobNotFoundError) Error() string {
	if e.JobID == 0 {
		return fmt.Sprintf("queue %q has no job with this idempotency key", e.Queue)
	}
	return fmt.Sprintf("there is no job %d", e.JobID)
}

// QueueNotFoundError says that there is no queue of that name.
type QueueNotFoundError struct{ Queue string }

func (e *QueueNotFoundError) Error() string {
	return fmt.Sprintf("there is no queue %q: create it with QueueService.CreateQueue", e.Queue)
}

// QueueExistsError says that a queue of that name exists.
type QueueExistsError struct{ Queue string }

func (e *QueueExistsError) Error() string { return fmt.Sprintf("queue %q exists already", e.Queue) }

// KeyReusedError says that the idempotency key belongs to a job with another payload.
type KeyReusedError struct {
	Queue string
	JobID JobID
}

func (e *KeyReusedError) Error() string {
	return fmt.Sprintf("the idempotency key belongs to job %d of queue %q, which has another payload or content type", e.JobID, e.Queue)
}

// RequestReusedError says that the request id was used with other arguments.
type RequestReusedError struct{ RequestID string }

func (e *RequestReusedError) Error() string {
	return "the request_id was used before with other arguments"
}

// BusyError says that the row, key or table was locked by another transaction for longer than the
// call could wait. Nothing was done.
type BusyError struct {
	JobID JobID // 0 where not about one job
	What  string
}

func (e *BusyError) Error() string { return e.What + " is locked by another transaction" }

// UnavailableError says that there is no writable database. Nothing was done, unless the call is
// idempotent: then a try may have taken effect before the database went. Cause is for the log only.
type UnavailableError struct{ Cause error }

func (e *UnavailableError) Error() string { return "the database is not available" }
func (e *UnavailableError) Unwrap() error { return e.Cause }

// OutcomeUnknownError says that the connection broke around the commit of a write that is not
// idempotent. It may or may not have happened. Cause is for the log only.
type OutcomeUnknownError struct{ Cause error }

func (e *OutcomeUnknownError) Error() string {
	return "the connection to the database broke; whether the write took effect is not known"
}
func (e *OutcomeUnknownError) Unwrap() error { return e.Cause }

// InvalidError refuses a value that the domain does not allow. Field is the path within
// the request, as "then_enqueue[3].queue".
type InvalidError struct {
	Field       string
	Description string
	TooLarge    bool
}

func (e *InvalidError) Error() string { return e.Field + ": " + e.Description }

// FollowUpError refuses a Complete or Fail because of one of its follow-up jobs. Nothing
// was done and the lease lives. Err is what Enqueue would have said.
type FollowUpError struct {
	Index int
	Err   error
}

func (e *FollowUpError) Error() string { return fmt.Sprintf("then_enqueue[%d]: %s", e.Index, e.Err) }
func (e *FollowUpError) Unwrap() error { return e.Err }

// UnsupportedError refuses a set-up at start, with the reason.
type UnsupportedError struct{ Reason string }

func (e *UnsupportedError) Error() string { return e.Reason }

// RetryAfter is how long to wait before a call that met err is repeated; zero where
// repeating it does not help.
func RetryAfter(err error) time.Duration {
	if _, ok := errors.AsType[*BusyError](err); ok {
		return 200 * time.Millisecond
	}
	if _, ok := errors.AsType[*UnavailableError](err); ok {
		return time.Second
	}
	return 0
}
