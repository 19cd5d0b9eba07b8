package server

import (
	"time"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// maxAnswerBytes is how much an answer may have: gRPC's default receive limit of 4 MiB in
// every language, less some room.
const maxAnswerBytes = 4<<20 - 16<<10

// leaseOverhead is what one lease adds to an answer beside its content, with every text at
// its bound: subject, key and owner of 256 bytes each, two stages, token, policy, times.
const leaseOverhead = 1536

// acquire converts an acquire; the second result is how long to wait.
func (in *intake) acquire(r *pb.AcquireLeaseRequest) (store.Acquire, time.Duration) {
	a := store.Acquire{
		Queues:        r.GetQueues(),
		Owner:         r.GetLeaseOwner(),
		MaxJobs:       1,
		LeaseDuration: ceilDuration(r.GetLeaseDuration()),
		RequestID:     r.RequestId,
	}
	if r.MaxJobs != nil {
		a.MaxJobs = int(r.GetMaxJobs())
	}
	if r.JobId != nil {
		a.JobID = in.jobID("job_id", r.GetJobId())
	}
	// A thousand small jobs have more framing than content.
	a.MaxBytes = min(store.DefaultAnswerBytes, maxAnswerBytes-a.MaxJobs*leaseOverhead)
	wait := time.Duration(0)
	if w := ceilDuration(r.GetWait()); w != nil {
		wait = *w
	}
	return a, wait
}

// lease opens a lease token.
func (s *Server) lease(token string) (store.LeaseRef, error) {
	ref, ok := s.tokens.Open(token)
	if !ok {
		return store.LeaseRef{}, &invalidTokenError{field: "lease_token", want: "must be the lease_token of an AcquireLease on this database, unchanged"}
	}
	return ref, nil
}

func (s *Server) heartbeatIn(r *pb.HeartbeatRequest) (store.Heartbeat, error) {
	ref, err := s.lease(r.GetLeaseToken())
	if err != nil {
		return store.Heartbeat{}, err
	}
	return store.Heartbeat{Lease: ref, Stage: r.Stage, Progress: r.Progress, Checkpoint: r.Checkpoint}, nil
}

func (s *Server) completeIn(r *pb.CompleteRequest) (store.Complete, error) {
	ref, err := s.lease(r.GetLeaseToken())
	if err != nil {
		return store.Complete{}, err
	}
	in := s.intake()
	c := store.Complete{Lease: ref, Result: in.payload("result", r.GetResult()), ThenEnqueue: in.thenEnqueue(r.GetThenEnqueue())}
	return c, in.err()
}

func (s *Server) failIn(r *pb.FailRequest) (store.Fail, error) {
	ref, err := s.lease(r.GetLeaseToken())
	if err != nil {
		return store.Fail{}, err
	}
	in := s.intake()
	f := store.Fail{
		Lease: ref,
		Error: store.JobError{
			Code: r.GetError().GetCode(), Message: r.GetError().GetMessage(), Details: r.GetError().GetDetails(),
		},
		Permanent:   r.GetPermanent(),
		RetryAfter:  ceilDuration(r.GetRetryAfter()),
		ThenEnqueue: in.thenEnqueue(r.GetThenEnqueue()),
	}
	return f, in.err()
}

func (s *Server) releaseIn(r *pb.ReleaseRequest) (store.Release, error) {
	ref, err := s.lease(r.GetLeaseToken())
	if err != nil {
		return store.Release{}, err
	}
	out := store.Release{Lease: ref}
	if d := ceilDuration(r.GetDelay()); d != nil {
		out.Delay = *d
	}
	return out, nil
}

func (s *Server) enqueueIn(r *pb.EnqueueRequest) (store.NewJob, error) {
	in := s.intake()
	job := in.newJob("", r)
	return job, in.err()
}
