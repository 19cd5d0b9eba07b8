package store

import (
	"context"
	"time"
)

// Inspector tells people how the system stands. It changes nothing, and what a call reads is
// bounded whatever waits or was kept.
type Inspector interface {
	// ExplainJob reads what decides whether a job may run now. Errors: JobNotFoundError.
	ExplainJob(ctx context.Context, id JobID) (*JobStanding, error)
	// QueueStats counts the jobs of queues, in the order of names. A queue that does not
	// exist has zeros.
	QueueStats(ctx context.Context, names []string) ([]QueueStats, error)
	// LintFacts reads what lint judges. Errors: QueueNotFoundError.
	LintFacts(ctx context.Context, q LintQuery) (*LintFacts, error)
}

const (
	// MaxJobsAhead is where JobStanding.Ahead stops.
	MaxJobsAhead = 1000
	// MaxQueueCount is where each number of QueueStats stops.
	MaxQueueCount = 10_000
)

// JobStanding is what decides whether a job may run now, under one snapshot.
type JobStanding struct {
	At    time.Time // the database's now
	Queue string
	State State
	// DueIn is how long until run_at, 0 where it has come; of a PENDING job.
	DueIn     time.Duration
	PausedAt  *time.Time
	PausedBy  string
	PauseNote string
	// Whole: its payload is there. Without it no lease is granted.
	Whole bool
	// Ahead is how many due jobs of the queue come before it, at most MaxJobsAhead; of a
	// PENDING job that is due.
	Ahead int64
	// LastLeaseAt is when a job of the queue was last leased, among the newest jobs.
	LastLeaseAt *time.Time
	LeaseOwner  *string
	// LeaseRemaining is what is left of the lease, 0 or less where it ran out; of a
	// PROCESSING job.
	LeaseRemaining time.Duration
}

// QueueStats are the jobs of one queue; each count stops at MaxQueueCount.
type QueueStats struct {
	Queue      string
	Ready      int64 // PENDING and due
	Scheduled  int64 // PENDING with run_at ahead
	Processing int64
	Stuck      int64
	Dead       int64          // in the history that is kept
	OldestAge  *time.Duration // since the oldest ready job was due; nil: none is ready
}

// LintQuery says what lint looks at.
type LintQuery struct {
	Queue             *string       // nil: all, and the database as a whole
	LookBack          time.Duration // leases that began within it
	MaxTransactionAge time.Duration // older ones are told
}

// LintFacts is what lint judges.
type LintFacts struct {
	At     time.Time
	Leases int64 // looked at
	Queues []QueueLeases
	// Of the database as a whole; empty where only a queue was asked for.
	SweepAge time.Duration // since the last finished sweep of any replica, or since the service is back
	Overdue  int64         // leases that ran out before that and were not ended
	Holders  []HeldSnapshot
	Tables   []TableFacts
	// JobsPerDay is the pace of the newest jobs, 0 where they are too few to tell.
	JobsPerDay float64
}

// QueueLeases are the newest leases of one queue.
type QueueLeases struct {
	Queue    string
	OnExpiry OnExpiry
	Leases   int64
	// Answered are those whose holder was heard of at their end or later, so that their
	// largest gap is a gap in the work and not the silence of a worker that died. Gaps are
	// between signs of life: the start of the lease, heartbeats, its end, late calls.
	Answered    int64
	GapP99      time.Duration
	GapMax      time.Duration
	GapShareP99 float64       // of the lease
	LeaseOfMax  time.Duration // length of the lease with the largest gap
	// Tight are answered leases with a gap of two thirds of the lease or more.
	Tight int64
	// Outlived are answered leases with a gap longer than the lease, split by whether they
	// ever sent a heartbeat.
	OutlivedBeating, OutlivedSilent int64
	LongestSilent                   time.Duration // the longest of the latter
	LeaseOfSilent                   time.Duration // the shortest lease among the latter
	ByTime                          int64         // ended by expiry, overrun or stall
	DoubleRuns                      int64         // leases whose holder called after another had begun
	LateCalls                       int64
	Owners                          int64 // different ones
	MainOwner                       string
	MainOwnerLeases                 int64
	BlankOwners                     int64 // leases whose owner is blank or a placeholder
	BlankOwner                      string
}

// TableFacts are the size and the rows of one table with all its partitions, as the
// database's statistics have them.
type TableFacts struct {
	Table              string
	Partitions         int64
	Bytes              int64
	LiveRows, DeadRows int64
	Updates, HOT       int64 // updates since the statistics were reset, and the heap-only ones
	VacuumedAgo        *time.Duration
}
