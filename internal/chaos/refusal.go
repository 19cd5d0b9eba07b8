package main

import (
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// refusal is why a call, or an item of a batch, was not answered OK.
type refusal struct {
	Code    string            `json:"code"`
	Reason  string            `json:"reason,omitempty"` // of the service; none where gRPC itself gave up
	Message string            `json:"message,omitempty"`
	Facts   map[string]string `json:"facts,omitempty"`
}

func refusalOf(err error) *refusal {
	if err == nil {
		return nil
	}
	st := status.Convert(err)
	r := &refusal{Code: st.Code().String(), Message: st.Message()}
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			r.Reason, r.Facts = info.GetReason(), info.GetMetadata()
		}
	}
	return r
}

func itemRefusal(e *pb.ItemError) *refusal {
	return &refusal{
		Code: codes.Code(e.GetCode()).String(), Reason: strings.TrimPrefix(e.GetReason().String(), "ERROR_REASON_"),
		Message: e.GetMessage(), Facts: e.GetMetadata(),
	}
}

// word is the refusal in a report.
func (r *refusal) word() string {
	switch {
	case r == nil:
		return "OK"
	case r.Reason != "":
		return r.Reason
	}
	return "(" + r.Code + ")"
}

// nothingDone tells a refusal that says that nothing was done: the call may be repeated,
// whatever it is.
func (r *refusal) nothingDone() bool {
	if r == nil {
		return false
	}
	switch r.Reason {
	case "DATABASE_UNAVAILABLE", "DRAINING", "JOB_BUSY", "OVERLOADED":
		return true
	}
	return false
}

// ambiguous tells a refusal that leaves open what happened: the service says so, or gRPC gave
// up without having heard from it. An INTERNAL error is a fault and may have been one in the
// middle of anything.
func (r *refusal) ambiguous() bool {
	return r != nil && (r.Reason == "" || r.Reason == "OUTCOME_UNKNOWN" || r.Reason == "INTERNAL")
}

// expected are the refusals that each method may be answered with here, beside those of a
// service that is not available. All others are faults of the service.
var expected = map[string][]string{
	"AcquireLease": {"OUTCOME_UNKNOWN"},
	"Heartbeat":    {"LEASE_SUPERSEDED", "LEASE_EXPIRED", "LEASE_ENDED"},
	"Complete":     {"LEASE_SUPERSEDED", "LEASE_ENDED"},
	"Fail":         {"LEASE_SUPERSEDED", "LEASE_EXPIRED", "LEASE_ENDED"},
	"Release":      {"LEASE_SUPERSEDED", "LEASE_EXPIRED", "LEASE_ENDED"},
	"Enqueue":      {"OUTCOME_UNKNOWN", "IDEMPOTENCY_KEY_REUSED"},
	"CancelJob":    {"WRONG_STATE"},
	"RetryJobs":    {"WRONG_STATE", "OUTCOME_UNKNOWN"},
	"ResolveJob":   {"WRONG_STATE", "OUTCOME_UNKNOWN"},
	"PauseQueue":   {"OUTCOME_UNKNOWN"},
	"ResumeQueue":  {"OUTCOME_UNKNOWN"},
}

// strange tells a refusal that no call of this program should meet.
func (r *refusal) strange(method string) bool {
	if r == nil || r.Reason == "" || r.nothingDone() {
		return false
	}
	for _, reason := range expected[strings.TrimPrefix(method, "Batch")] {
		if r.Reason == reason {
			return false
		}
	}
	return true
}

// typed is the refusal as the error of a Store.
func (r *refusal) typed() error {
	if _, ok := r.Facts["then_enqueue_index"]; ok {
		return &store.FollowUpError{Index: int(r.number("then_enqueue_index"))}
	}
	lease := store.LeaseRef{JobID: store.JobID(r.number("job_id")), LeaseNo: r.number("lease_no")}
	switch r.Reason {
	case "LEASE_SUPERSEDED":
		return &store.SupersededError{Lease: lease, CurrentLeaseNo: r.number("current_lease_no")}
	case "LEASE_EXPIRED":
		return &store.ExpiredError{Lease: lease, End: store.End(pb.LeaseEnd_value["LEASE_END_"+r.Facts["lease_end"]])}
	case "LEASE_ENDED":
		return &store.EndedError{
			Lease: lease, End: store.End(pb.LeaseEnd_value["LEASE_END_"+r.Facts["lease_end"]]),
			State: store.State(pb.JobState_value["JOB_STATE_"+r.Facts["state"]]),
		}
	case "RESULT_CONFLICT":
		return &store.ConflictError{Lease: lease}
	case "WRONG_STATE":
		return &store.StateError{JobID: lease.JobID, State: store.State(pb.JobState_value["JOB_STATE_"+r.Facts["state"]])}
	case "IDEMPOTENCY_KEY_REUSED":
		return &store.KeyReusedError{Queue: r.Facts["queue"], JobID: lease.JobID}
	case "JOB_NOT_FOUND":
		return &store.JobNotFoundError{JobID: lease.JobID}
	case "QUEUE_NOT_FOUND":
		return &store.QueueNotFoundError{Queue: r.Facts["queue"]}
	case "REQUEST_ID_REUSED":
		return &store.RequestReusedError{}
	}
	return &store.InvalidError{Field: r.Reason, Description: r.Message}
}

// number reads a fact; a service that writes it otherwise is met by a 0 that fits nothing.
func (r *refusal) number(fact string) int64 {
	n, _ := strconv.ParseInt(r.Facts[fact], 10, 64)
	return n
}
