package client

import (
	"fmt"
	"strconv"
	"strings"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// LostError is the cause of a handler's context where the service said that the lease is over.
// Somebody else may be working on the job, or an operator has decided about it.
type LostError struct {
	JobID   string
	LeaseNo int64
	// Reason is LEASE_SUPERSEDED, LEASE_EXPIRED or LEASE_ENDED, rarely JOB_NOT_FOUND (dropped by
	// retention) or INVALID_TOKEN (the database was restored from before the lease).
	Reason pb.ErrorReason
	// CurrentLeaseNo is the latest lease of the job, with LEASE_SUPERSEDED; else 0.
	CurrentLeaseNo int64
}

func (e *LostError) Error() string {
	word := strings.TrimPrefix(e.Reason.String(), reasonPrefix)
	if e.CurrentLeaseNo > 0 {
		return fmt.Sprintf("lease %d of job %s is lost: %s by lease %d", e.LeaseNo, e.JobID, word, e.CurrentLeaseNo)
	}
	return fmt.Sprintf("lease %d of job %s is lost: %s", e.LeaseNo, e.JobID, word)
}

func newLost(l *lease, e *CallError) *LostError {
	current, _ := strconv.ParseInt(e.Facts["current_lease_no"], 10, 64)
	return &LostError{JobID: l.job.ID(), LeaseNo: l.job.LeaseNo(), Reason: e.Reason, CurrentLeaseNo: current}
}

// ExpiredError is the cause of a handler's context where the lease could not be renewed in time:
// as far as this process can tell, it may be another's now. The service was away, or this process
// was stopped, or the machine slept.
type ExpiredError struct {
	JobID   string
	LeaseNo int64
}

func (e *ExpiredError) Error() string {
	return fmt.Sprintf("lease %d of job %s could not be renewed in time", e.LeaseNo, e.JobID)
}

// CancelRequestedError is the cause of a handler's context after CancelJob. The lease is still the
// handler's: it may tidy up, for as long as the job's cancel_grace. If the work is done all the
// same, return nil, and the job is COMPLETED; return anything else, and it is CANCELLED.
type CancelRequestedError struct {
	JobID   string
	LeaseNo int64
}

func (e *CancelRequestedError) Error() string {
	return fmt.Sprintf("somebody asked to cancel job %s", e.JobID)
}

// ShutdownError is the cause of a handler's context where the worker shuts down and its grace is
// over. The lease is still the handler's. An error that the handler returns now gives the job
// back, without using an attempt, unless it is Permanent or RetryAfter.
type ShutdownError struct{}

func (*ShutdownError) Error() string { return "the worker shuts down" }

// JobOverError is what calls of a Job answer after its handler has returned.
type JobOverError struct {
	JobID   string
	LeaseNo int64
}

func (e *JobOverError) Error() string {
	return fmt.Sprintf("the handler of lease %d of job %s has returned", e.LeaseNo, e.JobID)
}

// PanicError is a handler that panicked, or left by runtime.Goexit. The job is failed by it: error
// code "panic", the value as message, the stack as details.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// DrainError is what Run returns where a shutdown could not end all that it had. The jobs run again
// when their leases expire, or wait for an operator, as their queues say; an attempt is used.
type DrainError struct {
	// Running are the jobs whose handlers did not return though their context was cancelled.
	// They are not given back: somebody else would begin while the handler still works.
	Running []string
	// Unreported are the jobs whose end could not be told to the service.
	Unreported []string
}

func (e *DrainError) Error() string {
	return fmt.Sprintf("shut down with %d handlers still running and %d ends not reported", len(e.Running), len(e.Unreported))
}
