package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// errorCase is an error of the store and all that a client may see of it.
type errorCase struct {
	name      string
	err       error
	code      codes.Code
	reason    string
	facts     map[string]string
	fields    []string
	retry     time.Duration
	subject   string
	noMention []string
}

var lease72 = store.LeaseRef{JobID: 7, LeaseNo: 2}

var errorCases = []errorCase{
	{name: "superseded", err: &store.SupersededError{Lease: lease72, CurrentLeaseNo: 5},
		code: codes.FailedPrecondition, reason: "LEASE_SUPERSEDED", subject: "jobs/7/leases/2",
		facts: map[string]string{"job_id": "7", "lease_no": "2", "current_lease_no": "5"}},
	{name: "expired", err: &store.ExpiredError{Lease: lease72, End: store.EndOverran},
		code: codes.FailedPrecondition, reason: "LEASE_EXPIRED", subject: "jobs/7/leases/2",
		facts: map[string]string{"job_id": "7", "lease_no": "2", "lease_end": "OVERRAN"}},
	{name: "expired, not yet ended", err: &store.ExpiredError{Lease: lease72},
		code: codes.FailedPrecondition, reason: "LEASE_EXPIRED", subject: "jobs/7/leases/2",
		facts: map[string]string{"job_id": "7", "lease_no": "2"}},
	{name: "ended", err: &store.EndedError{Lease: lease72, End: store.EndFailed, State: store.Dead},
		code: codes.FailedPrecondition, reason: "LEASE_ENDED", subject: "jobs/7/leases/2",
		facts: map[string]string{"job_id": "7", "lease_no": "2", "lease_end": "FAILED", "state": "DEAD"}},
	{name: "conflict", err: &store.ConflictError{Lease: lease72},
		code: codes.FailedPrecondition, reason: "RESULT_CONFLICT", subject: "jobs/7/leases/2",
		facts: map[string]string{"job_id": "7", "lease_no": "2"}},
	{name: "state of a job", err: &store.StateError{JobID: 7, State: store.Completed, Want: "it cannot be cancelled"},
		code: codes.FailedPrecondition, reason: "WRONG_STATE", subject: "jobs/7",
		facts: map[string]string{"job_id": "7", "state": "COMPLETED"}},
	{name: "state of a queue", err: &store.StateError{Queue: "q", Want: "it has live jobs"},
		code: codes.FailedPrecondition, reason: "WRONG_STATE", subject: "queues/q",
		facts: map[string]string{"queue": "q"}},
	{name: "no job", err: &store.JobNotFoundError{JobID: 7},
		code: codes.NotFound, reason: "JOB_NOT_FOUND", facts: map[string]string{"job_id": "7"}},
	{name: "no job of that key", err: &store.JobNotFoundError{Queue: "q", Key: "secret-key"},
		code: codes.NotFound, reason: "JOB_NOT_FOUND", facts: map[string]string{"queue": "q"}, noMention: []string{"secret-key"}},
	{name: "no queue", err: &store.QueueNotFoundError{Queue: "q"},
		code: codes.NotFound, reason: "QUEUE_NOT_FOUND", facts: map[string]string{"queue": "q"}},
	{name: "queue exists", err: &store.QueueExistsError{Queue: "q"},
		code: codes.AlreadyExists, reason: "QUEUE_EXISTS", facts: map[string]string{"queue": "q"}},
	{name: "key reused", err: &store.KeyReusedError{Queue: "q", JobID: 7},
		code: codes.AlreadyExists, reason: "IDEMPOTENCY_KEY_REUSED", facts: map[string]string{"job_id": "7", "queue": "q"}},
	{name: "request id reused", err: &store.RequestReusedError{RequestID: "secret-id"},
		code: codes.AlreadyExists, reason: "REQUEST_ID_REUSED", noMention: []string{"secret-id"}},
	{name: "busy", err: &store.BusyError{JobID: 7, What: "the job"},
		code: codes.Unavailable, reason: "JOB_BUSY", facts: map[string]string{"job_id": "7"}, retry: 200 * time.Millisecond},
	{name: "database away", err: &store.UnavailableError{Cause: errors.New("dial tcp 10.1.2.3:5432")},
		code: codes.Unavailable, reason: "DATABASE_UNAVAILABLE", retry: time.Second, noMention: []string{"10.1.2.3"}},
	{name: "database away by a context", err: &store.UnavailableError{Cause: context.DeadlineExceeded},
		code: codes.Unavailable, reason: "DATABASE_UNAVAILABLE", retry: time.Second},
	{name: "draining", err: &DrainingError{},
		code: codes.Unavailable, reason: "DRAINING", retry: 100 * time.Millisecond},
	{name: "outcome unknown", err: &store.OutcomeUnknownError{Cause: errors.New("unexpected EOF at 10.1.2.3")},
		code: codes.Unknown, reason: "OUTCOME_UNKNOWN", noMention: []string{"10.1.2.3", "EOF"}},
	{name: "invalid", err: &store.InvalidError{Field: "run_at", Description: "must be at most 5 years ahead"},
		code: codes.InvalidArgument, reason: "INVALID_REQUEST", fields: []string{"run_at"}},
	{name: "too large", err: &store.InvalidError{Field: "headers", Description: "too much", TooLarge: true},
		code: codes.InvalidArgument, reason: "TOO_LARGE", fields: []string{"headers"}},
	{name: "follow-up", err: &store.FollowUpError{Index: 3, Err: &store.InvalidError{Field: "run_at", Description: "too far"}},
		code: codes.InvalidArgument, reason: "INVALID_REQUEST", fields: []string{"then_enqueue[3].run_at"},
		facts: map[string]string{"then_enqueue_index": "3"}},
	{name: "follow-up of an unknown queue", err: &store.FollowUpError{Index: 3, Err: &store.QueueNotFoundError{Queue: "q"}},
		code: codes.NotFound, reason: "QUEUE_NOT_FOUND", facts: map[string]string{"queue": "q", "then_enqueue_index": "3"}},
	{name: "unknown", err: errors.New(`ERROR: relation "jobs" does not exist (SQLSTATE 42P01)`),
		code: codes.Internal, reason: "INTERNAL", facts: map[string]string{"request_id": "the-id"}, noMention: []string{"SQLSTATE", "relation"}},
	{name: "cancelled", err: context.Canceled, code: codes.Canceled},
	{name: "deadline", err: context.DeadlineExceeded, code: codes.DeadlineExceeded},
}

