package main

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// exampleWorker runs examples/go on a service.
func exampleWorker(t *testing.T, grpcAddress string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(buildExample(t, "go")), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "LEASEHOLD_ADDRESS="+grpcAddress, "LEASEHOLD_QUEUE=payments")
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
			t.Logf("the worker said:\n%s%s", &p.out, &p.err)
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
	long, hopeless := e.enqueue(`{"seconds":5}`), e.enqueue(`"not so long"`)
	worker := exampleWorker(t, grpcAddress)

	done := e.await(long, "the long job is done", inState(pb.JobState_JOB_STATE_COMPLETED))
	if got := done.GetJob().GetResult().GetJson(); got != `{"fence":1}` {
		t.Errorf("the result is %s", got)
	}
	if l := done.GetLeases(); len(l) != 1 || l[0].GetBeats() < 3 || l[0].GetEnd() != pb.LeaseEnd_LEASE_END_COMPLETED {
		t.Errorf("its leases are %v", l)
	}
	dead := e.await(hopeless, "the hopeless job is given up", inState(pb.JobState_JOB_STATE_DEAD))
	if got := dead.GetJob().GetLastError().GetCode(); got != "bad_payload" {
		t.Errorf("the code of the error is %q", got)
	}

	cancelled := e.enqueue(`{"seconds":3600}`)
	e.await(cancelled, "the worker has it", inState(pb.JobState_JOB_STATE_PROCESSING))
	if _, err := e.jobs.CancelJob(t.Context(), &pb.CancelJobRequest{JobId: cancelled}); err != nil {
		t.Fatal(err)
	}
	e.await(cancelled, "the job is cancelled", inState(pb.JobState_JOB_STATE_CANCELLED))

	returned := e.enqueue(`{"seconds":3600}`)
	e.await(returned, "the worker works on it", func(r *pb.GetJobResponse) bool {
		return len(r.GetLeases()) == 1 && r.GetLeases()[0].GetBeats() > 0 // before, the answer may be on its way
	})
	worker.signal(t, syscall.SIGTERM)
	worker.signal(t, syscall.SIGTERM) // without its grace
	worker.mustExit(t, 0)
	back := e.await(returned, "the lease is given back", inState(pb.JobState_JOB_STATE_PENDING))
	if l := back.GetLeases(); len(l) != 1 || l[0].GetEnd() != pb.LeaseEnd_LEASE_END_RELEASED {
		t.Errorf("its leases are %v", l)
	}
}
