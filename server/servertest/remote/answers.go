package remote

import (
	"fmt"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// Answers of the API as results of a Store.

// JobID reads an id that the service made; anything else is a fault of the service.
func JobID(id string) store.JobID {
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		panic(fmt.Sprintf("the service answers job id %q", id))
	}
	return store.JobID(n)
}

// JobIDs reads several.
func JobIDs(ids []string) (out []store.JobID) {
	for _, id := range ids {
		out = append(out, JobID(id))
	}
	return out
}

func timeIn(t *timestamppb.Timestamp) *time.Time {
	if t == nil {
		return nil
	}
	return to(t.AsTime())
}

// Duration reads one that may be unset.
func Duration(d *durationpb.Duration) *time.Duration {
	if d == nil {
		return nil
	}
	return to(d.AsDuration())
}

func payloadIn(p *pb.Payload) *store.Payload {
	if p == nil {
		return nil
	}
	out := &store.Payload{ContentType: p.GetContentType(), Data: p.GetData()}
	if c, ok := p.GetContent().(*pb.Payload_Json); ok {
		out.Data, out.JSON = []byte(c.Json), true
	}
	return out
}

func jobErrorIn(e *pb.JobError) *store.JobError {
	if e == nil {
		return nil
	}
	return &store.JobError{Code: e.GetCode(), Message: e.GetMessage(), Details: e.GetDetails()}
}

func policyIn(p *pb.JobPolicy) store.Policy {
	b := p.GetBackoff()
	if b == nil {
		b = &pb.Backoff{}
	}
	if p == nil {
		p = &pb.JobPolicy{}
	}
	return store.Policy{
		MaxAttempts: p.MaxAttempts, MaxExpirations: p.MaxExpirations,
		BackoffInitial: Duration(b.GetInitial()), BackoffFactor: b.Factor, BackoffCap: Duration(b.GetCap()), BackoffJitter: b.Jitter,
		LeaseDuration: Duration(p.GetLeaseDuration()), MaxRuntime: Duration(p.GetMaxRuntime()), StallTimeout: Duration(p.GetStallTimeout()),
		CancelGrace: Duration(p.GetCancelGrace()), IdempotencyRetention: Duration(p.GetIdempotencyRetention()),
	}
}

// UnsetDefaults makes unset, in the policy of a job as answered, what is not set in the
// policy as stored and was answered as the default.
func UnsetDefaults(p *store.Policy, stored store.Policy) {
	unsetDefault(&p.MaxAttempts, stored.MaxAttempts, store.DefaultMaxAttempts)
	unsetDefault(&p.MaxExpirations, stored.MaxExpirations, store.DefaultMaxExpirations)
	unsetDefault(&p.BackoffInitial, stored.BackoffInitial, store.DefaultBackoffInitial)
	unsetDefault(&p.BackoffFactor, stored.BackoffFactor, store.DefaultBackoffFactor)
	unsetDefault(&p.BackoffCap, stored.BackoffCap, store.DefaultBackoffCap)
	unsetDefault(&p.BackoffJitter, stored.BackoffJitter, store.DefaultBackoffJitter)
	unsetDefault(&p.LeaseDuration, stored.LeaseDuration, store.DefaultLeaseDuration)
	unsetDefault(&p.CancelGrace, stored.CancelGrace, store.DefaultCancelGrace)
	unsetDefault(&p.IdempotencyRetention, stored.IdempotencyRetention, store.DefaultIdempotencyRetention)
}

func unsetDefault[T comparable](answered **T, stored *T, value T) {
	if stored == nil && *answered != nil && **answered == value {
		*answered = nil
	}
}

func jobIn(j *pb.Job) store.Job {
	out := store.Job{
		ID: JobID(j.GetJobId()), Queue: j.GetQueue(), State: store.State(j.GetState()), Subject: j.Subject, Priority: j.GetPriority(),
		RunAt: j.GetRunAt().AsTime(), CreatedAt: j.GetCreatedAt().AsTime(), IdempotencyKey: j.IdempotencyKey,
		Policy: policyIn(j.GetPolicy()), AttemptsUsed: j.GetAttemptsUsed(), Expirations: j.GetExpirations(),
		LeaseNo: j.GetLeaseNo(), LeaseOwner: j.LeaseOwner, LeaseUntil: timeIn(j.GetLeaseUntil()), Stage: j.Stage, Progress: j.Progress,
		CancelRequestedAt: timeIn(j.GetCancelRequestedAt()), FinishedAt: timeIn(j.GetFinishedAt()), CompletedLate: j.GetCompletedLate(),
		LastError: jobErrorIn(j.GetLastError()), StateReason: j.GetStateReason(),
		Payload: payloadIn(j.GetPayload()), Headers: j.GetHeaders(), Result: payloadIn(j.GetResult()), Checkpoint: j.Checkpoint,
	}
	if j.ParentJobId != nil {
		out.ParentJobID = to(JobID(j.GetParentJobId()))
	}
	return out
}

