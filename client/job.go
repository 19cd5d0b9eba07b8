package client

import (
	"context"
	"log/slog"
	"maps"
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

const (
	maxStageBytes      = 128
	maxCheckpointBytes = 64 << 10
)

// Job is one job, as its handler sees it for the length of one lease. Its methods may be called by
// several goroutines at once, but those that say what is to happen at the end (SetResult,
// ThenEnqueue) only before the handler returns.
type Job struct {
	lease  *lease
	wire   *pb.Lease
	result Payload
	then   []NewJob
}

// ID identifies the job; an opaque string.
func (j *Job) ID() string { return j.wire.GetJob().GetJobId() }

// Queue is the queue that it was leased from.
func (j *Job) Queue() string { return j.wire.GetJob().GetQueue() }

// Subject is the business key that the producer gave, or empty.
func (j *Job) Subject() string { return j.wire.GetJob().GetSubject() }

// Payload is what the producer gave. Do not change its bytes.
func (j *Job) Payload() Payload { return payloadOf(j.wire.GetJob().GetPayload()) }

// Headers are those that the producer gave, as a copy.
func (j *Job) Headers() map[string]string { return maps.Clone(j.wire.GetJob().GetHeaders()) }

// LeaseNo is the fencing number: give it to every system that the work changes, and let that
// refuse a number below the highest which it has seen for this job. It rises with every lease.
func (j *Job) LeaseNo() int64 { return j.wire.GetLeaseNo() }

// Attempt is the how-many-eth attempt this is, from 1.
func (j *Job) Attempt() int { return int(j.wire.GetAttempt()) }

// MaxAttempts is how many attempts the job may use.
func (j *Job) MaxAttempts() int { return int(j.wire.GetMaxAttempts()) }

// LastStage is where the work stopped in an earlier lease, or empty.
func (j *Job) LastStage() string { return j.wire.GetLastStage() }

// LastCheckpoint is what an earlier lease left by Checkpoint, or nil. Do not change its bytes.
func (j *Job) LastCheckpoint() []byte { return j.wire.GetLastCheckpoint() }

// Details is all else that the service says of the job, as a copy.
func (j *Job) Details() *pb.Job { return proto.CloneOf(j.wire.GetJob()) }

// Remaining is how long the lease is surely the handler's if no heartbeat succeeds any more, by a
// clock that counts the sleep of the machine. It is 0 once the lease may be another's.
func (j *Job) Remaining() time.Duration { return j.lease.remaining() }

// Log is the worker's logger with the job's id, queue and lease_no.
func (j *Job) Log() *slog.Logger {
	return j.lease.keeper.log.With(slog.String("job_id", j.ID()), slog.String("queue", j.Queue()), slog.Int64("lease_no", j.LeaseNo()))
}

// Stage says where the work is, as "psp_call": at most 128 bytes of UTF-8 without NUL. It sends a
// heartbeat now, merged with those of other jobs, and returns nil when the service has recorded
// it. So a step behind a Stage begins only while the lease is surely held. The error is the
// cause of ctx where that ends first (the stage then goes with the next heartbeat), *InvalidError,
// *CallError where the service refused it, or *JobOverError.
func (j *Job) Stage(ctx context.Context, stage string) error {
	if len(stage) > maxStageBytes || !validText(stage) {
		return &InvalidError{Field: "stage", Want: "at most 128 bytes of UTF-8 without NUL"}
	}
	return j.lease.keeper.report(ctx, j.lease, func(n *note) { n.stage = &stage })
}

// Checkpoint leaves state to resume from to the next lease, at most 64 KiB; empty empties it. It
// sends a heartbeat now and returns nil when the service has stored it; errors as Stage. The bytes
// must not be changed before the handler returns.
func (j *Job) Checkpoint(ctx context.Context, state []byte) error {
	if len(state) > maxCheckpointBytes {
		return &InvalidError{Field: "checkpoint", Want: "at most 65536 bytes"}
	}
	if state == nil {
		state = []byte{} // nil would mean: as before
	}
	return j.lease.keeper.report(ctx, j.lease, func(n *note) { n.checkpoint = state })
}

// Progress says how far the work is, 0..1; what is outside is taken as the bound. It goes with the
// next heartbeat, and is not sent where the handler returns before. It never waits.
func (j *Job) Progress(done float64) {
	if math.IsNaN(done) {
		return
	}
	done = min(max(done, 0), 1)
	j.lease.keeper.mention(j.lease, func(n *note) { n.progress = &done })
}

// SetResult is what to keep with the job if the handler returns nil. The last one counts. Above
// 1 MiB the job fails instead, with code "result_refused".
func (j *Job) SetResult(result Payload) { j.result = result }

// ThenEnqueue adds jobs that are enqueued in the transaction which completes this one, at most 100
// in all, and only if the handler returns nil. Where the service refuses one, this job fails
// instead, with code "result_refused". They carry the trace of the handler's context.
func (j *Job) ThenEnqueue(jobs ...NewJob) { j.then = append(j.then, jobs...) }
