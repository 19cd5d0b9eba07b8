package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasehold/leasehold/client"
	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/faultproxy"
)

func producer(t *testing.T, s *client.Service) *client.Producer {
	t.Helper()
	p, err := client.NewProducer(s, client.ProducerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// loseAnswer makes a world whose next enqueue is stored, and its answer lost.
func loseAnswer(t *testing.T) (*world, *client.Producer) {
	t.Helper()
	w := newWorld(t, 1)
	w.createQueue(&pb.Queue{Name: "q"})
	p := producer(t, connect(t, w.proxied()))
	if _, err := p.Enqueue(t.Context(), client.NewJob{Queue: "q"}); err != nil { // the connection is there
		t.Fatal(err)
	}
	w.proxies[0].CutAt(faultproxy.ToClient, func(chunk []byte) bool {
		return bytes.Contains(chunk, []byte("\n\x012\x10\x01")) // job_id "2", created
	})
	return w, p
}

// TestKeyedEnqueueIsRepeated though its answer was lost: the job is there once.
func TestKeyedEnqueueIsRepeated(t *testing.T) {
	t.Parallel()
	w, p := loseAnswer(t)
	got, err := p.Enqueue(t.Context(), client.NewJob{Queue: "q", IdempotencyKey: "payment-1"})
	if err != nil {
		t.Fatal(err)
	}
	if got.Created || got.JobID != "2" || w.count("q", "PENDING") != 2 {
		t.Errorf("%+v, %d jobs", got, w.count("q", "PENDING"))
	}
}

// TestEnqueueWithoutKeyIsNotRepeated where it may have been stored.
func TestEnqueueWithoutKeyIsNotRepeated(t *testing.T) {
	t.Parallel()
	w, p := loseAnswer(t)
	_, err := p.Enqueue(t.Context(), client.NewJob{Queue: "q"})
	var unknown *client.OutcomeUnknownError
	if !errors.As(err, &unknown) || status.Code(err) != codes.Unavailable {
		t.Errorf("error %v", err)
	}
	if n := w.count("q", "PENDING"); n != 2 {
		t.Errorf("%d jobs", n)
	}
}

// TestEnqueueThatNeverLeftIsRepeated also without a key: nobody listens at the first address.
func TestEnqueueThatNeverLeftIsRepeated(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.createQueue(&pb.Queue{Name: "q"})
	for range 4 { // whichever address comes first
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		p := producer(t, connect(t, []string{l.Addr().String(), w.replicas[0].GRPC()}))
		if _, err := p.Enqueue(t.Context(), client.NewJob{Queue: "q"}); err != nil {
			t.Fatal(err)
		}
	}
	if n := w.count("q", "PENDING"); n != 4 {
		t.Errorf("%d jobs", n)
	}
}

// enqueueAnswers answers enqueues by a function of the attempt, from 1, and the item.
func enqueueAnswers(s *stub, answer func(attempt int, item *pb.EnqueueRequest) (*pb.ItemError, error)) {
	var attempts atomic.Int64
	s.enqueue = func(_ context.Context, req *pb.BatchEnqueueRequest) (*pb.BatchEnqueueResponse, error) {
		n := int(attempts.Add(1))
		resp := &pb.BatchEnqueueResponse{}
		for _, item := range req.GetItems() {
			refused, err := answer(n, item)
			if err != nil {
				return nil, err
			}
			r := &pb.BatchEnqueueResult{Result: &pb.BatchEnqueueResult_Ok{Ok: &pb.EnqueueResponse{JobId: item.GetSubject(), Created: true}}}
			if refused != nil {
				r = &pb.BatchEnqueueResult{Result: &pb.BatchEnqueueResult_Error{Error: refused}}
			}
			resp.Results = append(resp.Results, r)
		}
		return resp, nil
	}
}

// TestWhichEnqueuesAreRepeated, by what they are answered and whether they have a key.
func TestWhichEnqueuesAreRepeated(t *testing.T) {
	t.Parallel()
	undone := map[pb.ErrorReason]bool{
		pb.ErrorReason_ERROR_REASON_OVERLOADED: true, pb.ErrorReason_ERROR_REASON_RATE_LIMITED: true, pb.ErrorReason_ERROR_REASON_DATABASE_UNAVAILABLE: true,
		pb.ErrorReason_ERROR_REASON_DRAINING: true, pb.ErrorReason_ERROR_REASON_JOB_BUSY: true, pb.ErrorReason_ERROR_REASON_CREDENTIALS_MISSING: true,
		pb.ErrorReason_ERROR_REASON_CREDENTIALS_INVALID: true, pb.ErrorReason_ERROR_REASON_ROLE_MISSING: true,
	}
	unknown := map[pb.ErrorReason]bool{pb.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN: true, pb.ErrorReason_ERROR_REASON_INTERNAL: true}
	for reason, code := range reasonCodes {
		for _, key := range []string{"", "key"} {
			t.Run(fmt.Sprintf("%s/key=%q", reasonWord(reason), key), func(t *testing.T) {
				t.Parallel()
				s := newStub()
				enqueueAnswers(s, func(attempt int, _ *pb.EnqueueRequest) (*pb.ItemError, error) {
					if attempt == 1 {
						return &pb.ItemError{Reason: reason, Code: int32(code)}, nil
					}
					return nil, nil
				})
				_, err := producer(t, client.Over(s)).Enqueue(t.Context(), client.NewJob{Queue: "q", IdempotencyKey: key})
				var doubt *client.OutcomeUnknownError
				switch {
				case undone[reason] || unknown[reason] && key != "":
					if err != nil {
						t.Errorf("not repeated: %v", err)
					}
				case unknown[reason]:
					if !errors.As(err, &doubt) || client.ReasonOf(err) != reason {
						t.Errorf("error %v", err)
					}
				case errors.As(err, &doubt) || client.ReasonOf(err) != reason || len(seen[*pb.BatchEnqueueRequest](s)) != 1:
					t.Errorf("error %v", err)
				}
			})
		}
	}
}

// TestEnqueueBatch: results stand in the order of the jobs, whatever was repeated, split or refused.
func TestEnqueueBatch(t *testing.T) {
	t.Parallel()
	s := newStub()
	enqueueAnswers(s, func(attempt int, item *pb.EnqueueRequest) (*pb.ItemError, error) {
		switch {
		case item.GetSubject() == "7":
			return &pb.ItemError{Reason: pb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND, Code: int32(codes.NotFound)}, nil
		case item.GetSubject() == "1003" && attempt < 4:
			return &pb.ItemError{Reason: pb.ErrorReason_ERROR_REASON_JOB_BUSY, Code: int32(codes.Unavailable)}, nil
		}
		return nil, nil
	})
	jobs := make([]client.NewJob, 2010)
	for i := range jobs {
		jobs[i] = client.NewJob{Queue: "q", Subject: fmt.Sprint(i)}
	}
	jobs[2005].Subject = "\xff"
	results, err := producer(t, client.Over(s)).EnqueueBatch(t.Context(), jobs)
	var failed *client.BatchError
	if !errors.As(err, &failed) || failed.Failed != 2 || failed.Jobs != 2010 || client.ReasonOf(err) != pb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND {
		t.Errorf("error %v", err)
	}
	for i, r := range results {
		var invalid *client.InvalidError
		switch {
		case i == 7:
			if client.ReasonOf(r.Err) != pb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND {
				t.Errorf("job 7: %v", r.Err)
			}
		case i == 2005:
			if !errors.As(r.Err, &invalid) || invalid.Field != "subject" {
				t.Errorf("job 2005: %v", r.Err)
			}
		case r.Err != nil || r.JobID != fmt.Sprint(i) || !r.Created:
			t.Fatalf("job %d: %+v", i, r)
		}
	}
	for _, req := range seen[*pb.BatchEnqueueRequest](s) {
		if len(req.GetItems()) > 1000 {
			t.Errorf("a call with %d jobs", len(req.GetItems()))
		}
	}
}

// TestPatienceEnds where the service never comes back.
func TestPatienceEnds(t *testing.T) {
	t.Parallel()
	s := newStub()
	enqueueAnswers(s, func(int, *pb.EnqueueRequest) (*pb.ItemError, error) {
		return nil, refusal(codes.Unavailable, pb.ErrorReason_ERROR_REASON_DATABASE_UNAVAILABLE, time.Millisecond)
	})
	p, err := client.NewProducer(client.Over(s), client.ProducerConfig{Patience: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Enqueue(t.Context(), client.NewJob{Queue: "q"}); client.ReasonOf(err) != pb.ErrorReason_ERROR_REASON_DATABASE_UNAVAILABLE {
		t.Errorf("error %v", err)
	}
	if n := len(seen[*pb.BatchEnqueueRequest](s)); n < 2 {
		t.Errorf("%d tries", n)
	}
}