func leaseIn(l *pb.Lease) store.Lease {
	out := store.Lease{
		Job: jobIn(l.GetJob()), LeaseNo: l.GetLeaseNo(), Attempt: l.GetAttempt(), Until: l.GetLeaseUntil().AsTime(),
		Remaining: l.GetRemaining().AsDuration(), LastStage: l.LastStage, Checkpoint: l.LastCheckpoint,
	}
	out.Job.Checkpoint = l.LastCheckpoint
	return out
}

func recordsIn(records []*pb.LeaseRecord) (out []store.LeaseRecord) {
	for _, r := range records {
		out = append(out, recordIn(r))
	}
	return out
}

func recordIn(r *pb.LeaseRecord) store.LeaseRecord {
	out := store.LeaseRecord{
		JobID: JobID(r.GetJobId()), LeaseNo: r.GetLeaseNo(), Owner: r.GetLeaseOwner(), LeasedAt: r.GetLeasedAt().AsTime(),
		Until: r.GetLeaseUntil().AsTime(), EndedAt: timeIn(r.GetEndedAt()), End: store.End(r.GetEnd()), Cancelled: r.GetCancelled(),
		Counted: r.GetCounted(), Beats: r.GetBeats(), LastBeatAt: timeIn(r.GetLastBeatAt()), LargestGap: r.GetLargestGap().AsDuration(),
		Stage: r.Stage, Progress: r.Progress, Error: jobErrorIn(r.GetError()), FollowUps: JobIDs(r.GetThenEnqueueJobIds()),
	}
	for _, c := range r.GetStages() {
		out.Stages = append(out.Stages, store.StageChange{At: c.GetAt().AsTime(), Stage: c.GetStage()})
	}
	if l := r.GetLateCalls(); l != nil {
		out.LateCalls = &store.LateCalls{
			Count: l.GetCount(), FirstAt: l.GetFirstAt().AsTime(), LastAt: l.GetLastAt().AsTime(),
			LastCall: l.GetLastCall(), LateBy: l.GetLateBy().AsDuration(),
		}
	}
	return out
}

func stuckIn(j *pb.StuckJob) store.StuckJob {
	return store.StuckJob{
		JobID: JobID(j.GetJobId()), Queue: j.GetQueue(), State: store.State(j.GetState()), Subject: j.Subject,
		Diagnosis: store.Diagnosis(j.GetDiagnosis()), Since: j.GetSince().AsTime(), Owner: j.LeaseOwner, LeaseNo: j.GetLeaseNo(),
		LeaseUntil: timeIn(j.GetLeaseUntil()), LastBeatAt: timeIn(j.GetLastBeatAt()), Stage: j.Stage,
		AttemptsUsed: j.GetAttemptsUsed(), MaxAttempts: j.GetMaxAttempts(), Expirations: j.GetExpirations(),
	}
}

func queueIn(q *pb.Queue) store.Queue {
	return store.Queue{
		Name: q.GetName(), Policy: policyIn(q.GetPolicy()), OnExpiry: store.OnExpiry(q.GetOnExpiry()), StallEndsLease: q.GetStallEndsLease(),
		CreatedAt: q.GetCreatedAt().AsTime(), PausedAt: timeIn(q.GetPausedAt()), PausedBy: q.GetPausedBy(), PauseNote: q.GetPauseNote(),
	}
}

func enqueuedIn(r *pb.EnqueueResponse, err error) store.Enqueued {
	if err != nil {
		return store.Enqueued{Err: err}
	}
	return store.Enqueued{JobID: JobID(r.GetJobId()), Created: r.GetCreated()}
}

func (r *Store) beatenIn(b *pb.HeartbeatResponse, err error) store.Beaten {
	if err != nil {
		return store.Beaten{Err: err}
	}
	advised, remaining, draining := b.GetNextHeartbeatIn().AsDuration(), b.GetRemaining().AsDuration(), b.GetServerDraining()
	if advised != remaining/3 || draining && !r.Drains {
		return store.Beaten{Err: fmt.Errorf("next heartbeat in %s of %s, draining %t", advised, remaining, draining)}
	}
	return store.Beaten{
		Until: b.GetLeaseUntil().AsTime(), Remaining: b.GetRemaining().AsDuration(), CancelRequested: b.GetCancelRequested(),
	}
}

func completionIn(r *pb.CompleteResponse, err error) store.Completion {
	return store.Completion{
		AlreadyApplied: r.GetAlreadyApplied(), Late: r.GetLate(), FollowUps: JobIDs(r.GetThenEnqueueJobIds()), Err: err,
	}
}

func failedIn(r *pb.FailResponse, err error) store.Ended {
	return store.Ended{
		State: store.State(r.GetState()), AttemptsLeft: r.GetAttemptsLeft(), NextRunAt: timeIn(r.GetNextRunAt()),
		NextRunIn: r.GetNextRunIn().AsDuration(), AlreadyApplied: r.GetAlreadyApplied(), FollowUps: JobIDs(r.GetThenEnqueueJobIds()), Err: err,
	}
}

func releasedIn(r *pb.ReleaseResponse, err error) store.Ended {
	return store.Ended{
		State: store.State(r.GetState()), NextRunAt: timeIn(r.GetNextRunAt()), NextRunIn: r.GetNextRunIn().AsDuration(),
		AlreadyApplied: r.GetAlreadyApplied(), Err: err,
	}
}
