package client_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/leasehold/leasehold/client"
	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

type counted struct {
	N int `json:"n"`
}

// TestNormalLife: what a handler does and says is what the service has on record.
func TestNormalLife(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	q := w.createQueue(&pb.Queue{Name: "q"})
	follow := w.createQueue(&pb.Queue{Name: "follow"})
	ids := w.enqueue(q, 1)
	done := make(chan error, 1)
	worker := start(t, connect(t, w.proxied()), client.WorkerConfig{
		Queues: []string{q}, Owner: "worker-1",
		Handler: client.JSONResult(func(ctx context.Context, job *client.Job, in counted) (map[string]int, error) {
			job.Progress(0.25)
			err := errors.Join(job.Stage(ctx, "psp_call"), job.Checkpoint(ctx, []byte("auth A1")), job.Stage(ctx, "booked"))
			job.ThenEnqueue(client.NewJob{Queue: follow, Subject: "receipt/1"})
			done <- err
			return map[string]int{"got": in.N}, nil
		}),
	})
	if err := await(t, "the handler", done); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the job is completed", func() bool { return w.state(ids[0]) == pb.JobState_JOB_STATE_COMPLETED })
	got := w.job(ids[0])
	lease := got.GetLeases()[0]
	if result := got.GetJob().GetResult().GetJson(); result != `{"got":0}` {
		t.Errorf("result %q", result)
	}
	var stages []string
	for _, s := range lease.GetStages() {
		stages = append(stages, s.GetStage())
	}
	if fmt.Sprint(stages) != "[psp_call booked]" || lease.GetProgress() != 0.25 || lease.GetLeaseOwner() != "worker-1" {
		t.Errorf("stages %v, progress %v, owner %q", stages, lease.GetProgress(), lease.GetLeaseOwner())
	}
	if n := len(lease.GetThenEnqueueJobIds()); n != 1 || w.count(follow, "PENDING") != 1 {
		t.Errorf("%d follow-ups on record", n)
	}
	if err := worker.stop(); err != nil {
		t.Error(err)
	}
}
