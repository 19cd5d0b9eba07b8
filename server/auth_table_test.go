package server

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

func factsOf(err error) map[string]string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetMetadata()
		}
	}
	return nil
}

// scene makes what a touch needs, as an operator and worker of all queues.
type scene struct {
	t     *testing.T
	admin api
	queue string
}

func (s scene) job() string {
	s.t.Helper()
	resp, err := s.admin.jobs.Enqueue(s.t.Context(), &pb.EnqueueRequest{
		Queue: s.queue, Delay: durationpb.New(0), Payload: &pb.Payload{Content: &pb.Payload_Json{Json: `{"planted":"payload"}`}},
		Headers: map[string]string{"planted": "header"},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.GetJobId()
}

func (s scene) lease() *pb.Lease {
	s.t.Helper()
	id := s.job()
	resp, err := s.admin.leases.AcquireLease(s.t.Context(), &pb.AcquireLeaseRequest{JobId: &id, LeaseOwner: "admin"})
	if err != nil || len(resp.GetLeases()) != 1 {
		s.t.Fatalf("%v, %v", resp, err)
	}
	return resp.GetLeases()[0]
}

func (s scene) token() string { return s.lease().GetLeaseToken() }

// dead is a job with an error, which has details.
func (s scene) dead() string {
	s.t.Helper()
	l := s.lease()
	_, err := s.admin.leases.Fail(s.t.Context(), &pb.FailRequest{
		LeaseToken: l.GetLeaseToken(), Permanent: true, Error: &pb.JobError{Code: "broken", Message: "broke", Details: "planted details"},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return l.GetJob().GetJobId()
}

// errHidden is a list that leaves out what the caller may not see.
var errHidden = errors.New("hidden")

func firstItem[R interface{ GetError() *pb.ItemError }](results []R, err error) error {
	if err != nil {
		return err
	}
	return refusedError(results[0].GetError())
}

// touches call each method about one queue.
var touches = map[string]func(api, scene) error{
	pb.LeaseService_AcquireLease_FullMethodName: func(a api, s scene) error {
		_, err := a.leases.AcquireLease(s.t.Context(), &pb.AcquireLeaseRequest{Queues: []string{s.queue}, LeaseOwner: s.queue})
		return err
	},
	pb.LeaseService_Heartbeat_FullMethodName: func(a api, s scene) error {
		_, err := a.leases.Heartbeat(s.t.Context(), &pb.HeartbeatRequest{LeaseToken: s.token()})
		return err
	},
	pb.LeaseService_Complete_FullMethodName: func(a api, s scene) error {
		_, err := a.leases.Complete(s.t.Context(), &pb.CompleteRequest{LeaseToken: s.token()})
		return err
	},
	pb.LeaseService_Fail_FullMethodName: func(a api, s scene) error {
		_, err := a.leases.Fail(s.t.Context(), &pb.FailRequest{LeaseToken: s.token(), Error: &pb.JobError{Message: "m"}})
		return err
	},
	pb.LeaseService_Release_FullMethodName: func(a api, s scene) error {
		_, err := a.leases.Release(s.t.Context(), &pb.ReleaseRequest{LeaseToken: s.token()})
		return err
	},
	pb.LeaseService_BatchHeartbeat_FullMethodName: func(a api, s scene) error {
		resp, err := a.leases.BatchHeartbeat(s.t.Context(), &pb.BatchHeartbeatRequest{Items: []*pb.HeartbeatRequest{{LeaseToken: s.token()}}})
		return firstItem(resp.GetResults(), err)
	},
	pb.LeaseService_BatchComplete_FullMethodName: func(a api, s scene) error {
		resp, err := a.leases.BatchComplete(s.t.Context(), &pb.BatchCompleteRequest{Items: []*pb.CompleteRequest{{LeaseToken: s.token()}}})
		return firstItem(resp.GetResults(), err)
	},
	pb.LeaseService_BatchFail_FullMethodName: func(a api, s scene) error {
		resp, err := a.leases.BatchFail(s.t.Context(), &pb.BatchFailRequest{Items: []*pb.FailRequest{{LeaseToken: s.token(), Error: &pb.JobError{Message: "m"}}}})
		return firstItem(resp.GetResults(), err)
	},
	pb.LeaseService_BatchRelease_FullMethodName: func(a api, s scene) error {
		resp, err := a.leases.BatchRelease(s.t.Context(), &pb.BatchReleaseRequest{Items: []*pb.ReleaseRequest{{LeaseToken: s.token()}}})
		return firstItem(resp.GetResults(), err)
	},
	pb.LeaseService_ListStuck_FullMethodName: func(a api, s scene) error {
		_, err := a.leases.ListStuck(s.t.Context(), &pb.ListStuckRequest{Queue: &s.queue})
		return err
	},
	pb.JobService_Enqueue_FullMethodName: func(a api, s scene) error {
		_, err := a.jobs.Enqueue(s.t.Context(), &pb.EnqueueRequest{Queue: s.queue})
		return err
	},
	pb.JobService_BatchEnqueue_FullMethodName: func(a api, s scene) error {
		resp, err := a.jobs.BatchEnqueue(s.t.Context(), &pb.BatchEnqueueRequest{Items: []*pb.EnqueueRequest{{Queue: s.queue}}})
		return firstItem(resp.GetResults(), err)
	},
	pb.JobService_GetJob_FullMethodName: func(a api, s scene) error {
		_, err := a.jobs.GetJob(s.t.Context(), &pb.GetJobRequest{By: &pb.GetJobRequest_JobId{JobId: s.job()}})
		return err
	},
	pb.JobService_ListJobs_FullMethodName: func(a api, s scene) error {
		_, err := a.jobs.ListJobs(s.t.Context(), &pb.ListJobsRequest{Filter: &pb.JobFilter{Queue: &s.queue}})
		return err
	},
	pb.JobService_ListLeases_FullMethodName: func(a api, s scene) error {
		_, err := a.jobs.ListLeases(s.t.Context(), &pb.ListLeasesRequest{JobId: s.job()})
		return err
	},
	pb.JobService_CancelJob_FullMethodName: func(a api, s scene) error {
		_, err := a.jobs.CancelJob(s.t.Context(), &pb.CancelJobRequest{JobId: s.job()})
		return err
	},
	pb.QueueService_CreateQueue_FullMethodName: func(a api, s scene) error {
		_, err := a.queues.CreateQueue(s.t.Context(), &pb.CreateQueueRequest{Queue: &pb.Queue{Name: s.queue}})
		return but(err, "QUEUE_EXISTS")
	},
	pb.QueueService_GetQueue_FullMethodName: func(a api, s scene) error {
		_, err := a.queues.GetQueue(s.t.Context(), &pb.GetQueueRequest{Name: s.queue})
		return err
	},
	pb.QueueService_ListQueues_FullMethodName: func(a api, s scene) error {
		resp, err := a.queues.ListQueues(s.t.Context(), &pb.ListQueuesRequest{})
		if err == nil && !slices.ContainsFunc(resp.GetQueues(), func(q *pb.Queue) bool { return q.GetName() == s.queue }) {
			return errHidden
		}
		return err
	},
	pb.QueueService_UpdateQueue_FullMethodName: func(a api, s scene) error {
		_, err := a.queues.UpdateQueue(s.t.Context(), &pb.UpdateQueueRequest{
			Queue: &pb.Queue{Name: s.queue}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"on_expiry"}},
		})
		return err
	},
	pb.QueueService_DeleteQueue_FullMethodName: func(a api, s scene) error {
		s.job()
		_, err := a.queues.DeleteQueue(s.t.Context(), &pb.DeleteQueueRequest{Name: s.queue})
		return but(err, "WRONG_STATE")
	},
	pb.QueueService_PauseQueue_FullMethodName: func(a api, s scene) error {
		_, err := a.queues.PauseQueue(s.t.Context(), &pb.PauseQueueRequest{Name: s.queue})
		if _, resumed := s.admin.queues.ResumeQueue(s.t.Context(), &pb.ResumeQueueRequest{Name: s.queue}); resumed != nil {
			s.t.Error(resumed)
		}
		return err
	},
	pb.QueueService_ResumeQueue_FullMethodName: func(a api, s scene) error {
		_, err := a.queues.ResumeQueue(s.t.Context(), &pb.ResumeQueueRequest{Name: s.queue})
		return err
	},
	pb.QueueService_RetryJobs_FullMethodName: func(a api, s scene) error {
		resp, err := a.queues.RetryJobs(s.t.Context(), &pb.RetryJobsRequest{Selection: &pb.JobSelection{JobIds: []string{s.dead()}}})
		return firstItem(resp.GetResults(), err)
	},
	pb.QueueService_CancelJobs_FullMethodName: func(a api, s scene) error {
		resp, err := a.queues.CancelJobs(s.t.Context(), &pb.CancelJobsRequest{Selection: &pb.JobSelection{JobIds: []string{s.job()}}})
		return firstItem(resp.GetResults(), err)
	},
	pb.QueueService_ResolveJob_FullMethodName: func(a api, s scene) error {
		_, err := a.queues.ResolveJob(s.t.Context(), &pb.ResolveJobRequest{
			JobId: s.dead(), Actor: "a", Note: "n", Resolution: &pb.ResolveJobRequest_Completed{Completed: &pb.ResolvedCompleted{}},
		})
		return err
	},
	pb.QueueService_Lint_FullMethodName: func(a api, s scene) error {
		_, err := a.queues.Lint(s.t.Context(), &pb.LintRequest{Queue: &s.queue})
		return err
	},
}

// but takes one reason for success: what a method says that was allowed to look.
func but(err error, reason string) error {
	if err != nil && reasonOf(err) == reason {
		return nil
	}
	return err
}

// TestRoleMethodQueueTable: over real TLS, each role, on a queue of its own and on another's,
// calls every method that the proto declares. The verdict follows from required_role alone.
func TestRoleMethodQueueTable(t *testing.T) {
	s := serveSecured(t, newStore(t, "pay.in", "mail"), "")
	admin := s.as(t, s.entry(t, adminToken))
	s.access.Pass(t.Context())
	protoregistry.GlobalFiles.RangeFilesByPackage("leasehold.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			for methods, j := file.Services().Get(i).Methods(), 0; j < methods.Len(); j++ {
				if _, known := requiredRoles[fullMethod(methods.Get(j))]; !known {
					t.Errorf("serviceFiles has no %s", methods.Get(j).FullName())
				}
			}
		}
		return true
	})
	for method, role := range requiredRoles {
		if role == pb.Role_ROLE_UNSPECIFIED {
			t.Errorf("%s has no required_role", method)
		}
		if touches[method] == nil || visits[method] == nil {
			t.Fatalf("%s is in no table: say what it touches (visits) and call it here (touches)", method)
		}
	}
	for _, word := range []string{"producer", "worker", "operator", "viewer"} {
		for _, pattern := range []string{"pay.in", "pay*", "*"} {
			caller := s.as(t, s.token(t, word, pattern))
			for method, required := range requiredRoles {
				for _, queue := range []string{"pay.in", "mail"} {
					t.Run(fmt.Sprintf("%s of %s/%s/%s", word, strings.ReplaceAll(pattern, "*", "any"), path.Base(method), queue), func(t *testing.T) {
						err := touches[method](caller, scene{t, admin, queue})
						matches := pattern == "*" || queue == "pay.in"
						checkVerdict(t, err, method, required, queue, brings(word, required), matches)
					})
				}
			}
		}
	}
}

