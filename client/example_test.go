package client_test

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasehold/leasehold/client"
	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

type Payment struct {
	ID     string `json:"id"`
	Amount int    `json:"amount"`
}

// charge stands for the call of a payment provider, which refuses a fencing number below the highest
// that it has seen for the payment.
func charge(context.Context, Payment, int64) error { return nil }

var errDeclined = errors.New("card declined")

// A worker of one queue, from main to the last signal.
func Example() {
	service, err := client.Connect([]string{"127.0.0.1:7070"}, client.ConnectConfig{})
	if err != nil {
		slog.Error("it does not work", "error", err)
		return
	}
	defer service.Close()
	worker, err := client.NewWorker(service, client.WorkerConfig{
		Queues:      []string{"payments"},
		Concurrency: 50,
		Handler: client.JSON(func(ctx context.Context, job *client.Job, p Payment) error {
			// Recorded before the call: whoever takes over knows that it may have been made.
			if err := job.Stage(ctx, "psp_call"); err != nil {
				return err
			}
			err := charge(ctx, p, job.LeaseNo())
			if errors.Is(err, errDeclined) {
				return client.Permanent(client.WithCode("card_declined", err))
			}
			return err
		}),
	})
	if err != nil {
		slog.Error("it does not work", "error", err)
		return
	}
	if err := client.RunUntilSignal(context.Background(), worker); err != nil {
		slog.Error("left something behind", "error", err)
	}
}

// A handler that returns a result, and enqueues what comes next in the same transaction.
func ExampleJSONResult() {
	type receipt struct {
		Settled bool  `json:"settled"`
		Fence   int64 `json:"fence"`
	}
	handler := client.JSONResult(func(ctx context.Context, job *client.Job, p Payment) (receipt, error) {
		if err := charge(ctx, p, job.LeaseNo()); err != nil {
			return receipt{}, err
		}
		job.ThenEnqueue(client.NewJob{Queue: "receipts", Subject: job.Subject()})
		return receipt{Settled: true, Fence: job.LeaseNo()}, nil
	})
	_ = client.WorkerConfig{Queues: []string{"payments"}, Handler: handler}
}

// A long job leaves checkpoints, so that the next lease goes on where this one stops.
func ExampleJob_Checkpoint() {
	handler := client.Handler(func(ctx context.Context, job *client.Job) error {
		from := string(job.LastCheckpoint()) // empty at the first lease
		for _, page := range []string{"a", "b", "c"} {
			if page <= from {
				continue
			}
			// … export the page …
			if err := job.Checkpoint(ctx, []byte(page)); err != nil {
				return err // the lease is lost, or the worker shuts down
			}
			job.Progress(0.3)
		}
		return nil
	})
	_ = client.WorkerConfig{Queues: []string{"exports"}, Handler: handler}
}

// What errors make of a job.
func ExampleRetryAfter() {
	handler := client.Handler(func(ctx context.Context, job *client.Job) error {
		err := charge(ctx, Payment{}, job.LeaseNo())
		switch status.Code(err) {
		case codes.ResourceExhausted:
			return client.RetryAfter(10*time.Minute, err) // uses an attempt
		case codes.Unavailable:
			return client.Release(time.Minute) // uses none
		case codes.InvalidArgument:
			return client.ThenEnqueue(client.Permanent(err), client.NewJob{Queue: "cases", Subject: job.Subject()})
		}
		return err // runs again after the job's backoff
	})
	_ = client.WorkerConfig{Queues: []string{"payments"}, Handler: handler}
}

// Why a handler is cancelled.
func ExampleCancelRequestedError() {
	handler := client.Handler(func(ctx context.Context, job *client.Job) error {
		<-ctx.Done() // … or whatever the work waits for …
		var asked *client.CancelRequestedError
		if errors.As(context.Cause(ctx), &asked) {
			// The lease is still ours: undo what was done.
			tidy := context.WithoutCancel(ctx)
			return job.Stage(tidy, "refunded")
		}
		return context.Cause(ctx)
	})
	_ = client.WorkerConfig{Queues: []string{"payments"}, Handler: handler}
}

// Jobs are enqueued with a key, so that no retry makes a second one.
func ExampleProducer() {
	service, err := client.Connect([]string{"127.0.0.1:7070"}, client.ConnectConfig{})
	if err != nil {
		slog.Error("it does not work", "error", err)
		return
	}
	defer service.Close()
	producer, err := client.NewProducer(service, client.ProducerConfig{})
	if err != nil {
		slog.Error("it does not work", "error", err)
		return
	}
	payload, err := client.JSONPayload(Payment{ID: "1", Amount: 4200})
	if err != nil {
		slog.Error("it does not work", "error", err)
		return
	}
	got, err := producer.Enqueue(context.Background(), client.NewJob{
		Queue: "payments", Payload: payload, Subject: "payment/1", IdempotencyKey: "payment-1",
	})
	if client.ReasonOf(err) == pb.ErrorReason_ERROR_REASON_IDEMPOTENCY_KEY_REUSED {
		slog.Error("the same payment with another amount")
		return
	}
	if err != nil {
		slog.Error("it does not work", "error", err)
		return
	}
	slog.Info("enqueued", "job_id", got.JobID, "created", got.Created)
}

// The generated clients work over the same connections.
func ExampleService_Conn() {
	service, err := client.Connect([]string{"127.0.0.1:7070"}, client.ConnectConfig{})
	if err != nil {
		slog.Error("it does not work", "error", err)
		return
	}
	defer service.Close()
	jobs := pb.NewJobServiceClient(service.Conn())
	job, err := jobs.GetJob(context.Background(), &pb.GetJobRequest{By: &pb.GetJobRequest_JobId{JobId: "1"}})
	if err != nil {
		slog.Error("it does not work", "error", err)
		return
	}
	slog.Info("found", "state", job.GetJob().GetState())
}
