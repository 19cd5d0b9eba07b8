// Command go is a worker on the Go runtime of Leasehold, package client. Its jobs have the payload
// {"seconds": N} and take that long.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/leasehold/leasehold/client"
)

// work is the payload of a job.
type work struct {
	Seconds float64 `json:"seconds"`
}

// handle is yours. It returns soon after ctx ends, and gives job.LeaseNo to whatever it changes, so
// that a worker which overslept its lease changes nothing.
func handle(ctx context.Context, job *client.Job, w work) error {
	select {
	case <-time.After(time.Duration(w.Seconds * float64(time.Second))):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	job.SetResult(client.Payload{JSON: true, Data: fmt.Appendf(nil, `{"fence":%d}`, job.LeaseNo())})
	return nil
}

func main() {
	if err := run(context.Background()); err != nil {
		slog.Error("the worker failed", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	slots, err := strconv.Atoi(env("LEASEHOLD_SLOTS", "10"))
	if err != nil {
		return fmt.Errorf("LEASEHOLD_SLOTS: %w", err)
	}
	service, err := client.Connect([]string{env("LEASEHOLD_ADDRESS", "127.0.0.1:7070")}, client.ConnectConfig{})
	if err != nil {
		return err
	}
	defer service.Close()
	worker, err := client.NewWorker(service, client.WorkerConfig{
		Queues:      []string{env("LEASEHOLD_QUEUE", "payments")},
		Concurrency: slots,
		Handler:     client.JSON(handle),
	})
	if err != nil {
		return err
	}
	return client.RunUntilSignal(ctx, worker)
}

// env is a variable of the environment, or what stands for it.
func env(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}
