package server

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

const (
	// errorDomain is the domain of every ErrorInfo.
	errorDomain = "leasehold"
	// reasonTrailer repeats the reason for languages that do not decode rich details (R5).
	reasonTrailer = "leasehold-reason"
)

// Bounds of what an error repeats of a request. A status travels in HTTP/2 headers, where
// several languages refuse more than 8 KiB, and a batch may carry 1,000 item errors in an
// answer of 4 MiB: without these bounds a hostile header name would turn a clear refusal
// into a broken connection.
const (
	maxViolations       = 8
	maxFieldBytes       = 100
	maxDescriptionBytes = 200
	maxMessageBytes     = 400
)

// reasonWord is the reason without the prefix of its enum, as ErrorInfo and trailer have it.
func reasonWord(r pb.ErrorReason) string { return strings.TrimPrefix(r.String(), "ERROR_REASON_") }

// asStatus makes the status of a call that failed with err, notes the cause for the log
// line of the call, and sets the trailer. An error that is a status already came from
// gRPC's own services (health, reflection) and passes.
func asStatus(ctx context.Context, err error) error {
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok { // one that is wrapped into an error of ours is that error
		return err
	}
	f := faultOf(err)
	f.note(ctx)
	if f.reason != pb.ErrorReason_ERROR_REASON_UNSPECIFIED {
		// Fails only outside a gRPC call, where nobody waits for a trailer.
		_ = grpc.SetTrailer(ctx, metadata.Pairs(reasonTrailer, reasonWord(f.reason)))
	}
	return f.status().Err()
}

// note gives the log line of the call what the client must not see, and the client's copy
// of an internal error the request id to quote.
func (f *fault) note(ctx context.Context) {
	callOf(ctx).addCause(f.cause)
	if f.reason == pb.ErrorReason_ERROR_REASON_INTERNAL {
		id := requestIDOf(ctx)
		f.message = "internal error; quote request id " + id
		f.addFact("request_id", id)
	}
}

func (f *fault) status() *status.Status {
	st := status.New(f.code, cut(f.message, maxMessageBytes))
	if f.reason == pb.ErrorReason_ERROR_REASON_UNSPECIFIED {
		return st
	}
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{
		Reason: reasonWord(f.reason), Domain: errorDomain, Metadata: f.facts,
	}}
	if len(f.violations) > 0 {
		details = append(details, f.badRequest())
	}
	if f.retryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(f.retryAfter)})
	}
	if f.code == codes.FailedPrecondition {
		details = append(details, &errdetails.PreconditionFailure{
			Violations: []*errdetails.PreconditionFailure_Violation{{
				Type: reasonWord(f.reason), Subject: f.subject, Description: cut(f.message, maxMessageBytes),
			}},
		})
	}
	with, err := st.WithDetails(details...)
	if err != nil {
		// Details cannot be packed only if one is not valid UTF-8; the code still counts.
		return st
	}
	return with
}

func (f *fault) badRequest() *errdetails.BadRequest {
	br := &errdetails.BadRequest{}
	for _, v := range shown(f.violations) {
		br.FieldViolations = append(br.FieldViolations, &errdetails.BadRequest_FieldViolation{
			Field: v.field, Description: v.description,
		})
	}
	return br
}

// asItemError makes the error of one item of a batch: what the status of a single call
// would have said.
func asItemError(ctx context.Context, err error) *pb.ItemError {
	f := faultOf(err)
	f.note(ctx)
	item := &pb.ItemError{
		Reason:   f.reason,
		Message:  cut(f.message, maxMessageBytes),
		Code:     int32(f.code),
		Metadata: f.facts,
	}
	for _, v := range shown(f.violations) {
		item.FieldViolations = append(item.FieldViolations, &pb.FieldViolation{Field: v.field, Description: v.description})
	}
	if f.retryAfter > 0 {
		item.RetryAfter = durationpb.New(f.retryAfter)
	}
	return item
}

// shown is the part of vs that an answer has room for.
func shown(vs []violation) []violation {
	out := make([]violation, 0, min(len(vs), maxViolations))
	for _, v := range vs[:min(len(vs), maxViolations)] {
		v.field, v.description = cut(v.field, maxFieldBytes), cut(v.description, maxDescriptionBytes)
		out = append(out, v)
	}
	return out
}

// cut shortens s to at most n bytes on a rune boundary and marks that it did. What is not
// UTF-8 is replaced: protobuf would refuse the whole status for it.
func cut(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= n {
		return s
	}
	const mark = "…"
	n -= len(mark)
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n] + mark
}

// reasonOf reads the reason that a status carries; empty where it carries none.
func reasonOf(err error) string {
	var with interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &with) {
		return ""
	}
	for _, d := range with.GRPCStatus().Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == errorDomain {
			return info.GetReason()
		}
	}
	return ""
}
