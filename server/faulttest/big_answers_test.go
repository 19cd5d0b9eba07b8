package faulttest

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// TestBigJobsComeInAnswersThatFit: a client with gRPC's default limit asks for twenty jobs of
// 900 KB. Each answer fits, leases what it carries and no more, and nothing is lost. What is
// too large to be stored or sent is refused with its reason, and the job can still be ended.
func TestBigJobsComeInAnswersThatFit(t *testing.T) {
	t.Parallel()
	const n, size = 20, 900_000
	s := newScene(t, 1, []store.Queue{queueOf("q", time.Minute)})
	m := s.fleet.members[0]
	payload := &pb.Payload{Content: &pb.Payload_Data{Data: []byte(strings.Repeat("x", size))}}
	for range n {
		accepted(t, m.jobs.Enqueue, &pb.EnqueueRequest{Queue: "q", Payload: payload})
	}
	var tokens []string
	for answers := 1; len(tokens) < n; answers++ {
		resp := accepted(t, m.leases.AcquireLease, &pb.AcquireLeaseRequest{Queues: []string{"q"}, LeaseOwner: "w", MaxJobs: to(int32(n))})
		for _, l := range resp.GetLeases() {
			tokens = append(tokens, l.GetLeaseToken())
		}
		if marked := s.countLeased(t); marked != len(tokens) || len(resp.GetLeases()) == 0 {
			t.Fatalf("answer %d has %d leases; %d were answered in all, %d are marked", answers, len(resp.GetLeases()), len(tokens), marked)
		}
	}
	large := func(bytes int) *pb.Payload {
		return &pb.Payload{Content: &pb.Payload_Data{Data: make([]byte, bytes)}}
	}
	refusedAs := func(what string, code codes.Code, reason string, err error) {
		t.Helper()
		if status.Code(err) != code || reasonIn(err) != reason {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := m.leases.Complete(t.Context(), &pb.CompleteRequest{LeaseToken: tokens[0], Result: large(5 << 20)})
	refusedAs("a result over gRPC's limit", codes.ResourceExhausted, "", err)
	_, err = m.leases.Complete(t.Context(), &pb.CompleteRequest{LeaseToken: tokens[0], Result: large(1<<20 + 1)})
	refusedAs("a result over 1 MiB", codes.InvalidArgument, "TOO_LARGE", err)
	_, err = m.jobs.Enqueue(t.Context(), &pb.EnqueueRequest{Queue: "q", Payload: large(1<<20 + 1)})
	refusedAs("a payload that could not be delivered", codes.InvalidArgument, "TOO_LARGE", err)
	_, err = m.leases.Fail(t.Context(), &pb.FailRequest{LeaseToken: tokens[0], Error: &pb.JobError{Message: strings.Repeat("y", 5<<20)}})
	refusedAs("an error over gRPC's limit", codes.ResourceExhausted, "", err)
	accepted(t, m.leases.Fail, &pb.FailRequest{LeaseToken: tokens[0], Error: &pb.JobError{Message: strings.Repeat("y", 3<<20)}})
	for _, token := range tokens[1:] {
		accepted(t, m.leases.Complete, &pb.CompleteRequest{LeaseToken: token, Result: large(1 << 20)})
	}
}

func (s *scene) countLeased(t *testing.T) (n int) {
	t.Helper()
	if err := s.fleet.db.SQL.QueryRow(t.Context(), `SELECT count(*)::int FROM leasehold.jobs WHERE state = 2`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
