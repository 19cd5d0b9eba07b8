package remote

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// refusal is an error as a client sees it, as a status or as the error of an item.
type refusal struct {
	reason  pb.ErrorReason
	facts   map[string]string
	fields  []*pb.FieldViolation
	message string
}

// storeError is the typed error that a status stands for. What carries no reason of ours is
// the error of a context, or of a connection that broke, or stays what it is.
func storeError(err error) error {
	if err == nil {
		return nil
	}
	st := status.Convert(err)
	r := refusal{message: st.Message()}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			r.reason = pb.ErrorReason(pb.ErrorReason_value["ERROR_REASON_"+d.GetReason()])
			r.facts = d.GetMetadata()
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				r.fields = append(r.fields, &pb.FieldViolation{Field: v.GetField(), Description: v.GetDescription()})
			}
		}
	}
	switch {
	case r.reason != pb.ErrorReason_ERROR_REASON_UNSPECIFIED:
		return r.typed()
	case st.Code() == codes.Canceled:
		return context.Canceled
	case st.Code() == codes.DeadlineExceeded:
		return context.DeadlineExceeded
	case st.Code() == codes.Unavailable:
		return &store.OutcomeUnknownError{Cause: err}
	}
	return err
}

func itemError(e *pb.ItemError) error {
	if e == nil {
		return nil
	}
	return refusal{reason: e.GetReason(), facts: e.GetMetadata(), fields: e.GetFieldViolations(), message: e.GetMessage()}.typed()
}

// isOfCall tells the errors that a Store answers for a whole call: no item was decided.
func isOfCall(err error) bool {
	_, unavailable := errors.AsType[*store.UnavailableError](err)
	_, isStatus := err.(interface{ GRPCStatus() *status.Status })
	return unavailable || isStatus || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

func (r refusal) typed() error {
	if index, ok := r.facts["then_enqueue_index"]; ok {
		return r.ofFollowUp(index)
	}
	switch r.reason {
	case pb.ErrorReason_ERROR_REASON_INVALID_REQUEST, pb.ErrorReason_ERROR_REASON_TOO_LARGE, pb.ErrorReason_ERROR_REASON_INVALID_TOKEN:
		v := &pb.FieldViolation{}
		if len(r.fields) > 0 {
			v = r.fields[0]
		}
		return &store.InvalidError{Field: v.GetField(), Description: v.GetDescription(), TooLarge: r.reason == pb.ErrorReason_ERROR_REASON_TOO_LARGE}
	case pb.ErrorReason_ERROR_REASON_LEASE_SUPERSEDED:
		return &store.SupersededError{Lease: r.lease(), CurrentLeaseNo: r.number("current_lease_no")}
	case pb.ErrorReason_ERROR_REASON_LEASE_EXPIRED:
		return &store.ExpiredError{Lease: r.lease(), End: r.end()}
	case pb.ErrorReason_ERROR_REASON_LEASE_ENDED:
		return &store.EndedError{Lease: r.lease(), End: r.end(), State: r.state()}
	case pb.ErrorReason_ERROR_REASON_RESULT_CONFLICT:
		return &store.ConflictError{Lease: r.lease()}
	case pb.ErrorReason_ERROR_REASON_WRONG_STATE:
		return &store.StateError{JobID: store.JobID(r.number("job_id")), Queue: r.facts["queue"], State: r.state(), Want: r.message}
	case pb.ErrorReason_ERROR_REASON_JOB_NOT_FOUND:
		return &store.JobNotFoundError{JobID: store.JobID(r.number("job_id")), Queue: r.facts["queue"]}
	case pb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND:
		return &store.QueueNotFoundError{Queue: r.facts["queue"]}
	case pb.ErrorReason_ERROR_REASON_QUEUE_EXISTS:
		return &store.QueueExistsError{Queue: r.facts["queue"]}
	case pb.ErrorReason_ERROR_REASON_IDEMPOTENCY_KEY_REUSED:
		return &store.KeyReusedError{Queue: r.facts["queue"], JobID: store.JobID(r.number("job_id"))}
	case pb.ErrorReason_ERROR_REASON_REQUEST_ID_REUSED:
		return &store.RequestReusedError{}
	case pb.ErrorReason_ERROR_REASON_JOB_BUSY:
		return &store.BusyError{JobID: store.JobID(r.number("job_id")), What: r.message}
	case pb.ErrorReason_ERROR_REASON_DATABASE_UNAVAILABLE, pb.ErrorReason_ERROR_REASON_DRAINING, pb.ErrorReason_ERROR_REASON_OVERLOADED:
		return &store.UnavailableError{Cause: errors.New(r.message)}
	case pb.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN:
		return &store.OutcomeUnknownError{Cause: errors.New(r.message)}
	}
	return fmt.Errorf("%s: %s", r.reason, r.message)
}

// ofFollowUp is the error of one follow-up job: what Enqueue would have said of it.
func (r refusal) ofFollowUp(index string) error {
	n, err := strconv.Atoi(index)
	if err != nil {
		return fmt.Errorf("then_enqueue_index %q: %w", index, err)
	}
	inner := refusal{reason: r.reason, facts: maps.Clone(r.facts), message: r.message}
	delete(inner.facts, "then_enqueue_index")
	for _, v := range r.fields {
		inner.fields = append(inner.fields, &pb.FieldViolation{
			Field: strings.TrimPrefix(v.GetField(), "then_enqueue["+index+"]."), Description: v.GetDescription(),
		})
	}
	return &store.FollowUpError{Index: n, Err: inner.typed()}
}

// number reads a fact that is one; 0 where there is none.
func (r refusal) number(fact string) int64 {
	text, ok := r.facts[fact]
	if !ok {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic(fmt.Sprintf("the fact %s is %q", fact, text))
	}
	return n
}

func (r refusal) lease() store.LeaseRef {
	return store.LeaseRef{JobID: store.JobID(r.number("job_id")), LeaseNo: r.number("lease_no")}
}

func (r refusal) end() store.End {
	return store.End(pb.LeaseEnd_value["LEASE_END_"+r.facts["lease_end"]])
}

func (r refusal) state() store.State {
	return store.State(pb.JobState_value["JOB_STATE_"+r.facts["state"]])
}
