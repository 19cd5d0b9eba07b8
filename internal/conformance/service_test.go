package conformance

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// desk is a service without a script, called straight.
type desk struct {
	*service
	t *testing.T
}

func newDesk(t *testing.T, length time.Duration) *desk {
	return &desk{service: newService("q", newCutter(&net.TCPListener{}), length), t: t}
}

func (d *desk) acquire(req *pb.AcquireLeaseRequest) ([]string, string) {
	d.t.Helper()
	resp, err := d.AcquireLease(d.t.Context(), req)
	var tokens []string
	for _, l := range resp.GetLeases() {
		tokens = append(tokens, l.GetLeaseToken())
	}
	return tokens, reasonOf(err)
}

// lease takes one.
func (d *desk) lease() string {
	d.t.Helper()
	d.offer(1)
	tokens, reason := d.acquire(&pb.AcquireLeaseRequest{Queues: []string{"q"}, LeaseOwner: "w"})
	if len(tokens) != 1 {
		d.t.Fatalf("%d leases, %q", len(tokens), reason)
	}
	return tokens[0]
}

func (d *desk) beat(token string) string {
	_, err := d.Heartbeat(d.t.Context(), &pb.HeartbeatRequest{LeaseToken: token})
	return reasonOf(err)
}

func (d *desk) complete(token, result string) (*pb.CompleteResponse, string) {
	resp, err := d.Complete(d.t.Context(), &pb.CompleteRequest{LeaseToken: token, Result: &pb.Payload{Content: &pb.Payload_Json{Json: result}}})
	return resp, reasonOf(err)
}

func (d *desk) release(token string) (*pb.ReleaseResponse, string) {
	resp, err := d.Release(d.t.Context(), &pb.ReleaseRequest{LeaseToken: token})
	return resp, reasonOf(err)
}

