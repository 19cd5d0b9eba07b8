package server

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// workersGone is how long ago the last lease of a queue may be before its workers count as
// gone, where none waits at this replica either.
const workersGone = time.Minute

func (j *jobService) explain(ctx context.Context, id store.JobID) (*pb.JobExplanation, error) {
	s, err := j.store.ExplainJob(ctx, id)
	if err != nil {
		return nil, err
	}
	return explanationOut(s, j.polls.waiters.countOf(s.Queue)), nil
}

// explanationOut says all that keeps a job from running, in the order in which it has to be
// mended: what is decided by the job itself leaves nothing else to say.
func explanationOut(s *store.JobStanding, waiting int) *pb.JobExplanation {
	e := &explanation{out: &pb.JobExplanation{AsOf: timestamppb.New(s.At), WaitingWorkers: int32(waiting), LastLeaseAt: timeOut(s.LastLeaseAt)}}
	switch {
	case s.State.Terminal():
		e.add(pb.WaitReason_WAIT_REASON_FINISHED, "It is %s: it does not run again unless it is retried.", s.State)
	case s.State == store.Stuck:
		e.add(pb.WaitReason_WAIT_REASON_HELD, "It is STUCK: an operator decides whether to retry, resolve or cancel it.")
	case s.State == store.Processing:
		e.leased(s)
	default:
		e.pending(s, waiting)
	}
	return e.out
}

type explanation struct{ out *pb.JobExplanation }

func (e *explanation) add(reason pb.WaitReason, format string, args ...any) {
	e.out.Reasons = append(e.out.Reasons, reason)
	e.out.Texts = append(e.out.Texts, fmt.Sprintf(format, args...))
}

func (e *explanation) leased(s *store.JobStanding) {
	owner := ""
	if s.LeaseOwner != nil {
		owner = *s.LeaseOwner
	}
	if s.LeaseRemaining <= 0 {
		e.out.LeaseRemaining = durationpb.New(0)
		e.add(pb.WaitReason_WAIT_REASON_LEASE_RAN_OUT, "The lease of %s ran out %s ago and has not been ended yet: the watcher does that.",
			owner, short(-s.LeaseRemaining))
		return
	}
	e.out.LeaseRemaining = durationpb.New(s.LeaseRemaining)
	e.add(pb.WaitReason_WAIT_REASON_LEASED, "It is leased by %s for %s more, unless renewed.", owner, short(s.LeaseRemaining))
}

func (e *explanation) pending(s *store.JobStanding, waiting int) {
	if !s.Whole {
		e.add(pb.WaitReason_WAIT_REASON_PAYLOAD_GONE, "Its payload is gone: it cannot be delivered. Cancel it.")
	}
	if s.PausedAt != nil {
		e.out.PausedAt, e.out.PausedBy, e.out.PauseNote = timestamppb.New(*s.PausedAt), s.PausedBy, s.PauseNote
		by, note := "", ""
		if s.PausedBy != "" {
			by = " by " + s.PausedBy
		}
		if s.PauseNote != "" {
			note = ": " + s.PauseNote
		}
		e.add(pb.WaitReason_WAIT_REASON_QUEUE_PAUSED, "Its queue %s was paused%s %s ago%s.", s.Queue, by, short(s.At.Sub(*s.PausedAt)), note)
	}
	if s.DueIn > 0 {
		e.out.DueIn = durationpb.New(s.DueIn)
		e.add(pb.WaitReason_WAIT_REASON_NOT_DUE, "It is due in %s.", short(s.DueIn))
	}
	e.workers(s, waiting)
	if e.out.JobsAhead = s.Ahead; s.Ahead > 0 {
		e.add(pb.WaitReason_WAIT_REASON_JOBS_AHEAD, "Of its queue, %s first.", ahead(s.Ahead))
	}
	if len(e.out.Reasons) == 0 {
		e.add(pb.WaitReason_WAIT_REASON_NEXT, "Nothing is in its way: the next free worker of queue %s gets it.", s.Queue)
	}
}

// workers judges by what is true and cheap: a poll that waits here, or a lease lately. A
// worker that waits at another replica has nothing to wait for while a job is due.
func (e *explanation) workers(s *store.JobStanding, waiting int) {
	if waiting > 0 || s.PausedAt != nil || s.DueIn > 0 {
		return
	}
	switch {
	case s.LastLeaseAt == nil:
		e.add(pb.WaitReason_WAIT_REASON_NO_WORKER, "No worker takes jobs of queue %s: none of the newest jobs was leased, and no worker waits at this replica.", s.Queue)
	case s.At.Sub(*s.LastLeaseAt) >= workersGone:
		e.add(pb.WaitReason_WAIT_REASON_NO_WORKER, "No worker has taken a job of queue %s for %s, and none waits at this replica.",
			s.Queue, short(s.At.Sub(*s.LastLeaseAt)))
	}
}

func ahead(n int64) string {
	switch {
	case n == 1:
		return "1 job comes"
	case n >= store.MaxJobsAhead:
		return "1,000 or more jobs come"
	default:
		return fmt.Sprintf("%d jobs come", n)
	}
}

// short is a duration for people: three digits are enough.
func short(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	case d < 48*time.Hour:
		return d.Round(time.Second).String()
	default:
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	}
}

func statsOut(s store.QueueStats) *pb.QueueStats {
	out := &pb.QueueStats{
		Queue: s.Queue, Ready: s.Ready, Scheduled: s.Scheduled, Processing: s.Processing, Stuck: s.Stuck, Dead: s.Dead,
	}
	if s.OldestAge != nil {
		out.OldestReadyAge = durationpb.New(*s.OldestAge)
	}
	return out
}

// countOf is the number of parked polls that would take a job of a queue.
func (ws *waiters) countOf(queue string) int {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if q := ws.queues[queue]; q != nil {
		return q.parked.Len()
	}
	return 0
}
