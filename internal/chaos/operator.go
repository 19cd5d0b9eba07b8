package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// operator cancels, retries, resolves and pauses, by the API as everybody does.
type operator struct {
	clients *clients
	rng     *rand.Rand
}

// actor is who the operator is on record.
const actor = "on-call"

// run acts every now and then until ctx ends.
func (o *operator) run(ctx context.Context) {
	acts := []func(context.Context){o.cancel, o.cancel, o.retry, o.retry, o.resolve, o.pause, o.look}
	for rest(ctx, 200*time.Millisecond+upTo(o.rng, 1500*time.Millisecond)) {
		acts[o.rng.IntN(len(acts))](ctx)
	}
}

// jobsIn lists some jobs of a queue by their states, of those made since.
func (o *operator) jobsIn(ctx context.Context, since time.Duration, states ...pb.JobState) []string {
	resp, err := ask(ctx, o.clients, callTime, func(c client) func(context.Context, *pb.ListJobsRequest, ...grpc.CallOption) (*pb.ListJobsResponse, error) {
		return c.jobs.ListJobs
	}, &pb.ListJobsRequest{
		Filter: &pb.JobFilter{
			Queue: to(queueNames[o.rng.IntN(len(queueNames))]), States: states,
			CreatedFrom: timestamppb.New(time.Now().Add(-since)),
		},
		PageSize: to(int32(20)),
	})
	if err != nil {
		return nil
	}
	var ids []string
	for _, j := range resp.GetJobs() {
		ids = append(ids, j.GetJobId())
	}
	return ids
}

// oneOf is one of the jobs, or "".
func (o *operator) oneOf(ids []string) string {
	if len(ids) == 0 {
		return ""
	}
	return ids[o.rng.IntN(len(ids))]
}

func (o *operator) cancel(ctx context.Context) {
	id := o.oneOf(o.jobsIn(ctx, 10*time.Second, pb.JobState_JOB_STATE_PROCESSING, pb.JobState_JOB_STATE_PENDING))
	if id == "" {
		return
	}
	_, _ = insist(ctx, o.clients, o.rng, 3, func(c client) func(context.Context, *pb.CancelJobRequest, ...grpc.CallOption) (*pb.CancelJobResponse, error) {
		return c.jobs.CancelJob
	}, &pb.CancelJobRequest{JobId: id, Actor: actor, Note: "by chance"}) // the journal has it
}

// retry is by ids and not by a filter: of an act by filter whose answer is lost nobody could
// tell on which jobs it acted.
func (o *operator) retry(ctx context.Context) {
	ids := o.jobsIn(ctx, time.Hour, pb.JobState_JOB_STATE_STUCK, pb.JobState_JOB_STATE_DEAD)
	if len(ids) == 0 {
		return
	}
	_, _ = ask(ctx, o.clients, callTime, func(c client) func(context.Context, *pb.RetryJobsRequest, ...grpc.CallOption) (*pb.RetryJobsResponse, error) {
		return c.queues.RetryJobs
	}, &pb.RetryJobsRequest{Selection: &pb.JobSelection{JobIds: ids[:1+o.rng.IntN(len(ids))]}, Actor: actor, Note: "once more"}) // the journal has it
}

func (o *operator) resolve(ctx context.Context) {
	id := o.oneOf(o.jobsIn(ctx, time.Hour, pb.JobState_JOB_STATE_STUCK))
	if id == "" {
		return
	}
	req := &pb.ResolveJobRequest{JobId: id, Actor: actor, Note: "it never will", Resolution: &pb.ResolveJobRequest_Dead{Dead: &pb.ResolvedDead{}}}
	if oneIn(o.rng, 2) {
		req.Note = "it did settle"
		req.Resolution = &pb.ResolveJobRequest_Completed{Completed: &pb.ResolvedCompleted{Result: jsonOf(fmt.Sprintf(`{"resolved":%q}`, id))}}
	}
	_, _ = ask(ctx, o.clients, callTime, func(c client) func(context.Context, *pb.ResolveJobRequest, ...grpc.CallOption) (*pb.ResolveJobResponse, error) {
		return c.queues.ResolveJob
	}, req) // the journal has it
}

// pause pauses a queue for a while. What is left paused is resumed at the end.
func (o *operator) pause(ctx context.Context) {
	name := queueNames[o.rng.IntN(len(queueNames))]
	_, _ = ask(ctx, o.clients, callTime, func(c client) func(context.Context, *pb.PauseQueueRequest, ...grpc.CallOption) (*pb.PauseQueueResponse, error) {
		return c.queues.PauseQueue
	}, &pb.PauseQueueRequest{Name: name, Actor: actor, Note: "by chance"}) // the journal has it
	rest(ctx, upTo(o.rng, 4*time.Second))
	_ = o.resume(ctx, name) // resumeAll comes at the end
}

func (o *operator) resume(ctx context.Context, name string) error {
	_, err := insist(ctx, o.clients, o.rng, 5, func(c client) func(context.Context, *pb.ResumeQueueRequest, ...grpc.CallOption) (*pb.ResumeQueueResponse, error) {
		return c.queues.ResumeQueue
	}, &pb.ResumeQueueRequest{Name: name})
	return err
}

func (o *operator) resumeAll(ctx context.Context) error {
	for _, name := range queueNames {
		if err := o.resume(ctx, name); err != nil {
			return fmt.Errorf("queue %s stays paused: %w", name, err)
		}
	}
	return nil
}

// look reads what a dashboard reads.
func (o *operator) look(ctx context.Context) {
	resp, err := ask(ctx, o.clients, callTime, func(c client) func(context.Context, *pb.ListStuckRequest, ...grpc.CallOption) (*pb.ListStuckResponse, error) {
		return c.leases.ListStuck
	}, &pb.ListStuckRequest{PageSize: to(int32(50))})
	if err != nil || len(resp.GetJobs()) == 0 {
		return
	}
	id := resp.GetJobs()[o.rng.IntN(len(resp.GetJobs()))].GetJobId()
	_, _ = ask(ctx, o.clients, callTime, func(c client) func(context.Context, *pb.GetJobRequest, ...grpc.CallOption) (*pb.GetJobResponse, error) {
		return c.jobs.GetJob
	}, &pb.GetJobRequest{By: &pb.GetJobRequest_JobId{JobId: id}, RecentLeases: to(int32(10))}) // only to have asked
}

// createQueues makes the queues of the run.
func createQueues(ctx context.Context, c *clients) error {
	for _, q := range queues() {
		_, err := c.current().queues.CreateQueue(ctx, &pb.CreateQueueRequest{Queue: q})
		if err != nil {
			return err
		}
	}
	return nil
}
