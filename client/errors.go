package client

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

const (
	errorDomain  = "leasehold"
	reasonPrefix = "ERROR_REASON_"
)

// CallError is what a call, or one item of a batch, was answered instead of OK.
type CallError struct {
	// Code is the gRPC code.
	Code codes.Code
	// Reason is the service's. It is UNSPECIFIED where gRPC itself made the status (a connection
	// that broke, a deadline, a message that is too big) and where this client is older than the
	// reason: then Code decides.
	Reason pb.ErrorReason
	// Message is for people, and may change.
	Message string
	// Fields are those at fault, with INVALID_REQUEST and TOO_LARGE.
	Fields []InvalidError
	// Facts are those of the error, as "current_lease_no" or "job_id".
	Facts map[string]string
	// RetryAfter is how long the service asks to wait before another try; 0 where it does not say.
	RetryAfter time.Duration

	cause  error
	unsent bool // it never got as far as a connection
}

func (e *CallError) Error() string {
	word := strings.TrimPrefix(e.Reason.String(), reasonPrefix)
	if e.Reason == pb.ErrorReason_ERROR_REASON_UNSPECIFIED {
		word = e.Code.String()
	}
	if e.Message == "" {
		return word
	}
	return word + ": " + e.Message
}

// Unwrap is the error as gRPC gave it, so that status.Code and errors.Is see it.
func (e *CallError) Unwrap() error { return e.cause }

// InvalidError is a value that breaks its bound.
type InvalidError struct {
	// Field is its name, as "stage" or "policy.max_attempts".
	Field string
	// Want says what is allowed, with the bound.
	Want string
}

func (e *InvalidError) Error() string { return fmt.Sprintf("%s: %s", e.Field, e.Want) }

// ReasonOf is the service's reason of an error that this package, or a generated client, returned.
// It is UNSPECIFIED where the error has none.
func ReasonOf(err error) pb.ErrorReason {
	if err == nil {
		return pb.ErrorReason_ERROR_REASON_UNSPECIFIED
	}
	return callError(err).Reason
}

// callError reads an error of a call.
func callError(err error) *CallError {
	if e, ok := errors.AsType[*CallError](err); ok {
		return e
	}
	s, ok := status.FromError(err)
	if !ok {
		s = status.FromContextError(err)
	}
	e := &CallError{Code: s.Code(), Message: s.Message(), cause: err}
	for _, detail := range s.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == errorDomain {
				e.Reason = pb.ErrorReason(pb.ErrorReason_value[reasonPrefix+d.GetReason()])
				e.Facts = d.GetMetadata()
			}
		case *errdetails.RetryInfo:
			e.RetryAfter = d.GetRetryDelay().AsDuration()
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				e.Fields = append(e.Fields, InvalidError{Field: v.GetField(), Want: v.GetDescription()})
			}
		}
	}
	return e
}

// itemError reads the error of one item of a batch; nil for none.
func itemError(item *pb.ItemError) *CallError {
	if item == nil {
		return nil
	}
	e := &CallError{
		Code: codes.Code(item.GetCode()), Reason: item.GetReason(), Message: item.GetMessage(),
		Facts: item.GetMetadata(), RetryAfter: item.GetRetryAfter().AsDuration(),
	}
	for _, v := range item.GetFieldViolations() {
		e.Fields = append(e.Fields, InvalidError{Field: v.GetField(), Want: v.GetDescription()})
	}
	return e
}

// final tells whether trying again, unchanged, cannot help.
func (e *CallError) final() bool {
	switch e.Code {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.FailedPrecondition,
		codes.OutOfRange, codes.Unimplemented:
		return true
	case codes.ResourceExhausted:
		// Without a reason it is not the service that has too much to do: the message is too big.
		return e.Reason == pb.ErrorReason_ERROR_REASON_UNSPECIFIED && e.RetryAfter == 0
	}
	return false
}

// undone tells whether the service says that the call had no effect.
func (e *CallError) undone() bool {
	switch e.Code {
	case codes.Unavailable, codes.ResourceExhausted:
		return e.unsent || e.Reason != pb.ErrorReason_ERROR_REASON_UNSPECIFIED
	case codes.DeadlineExceeded, codes.Canceled:
		return e.unsent
	case codes.Unauthenticated, codes.PermissionDenied:
		return true
	}
	return e.final()
}

// elsewhere tells whether another replica may answer better.
func (e *CallError) elsewhere() bool {
	switch e.Reason {
	case pb.ErrorReason_ERROR_REASON_JOB_BUSY, pb.ErrorReason_ERROR_REASON_RATE_LIMITED:
		return false // of the row and of the caller, the same everywhere
	}
	switch e.Code {
	case codes.Unavailable, codes.DeadlineExceeded:
		return true
	case codes.ResourceExhausted:
		return e.Reason == pb.ErrorReason_ERROR_REASON_OVERLOADED
	case codes.Internal, codes.Unknown, codes.Aborted:
		return e.Reason == pb.ErrorReason_ERROR_REASON_UNSPECIFIED
	}
	return false
}

// leaseOver tells whether the lease that was asked about is not the caller's any more.
func (e *CallError) leaseOver() bool {
	switch e.Reason {
	case pb.ErrorReason_ERROR_REASON_LEASE_SUPERSEDED, pb.ErrorReason_ERROR_REASON_LEASE_EXPIRED,
		pb.ErrorReason_ERROR_REASON_LEASE_ENDED, pb.ErrorReason_ERROR_REASON_JOB_NOT_FOUND,
		pb.ErrorReason_ERROR_REASON_INVALID_TOKEN:
		return true
	case pb.ErrorReason_ERROR_REASON_UNSPECIFIED:
		return e.Code == codes.FailedPrecondition || e.Code == codes.NotFound
	}
	return false
}
