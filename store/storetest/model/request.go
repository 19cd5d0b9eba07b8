package model

import (
	"fmt"
	"time"

	"github.com/leasehold/leasehold/store"
)

// Request is a call on one job and what its statement reads beside the job's row.
type Request struct {
	Call  Call
	Queue store.Queue // the queue's row
	// Outage tells that R35 forbids every end by time: the service has not been able to
	// take heartbeats for long enough.
	Outage bool
}

// Call is one of the calls of this package.
type Call interface {
	// Name is the word for the call in LateCalls.LastCall and in reports.
	Name() string
	step(s State, r Request, now time.Time) (State, Outcome)
}

// Enqueue makes the job.
type Enqueue struct {
	ID     store.JobID
	Job    store.NewJob
	Parent *store.JobID
}

// Acquire takes a lease. ByID tells that the job was named, which also takes over a lease
// that has run out.
type Acquire struct {
	Owner    string
	Duration *time.Duration
	ByID     bool
}

// Heartbeat renews a lease.
type Heartbeat struct {
	LeaseNo    int64
	Stage      *string
	Progress   *float64
	Checkpoint []byte
}

// Complete ends a lease and the job. FollowUps are the ids that ThenEnqueue got.
type Complete struct {
	LeaseNo     int64
	Result      store.Payload
	ThenEnqueue []store.NewJob
	FollowUps   []store.JobID
}

// Fail ends a lease with an error, which is taken as it is: see store.CleanJobError.
type Fail struct {
	LeaseNo    int64
	Error      store.JobError
	Permanent  bool
	RetryAfter *time.Duration
	FollowUps  []store.JobID
}

// Release gives a lease back.
type Release struct {
	LeaseNo int64
	Delay   time.Duration
}

// Undeliver gives back a lease whose answer could not be delivered. Replayed tells that a
// replay of its request id delivered it after all.
type Undeliver struct {
	LeaseNo  int64
	Replayed bool
}

// Sweep ends the lease if its time is over.
type Sweep struct{}

// Cancel is CancelJob.
type Cancel struct{}

// Retry is RetryJobs on this job.
type Retry struct{}

// Resolve is ResolveJob; a nil Result means that the work never will settle.
type Resolve struct{ Result *store.Payload }

// Bury sets a row aside that can never run (R39).
type Bury struct{ Reason string }

// Age is no call of the API: By has passed for the job, as by a test's harness. Times that a
// caller was told before are by that much too late.
type Age struct{ By time.Duration }

// Name names the call.
func (Enqueue) Name() string { return "Enqueue" }

// Name names the call.
func (Acquire) Name() string { return "AcquireLease" }

// Name names the call.
func (Heartbeat) Name() string { return "Heartbeat" }

// Name names the call.
func (Complete) Name() string { return "Complete" }

// Name names the call.
func (Fail) Name() string { return "Fail" }

// Name names the call.
func (Release) Name() string { return "Release" }

// Name names the call.
func (Undeliver) Name() string { return "Undeliver" }

// Name names the call.
func (Sweep) Name() string { return "Sweep" }

// Name names the call.
func (Cancel) Name() string { return "CancelJob" }

// Name names the call.
func (Retry) Name() string { return "RetryJobs" }

// Name names the call.
func (Resolve) Name() string { return "ResolveJob" }

// Name names the call.
func (Bury) Name() string { return "Bury" }

// Name names the call.
func (Age) Name() string { return "Age" }

// Outcome is what a call answers. Fields that the call does not answer are zero.
type Outcome struct {
	Err error // a typed error of package store

	// Acquire; Heartbeat answers Until, Remaining and CancelRequested too.
	Empty      store.EmptyReason
	LeaseNo    int64
	Attempt    int32
	Until      time.Time
	Remaining  time.Duration
	LastStage  *string
	Checkpoint []byte

	CancelRequested bool

	// Complete, Fail and Release.
	AlreadyApplied bool
	Late           bool
	FollowUps      []store.JobID

	// All that end a lease or act on a job: the job's state after it.
	State        store.State
	AttemptsLeft int32
	RunAt        Window // set where State is PENDING

	Ended     store.End // Sweep and Acquire: the end that they gave the lease before
	Requested bool      // Cancel: a worker holds it and will be told
	Passed    bool      // Retry: the state needs nothing done, or the act does not apply
}

func (o Outcome) String() string {
	if o.Err != nil {
		return fmt.Sprintf("refused: %v", o.Err)
	}
	return fmt.Sprintf("ok: lease %d, state %s, applied before %t, late %t, empty %d",
		o.LeaseNo, o.State, o.AlreadyApplied, o.Late, o.Empty)
}

// Step is the job after a call at a time, and the answer. A refused call changes nothing
// but the records of R17 and R18: the noted error, and the late calls.
func Step(s State, r Request, now time.Time) (State, Outcome) {
	if _, ok := r.Call.(Enqueue); !ok && s.Phase == 0 {
		return s, Outcome{Err: &store.JobNotFoundError{JobID: s.ID}}
	}
	return r.Call.step(s, r, now)
}
