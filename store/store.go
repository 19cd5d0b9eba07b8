package store

import (
	"context"
	"time"
)

// Store keeps jobs and leases. A call is one batch; a single call of the API is a batch of
// one. Results stand in the order of the items, one each; an item's own error is in its
// Err and never voids the others. The error of the call itself says that no item was
// decided; it is one of UnavailableError, BusyError, OutcomeUnknownError, or the context's.
//
// No method waits for a job: that is the caller's business. Every method returns by the
// deadline of its context or a timeout of its own, whichever is first.
type Store interface {
	LeaseStore
	JobStore
	QueueStore
	Maintenance
	Inspector
}

// LeaseStore takes, renews and ends leases.
type LeaseStore interface {
	// Acquire takes leases for each item, at most MaxJobs each and as many bytes as fit;
	// the first job of an item is taken whatever its size. Jobs are handed round the items
	// one by one. Item errors: QueueNotFoundError, JobNotFoundError, RequestReusedError,
	// BusyError (request id in flight elsewhere).
	Acquire(ctx context.Context, items []Acquire) ([]Acquired, error)
	// Undeliver gives back leases whose answer could not be delivered. A lease that has
	// had a heartbeat, or that a replay of its request id delivered, is left alone.
	// requestID is that of the acquire, or nil. Idempotent.
	Undeliver(ctx context.Context, leases []LeaseRef, requestID *string) error
	// Heartbeat renews leases. Item errors: SupersededError, ExpiredError, EndedError,
	// JobNotFoundError, BusyError.
	Heartbeat(ctx context.Context, items []Heartbeat) ([]Beaten, error)
	// Complete ends leases and their jobs. Item errors: SupersededError, EndedError,
	// ConflictError, JobNotFoundError, BusyError, FollowUpError, OutcomeUnknownError never:
	// it is idempotent.
	Complete(ctx context.Context, items []Complete) ([]Completion, error)
	// Fail ends leases and counts an attempt. Item errors: SupersededError, ExpiredError
	// (the error is noted), EndedError, JobNotFoundError, BusyError, FollowUpError.
	Fail(ctx context.Context, items []Fail) ([]Ended, error)
	// Release ends leases without counting an attempt. Item errors: as Fail.
	Release(ctx context.Context, items []Release) ([]Ended, error)
	// ListStuck lists jobs that need a look, by job id.
	ListStuck(ctx context.Context, f StuckFilter, p Page) (StuckPage, error)
}

// JobStore stores and reads jobs.
type JobStore interface {
	// Enqueue stores jobs. Item errors: QueueNotFoundError, KeyReusedError, BusyError,
	// InvalidError, OutcomeUnknownError (only for items without a key).
	Enqueue(ctx context.Context, items []NewJob) ([]Enqueued, error)
	// GetJob reads one job, live or finished. Errors: JobNotFoundError.
	GetJob(ctx context.Context, id JobID, full bool) (*Job, error)
	// GetJobByKey reads the job that owns an idempotency key. Errors: JobNotFoundError,
	// QueueNotFoundError.
	GetJobByKey(ctx context.Context, queue, key string, full bool) (*Job, error)
	// ListJobs lists jobs by id. Errors: QueueNotFoundError.
	ListJobs(ctx context.Context, f JobFilter, full bool, p Page) (JobPage, error)
	// ListLeases lists every lease of a job by number. Errors: JobNotFoundError.
	ListLeases(ctx context.Context, id JobID, p Page) (LeasePage, error)
	// LastLeases reads the latest n leases of a job, oldest first, as many as fit in bytes.
	LastLeases(ctx context.Context, id JobID, n, bytes int) ([]LeaseRecord, error)
	// OperatorActs reads the latest 100 acts on a job, oldest first.
	OperatorActs(ctx context.Context, id JobID) ([]OperatorAct, error)
	// JobQueues tells the queues of jobs, live or finished. A job that does not exist is not
	// in the result.
	JobQueues(ctx context.Context, ids []JobID) (map[JobID]string, error)
	// CancelJob cancels a job or asks its holder to stop. Errors: JobNotFoundError,
	// StateError, BusyError.
	CancelJob(ctx context.Context, id JobID, by Actor) (CancelResult, error)
}