// brings says which roles a role brings along: options.proto, once more.
func brings(word string, role pb.Role) bool {
	if word == "operator" && (role == pb.Role_ROLE_VIEWER || role == pb.Role_ROLE_PRODUCER) {
		return true
	}
	return strings.EqualFold(role.String(), "role_"+word)
}

func checkVerdict(t *testing.T, err error, method string, required pb.Role, queue string, hasRole, matches bool) {
	t.Helper()
	hides := method == pb.QueueService_ListQueues_FullMethodName
	switch {
	case hasRole && matches:
		if err != nil {
			t.Errorf("got %v, want it allowed", err)
		}
	case hasRole && hides:
		if !errors.Is(err, errHidden) {
			t.Errorf("got %v, want the queue left out", err)
		}
	default:
		reason, code, facts := refusal(err)
		if reason != "ROLE_MISSING" || code != codes.PermissionDenied || facts["role"] != roleWord(required) {
			t.Fatalf("got %v, want ROLE_MISSING of %v", err, required)
		}
		// A role that the caller has nowhere is refused before anybody looks which queue.
		if hasRole && facts["queue"] != queue {
			t.Errorf("the refusal names the queue %q, want %q", facts["queue"], queue)
		}
		if len(facts) > 2 {
			t.Errorf("the refusal tells more than role and queue: %v", facts)
		}
	}
}

