package faulttest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/doctest"
	"github.com/leasehold/leasehold/internal/replica"
	"github.com/leasehold/leasehold/server/servertest/remote"
	"github.com/leasehold/leasehold/store"
)

// exampleWorker runs examples/go, which users start from, at a replica, for one job at a time.
func exampleWorker(t *testing.T, m *member) (worker *exec.Cmd, log *replica.Said) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "worker")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./examples/go")
	build.Dir = doctest.Root(t)
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	log = &replica.Said{}
	worker = exec.Command(path)
	worker.Env = append(os.Environ(), "LEASEHOLD_ADDRESS="+m.outer.Addr(), "LEASEHOLD_QUEUE=payments", "LEASEHOLD_SLOTS=1")
	worker.Stdout, worker.Stderr = log, log
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = worker.Process.Kill()
		_ = worker.Wait()
		if t.Failed() {
			t.Logf("the worker said:\n%s", log)
		}
	})
	return worker, log
}

// TestSuspendedWorkerLosesItsJob: a worker process is stopped for longer than its lease, and
// another does its job meanwhile. When it goes on it gives that job up, changes nothing of it,
// and takes the next.
func TestSuspendedWorkerLosesItsJob(t *testing.T) {
	t.Parallel()
	s := newScene(t, 2, []store.Queue{queueOf("payments", 2*time.Second)}, "--watcher-interval", "100ms")
	m, other := s.fleet.members[0], s.remote(t, 1)
	pay := func(payload string) store.JobID {
		t.Helper()
		resp := accepted(t, m.jobs.Enqueue, &pb.EnqueueRequest{Queue: "payments", Payload: &pb.Payload{Content: &pb.Payload_Json{Json: payload}}})
		return remote.JobID(resp.GetJobId())
	}
	id := pay(`{"seconds":3600}`)
	worker, log := exampleWorker(t, m)
	eventually(t, "the worker has the job and renews it", func() bool {
		l := s.records(t, id)
		return len(l) == 1 && l[0].Beats > 0
	})
	if err := worker.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var taken store.LeaseRef
	eventually(t, "another has the job", func() bool {
		out, err := acquire(t, other, store.Acquire{JobID: id, Owner: "another"})
		if err != nil {
			t.Fatal(err)
		}
		if len(out.Leases) == 1 {
			taken = out.Leases[0].Ref()
		}
		return len(out.Leases) == 1
	})
	if _, err := completeWith(t, other, taken, "of the other"); err != nil {
		t.Fatal(err)
	}
	if err := worker.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	next := pay(`{"seconds":0.001}`)
	eventually(t, "the worker has done the next job", func() bool { return s.job(t, next).State == store.Completed })
	// By its own clock or by the service's answer, whichever comes first.
	if got := log.String(); !strings.Contains(got, "lease 1 of job 1 could not be renewed in time") && !strings.Contains(got, "lease 1 of job 1 is lost") {
		t.Errorf("the worker does not know that it has lost its lease:\n%s", got)
	}
	j, l := s.job(t, id), s.records(t, id)
	if string(j.Result.Data) != "of the other" || len(l) != 2 || l[0].End != store.EndExpired || l[1].End != store.EndCompleted {
		t.Errorf("the job has result %q and leases %+v", j.Result.Data, l)
	}
}
