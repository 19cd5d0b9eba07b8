package client

import (
	"context"
	"fmt"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// NewJob describes a job to enqueue, by a Producer or as a follow-up. Only Queue is required. What
// is out of bounds is refused by the service, with INVALID_REQUEST or TOO_LARGE naming the field.
type NewJob struct {
	// Queue to put it in: [a-z0-9][a-z0-9._-]{0,127}.
	Queue string
	// Payload is what the worker gets. Default: empty.
	Payload Payload
	// Headers go with the job, at most 64 entries, keys [a-z0-9._-]{1,64}, 16 KiB in all. The W3C
	// trace context is added. Default: none.
	Headers map[string]string
	// Subject is a business key, as "payment/123", at most 256 bytes. Default: none.
	Subject string
	// Priority 1 (first) .. 9, strict. Default: 5.
	Priority int
	// RunAt is the earliest start, up to 5 years ahead. Default: now. Not together with Delay.
	RunAt time.Time
	// Delay is the earliest start, from when the service stores the job, up to 5 years. Default: 0.
	Delay time.Duration
	// IdempotencyKey makes the enqueue repeatable, at most 256 bytes: the same key, payload and
	// content type in one queue are one job. Default: none.
	IdempotencyKey string
	// Policy is what differs from the queue's policy. Default: nothing.
	Policy *pb.JobPolicy
}

// request is the job in the terms of the API, with the trace of ctx in its headers.
func (j NewJob) request(ctx context.Context) (*pb.EnqueueRequest, error) {
	payload, err := j.Payload.wire()
	if err != nil {
		return nil, err
	}
	for field, text := range map[string]string{"queue": j.Queue, "subject": j.Subject, "idempotency_key": j.IdempotencyKey} {
		if !utf8.ValidString(text) {
			return nil, notUTF8(field)
		}
	}
	for key, value := range j.Headers {
		if !utf8.ValidString(key) || !utf8.ValidString(value) {
			return nil, notUTF8("headers")
		}
	}
	req := &pb.EnqueueRequest{Queue: j.Queue, Payload: payload, Headers: withTrace(ctx, j.Headers), Policy: j.Policy}
	if j.Subject != "" {
		req.Subject = &j.Subject
	}
	if j.IdempotencyKey != "" {
		req.IdempotencyKey = &j.IdempotencyKey
	}
	if j.Priority != 0 {
		p := int32(min(max(j.Priority, -1), 10)) // as far out of its bounds as it was
		req.Priority = &p
	}
	if !j.RunAt.IsZero() {
		req.RunAt = timestamppb.New(j.RunAt)
	}
	if j.Delay != 0 {
		req.Delay = durationpb.New(j.Delay)
	}
	return req, nil
}

// requests turns follow-ups into what the API takes.
func requests(ctx context.Context, jobs []NewJob) ([]*pb.EnqueueRequest, error) {
	var out []*pb.EnqueueRequest
	for i := range jobs {
		req, err := jobs[i].request(ctx)
		if err != nil {
			return nil, fmt.Errorf("then_enqueue[%d]: %w", i, err)
		}
		out = append(out, req)
	}
	return out, nil
}
