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

func payloadOut(p *store.Payload) *pb.Payload {
	if p == nil {
		return nil
	}
	out := &pb.Payload{ContentType: p.ContentType}
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

// jobOut converts a job. What only the FULL view has is dropped from others here, whatever
// the store gave.
func jobOut(j *store.Job, full bool) *pb.Job {
	out := &pb.Job{
		JobId:             formatID(j.ID),
		Queue:             j.Queue,
		State:             pb.JobState(j.State),
		Subject:           j.Subject,
		Priority:          j.Priority,
		RunAt:             timestamppb.New(j.RunAt),
		CreatedAt:         timestamppb.New(j.CreatedAt),
		IdempotencyKey:    j.IdempotencyKey,
		Policy:            policyOut(inForce(j.Policy)),
		AttemptsUsed:      j.AttemptsUsed,
		Expirations:       j.Expirations,
		LeaseNo:           j.LeaseNo,
		LeaseOwner:        j.LeaseOwner,
		LeaseUntil:        timeOut(j.LeaseUntil),
		Stage:             j.Stage,
		Progress:          j.Progress,
		CancelRequestedAt: timeOut(j.CancelRequestedAt),
		FinishedAt:        timeOut(j.FinishedAt),
		CompletedLate:     j.CompletedLate,
		LastError:         jobErrorOut(j.LastError),
		StateReason:       j.StateReason,
	}
	if j.ParentJobID != nil {
		id := formatID(*j.ParentJobID)
		out.ParentJobId = &id
	}
	if full {
		out.Payload = payloadOut(j.Payload)
		out.Headers = j.Headers
		out.Result = payloadOut(j.Result)
		out.Checkpoint = j.Checkpoint
	}
	return out
}

// leaseOut converts a granted lease.
func (s *Server) leaseOut(l *store.Lease) *pb.Lease {
	job := jobOut(&l.Job, true)
	job.Checkpoint = nil // it is in last_checkpoint; twice would break the answer's bound
	return &pb.Lease{
		Job:             job,
		LeaseToken:      s.tokens.Seal(l.Ref()),
		LeaseNo:         l.LeaseNo,
		Attempt:         l.Attempt,
		MaxAttempts:     job.GetPolicy().GetMaxAttempts(),
		LeaseUntil:      timestamppb.New(l.Until),
		Remaining:       durationpb.New(l.Remaining),
		NextHeartbeatIn: durationpb.New(l.Remaining / 3),
		LastStage:       l.LastStage,
		LastCheckpoint:  l.Checkpoint,
	}
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

func completeOut(c store.Completion) (*pb.CompleteResponse, error) {
	if c.Err != nil {
		return nil, c.Err
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
