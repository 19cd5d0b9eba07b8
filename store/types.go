package store

import "time"

// JobID identifies a job. It is positive.
type JobID int64

// LeaseRef names exactly one lease: the LeaseNo-th of job JobID. Every change of a lease
// is scoped to it, so that a late message from the past is harmless.
type LeaseRef struct {
	JobID   JobID
	LeaseNo int64
}

// State is where a job stands. The numbers are stored.
type State int16

// The states. Completed, Dead and Cancelled are terminal.
const (
	Pending    State = 1
	Processing State = 2
	Stuck      State = 3
	Completed  State = 4
	Dead       State = 5
	Cancelled  State = 6
)

var stateNames = map[State]string{
	Pending: "PENDING", Processing: "PROCESSING", Stuck: "STUCK",
	Completed: "COMPLETED", Dead: "DEAD", Cancelled: "CANCELLED",
}

func (s State) String() string { return stateNames[s] }

// Terminal tells whether only RetryJobs, ResolveJob or a late Complete can change it.
func (s State) Terminal() bool { return s >= Completed }

// End is how a lease ended. The numbers are stored.
type End int16

// The ends. EndNone is a lease that has not ended.
const (
	EndNone              End = 0
	EndCompleted         End = 1
	EndCompletedLate     End = 2
	EndFailed            End = 3
	EndFailedPermanently End = 4
	EndExpired           End = 5
	EndOverran           End = 6
	EndStalled           End = 7
	EndReleased          End = 8
	EndUndelivered       End = 9
)

// OnExpiry is what an expired lease does to its job. The numbers are stored.
type OnExpiry int16

// OnExpiryUnset acts as OnExpiryRequeue; lint tells the two apart.
const (
	OnExpiryUnset   OnExpiry = 0
	OnExpiryRequeue OnExpiry = 1
	OnExpiryHold    OnExpiry = 2
)

// Payload is content that is carried and never looked into.
type Payload struct {
	Data        []byte // at most 1 MiB
	JSON        bool   // Data is one JSON value, kept byte for byte
	ContentType string
}

// Policy says how often and how long a job may run. A nil field is unset: of a job, the
// queue's value was unset too; of a queue, the default holds. See DefaultPolicy.
type Policy struct {
	MaxAttempts          *int32
	MaxExpirations       *int32
	BackoffInitial       *time.Duration
	BackoffFactor        *float64
	BackoffCap           *time.Duration
	BackoffJitter        *float64
	LeaseDuration        *time.Duration
	MaxRuntime           *time.Duration // nil: no bound
	StallTimeout         *time.Duration // nil: never
	CancelGrace          *time.Duration
	IdempotencyRetention *time.Duration
}

// The values of a policy that nobody set. The SQL has the same literals; a test compares
// the two.
const (
	DefaultMaxAttempts          = 25
	DefaultMaxExpirations       = 5
	DefaultBackoffInitial       = time.Second
	DefaultBackoffFactor        = 2.0
	DefaultBackoffCap           = time.Hour
	DefaultBackoffJitter        = 0.2
	DefaultLeaseDuration        = time.Minute
	DefaultCancelGrace          = 5 * time.Minute
	DefaultIdempotencyRetention = 7 * 24 * time.Hour
	DefaultPriority             = 5
)

// Bounds that the schema's CHECK constraints enforce as well.
const (
	MaxPayloadBytes    = 1 << 20
	MaxHeadersBytes    = 16 << 10
	MaxCheckpointBytes = 64 << 10
	MaxErrorTextBytes  = 16 << 10
	MaxErrorCodeBytes  = 128
	MaxBatch           = 1000
	MaxThenEnqueue     = 100
	MaxStageChanges    = 1000
	// MaxAhead is how far run_at, delay and retry_after may lie ahead: 5 years.
	MaxAhead = 1827 * 24 * time.Hour
)

// NewJob is what Enqueue stores.
type NewJob struct {
	Queue          string
	Payload        Payload
	Headers        map[string]string
	Subject        *string
	Priority       *int32
	RunAt          *time.Time     // not together with Delay; the past counts as now
	Delay          *time.Duration // from the database's now
	IdempotencyKey *string
	Policy         Policy
}

// Enqueued is what became of one NewJob.
type Enqueued struct {
	JobID   JobID
	Created bool // false: the key belonged to this job already
	Err     error
}

// Acquire asks for leases, by Queues or by JobID.
type Acquire struct {
	Queues        []string // in order of preference; empty when by JobID
	JobID         JobID    // 0 when by Queues
	Owner         string
	MaxJobs       int
	MaxBytes      int // of payloads, headers and checkpoints together; 0: DefaultAnswerBytes
	LeaseDuration *time.Duration
	RequestID     *string
}