// reasonOf is the reason of a status; empty for none.
func reasonOf(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// TestR17_EndsAsInTheContract: what a repeated or late call is answered, where nothing is at fault.
func TestR17_EndsAsInTheContract(t *testing.T) {
	t.Parallel()
	d := newDesk(t, time.Minute)
	a, b := d.lease(), d.lease()
	if _, reason := d.complete(a, "1"); reason != "" {
		t.Error(reason)
	}
	if resp, reason := d.complete(a, "1"); !resp.GetAlreadyApplied() {
		t.Error(resp, reason)
	}
	if _, reason := d.complete(a, "2"); reason != "RESULT_CONFLICT" {
		t.Error(reason)
	}
	if _, reason := d.release(a); reason != "LEASE_ENDED" {
		t.Error(reason)
	}
	if reason := d.beat(a); reason != "LEASE_ENDED" {
		t.Error(reason)
	}
	if _, reason := d.release(b); reason != "" {
		t.Error(reason)
	}
	if resp, reason := d.release(b); !resp.GetAlreadyApplied() {
		t.Error(resp, reason)
	}
	if _, reason := d.complete(b, "1"); reason != "LEASE_ENDED" {
		t.Error(reason)
	}
	if reason := d.beat("forged"); reason != "INVALID_TOKEN" {
		t.Error(reason)
	}
}

// TestR17_LateCalls: a lease that ran out is not renewed, but its Complete is accepted.
func TestR17_LateCalls(t *testing.T) {
	t.Parallel()
	d := newDesk(t, time.Nanosecond)
	a := d.lease()
	if _, reason := d.release(a); reason != "LEASE_EXPIRED" {
		t.Error(reason)
	}
	if reason := d.beat(a); reason != "LEASE_EXPIRED" {
		t.Error(reason)
	}
	if resp, reason := d.complete(a, "1"); !resp.GetLate() {
		t.Error(resp, reason)
	}
}

// TestR12_RequestID: the same leases for the same arguments, those that still live.
func TestR12_RequestID(t *testing.T) {
	t.Parallel()
	d := newDesk(t, time.Minute)
	d.offer(1, 1)
	req := func(id string, most int32) *pb.AcquireLeaseRequest {
		return &pb.AcquireLeaseRequest{Queues: []string{"q"}, LeaseOwner: "w", MaxJobs: &most, RequestId: &id, Wait: durationpb.New(time.Nanosecond)}
	}
	first, _ := d.acquire(req("a", 2))
	again, _ := d.acquire(req("a", 2))
	if len(first) != 2 || len(again) != 2 || again[0] != first[0] || again[1] != first[1] {
		t.Errorf("%q, then %q", first, again)
	}
	if _, reason := d.acquire(req("a", 1)); reason != "REQUEST_ID_REUSED" {
		t.Error(reason)
	}
	d.complete(first[0], "1")
	if again, _ := d.acquire(req("a", 2)); len(again) != 1 || again[0] != first[1] {
		t.Errorf("%q", again)
	}
	if none, reason := d.acquire(req("b", 2)); len(none) != 0 || reason != "" {
		t.Errorf("%q, %s", none, reason)
	}
}

// TestAcquireIsChecked as the service checks it.
func TestAcquireIsChecked(t *testing.T) {
	t.Parallel()
	d := newDesk(t, time.Minute)
	id, zero := "1", int32(0)
	for want, req := range map[string]*pb.AcquireLeaseRequest{
		"INVALID_REQUEST": {Queues: []string{"q"}},
		"QUEUE_NOT_FOUND": {Queues: []string{"other"}, LeaseOwner: "w"},
		"JOB_NOT_FOUND":   {JobId: &id, LeaseOwner: "w"},
	} {
		if _, reason := d.acquire(req); reason != want {
			t.Errorf("%s instead of %s", reason, want)
		}
	}
	if _, reason := d.acquire(&pb.AcquireLeaseRequest{Queues: []string{"q"}, LeaseOwner: "w", MaxJobs: &zero}); reason != "INVALID_REQUEST" {
		t.Error(reason)
	}
}

// TestR10_ParkedPoll gets the job that comes, and one whose caller is gone gets none.
func TestR10_ParkedPoll(t *testing.T) {
	t.Parallel()
	d := newDesk(t, time.Minute)
	poll := &pb.AcquireLeaseRequest{Queues: []string{"q"}, LeaseOwner: "w", Wait: durationpb.New(time.Minute)}
	gone, leave := context.WithCancel(t.Context())
	leave()
	if resp, err := d.AcquireLease(gone, poll); err == nil {
		t.Errorf("a caller that is gone was answered %v", resp)
	}
	answer := make(chan *pb.AcquireLeaseResponse)
	go func() {
		resp, err := d.AcquireLease(t.Context(), poll)
		if err != nil {
			t.Error(err)
		}
		answer <- resp
	}()
	d.offer(1)
	if resp := <-answer; len(resp.GetLeases()) != 1 {
		t.Errorf("%v", resp)
	}
}

// TestR3_BatchesAnswerEachItem in order, and refuse as a whole only what the service would.
func TestR3_BatchesAnswerEachItem(t *testing.T) {
	t.Parallel()
	d := newDesk(t, time.Minute)
	a := d.lease()
	resp, err := d.BatchHeartbeat(t.Context(), &pb.BatchHeartbeatRequest{Items: []*pb.HeartbeatRequest{{LeaseToken: "forged"}, {LeaseToken: a}}})
	if err != nil || resp.GetResults()[0].GetError().GetReason() != pb.ErrorReason_ERROR_REASON_INVALID_TOKEN || resp.GetResults()[1].GetOk() == nil {
		t.Errorf("%v, %v", resp, err)
	}
	d.script = func(*call) fault { return fault{refuse: refuse(pb.ErrorReason_ERROR_REASON_DATABASE_UNAVAILABLE)} }
	if _, err := d.BatchRelease(t.Context(), &pb.BatchReleaseRequest{Items: []*pb.ReleaseRequest{{LeaseToken: a}}}); reasonOf(err) != "DATABASE_UNAVAILABLE" {
		t.Error(err)
	}
	d.script = func(*call) fault { return fault{refuse: refuse(pb.ErrorReason_ERROR_REASON_LEASE_SUPERSEDED)} }
	done, err := d.BatchComplete(t.Context(), &pb.BatchCompleteRequest{Items: []*pb.CompleteRequest{{LeaseToken: a}}})
	if err != nil || done.GetResults()[0].GetError().GetReason() != pb.ErrorReason_ERROR_REASON_LEASE_SUPERSEDED {
		t.Errorf("%v, %v", done, err)
	}
	d.script = nil
	failed, err := d.BatchFail(t.Context(), &pb.BatchFailRequest{Items: []*pb.FailRequest{{LeaseToken: a}}})
	if err != nil || failed.GetResults()[0].GetError().GetReason() != pb.ErrorReason_ERROR_REASON_LEASE_SUPERSEDED {
		t.Errorf("a lost lease stays lost: %v, %v", failed, err)
	}
	if _, err := d.BatchHeartbeat(t.Context(), &pb.BatchHeartbeatRequest{}); reasonOf(err) != "INVALID_REQUEST" {
		t.Error(err)
	}
}
