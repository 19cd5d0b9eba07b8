package model

import (
	"cmp"
	"time"

	"github.com/leasehold/leasehold/store"
)

// State is all that is known of one job. The zero State is a job that does not exist.
type State struct {
	ID        store.JobID
	Spec      *store.NewJob // as enqueued, the policy merged with the queue's; never changed
	CreatedAt time.Time
	Parent    *store.JobID

	Phase        store.State
	RunAt        Window
	AttemptsUsed int32
	Expirations  int32 // in a row
	FreeReturns  int32 // releases without delay and undelivered ends in a row, R28
	LeaseNo      int64
	Leases       []Lease // every lease, oldest first

	Stage      *string // of the latest lease that had one
	Checkpoint []byte

	CancelRequestedAt *time.Time
	FinishedAt        *time.Time
	CompletedLate     bool
	LastError         *store.JobError
	Reason            string
	Result            *store.Payload

	// ActedOn tells that CancelJob, RetryJobs or ResolveJob acted on the job after its
	// latest lease had ended: the token then answers LEASE_ENDED.
	ActedOn bool
	// Resolved tells that ResolveJob brought the job to its state, which makes a
	// repetition of it harmless.
	Resolved bool
	// Undeliverable tells that the payload is gone: no claim may take the job.
	Undeliverable bool
}

// Lease is one lease of a job, live or ended.
type Lease struct {
	store.LeaseRecord
	Duration  time.Duration
	ChangedAt time.Time // last change of stage, progress or checkpoint
	Digest    string    // of result and follow-ups of its Complete
}

// Window is a time that is known up to chance.
type Window struct{ From, To time.Time }

// At is a window of one instant.
func At(t time.Time) Window { return Window{From: t, To: t} }

// Exact tells whether the window is one instant.
func (w Window) Exact() bool { return w.From.Equal(w.To) }

// Holds tells whether t lies within the window or at most slack beside it.
func (w Window) Holds(t time.Time, slack time.Duration) bool {
	return !t.Before(w.From.Add(-slack)) && !t.After(w.To.Add(slack))
}

// Live tells whether the job may still run without an operator's act.
func (s State) Live() bool { return s.Phase != 0 && !s.Phase.Terminal() }

// Latest is the job's latest lease; ok is false before the first.
func (s State) Latest() (l Lease, ok bool) {
	if len(s.Leases) == 0 {
		return Lease{}, false
	}
	return s.Leases[len(s.Leases)-1], true
}

// Lease finds a lease by its number.
func (s State) Lease(no int64) (l Lease, ok bool) {
	if i := s.index(no); i >= 0 {
		return s.Leases[i], true
	}
	return Lease{}, false
}

// index is from the end, because calls are about the latest lease.
func (s State) index(no int64) int {
	for i := len(s.Leases) - 1; i >= 0; i-- {
		if s.Leases[i].LeaseNo == no {
			return i
		}
	}
	return -1
}

// WithLease is the state with l in the place of the lease of that number. The slice is
// copied, because other States share it.
func (s State) WithLease(l Lease) State {
	i := s.index(l.LeaseNo)
	if i < 0 {
		s.Leases = append(s.Leases[:len(s.Leases):len(s.Leases)], l)
		return s
	}
	leases := make([]Lease, len(s.Leases))
	copy(leases, s.Leases)
	leases[i] = l
	s.Leases = leases
	return s
}

// Settle narrows the time of the next run to the one that was drawn or observed.
func (s State) Settle(runAt time.Time) State {
	s.RunAt = At(runAt)
	return s
}

// Due tells whether the job waits and its time has come.
func (s State) Due(now time.Time) bool {
	return s.Phase == store.Pending && !s.RunAt.From.After(now)
}

// Order is the order in which jobs of a queue are taken (R36).
func Order(a, b State) int {
	return cmp.Or(
		cmp.Compare(*a.Spec.Priority, *b.Spec.Priority),
		a.RunAt.From.Compare(b.RunAt.From),
		cmp.Compare(a.ID, b.ID),
	)
}

// Limits is the policy of the job with the defaults filled in.
func (s State) Limits() Limits { return LimitsOf(s.Spec.Policy) }

// AdvisedInterval is the advised time between heartbeats of a lease.
func (l Lease) AdvisedInterval() time.Duration { return l.Duration / 3 }

func ptr[T any](v T) *T { return &v }
