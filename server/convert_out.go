package server

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

func timeOut(t *time.Time) *timestamppb.Timestamp {
	if t == nil {
		return nil
	}
	return timestamppb.New(*t)
}

func durationOut(d *time.Duration) *durationpb.Duration {
	if d == nil {
		return nil
	}
	return durationpb.New(*d)
}

func payloadOut(p *store.Payload) *pb.Payload { return new(arena).payload(p) }

func (a *arena) payload(p *store.Payload) *pb.Payload {
	if p == nil {
		return nil
	}
	out := take(&a.payloads)
	out.ContentType = p.ContentType
	switch {
	case p.JSON:
		out.Content = &pb.Payload_Json{Json: string(p.Data)}
	case len(p.Data) > 0:
		out.Content = &pb.Payload_Data{Data: p.Data}
	}
	return out
}

func jobErrorOut(e *store.JobError) *pb.JobError {
	if e == nil {
		return nil
	}
	return &pb.JobError{Code: e.Code, Message: e.Message, Details: e.Details}
}

func jobOut(j *store.Job, full bool) *pb.Job { return new(arena).job(j, full) }

// job converts a job. What only the FULL view has is dropped from others here, whatever the
// store gave.
func (a *arena) job(j *store.Job, full bool) *pb.Job {
	out := take(&a.jobs)
	out.JobId = formatID(j.ID)
	out.Queue = j.Queue
	out.State = pb.JobState(j.State)
	out.Subject = j.Subject
	out.Priority = j.Priority
	out.RunAt = a.time(j.RunAt)
	out.CreatedAt = a.time(j.CreatedAt)
	out.IdempotencyKey = j.IdempotencyKey
	out.Policy = a.policyInForce(j.Policy)
	out.AttemptsUsed = j.AttemptsUsed
	out.Expirations = j.Expirations
	out.LeaseNo = j.LeaseNo
	out.LeaseOwner = j.LeaseOwner
	out.LeaseUntil = a.timeOrNil(j.LeaseUntil)
	out.Stage = j.Stage
	out.Progress = j.Progress
	out.CancelRequestedAt = a.timeOrNil(j.CancelRequestedAt)
	out.FinishedAt = a.timeOrNil(j.FinishedAt)
	out.CompletedLate = j.CompletedLate
	out.LastError = jobErrorOut(j.LastError)
	out.StateReason = j.StateReason
	if j.ParentJobID != nil {
		id := formatID(*j.ParentJobID)
		out.ParentJobId = &id
	}
	if full {
		out.Payload = a.payload(j.Payload)
		out.Headers = j.Headers
		out.Result = a.payload(j.Result)
		out.Checkpoint = j.Checkpoint
	}
	return out
}

// leaseOut converts a granted lease.
func (s *Server) leaseOut(a *arena, l *store.Lease) *pb.Lease {
	job := a.job(&l.Job, true)
	job.Checkpoint = nil // it is in last_checkpoint; twice would break the answer's bound
	out := take(&a.leases)
	out.Job = job
	out.LeaseToken = s.tokens.Seal(l.Ref())
	out.LeaseNo = l.LeaseNo
	out.Attempt = l.Attempt
	out.MaxAttempts = job.GetPolicy().GetMaxAttempts()
	out.LeaseUntil = a.time(l.Until)
	out.Remaining = a.duration(l.Remaining)
	out.NextHeartbeatIn = a.duration(l.Remaining / 3)
	out.LastStage = l.LastStage
	out.LastCheckpoint = l.Checkpoint
	return out
}

func leaseRecordOut(r *store.LeaseRecord) *pb.LeaseRecord {
	out := &pb.LeaseRecord{
		JobId:             formatID(r.JobID),
		LeaseNo:           r.LeaseNo,
		LeaseOwner:        r.Owner,
		LeasedAt:          timestamppb.New(r.LeasedAt),
		LeaseUntil:        timestamppb.New(r.Until),
		EndedAt:           timeOut(r.EndedAt),
		End:               pb.LeaseEnd(r.End),
		Cancelled:         r.Cancelled,
		Counted:           r.Counted,
		Beats:             r.Beats,
		LastBeatAt:        timeOut(r.LastBeatAt),
		LargestGap:        durationpb.New(r.LargestGap),
		Stage:             r.Stage,
		Progress:          r.Progress,
		Error:             jobErrorOut(r.Error),
		ThenEnqueueJobIds: formatIDs(r.FollowUps),
	}
	for _, c := range r.Stages {
		out.Stages = append(out.Stages, &pb.StageChange{At: timestamppb.New(c.At), Stage: c.Stage})
	}
	if l := r.LateCalls; l != nil {
		out.LateCalls = &pb.LateCalls{
			Count:    l.Count,
			FirstAt:  timestamppb.New(l.FirstAt),
			LastAt:   timestamppb.New(l.LastAt),
			LastCall: l.LastCall,
			LateBy:   durationpb.New(l.LateBy),
		}
	}
	return out
}

func (s *Server) heartbeatOut(b store.Beaten) (*pb.HeartbeatResponse, error) {
	if b.Err != nil {
		return nil, b.Err
	}
	return &pb.HeartbeatResponse{
		Remaining:       durationpb.New(b.Remaining),
		NextHeartbeatIn: durationpb.New(b.Remaining / 3),
		LeaseUntil:      timestamppb.New(b.Until),
		CancelRequested: b.CancelRequested,
		ServerDraining:  s.Draining(),
	}, nil
}

// Most items of most batches are answered with nothing to say: they share one message each.
var (
	plainCompletion = &pb.CompleteResponse{}
	plainCompleted  = &pb.BatchCompleteResult{Result: &pb.BatchCompleteResult_Ok{Ok: plainCompletion}}
)

func completeOut(c store.Completion) (*pb.CompleteResponse, error) {
	switch {
	case c.Err != nil:
		return nil, c.Err
	case !c.AlreadyApplied && !c.Late && len(c.FollowUps) == 0:
		return plainCompletion, nil
	}
	return &pb.CompleteResponse{
		AlreadyApplied: c.AlreadyApplied, Late: c.Late, ThenEnqueueJobIds: formatIDs(c.FollowUps),
	}, nil
}

func failOut(e store.Ended) (*pb.FailResponse, error) {
	if e.Err != nil {
		return nil, e.Err
	}
	at, in := nextRun(e)
	return &pb.FailResponse{
		State:             pb.JobState(e.State),
		AttemptsLeft:      e.AttemptsLeft,
		NextRunAt:         at,
		NextRunIn:         in,
		AlreadyApplied:    e.AlreadyApplied,
		ThenEnqueueJobIds: formatIDs(e.FollowUps),
	}, nil
}

func releaseOut(e store.Ended) (*pb.ReleaseResponse, error) {
	if e.Err != nil {
		return nil, e.Err
	}
	at, in := nextRun(e)
	return &pb.ReleaseResponse{
		State: pb.JobState(e.State), NextRunAt: at, NextRunIn: in, AlreadyApplied: e.AlreadyApplied,
	}, nil
}

// nextRun is when an ended job runs next, both ways; nil where it does not.
func nextRun(e store.Ended) (*timestamppb.Timestamp, *durationpb.Duration) {
	if e.NextRunAt == nil {
		return nil, nil
	}
	return timestamppb.New(*e.NextRunAt), durationpb.New(e.NextRunIn)
}

func enqueueOut(e store.Enqueued) (*pb.EnqueueResponse, error) {
	if e.Err != nil {
		return nil, e.Err
	}
	return &pb.EnqueueResponse{JobId: formatID(e.JobID), Created: e.Created}, nil
}