// TestEveryStatusHasReasonDetailsAndTrailer runs each error through a real connection, as
// it is and wrapped (design section 8, R5).
func TestEveryStatusHasReasonDetailsAndTrailer(t *testing.T) {
	for _, c := range errorCases {
		for _, wrap := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/wrapped=%v", c.name, wrap), func(t *testing.T) {
				st, err := newStore(t), c.err
				if wrap {
					err = fmt.Errorf("get queue: %w", err)
				}
				st.getQueue = func(context.Context, string) (*store.Queue, error) { return nil, err }
				s := serve(t, st, Config{})
				ctx := metadata.AppendToOutgoingContext(t.Context(), "x-request-id", "the-id")
				var trailer metadata.MD
				_, got := s.queues.GetQueue(ctx, &pb.GetQueueRequest{Name: "q"}, grpc.Trailer(&trailer))
				c.assert(t, status.Convert(got))
				if want := strings.Fields(c.reason); fmt.Sprint(trailer.Get("leasehold-reason")) != fmt.Sprint(want) {
					t.Errorf("trailer %v, want %v", trailer, want)
				}
			})
		}
	}
}

func (c errorCase) assert(t *testing.T, st *status.Status) {
	t.Helper()
	if st.Code() != c.code {
		t.Errorf("code %v, want %v", st.Code(), c.code)
	}
	d := detailsOf(st)
	if d.reason != c.reason || d.domain != "leasehold" && c.reason != "" {
		t.Errorf("reason %q of %q, want %q", d.reason, d.domain, c.reason)
	}
	if !maps.Equal(d.facts, c.facts) {
		t.Errorf("metadata %v, want %v", d.facts, c.facts)
	}
	if fmt.Sprint(d.fields) != fmt.Sprint(c.fields) {
		t.Errorf("fields %v, want %v", d.fields, c.fields)
	}
	if d.retry != c.retry {
		t.Errorf("retry after %v, want %v", d.retry, c.retry)
	}
	if d.subject != c.subject {
		t.Errorf("subject %q, want %q", d.subject, c.subject)
	}
	if d.precondition != "" && d.precondition != c.reason {
		t.Errorf("precondition %q, want %q", d.precondition, c.reason)
	}
	for _, secret := range c.noMention {
		if strings.Contains(fmt.Sprint(st.Proto()), secret) {
			t.Errorf("the client sees %q: %v", secret, st.Proto())
		}
	}
}

