package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// TestR3_BatchEnqueue: one result per item in request order; one item's error never voids
// the others; one call of the store.
func TestR3_BatchEnqueue(t *testing.T) {
	st := newStore(t, "a", "b")
	s := serve(t, st, Config{})
	key := proto.String("k")
	resp, err := s.jobs.BatchEnqueue(t.Context(), &pb.BatchEnqueueRequest{Items: []*pb.EnqueueRequest{
		{Queue: "a"},
		{Queue: "NO"},
		{Queue: "b", IdempotencyKey: key, Payload: jsonPayload("1")},
		{Queue: "unknown"},
		{Queue: "b", IdempotencyKey: key, Payload: jsonPayload("1")},
		{Queue: "b", IdempotencyKey: key, Payload: jsonPayload("2")},
		{Queue: "a", Payload: jsonPayload("{")},
		{Queue: "a", Delay: &durationpb.Duration{Seconds: 1, Nanos: -1}},
		{Queue: "a", Payload: data(1<<20 + 1)},
		{Queue: "a"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"new", "INVALID_REQUEST queue", "new", "QUEUE_NOT_FOUND", "old", "IDEMPOTENCY_KEY_REUSED",
		"INVALID_REQUEST payload.json", "INVALID_REQUEST delay", "TOO_LARGE payload.data", "new"}
	if len(resp.GetResults()) != len(want) {
		t.Fatalf("%d results for %d items", len(resp.GetResults()), len(want))
	}
	for i, r := range resp.GetResults() {
		got := itemText(r.GetError())
		if r.GetOk() != nil {
			got = map[bool]string{true: "new", false: "old"}[r.GetOk().GetCreated()]
		}
		if got != want[i] {
			t.Errorf("item %d: %s, want %s", i, got, want[i])
		}
	}
	if first, again := resp.GetResults()[2].GetOk(), resp.GetResults()[4].GetOk(); first.GetJobId() != again.GetJobId() {
		t.Errorf("the same key gave jobs %s and %s", first.GetJobId(), again.GetJobId())
	}
	if n := st.enqueues.Load(); n != 1 {
		t.Errorf("%d calls of the store", n)
	}
}

func itemText(e *pb.ItemError) string {
	text := reasonWord(e.GetReason())
	for _, v := range e.GetFieldViolations() {
		text += " " + v.GetField()
	}
	return text
}

// leased enqueues and leases n jobs.
func (s *served) leased(t *testing.T, n int, queue string) []string {
	t.Helper()
	tokens := make([]string, n)
	for i := range tokens {
		s.enqueueOne(t, &pb.EnqueueRequest{Queue: queue})
		tokens[i] = s.acquireOne(t, queue).GetLeaseToken()
	}
	return tokens
}

// TestR3_BatchHeartbeat: beats and refusals side by side.
func TestR3_BatchHeartbeat(t *testing.T) {
	s := serve(t, newStore(t, "q"), Config{})
	tokens := s.leased(t, 3, "q")
	beats, err := s.leases.BatchHeartbeat(t.Context(), &pb.BatchHeartbeatRequest{Items: []*pb.HeartbeatRequest{
		{LeaseToken: tokens[0]}, {LeaseToken: "garbage"}, {LeaseToken: tokens[1], Progress: proto.Float64(2)}, {},
		{LeaseToken: s.tokens.Seal(store.LeaseRef{JobID: 999, LeaseNo: 1})}, {LeaseToken: tokens[2], Stage: proto.String("s")},
	}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range beats.GetResults() {
		if r.GetOk().GetRemaining().AsDuration() > 0 {
			got = append(got, "ok")
		} else {
			got = append(got, itemText(r.GetError()))
		}
	}
	if want := "[ok INVALID_TOKEN lease_token INVALID_REQUEST progress INVALID_REQUEST lease_token JOB_NOT_FOUND ok]"; fmt.Sprint(got) != want {
		t.Errorf("beats %v, want %v", got, want)
	}
}

// TestR3_BatchesOfEnds: ends and refusals side by side.
func TestR3_BatchesOfEnds(t *testing.T) {
	s := serve(t, newStore(t, "q"), Config{})
	tokens := s.leased(t, 4, "q")
	done, err := s.leases.BatchComplete(t.Context(), &pb.BatchCompleteRequest{Items: []*pb.CompleteRequest{
		{LeaseToken: tokens[0], ThenEnqueue: []*pb.EnqueueRequest{{Queue: "q"}, {Queue: "none"}}},
		{LeaseToken: tokens[1], ThenEnqueue: []*pb.EnqueueRequest{{Queue: "q"}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if e := done.GetResults()[0].GetError(); itemText(e) != "QUEUE_NOT_FOUND" || e.GetMetadata()["then_enqueue_index"] != "1" {
		t.Errorf("a refused follow-up: %v", e)
	}
	if ids := done.GetResults()[1].GetOk().GetThenEnqueueJobIds(); len(ids) != 1 {
		t.Errorf("follow-ups %v", ids)
	}
	failed, err := s.leases.BatchFail(t.Context(), &pb.BatchFailRequest{Items: []*pb.FailRequest{
		{LeaseToken: tokens[1]}, {LeaseToken: tokens[2], Permanent: true},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if e, ok := failed.GetResults()[0].GetError(), failed.GetResults()[1].GetOk(); itemText(e) != "LEASE_ENDED" || ok.GetState() != pb.JobState_JOB_STATE_DEAD {
		t.Errorf("fails %v", failed)
	}
	released, err := s.leases.BatchRelease(t.Context(), &pb.BatchReleaseRequest{Items: []*pb.ReleaseRequest{
		{LeaseToken: tokens[3]}, {LeaseToken: tokens[3]}, {LeaseToken: "x"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	first, second := released.GetResults()[0].GetOk(), released.GetResults()[1].GetOk()
	if first.GetState() != pb.JobState_JOB_STATE_PENDING || first.GetNextRunAt() == nil || first.GetAlreadyApplied() || !second.GetAlreadyApplied() {
		t.Errorf("releases %v", released)
	}
	if e := released.GetResults()[2].GetError(); itemText(e) != "INVALID_TOKEN lease_token" {
		t.Errorf("a bad token: %v", e)
	}
}

// TestBatchWithoutAValidItemDoesNotCallTheStore.
func TestBatchWithoutAValidItemDoesNotCallTheStore(t *testing.T) {
	s := serve(t, untouched{}, Config{})
	resp, err := s.jobs.BatchEnqueue(t.Context(), &pb.BatchEnqueueRequest{Items: []*pb.EnqueueRequest{{}, {}}})
	if err != nil || len(resp.GetResults()) != 2 {
		t.Errorf("got %v %v", resp, err)
	}
}

// TestErrorOfTheCallIsTheErrorOfTheBatch: no item was decided.
func TestErrorOfTheCallIsTheErrorOfTheBatch(t *testing.T) {
	st := newStore(t, "q")
	st.enqueue = func(context.Context, []store.NewJob) ([]store.Enqueued, error) {
		return nil, &store.UnavailableError{}
	}
	s := serve(t, st, Config{})
	_, err := s.jobs.BatchEnqueue(t.Context(), &pb.BatchEnqueueRequest{Items: []*pb.EnqueueRequest{{Queue: "q"}, {}}})
	if reasonOf(err) != "DATABASE_UNAVAILABLE" {
		t.Error(err)
	}
}

// TestWorstBatchAnswerFits: 1,000 items that are all refused at length stay under 4 MiB.
func TestWorstBatchAnswerFits(t *testing.T) {
	s := serve(t, newStore(t), Config{})
	bad := &pb.EnqueueRequest{Headers: map[string]string{}}
	for i := range 20 {
		bad.Headers[fmt.Sprint(strings.Repeat("Ä", 60), i)] = "\x00"
	}
	req := &pb.BatchEnqueueRequest{}
	for range store.MaxBatch {
		req.Items = append(req.Items, bad)
	}
	resp, err := s.jobs.BatchEnqueue(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(resp.GetResults()[999].GetError().GetFieldViolations()); n != maxViolations {
		t.Errorf("%d violations, want the most that are shown", n)
	}
	if size := proto.Size(resp); size > maxAnswerBytes {
		t.Errorf("the answer has %d bytes", size)
	}
}

func TestR26_UnknownQueues(t *testing.T) {
	calls := func(s *served, token string) map[string]error {
		_, enqueue := s.jobs.Enqueue(t.Context(), &pb.EnqueueRequest{Queue: "one"})
		_, acquire := s.leases.AcquireLease(t.Context(), &pb.AcquireLeaseRequest{Queues: []string{"two", "q", "three"}, LeaseOwner: "w"})
		_, fail := s.leases.Fail(t.Context(), &pb.FailRequest{LeaseToken: token, ThenEnqueue: []*pb.EnqueueRequest{{Queue: "four"}, {Queue: "five"}}})
		_, complete := s.leases.Complete(t.Context(), &pb.CompleteRequest{LeaseToken: token, ThenEnqueue: []*pb.EnqueueRequest{{Queue: "six"}}})
		return map[string]error{"Enqueue": enqueue, "AcquireLease": acquire, "Fail": fail, "Complete": complete}
	}
	t.Run("are refused", func(t *testing.T) {
		s := serve(t, newStore(t, "q"), Config{})
		s.enqueueOne(t, &pb.EnqueueRequest{Queue: "q"})
		for method, err := range calls(s, s.acquireOne(t, "q").GetLeaseToken()) {
			if reasonOf(err) != "QUEUE_NOT_FOUND" {
				t.Errorf("%s: %v", method, err)
			}
		}
	})
	t.Run("are made where that is on", func(t *testing.T) {
		st := newStore(t, "q")
		s := serve(t, st, Config{AutoCreateQueues: true})
		s.enqueueOne(t, &pb.EnqueueRequest{Queue: "q"})
		for method, err := range calls(s, s.acquireOne(t, "q").GetLeaseToken()) {
			if err != nil && (method != "Complete" || reasonOf(err) != "LEASE_ENDED") {
				t.Errorf("%s: %v", method, err)
			}
		}
		for _, name := range []string{"one", "two", "three", "four", "five"} {
			if _, err := st.GetQueue(t.Context(), name); err != nil {
				t.Error(err)
			}
		}
		for _, read := range []error{
			second(s.queues.GetQueue(t.Context(), &pb.GetQueueRequest{Name: "seven"})),
			second(s.queues.PauseQueue(t.Context(), &pb.PauseQueueRequest{Name: "seven"})),
		} {
			if reasonOf(read) != "QUEUE_NOT_FOUND" {
				t.Errorf("a read made the queue: %v", read)
			}
		}
	})
}

func second[T any](_ T, err error) error { return err }

// TestAutoCreateKeepsWhatIsDecided: only the items that met an unknown queue run again, and
// only they get the error of that.
func TestAutoCreateKeepsWhatIsDecided(t *testing.T) {
	for _, broken := range []bool{false, true} {
		t.Run(fmt.Sprint("broken=", broken), func(t *testing.T) {
			st := newStore(t, "q")
			var batches []int
			st.enqueue = func(ctx context.Context, items []store.NewJob) ([]store.Enqueued, error) {
				batches = append(batches, len(items))
				if broken && len(batches) == 2 {
					return nil, &store.OutcomeUnknownError{Cause: errors.New("EOF")}
				}
				return st.Memory.Enqueue(ctx, items)
			}
			s := serve(t, st, Config{AutoCreateQueues: true})
			resp, err := s.jobs.BatchEnqueue(t.Context(), &pb.BatchEnqueueRequest{Items: []*pb.EnqueueRequest{
				{Queue: "q"}, {Queue: "new"}, {Queue: "BAD"}, {Queue: "new"}, {Queue: "q"},
			}})
			if err != nil {
				t.Fatal(err)
			}
			if fmt.Sprint(batches) != "[4 2]" {
				t.Errorf("calls of the store with %v items", batches)
			}
			for i, r := range resp.GetResults() {
				want := ""
				switch {
				case i == 2:
					want = "INVALID_REQUEST"
				case broken && (i == 1 || i == 3):
					want = "OUTCOME_UNKNOWN"
				}
				got := strings.TrimSuffix(reasonWord(r.GetError().GetReason()), "UNSPECIFIED")
				if got != want || (want == "") != r.GetOk().GetCreated() {
					t.Errorf("item %d: %v, want %q", i, r, want)
				}
				if e := r.GetError(); e != nil && codes.Code(e.GetCode()) == codes.OK {
					t.Errorf("item %d: an error without a code", i)
				}
			}
		})
	}
}