// TestListsHideOtherQueues: without a filter, lists have what the caller may see, page by page.
func TestListsHideOtherQueues(t *testing.T) {
	s := serveSecured(t, newStore(t, "pay.in", "pay.out", "mail"), "")
	admin := s.as(t, s.entry(t, adminToken))
	caller := s.as(t, s.token(t, "viewer", "pay.*"))
	for range 3 {
		for _, queue := range []string{"pay.in", "mail", "pay.out"} {
			scene{t, admin, queue}.dead()
		}
	}
	seen := map[string]int{}
	size := int32(2)
	for token := ""; ; {
		resp, err := caller.jobs.ListJobs(t.Context(), &pb.ListJobsRequest{PageSize: &size, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range resp.GetJobs() {
			seen[j.GetQueue()]++
		}
		if token = resp.GetNextPageToken(); token == "" {
			break
		}
	}
	if seen["pay.in"] != 3 || seen["pay.out"] != 3 || len(seen) != 2 {
		t.Errorf("ListJobs shows %v", seen)
	}
	queues, err := caller.queues.ListQueues(t.Context(), &pb.ListQueuesRequest{WithStats: true})
	if err != nil || len(queues.GetQueues()) != 2 || len(queues.GetStats()) != 2 && len(queues.GetStats()) != 0 {
		t.Errorf("ListQueues: %v, %v", queues, err)
	}
	if reason, _, _ := refusal(lint(t, caller, nil)); reason != "ROLE_MISSING" {
		t.Errorf("Lint of everything: %s", reason)
	}
	one := s.as(t, s.token(t, "viewer", "mail"))
	jobs, err := one.jobs.ListJobs(t.Context(), &pb.ListJobsRequest{Filter: &pb.JobFilter{CreatedFrom: timestamppb.New(jobTimeZero)}})
	if err != nil || len(jobs.GetJobs()) != 3 {
		t.Errorf("the only queue of a viewer: %d jobs, %v", len(jobs.GetJobs()), err)
	}
}

func lint(t *testing.T, a api, queue *string) error {
	_, err := a.queues.Lint(t.Context(), &pb.LintRequest{Queue: queue})
	return err
}

func retryInfoOf(err error) time.Duration {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration()
		}
	}
	return 0
}