// QueueStore keeps queues and repairs jobs.
type QueueStore interface {
	// CreateQueue makes a queue. Errors: QueueExistsError.
	CreateQueue(ctx context.Context, q Queue) (*Queue, error)
	// EnsureQueues makes the queues that do not exist, with defaults.
	EnsureQueues(ctx context.Context, names []string) error
	// GetQueue reads a queue. Errors: QueueNotFoundError.
	GetQueue(ctx context.Context, name string) (*Queue, error)
	// ListQueues lists up to size queues by name, after the name given, exclusive.
	ListQueues(ctx context.Context, after string, size int) ([]Queue, error)
	// UpdateQueue changes a queue. Errors: QueueNotFoundError.
	UpdateQueue(ctx context.Context, u QueueUpdate) (*Queue, error)
	// DeleteQueue removes a queue without live jobs. Errors: QueueNotFoundError,
	// StateError, BusyError.
	DeleteQueue(ctx context.Context, name string) error
	// PauseQueue stops leasing from a queue: no statement that starts after it returned
	// leases from it. Errors: QueueNotFoundError, BusyError.
	PauseQueue(ctx context.Context, name string, by Actor) (*Queue, error)
	// ResumeQueue ends a pause. Errors: QueueNotFoundError, BusyError.
	ResumeQueue(ctx context.Context, name string) (*Queue, error)
	// RetryJobs makes DEAD and STUCK jobs PENDING, and waiting ones run now. Item errors:
	// JobNotFoundError, StateError, BusyError.
	RetryJobs(ctx context.Context, act BulkAct) (BulkResult, error)
	// CancelJobs is CancelJob for many. Item errors: as CancelJob.
	CancelJobs(ctx context.Context, act BulkAct) (BulkResult, error)
	// ResolveJob records what became of a STUCK or DEAD job. Errors: JobNotFoundError,
	// StateError, BusyError.
	ResolveJob(ctx context.Context, r Resolution) (*Job, error)
}

// Maintenance is what the background loops need.
type Maintenance interface {
	// TokenKey is the key of the lease tokens, made once per database.
	TokenKey(ctx context.Context) ([]byte, error)
	// StampWritable records that the service could write a heartbeat just now, see R35.
	StampWritable(ctx context.Context) error
	// SweepPage ends expired, overrun and stalled leases among up to size leased jobs after
	// the id given, each conditional on the lease that was read. One bad row never stops
	// the others. queues restricts it; empty means all.
	SweepPage(ctx context.Context, after JobID, size int, queues []string) (Swept, error)
	// BeginSweep tells whether a pass is due: false if any replica finished one within
	// half the interval.
	BeginSweep(ctx context.Context, interval time.Duration) (bool, error)
	// FinishSweep records a finished pass.
	FinishSweep(ctx context.Context) error
	// BuryUnrunnable sets aside rows that can never run (a counter near its type's bound,
	// a payload that is gone), each with a reason. It returns how many.
	BuryUnrunnable(ctx context.Context) (int, error)
	// ForgetExpired deletes idempotency keys and request ids whose time is over, a bounded
	// number. It returns how many.
	ForgetExpired(ctx context.Context) (int, error)
	// EnsurePartitions makes the partitions that are ahead complete.
	EnsurePartitions(ctx context.Context) error
	// ApplyRetention drops partitions that are old enough: facts finished before
	// now - facts, payloads and results before now - payloads; nil keeps for ever.
	ApplyRetention(ctx context.Context, facts, payloads *time.Duration) error
	// ReadyQueues tells which of the queues have a job that is due now, and for those that
	// have none, when the earliest becomes due (zero: none). One statement for all. Whoever
	// asks waits for jobs of these queues: for the next 3 s, what others enqueue by SQL
	// notifies of itself (R41).
	ReadyQueues(ctx context.Context, queues []string) ([]QueueReadiness, error)
	// Hint tells other replicas that queues may have ready jobs. Best effort.
	Hint(ctx context.Context, queues []string) error
	// Listen calls onHint for each hint of another replica until the context ends or the
	// connection is lost, and onReady once it listens. It returns the cause.
	Listen(ctx context.Context, onReady func(), onHint func(queues []string)) error
	// HeldSnapshots tells who holds back the removal of dead rows the furthest, one of each
	// kind that there is.
	HeldSnapshots(ctx context.Context) ([]HeldSnapshot, error)
	// Health reads what readiness needs.
	Health(ctx context.Context) (Health, error)
}

// QueueReadiness is whether a queue has work now.
type QueueReadiness struct {
	Queue  string
	Ready  bool
	Paused bool
	Next   *time.Duration // until the earliest job is due; nil: none waits
}
