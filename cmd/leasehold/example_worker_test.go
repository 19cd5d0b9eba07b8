package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/doctest"
)

// exampleWorker builds examples/worker and runs it on a service.
func exampleWorker(t *testing.T, grpcAddress string) *process {
	t.Helper()
	path := filepath.Join(t.TempDir(), "worker")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./examples/worker")
	build.Dir = doctest.Root(t)
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	return beginProgram(t, path, "-service", grpcAddress)
}

// beginProgram is begin for another program than ours.
func beginProgram(t *testing.T, path string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(path, args...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.err
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // the exit code says it
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // most have ended
		<-p.ended
		if t.Failed() {
			t.Logf("%s said:\n%s%s", path, &p.out, &p.err)
		}
	})
	return p
}

// exampleJobs puts jobs into the queue of the example and looks at them.
type exampleJobs struct {
	t    *testing.T
	jobs pb.JobServiceClient
}

func (e exampleJobs) enqueue(payload string) string {
	e.t.Helper()
	resp, err := e.jobs.Enqueue(e.t.Context(), &pb.EnqueueRequest{
		Queue: "payments", Payload: &pb.Payload{Content: &pb.Payload_Json{Json: payload}},
		// Short, so that the long job has to be renewed several times.
		Policy: &pb.JobPolicy{LeaseDuration: durationpb.New(3 * time.Second)},
	})
	if err != nil {
		e.t.Fatal(err)
	}
	return resp.GetJobId()
}

// await waits until a job is as wanted.
func (e exampleJobs) await(id, what string, is func(*pb.GetJobResponse) bool) *pb.GetJobResponse {
	e.t.Helper()
	var last *pb.GetJobResponse
	eventually(e.t, what, func() bool {
		var err error
		last, err = e.jobs.GetJob(e.t.Context(), &pb.GetJobRequest{
			By: &pb.GetJobRequest_JobId{JobId: id}, View: pb.JobView_JOB_VIEW_FULL, RecentLeases: proto.Int32(10),
		})
		return err == nil && is(last)
	})
	return last
}

func inState(s pb.JobState) func(*pb.GetJobResponse) bool {
	return func(r *pb.GetJobResponse) bool { return r.GetJob().GetState() == s }
}

// TestExampleWorker: the worker that the README shows completes what can be done, renews
// leases meanwhile, gives up what never can, stops when it is asked to, and gives its lease
// back when it is told to end.
func TestExampleWorker(t *testing.T) {
	t.Parallel()
	service := beginService(t, "dev", "--ephemeral")
	grpcAddress, _ := service.addresses(t)
	e := exampleJobs{t: t, jobs: pb.NewJobServiceClient(dial(t, grpcAddress))}
	long, hopeless := e.enqueue(`{"amount":4200,"millis":5000}`), e.enqueue(`"not a payment"`)
	worker := exampleWorker(t, grpcAddress)

	done := e.await(long, "the long job is done", inState(pb.JobState_JOB_STATE_COMPLETED))
	if got := done.GetJob().GetResult().GetJson(); got != `{"settled":4200,"fence":1}` {
		t.Errorf("the result is %s", got)
	}
	if l := done.GetLeases(); len(l) != 1 || l[0].GetBeats() < 3 || l[0].GetEnd() != pb.LeaseEnd_LEASE_END_COMPLETED {
		t.Errorf("its leases are %v", l)
	}
	dead := e.await(hopeless, "the hopeless job is given up", inState(pb.JobState_JOB_STATE_DEAD))
	if got := dead.GetJob().GetLastError().GetMessage(); !strings.Contains(got, "no attempt will succeed") {
		t.Errorf("the error is %q", got)
	}

	cancelled := e.enqueue(`{"millis":60000}`)
	e.await(cancelled, "the worker has it", inState(pb.JobState_JOB_STATE_PROCESSING))
	if _, err := e.jobs.CancelJob(t.Context(), &pb.CancelJobRequest{JobId: cancelled}); err != nil {
		t.Fatal(err)
	}
	e.await(cancelled, "the job is cancelled", inState(pb.JobState_JOB_STATE_CANCELLED))

	returned := e.enqueue(`{"millis":60000}`)
	e.await(returned, "the worker has it", inState(pb.JobState_JOB_STATE_PROCESSING))
	worker.signal(t, syscall.SIGTERM)
	worker.mustExit(t, 0)
	back := e.await(returned, "the lease is given back", inState(pb.JobState_JOB_STATE_PENDING))
	if l := back.GetLeases(); len(l) != 1 || l[0].GetEnd() != pb.LeaseEnd_LEASE_END_RELEASED {
		t.Errorf("its leases are %v", l)
	}
}
