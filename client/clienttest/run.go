package clienttest

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/leasehold/leasehold/client"
	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// Job is the job that a handler is given. The zero value is the first lease of a job without payload.
type Job struct {
	// ID of the job. Default: "1".
	ID string
	// Queue of the job. Default: "test".
	Queue string
	// Payload, Headers and Subject are what the producer gave. Default: none.
	Payload client.Payload
	Headers map[string]string
	Subject string
	// LeaseNo is the fencing number. Default: that of Attempt.
	LeaseNo int64
	// Attempt is the how-many-eth attempt it is, from 1. Default: 1.
	Attempt int
	// MaxAttempts is how many there may be. Default: 25.
	MaxAttempts int
	// LastStage and LastCheckpoint are what an earlier lease left. Default: none.
	LastStage      string
	LastCheckpoint []byte
}

// End is the call by which the lease of a job ended.
type End string

// The ends.
const (
	// Completed: the handler returned nil, and its result was one that can be sent.
	Completed End = "completed"
	// Failed: the handler returned an error, or panicked.
	Failed End = "failed"
	// Released: the handler returned client.Release, or was interrupted by a shutdown or a
	// cancel request.
	Released End = "released"
	// Silent: the lease was lost, and nothing was said to the service.
	Silent End = "silent"
)

// Outcome is what a handler said to the service. Compare the fields that your test is about.
type Outcome struct {
	End End
	// Result is what is kept with the job; with Completed.
	Result client.Payload
	// ThenEnqueue are the follow-up jobs, in their order; with Completed and Failed. Their headers
	// carry the trace of the handler's context, if there was one.
	ThenEnqueue []client.NewJob
	// Code, Message and Details are the error; with Failed. A panic has the code "panic".
	Code, Message, Details string
	// Permanent: no attempt will succeed; with Failed.
	Permanent bool
	// RetryAfter is when to run again, nil for the job's backoff (Failed) or at once (Released).
	RetryAfter *time.Duration
	// Stages are those recorded, in their order, without repetitions in a row.
	Stages []string
	// Progress is the last one recorded, nil for none. What is said just before the handler
	// returns is not sent.
	Progress *float64
	// Checkpoints are those recorded, in their order, without repetitions in a row.
	Checkpoints [][]byte
}

// Execution is a handler that runs. Its methods may be called by several goroutines at once.
type Execution struct {
	t        testing.TB
	service  *service
	worker   *client.Worker
	returned chan struct{} // the handler has
	ended    chan struct{} // Run has
	err      error         // of Run, once ended
}

// Run runs a handler for one job and returns what it said to the service. It waits for as long as the
// handler takes.
func Run(t testing.TB, handler client.Handler, job Job) Outcome {
	t.Helper()
	return Start(t, handler, job).Wait()
}

// Start begins to run a handler for one job. The handler is cancelled at the end of the test if Wait
// was not called.
func Start(t testing.TB, handler client.Handler, job Job) *Execution {
	t.Helper()
	e := &Execution{t: t, service: newService(job), returned: make(chan struct{}), ended: make(chan struct{})}
	var err error
	e.worker, err = client.NewWorker(client.Over(e.service), client.WorkerConfig{
		Queues: []string{e.service.lease.GetJob().GetQueue()}, Owner: "clienttest", Concurrency: 1, Grace: time.Hour,
		Log: slog.New(slog.NewTextHandler(output{t}, nil)),
		Handler: func(ctx context.Context, job *client.Job) error {
			defer close(e.returned)
			return handler(ctx, job)
		},
	})
	if err != nil {
		t.Fatalf("clienttest: %v", err)
	}
	go func() {
		defer close(e.ended)
		e.err = e.worker.Run(context.Background())
	}()
	t.Cleanup(func() {
		e.worker.Hurry()
		<-e.ended
	})
	return e
}

// AwaitStage waits until the handler has recorded a stage. The test fails where it returns before.
func (e *Execution) AwaitStage(stage string) {
	e.t.Helper()
	for over := false; ; {
		stages, more := e.service.stages()
		if slices.Contains(stages, stage) {
			return
		}
		if over {
			e.t.Fatalf("clienttest: the handler returned without the stage %q; it had %q", stage, stages)
		}
		select {
		case <-more:
		case <-e.returned:
			over = true
		}
	}
}

// Cancel is CancelJob: the handler's context ends with *client.CancelRequestedError, within a moment.
func (e *Execution) Cancel() { e.service.set(func(s *service) { s.cancelled = true }) }

// Lose is another worker that takes the job over: the handler's context ends with *client.LostError,
// reason LEASE_SUPERSEDED, within a moment.
func (e *Execution) Lose() { e.service.set(func(s *service) { s.lost = true }) }

// Shutdown is a worker that shuts down and whose grace is over: the handler's context ends with
// *client.ShutdownError.
func (e *Execution) Shutdown() { e.worker.Hurry() }

// Wait waits until the handler has returned, and returns what it said to the service.
func (e *Execution) Wait() Outcome {
	e.t.Helper()
	<-e.returned
	e.worker.Shutdown()
	<-e.ended
	if e.err != nil {
		e.t.Errorf("clienttest: %v", e.err)
	}
	return e.service.outcome()
}

// output is the log of a test.
type output struct{ t testing.TB }

func (o output) Write(line []byte) (int, error) {
	_, _ = o.t.Output().Write(line) // it never fails
	return len(line), nil
}

// newJobOf is a follow-up job as the handler gave it.
func newJobOf(req *pb.EnqueueRequest) client.NewJob {
	job := client.NewJob{
		Queue: req.GetQueue(), Headers: req.GetHeaders(), Subject: req.GetSubject(), Priority: int(req.GetPriority()),
		Delay: req.GetDelay().AsDuration(), IdempotencyKey: req.GetIdempotencyKey(), Policy: req.GetPolicy(), Payload: payloadOf(req.GetPayload()),
	}
	if req.GetRunAt() != nil {
		job.RunAt = req.GetRunAt().AsTime()
	}
	return job
}

func payloadOf(p *pb.Payload) client.Payload {
	out := client.Payload{Data: p.GetData(), ContentType: p.GetContentType()}
	if content, ok := p.GetContent().(*pb.Payload_Json); ok {
		out.Data, out.JSON = []byte(content.Json), true
	}
	return out
}

func wireOf(p client.Payload) *pb.Payload {
	if p.JSON {
		return &pb.Payload{Content: &pb.Payload_Json{Json: string(p.Data)}, ContentType: p.ContentType}
	}
	return &pb.Payload{Content: &pb.Payload_Data{Data: p.Data}, ContentType: p.ContentType}
}