type statusDetails struct {
	reason, domain        string
	facts                 map[string]string
	fields, texts         []string
	retry                 time.Duration
	subject, precondition string
}

func detailsOf(st *status.Status) statusDetails {
	var out statusDetails
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			out.reason, out.domain, out.facts = d.GetReason(), d.GetDomain(), d.GetMetadata()
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				out.fields, out.texts = append(out.fields, v.GetField()), append(out.texts, v.GetDescription())
			}
		case *errdetails.RetryInfo:
			out.retry = d.GetRetryDelay().AsDuration()
		case *errdetails.PreconditionFailure:
			out.subject, out.precondition = d.GetViolations()[0].GetSubject(), d.GetViolations()[0].GetType()
		}
	}
	return out
}

// TestItemErrorsSayWhatTheStatusWouldHaveSaid: a batch and a single call are one API (R3).
func TestItemErrorsSayWhatTheStatusWouldHaveSaid(t *testing.T) {
	for _, c := range errorCases {
		if c.reason == "" {
			continue // the caller's own doing ends the whole call
		}
		t.Run(c.name, func(t *testing.T) {
			st := newStore(t)
			st.heartbeat = func(_ context.Context, items []store.Heartbeat) ([]store.Beaten, error) {
				return []store.Beaten{{Err: fmt.Errorf("item: %w", c.err)}}, nil
			}
			s := serve(t, st, Config{})
			ctx := metadata.AppendToOutgoingContext(t.Context(), "x-request-id", "the-id")
			resp, err := s.leases.BatchHeartbeat(ctx, &pb.BatchHeartbeatRequest{
				Items: []*pb.HeartbeatRequest{{LeaseToken: s.tokens.Seal(lease72)}},
			})
			if err != nil {
				t.Fatal(err)
			}
			item := resp.GetResults()[0].GetError()
			if got := reasonWord(item.GetReason()); got != c.reason || codes.Code(item.GetCode()) != c.code {
				t.Errorf("got %s %v, want %s %v", got, codes.Code(item.GetCode()), c.reason, c.code)
			}
			if !maps.Equal(item.GetMetadata(), c.facts) || item.GetRetryAfter().AsDuration() != c.retry {
				t.Errorf("got %v and %v, want %v and %v", item.GetMetadata(), item.GetRetryAfter(), c.facts, c.retry)
			}
			if len(item.GetFieldViolations()) != len(c.fields) {
				t.Errorf("got violations %v, want %v", item.GetFieldViolations(), c.fields)
			}
			for _, secret := range c.noMention {
				if strings.Contains(item.String(), secret) {
					t.Errorf("the client sees %q: %v", secret, item)
				}
			}
		})
	}
}

// TestEveryReasonHasItsCode: a reason of the proto that is missing here would be sent as OK.
func TestEveryReasonHasItsCode(t *testing.T) {
	for n, name := range pb.ErrorReason_name {
		code, ok := reasonCodes[pb.ErrorReason(n)]
		if n != 0 && (!ok || code == codes.OK) {
			t.Errorf("%s has no code", name)
		}
	}
}

// TestAStatusStaysSmall: what a client sent must not come back at full size in the headers
// of the refusal, which many languages limit to 8 KiB.
func TestAStatusStaysSmall(t *testing.T) {
	s := serve(t, newStore(t), Config{})
	req := &pb.EnqueueRequest{Queue: "q", Headers: map[string]string{}}
	for i := range 64 {
		req.Headers[strings.Repeat("Ä", 10_000)+fmt.Sprint(i)] = "x"
	}
	_, err := s.jobs.Enqueue(t.Context(), req)
	st := status.Convert(err)
	if st.Code() != codes.InvalidArgument {
		t.Fatal(err)
	}
	if size := len(st.Proto().String()); size > 6000 {
		t.Errorf("the status has %d bytes", size)
	}
}

func TestCutKeepsRunes(t *testing.T) {
	for in, want := range map[string]string{
		"short": "short", "exactly-10": "exactly-10", "more than 10": "more th…",
		"ääääääää": "äää…", "bad\xffbytes": "bad\uFFFDb…", "\xff\xfe": "\uFFFD",
	} {
		if got := cut(in, 10); got != want {
			t.Errorf("cut(%q) = %q, want %q", in, got, want)
		}
	}
}