// DefaultAnswerBytes keeps an answer with its framing under gRPC's default of 4 MiB.
const DefaultAnswerBytes = 3 << 20

// EmptyReason says why an Acquire has no leases.
type EmptyReason int

// The reasons; NotEmpty where there are leases.
const (
	NotEmpty EmptyReason = iota
	NoReadyJobs
	QueuePaused
	JobLeased
	JobNotDue
	JobStuck
	JobFinished
)

// Acquired is the answer to one Acquire.
type Acquired struct {
	Leases []Lease
	Empty  EmptyReason
	Err    error
}

// Lease is the claim of one worker on one job, as granted.
type Lease struct {
	Job        Job // FULL, without LastError
	LeaseNo    int64
	Attempt    int32 // attempts used so far, plus one
	Until      time.Time
	Remaining  time.Duration // by the database's clock, when granted
	LastStage  *string       // of the lease before
	Checkpoint []byte        // of the leases before; nil: none
}

// Ref names the lease.
func (l *Lease) Ref() LeaseRef { return LeaseRef{JobID: l.Job.ID, LeaseNo: l.LeaseNo} }

// Heartbeat renews one lease. Nil fields keep what was there.
type Heartbeat struct {
	Lease      LeaseRef
	Stage      *string
	Progress   *float64
	Checkpoint []byte // nil: unset; empty: emptied
}

// Beaten is the answer to one Heartbeat.
type Beaten struct {
	Until           time.Time
	Remaining       time.Duration
	CancelRequested bool
	Err             error
}

// Complete ends one lease and its job.
type Complete struct {
	Lease       LeaseRef
	Result      Payload
	ThenEnqueue []NewJob // at most MaxThenEnqueue
}

// Completion is the answer to one Complete.
type Completion struct {
	AlreadyApplied bool
	Late           bool
	FollowUps      []JobID
	Err            error
}

// JobError is what a worker reports; texts are cut and cleaned by CleanJobError.
type JobError struct {
	Code    string
	Message string
	Details string
}

// Fail ends one lease with an error.
type Fail struct {
	Lease       LeaseRef
	Error       JobError
	Permanent   bool
	RetryAfter  *time.Duration
	ThenEnqueue []NewJob
}

// Release gives one lease back.
type Release struct {
	Lease LeaseRef
	Delay time.Duration
}

// Ended is the answer to one Fail or Release.
type Ended struct {
	Queue          string // of the job; set where Pending
	State          State
	AttemptsLeft   int32
	NextRunAt      *time.Time // set where Pending
	NextRunIn      time.Duration
	AlreadyApplied bool
	FollowUps      []JobID
	Err            error
}

// Job is a job as stored.
type Job struct {
	ID                JobID
	Queue             string
	State             State
	Subject           *string
	Priority          int32
	RunAt             time.Time
	CreatedAt         time.Time
	IdempotencyKey    *string // while the job owns it
	Policy            Policy
	AttemptsUsed      int32
	Expirations       int32
	LeaseNo           int64
	LeaseOwner        *string
	LeaseUntil        *time.Time
	Stage             *string
	Progress          *float64
	CancelRequestedAt *time.Time
	FinishedAt        *time.Time
	CompletedLate     bool
	LastError         *JobError
	StateReason       string
	ParentJobID       *JobID
	// View FULL only:
	Payload    *Payload // nil: not asked for, or dropped by retention
	Headers    map[string]string
	Result     *Payload
	Checkpoint []byte
}

// LeaseRecord is what is kept of one lease.
type LeaseRecord struct {
	JobID      JobID
	LeaseNo    int64
	Owner      string
	LeasedAt   time.Time
	Until      time.Time
	EndedAt    *time.Time
	End        End
	Cancelled  bool
	Counted    bool
	Beats      int64
	LastBeatAt *time.Time
	LargestGap time.Duration
	Stage      *string
	Progress   *float64
	Error      *JobError
	Stages     []StageChange
	LateCalls  *LateCalls
	FollowUps  []JobID
}

// StageChange is one entry of a lease's timeline.
type StageChange struct {
	At    time.Time
	Stage string
}

// LateCalls counts calls of a former holder after its lease was superseded.
type LateCalls struct {
	Count    int64
	FirstAt  time.Time
	LastAt   time.Time
	LastCall string
	LateBy   time.Duration
}

// OperatorAct is one recorded act on a job.
type OperatorAct struct {
	At    time.Time
	Act   string // "cancel", "retry", "resolve_completed", "resolve_dead"
	Actor string
	Note  string
}

// Actor says who acts and why, as stated by the caller.
type Actor struct {
	Name string
	Note string
}
