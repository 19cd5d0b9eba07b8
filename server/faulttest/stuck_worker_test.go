package faulttest

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// What a process of this test binary is told in its environment to be one worker.
const (
	workerAt    = "FAULTTEST_WORKER_AT" // the service's address; set: be a worker
	workerQueue = "FAULTTEST_WORKER_QUEUE"
	workerOwner = "FAULTTEST_WORKER_OWNER"
	workerBeats = "FAULTTEST_WORKER_BEATS" // a number; "" for as long as it lives
	workerStage = "FAULTTEST_WORKER_STAGE"
)

// A worker process must not run TestMain, which builds the service. So it branches off here.
func init() {
	if os.Getenv(workerAt) == "" {
		return
	}
	if err := beWorker(); err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

// beWorker leases one job, sends heartbeats and hangs until it is killed. It says each step.
func beWorker() error {
	conn, err := grpc.NewClient("passthrough:"+os.Getenv(workerAt), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	leases, ctx := pb.NewLeaseServiceClient(conn), context.Background()
	resp, err := leases.AcquireLease(ctx, &pb.AcquireLeaseRequest{
		Queues: []string{os.Getenv(workerQueue)}, LeaseOwner: os.Getenv(workerOwner), Wait: durationpb.New(time.Minute),
	})
	if err != nil || len(resp.GetLeases()) != 1 {
		return fmt.Errorf("%d leases, %w", len(resp.GetLeases()), err)
	}
	l := resp.GetLeases()[0]
	fmt.Println("leased", l.GetJob().GetJobId(), l.GetLeaseNo())
	limit := -1
	if beats := os.Getenv(workerBeats); beats != "" {
		if _, err := fmt.Sscan(beats, &limit); err != nil {
			return err
		}
	}
	for n := 0; n != limit; n++ {
		if _, err := leases.Heartbeat(ctx, &pb.HeartbeatRequest{LeaseToken: l.GetLeaseToken(), Stage: to(os.Getenv(workerStage))}); err != nil {
			return err
		}
		fmt.Println("beat")
		<-time.After(l.GetNextHeartbeatIn().AsDuration() / 2)
	}
	fmt.Println("hangs")
	select {}
}

// workerProcess is a worker in a process of its own, which can be killed.
type workerProcess struct {
	t     *testing.T
	owner string
	cmd   *exec.Cmd
	says  *bufio.Scanner
}

// startWorker starts a worker at a replica. It leases one job of a queue, sends so many
// heartbeats ("" for as long as it lives), always of the same stage, and hangs.
func startWorker(t *testing.T, at *member, queue, owner, beats string) *workerProcess {
	t.Helper()
	w := &workerProcess{t: t, owner: owner, cmd: exec.Command(os.Args[0])}
	w.cmd.Env = append(os.Environ(), workerAt+"="+at.outer.Addr(), workerQueue+"="+queue, workerOwner+"="+owner,
		workerBeats+"="+beats, workerStage+"=psp_call")
	// It dies with the test, also where that panics.
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.says = bufio.NewScanner(out)
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.kill)
	return w
}

// awaits returns what the worker says behind a word; what it says before that is dropped.
func (w *workerProcess) awaits(word string) string {
	w.t.Helper()
	var last string
	for w.says.Scan() {
		last = w.says.Text()
		if rest, is := strings.CutPrefix(last, word); is {
			return strings.TrimSpace(rest)
		}
	}
	w.t.Fatalf("the worker %s ended before it said %q; at last it said %q", w.owner, word, last)
	return ""
}

// leased waits until the worker has a lease, and tells of which job.
func (w *workerProcess) leased() (jobID string) {
	w.t.Helper()
	jobID, _, _ = strings.Cut(w.awaits("leased"), " ")
	return jobID
}

// kill ends the process as a crash does.
func (w *workerProcess) kill() {
	_ = w.cmd.Process.Kill() // it may have ended
	_ = w.cmd.Wait()
}
