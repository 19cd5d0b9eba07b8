package client

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

const (
	defaultPatience = 30 * time.Second
	// enqueueTimeout bounds one try.
	enqueueTimeout    = 10 * time.Second
	enqueueRetryFirst = 100 * time.Millisecond
	enqueueRetryMost  = 5 * time.Second
)

// ProducerConfig says how a Producer enqueues. The zero value is usable.
type ProducerConfig struct {
	// Patience bounds one Enqueue or EnqueueBatch with all its tries; an earlier end of the
	// caller's context wins. At least 1 ms. Default: 30 s.
	Patience time.Duration
	// Log hears of tries that failed. Default: slog.Default().
	Log *slog.Logger
}

// Validate reports all faults at once.
func (c ProducerConfig) Validate() error {
	if c.Patience != 0 && c.Patience < time.Millisecond {
		return &InvalidError{Field: "Patience", Want: "at least 1ms, or 0 for 30s"}
	}
	return nil
}

// Producer enqueues jobs. Its methods may be called by several goroutines at once.
//
// Tries that surely had no effect are repeated, with jitter, on another replica. What may have been
// stored (a connection that broke, a deadline) is repeated for jobs with an IdempotencyKey, which
// makes that safe; without one it is *OutcomeUnknownError.
type Producer struct {
	service  *Service
	patience time.Duration
	log      *slog.Logger
}

// NewProducer makes a producer. It fails where cfg is not valid.
func NewProducer(service *Service, cfg ProducerConfig) (*Producer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Producer{service: service, patience: cmp.Or(cfg.Patience, defaultPatience), log: cmp.Or(cfg.Log, slog.Default())}, nil
}

// Enqueued names a job that is stored.
type Enqueued struct {
	// JobID is the job, new or found by its key.
	JobID string
	// Created is false where the idempotency key belonged to this job already.
	Created bool
}

// EnqueueResult is what became of one job of a batch: Enqueued where Err is nil.
type EnqueueResult struct {
	Enqueued
	Err error
}

// OutcomeUnknownError is a job without IdempotencyKey that may have been stored, or not. Look before
// you enqueue it again.
type OutcomeUnknownError struct{ cause error }

func (e *OutcomeUnknownError) Error() string {
	return "the job may have been stored: " + e.cause.Error()
}

// Unwrap is what the last try was answered.
func (e *OutcomeUnknownError) Unwrap() error { return e.cause }

// BatchError says that some jobs of a batch were not stored; the results tell which.
type BatchError struct {
	Failed, Jobs int
	// First is the first error.
	First error
}

func (e *BatchError) Error() string {
	return fmt.Sprintf("%d of %d jobs were not enqueued, the first: %v", e.Failed, e.Jobs, e.First)
}

// Unwrap is First.
func (e *BatchError) Unwrap() error { return e.First }

// Enqueue stores one job. When it returns nil the job is durable. The trace of ctx goes with it.
// Errors: *CallError (INVALID_REQUEST, TOO_LARGE, QUEUE_NOT_FOUND, IDEMPOTENCY_KEY_REUSED, or what the
// last try was answered), *InvalidError, *OutcomeUnknownError.
func (p *Producer) Enqueue(ctx context.Context, job NewJob) (Enqueued, error) {
	results, err := p.EnqueueBatch(ctx, []NewJob{job})
	if err != nil {
		return Enqueued{}, results[0].Err
	}
	return results[0].Enqueued, nil
}

// EnqueueBatch stores any number of jobs, in calls of up to 1,000 jobs and 3 MiB. It returns one
// result per job, in their order, and *BatchError where some were not stored; one job's error never
// voids the others. Jobs without a key are best kept apart from those with one: a call whose outcome
// is unknown is repeated for the latter only.
func (p *Producer) EnqueueBatch(ctx context.Context, jobs []NewJob) ([]EnqueueResult, error) {
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	results := make([]EnqueueResult, len(jobs))
	var open []pending
	for i := range jobs {
		req, err := jobs[i].request(ctx)
		if err != nil {
			results[i].Err = err
			continue
		}
		open = append(open, pending{req: req, size: proto.Size(req), place: i})
	}
	for len(open) > 0 {
		n := fits(open)
		p.enqueue(ctx, open[:n], results)
		open = open[n:]
	}
	return results, failuresIn(results)
}

func failuresIn(results []EnqueueResult) error {
	report := &BatchError{Jobs: len(results)}
	for _, r := range results {
		if r.Err != nil {
			report.Failed++
			report.First = cmp.Or(report.First, r.Err)
		}
	}
	if report.Failed == 0 {
		return nil
	}
	return report
}

// pending is a job that is not stored yet.
type pending struct {
	req   *pb.EnqueueRequest
	size  int
	place int // in the results
}

// fits is how many go in one call, at least one.
func fits(open []pending) int {
	n, bytes := 0, 0
	for _, o := range open {
		if bytes += o.size; n > 0 && (n == batchItems || bytes > batchBytes) {
			break
		}
		n++
	}
	return n
}

// enqueue tries until each job has its result.
func (p *Producer) enqueue(ctx context.Context, open []pending, results []EnqueueResult) {
	for try := 0; len(open) > 0; try++ {
		answers, failed := p.attempt(ctx, open)
		var again []pending
		var wait time.Duration
		for i, o := range open {
			e := failed
			if failed == nil {
				ok := answers[i].GetOk()
				results[o.place] = EnqueueResult{Enqueued: Enqueued{JobID: ok.GetJobId(), Created: ok.GetCreated()}}
				e = itemError(answers[i].GetError())
			}
			if e == nil {
				continue
			}
			results[o.place].Err = e
			switch keyed := o.req.IdempotencyKey != nil; {
			case e.final():
			case !keyed && !e.undone():
				results[o.place].Err = &OutcomeUnknownError{cause: e}
			default:
				again = append(again, o)
				wait = max(wait, e.RetryAfter)
			}
		}
		if open = again; len(open) == 0 {
			return
		}
		p.log.LogAttrs(ctx, slog.LevelWarn, "enqueue is tried again", slog.Int("jobs", len(open)), slog.Any("error", results[open[0].place].Err))
		if !sleep(ctx, max(wait, backoff(try, enqueueRetryFirst, enqueueRetryMost))) {
			return // the results have the last answer
		}
	}
}

// attempt makes one call.
func (p *Producer) attempt(ctx context.Context, open []pending) ([]*pb.BatchEnqueueResult, *CallError) {
	ctx, cancel := context.WithTimeout(ctx, enqueueTimeout)
	defer cancel()
	req := &pb.BatchEnqueueRequest{Items: make([]*pb.EnqueueRequest, len(open))}
	for i, o := range open {
		req.Items[i] = o.req
	}
	way := p.service.calls.pick()
	var reached peer.Peer
	resp, err := pb.NewJobServiceClient(way).BatchEnqueue(ctx, req, grpc.Peer(&reached))
	if err == nil && len(resp.GetResults()) != len(open) {
		return nil, &CallError{Code: codes.Unknown, Message: "a batch with too few results"}
	}
	if err == nil {
		return resp.GetResults(), nil
	}
	failed := callError(err)
	// gRPC has no word for a call that never got as far as a connection.
	_, real := way.ClientConnInterface.(*grpc.ClientConn)
	failed.unsent = real && reached.Addr == nil
	return nil, failed
}
