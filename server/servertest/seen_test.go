package servertest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// callTime is far above what any call of these tests takes.
const callTime = time.Minute

// seen is all that a client sees of a call that failed.
type seen struct {
	status  *status.Status
	info    *errdetails.ErrorInfo
	fields  []*errdetails.BadRequest_FieldViolation
	retry   time.Duration
	failed  []*errdetails.PreconditionFailure_Violation
	trailer []string // leasehold-reason
}

// refused makes a call that must fail.
func refused[Req, Resp any](t *testing.T, method func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req) *seen {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTime)
	defer cancel()
	var trailer metadata.MD
	resp, err := method(ctx, req, grpc.Trailer(&trailer))
	if err == nil {
		t.Fatalf("the call was accepted: %v", resp)
	}
	return see(t, err, trailer)
}

func see(t *testing.T, err error, trailer metadata.MD) *seen {
	t.Helper()
	s := &seen{status: status.Convert(err), trailer: trailer.Get("leasehold-reason")}
	for _, d := range s.status.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			s.info = d
		case *errdetails.BadRequest:
			s.fields = d.GetFieldViolations()
		case *errdetails.RetryInfo:
			s.retry = d.GetRetryDelay().AsDuration()
		case *errdetails.PreconditionFailure:
			s.failed = d.GetViolations()
		default:
			t.Errorf("an unknown detail: %v", d)
		}
	}
	return s
}

// want is what a client should see.
type want struct {
	code    codes.Code
	reason  string
	facts   map[string]string // a value of "?" stands for any but none
	fields  []string          // of BadRequest
	retry   time.Duration     // of RetryInfo; 0: it must not be there
	subject string            // of PreconditionFailure
}

// driverWords are what an error of the database or of its driver is recognized by.
var driverWords = []string{
	"SQLSTATE", "ERROR", "pgx", "pgconn", "postgres", "SELECT", "INSERT", "relation", "constraint", "trigger", "leasehold.",
	"127.0.0.1", "dial", "EOF", "connection refused", "reset by peer", "panic", ".go:",
}

func (s *seen) assert(t *testing.T, w want) {
	t.Helper()
	if s.status.Code() != w.code {
		t.Errorf("code %v, want %v: %s", s.status.Code(), w.code, s.status.Message())
	}
	if s.info.GetDomain() != "leasehold" || s.info.GetReason() != w.reason {
		t.Errorf("reason %q of domain %q, want %q of leasehold", s.info.GetReason(), s.info.GetDomain(), w.reason)
	}
	if !slices.Equal(s.trailer, []string{w.reason}) {
		t.Errorf("the trailer says %q, want %q", s.trailer, w.reason)
	}
	if !sameFacts(s.info.GetMetadata(), w.facts) {
		t.Errorf("metadata %v, want %v", s.info.GetMetadata(), w.facts)
	}
	var fields []string
	for _, v := range s.fields {
		fields = append(fields, v.GetField())
		if v.GetDescription() == "" {
			t.Errorf("nothing is said of field %s", v.GetField())
		}
	}
	if !slices.Equal(fields, w.fields) {
		t.Errorf("fields %q, want %q", fields, w.fields)
	}
	if s.retry != w.retry {
		t.Errorf("retry after %v, want %v", s.retry, w.retry)
	}
	s.assertPrecondition(t, w)
	s.assertNoDriverText(t)
}

func (s *seen) assertPrecondition(t *testing.T, w want) {
	t.Helper()
	if w.subject == "" {
		if len(s.failed) != 0 {
			t.Errorf("preconditions %v, want none", s.failed)
		}
		return
	}
	if len(s.failed) != 1 || s.failed[0].GetType() != w.reason || s.failed[0].GetSubject() != w.subject || s.failed[0].GetDescription() == "" {
		t.Errorf("preconditions %v, want one of %s about %s", s.failed, w.reason, w.subject)
	}
}

func (s *seen) assertNoDriverText(t *testing.T) {
	t.Helper()
	if s.status.Message() == "" {
		t.Error("the status says nothing")
	}
	all := fmt.Sprint(s.status.Message(), s.info.GetMetadata(), s.fields, s.failed)
	for _, word := range driverWords {
		if strings.Contains(all, word) {
			t.Errorf("the client sees %q in %s", word, all)
		}
	}
}

func sameFacts(got, want map[string]string) bool {
	return maps.EqualFunc(got, want, func(g, w string) bool { return g == w || w == "?" && g != "" })
}
