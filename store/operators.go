package store

import "time"

// JobFilter chooses jobs; all that is set must hold.
type JobFilter struct {
	Queue         *string
	States        []State
	Subject       *string
	CreatedFrom   *time.Time
	CreatedBefore *time.Time
	ErrorCode     *string
}

// Page asks for a part of a list: up to Size entries (and Bytes of content) after After,
// exclusive.
type Page struct {
	Size  int
	Bytes int   // 0: no cap
	After int64 // job id or lease number
}

// JobPage is a part of a list of jobs.
type JobPage struct {
	Jobs []Job
	// Next is where the next page starts (Page.After), 0 at the end. A page may be shorter
	// than asked, even empty, while Next is set, because a call reads a bounded number of rows.
	Next int64
}

// LeasePage is a part of a job's leases.
type LeasePage struct {
	Leases []LeaseRecord
	Next   int64 // 0 at the end
}

// Diagnosis says what is wrong with a job; the smallest that fits holds.
type Diagnosis int16

// The diagnoses in their order of precedence.
const (
	Held             Diagnosis = 1
	CrashLoop        Diagnosis = 2
	Overrun          Diagnosis = 3
	LeaseExpired     Diagnosis = 4
	Stalled          Diagnosis = 5
	NeverHeartbeated Diagnosis = 6
	WorkerSilent     Diagnosis = 7
)

// StuckJob is a job that needs a look.
type StuckJob struct {
	JobID        JobID
	Queue        string
	State        State
	Subject      *string
	Diagnosis    Diagnosis
	Since        time.Time
	Owner        *string
	LeaseNo      int64
	LeaseUntil   *time.Time
	LastBeatAt   *time.Time
	Stage        *string
	AttemptsUsed int32
	MaxAttempts  int32
	Expirations  int32
}

// StuckFilter chooses stuck jobs.
type StuckFilter struct {
	Queue     *string
	Diagnoses []Diagnosis
}

// StuckPage is a part of the list of stuck jobs.
type StuckPage struct {
	Jobs []StuckJob
	Next int64
}

// Queue is one kind of work.
type Queue struct {
	Name           string
	Policy         Policy
	OnExpiry       OnExpiry
	StallEndsLease bool
	CreatedAt      time.Time
	PausedAt       *time.Time
	PausedBy       string
	PauseNote      string
}

// QueueUpdate changes a queue. Fields names what to change; the values are in Queue.
type QueueUpdate struct {
	Queue  Queue
	Fields []QueueField
}

// QueueField is a field that UpdateQueue can change.
type QueueField string

// The fields of QueueUpdate, named as the paths of the API's field mask.
const (
	FieldMaxAttempts          QueueField = "policy.max_attempts"
	FieldMaxExpirations       QueueField = "policy.max_expirations"
	FieldBackoffInitial       QueueField = "policy.backoff.initial"
	FieldBackoffFactor        QueueField = "policy.backoff.factor"
	FieldBackoffCap           QueueField = "policy.backoff.cap"
	FieldBackoffJitter        QueueField = "policy.backoff.jitter"
	FieldLeaseDuration        QueueField = "policy.lease_duration"
	FieldMaxRuntime           QueueField = "policy.max_runtime"
	FieldStallTimeout         QueueField = "policy.stall_timeout"
	FieldCancelGrace          QueueField = "policy.cancel_grace"
	FieldIdempotencyRetention QueueField = "policy.idempotency_retention"
	FieldOnExpiry             QueueField = "on_expiry"
	FieldStallEndsLease       QueueField = "stall_ends_lease"
)

// Selection chooses the jobs of a bulk act: IDs, or a page of those that fit Filter.
type Selection struct {
	IDs    []JobID
	Filter *JobFilter
	Page   Page
}

// BulkAct is RetryJobs or CancelJobs for one batch.
type BulkAct struct {
	Selection Selection
	DryRun    bool
	Actor     Actor
}

// BulkItem is what a bulk act did to one job.
type BulkItem struct {
	JobID JobID
	State State // after it, where Err is nil
	Err   error
}

// BulkResult is what one batch did.
type BulkResult struct {
	Items []BulkItem
	Next  int64
}

// CancelResult is what a cancel did.
type CancelResult struct {
	Requested bool // a worker holds it and will be told
	State     State
}

// Resolution states what became of a job.
type Resolution struct {
	JobID  JobID
	Result *Payload // nil: it never will settle (Dead)
	Actor  Actor
}

// Swept is what one page of a sweep did.
type Swept struct {
	Ended int   // leases ended
	Next  JobID // where the next page starts, 0 at the end
}

// Health is what readiness needs to know, read from the database.
type Health struct {
	SchemaVersion   int64
	PartitionsAhead int           // the smallest over the partitioned tables
	WritableFor     time.Duration // since when the service could take heartbeats
	StampAge        time.Duration // age of the last stamp
	SweepAge        time.Duration // since the last finished sweep of any replica
}

// The kinds of HeldSnapshot.Holder.
const (
	HolderSession  = "session"  // a transaction of a client
	HolderPrepared = "prepared" // a prepared transaction that nobody commits
	HolderSlot     = "slot"     // a replication slot
	HolderStandby  = "standby"  // a standby with hot_standby_feedback
)

// Holders are all kinds of HeldSnapshot.Holder.
var Holders = []string{HolderSession, HolderPrepared, HolderSlot, HolderStandby}

// HeldSnapshot is who keeps the database from removing dead rows: they stay in tables and
// indexes, and every scan passes them.
type HeldSnapshot struct {
	Holder string
	// Name is for people: a process number with user and application, a slot, a gid.
	Name string
	// Transactions is how many have begun since that one.
	Transactions int64
	// For is how long its transaction has been open; 0 for a slot, whose time nobody keeps.
	For time.Duration
}
