package conformance

import (
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

const (
	errorDomain   = "leasehold"
	reasonTrailer = "leasehold-reason"
	reasonPrefix  = "ERROR_REASON_"
)

// refusal is an answer other than OK, as the service makes it.
type refusal struct {
	reason     pb.ErrorReason
	code       codes.Code
	retryAfter time.Duration
	facts      map[string]string
}

// refusalCodes gives each reason of the contract its gRPC code.
var refusalCodes = map[pb.ErrorReason]codes.Code{
	pb.ErrorReason_ERROR_REASON_INVALID_REQUEST:        codes.InvalidArgument,
	pb.ErrorReason_ERROR_REASON_TOO_LARGE:              codes.InvalidArgument,
	pb.ErrorReason_ERROR_REASON_INVALID_TOKEN:          codes.InvalidArgument,
	pb.ErrorReason_ERROR_REASON_JOB_NOT_FOUND:          codes.NotFound,
	pb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND:        codes.NotFound,
	pb.ErrorReason_ERROR_REASON_LEASE_SUPERSEDED:       codes.FailedPrecondition,
	pb.ErrorReason_ERROR_REASON_LEASE_EXPIRED:          codes.FailedPrecondition,
	pb.ErrorReason_ERROR_REASON_LEASE_ENDED:            codes.FailedPrecondition,
	pb.ErrorReason_ERROR_REASON_RESULT_CONFLICT:        codes.FailedPrecondition,
	pb.ErrorReason_ERROR_REASON_WRONG_STATE:            codes.FailedPrecondition,
	pb.ErrorReason_ERROR_REASON_IDEMPOTENCY_KEY_REUSED: codes.AlreadyExists,
	pb.ErrorReason_ERROR_REASON_REQUEST_ID_REUSED:      codes.AlreadyExists,
	pb.ErrorReason_ERROR_REASON_QUEUE_EXISTS:           codes.AlreadyExists,
	pb.ErrorReason_ERROR_REASON_OVERLOADED:             codes.ResourceExhausted,
	pb.ErrorReason_ERROR_REASON_RATE_LIMITED:           codes.ResourceExhausted,
	pb.ErrorReason_ERROR_REASON_DATABASE_UNAVAILABLE:   codes.Unavailable,
	pb.ErrorReason_ERROR_REASON_DRAINING:               codes.Unavailable,
	pb.ErrorReason_ERROR_REASON_JOB_BUSY:               codes.Unavailable,
	pb.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN:        codes.Unknown,
	pb.ErrorReason_ERROR_REASON_CREDENTIALS_MISSING:    codes.Unauthenticated,
	pb.ErrorReason_ERROR_REASON_CREDENTIALS_INVALID:    codes.Unauthenticated,
	pb.ErrorReason_ERROR_REASON_ROLE_MISSING:           codes.PermissionDenied,
	pb.ErrorReason_ERROR_REASON_INTERNAL:               codes.Internal,
}

// soonAgain is the RetryInfo of what passes: short, so that a run is.
const soonAgain = 200 * time.Millisecond

// refuse makes the refusal for a reason, with RetryInfo where the contract has it.
func refuse(reason pb.ErrorReason) *refusal {
	r := &refusal{reason: reason, code: refusalCodes[reason]}
	if r.code == codes.Unavailable || r.code == codes.ResourceExhausted {
		r.retryAfter = soonAgain
	}
	return r
}

// word is the reason without the prefix of its enum.
func (r *refusal) word() string { return strings.TrimPrefix(r.reason.String(), reasonPrefix) }

// losesLease tells whether the lease that was asked about is over.
func (r *refusal) losesLease() bool {
	switch r.reason {
	case pb.ErrorReason_ERROR_REASON_LEASE_SUPERSEDED, pb.ErrorReason_ERROR_REASON_LEASE_EXPIRED, pb.ErrorReason_ERROR_REASON_LEASE_ENDED:
		return true
	}
	return false
}

// ofCall tells whether the service would refuse a whole batch by it, rather than each item.
func (r *refusal) ofCall() bool {
	switch r.code {
	case codes.Unavailable, codes.ResourceExhausted, codes.Internal, codes.Unknown, codes.Unauthenticated, codes.PermissionDenied:
		return r.reason != pb.ErrorReason_ERROR_REASON_JOB_BUSY
	}
	return false
}

func (r *refusal) message() string { return "the conformance check answers " + r.word() }

// err is the status of a call.
func (r *refusal) err() error {
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: r.word(), Domain: errorDomain, Metadata: r.facts}}
	if r.retryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(r.retryAfter)})
	}
	plain := status.New(r.code, r.message())
	if with, err := plain.WithDetails(details...); err == nil {
		return with.Err()
	}
	return plain.Err()
}

// item is the error of one item of a batch.
func (r *refusal) item() *pb.ItemError {
	item := &pb.ItemError{Reason: r.reason, Message: r.message(), Code: int32(r.code), Metadata: r.facts}
	if r.retryAfter > 0 {
		item.RetryAfter = durationpb.New(r.retryAfter)
	}
	return item
}
