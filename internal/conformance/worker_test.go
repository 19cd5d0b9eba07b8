package conformance_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/conformance"
)

// defectEnv makes the test binary a worker with a defect; "none" is a worker without one. It is
// written on the generated client alone, so that each defect is one line in it.
const defectEnv = "CONFORMANCE_TEST_DEFECT"

const (
	workerGrace = time.Second
	// grace is what the check gives it.
	grace = 15 * time.Second
)

var (
	errLost = errors.New("the lease is lost")
	errStop = errors.New("asked to stop")
)

type worker struct {
	defect string
	leases pb.LeaseServiceClient
	queue  string
	slots  chan struct{}
	ids    atomic.Int64
	work   sync.WaitGroup
}

func (w *worker) is(defect string) bool { return w.defect == defect }

// dies ends the process of a worker that takes an error for its end.
func (w *worker) dies(defect string, err error) {
	if w.is(defect) && status.Code(err) == codes.Internal {
		os.Exit(1)
	}
}

// runWorker is the main of the worker.
func runWorker(defect string) int {
	slots, err := strconv.Atoi(os.Getenv(conformance.EnvSlots))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	conn, err := grpc.NewClient(os.Getenv(conformance.EnvAddress), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	defer conn.Close()
	w := &worker{defect: defect, leases: pb.NewLeaseServiceClient(conn), queue: os.Getenv(conformance.EnvQueue), slots: make(chan struct{}, slots)}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	polling, stopPolling := context.WithCancel(context.Background())
	working, stopWorking := context.WithCancelCause(context.Background())
	defer stopWorking(nil)
	for range slots {
		w.work.Go(func() { w.loop(polling, working) })
	}
	<-signals
	if w.is("ignores SIGTERM") {
		select {}
	}
	if w.is("leases after SIGTERM") {
		grace := time.AfterFunc(5*time.Second, stopPolling)
		defer grace.Stop()
	} else {
		stopPolling()
	}
	if w.is("exits without giving back") {
		return 0
	}
	grace := time.AfterFunc(workerGrace, func() { stopWorking(errStop) })
	defer grace.Stop()
	w.work.Wait()
	return 0
}

// loop is one slot.
func (w *worker) loop(polling, working context.Context) {
	for polling.Err() == nil {
		granted, since, err := w.acquire(polling)
		w.dies("dies of an acquire", err)
		if err != nil {
			pause(polling, w.wait(err))
			continue
		}
		var side sync.WaitGroup // a hoarder has more than the one
		for _, l := range granted {
			side.Go(func() { w.handle(working, l, since) })
		}
		side.Wait()
	}
}

// wait is how long to wait after a refusal.
func (w *worker) wait(err error) time.Duration {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok && !w.is("hears no RetryInfo") {
			return info.GetRetryDelay().AsDuration()
		}
	}
	return 300 * time.Millisecond
}

// acquire takes one lease, and asks again where the answer may be lost.
func (w *worker) acquire(ctx context.Context) ([]*pb.Lease, time.Time, error) {
	id := fmt.Sprintf("%d-%d", os.Getpid(), w.ids.Add(1))
	req := &pb.AcquireLeaseRequest{
		Queues: []string{w.queue}, LeaseOwner: "test", MaxJobs: new(int32(1)), RequestId: &id, Wait: durationpb.New(5 * time.Second),
	}
	if w.is("hoards") {
		req.MaxJobs = new(int32(10))
	}
	if w.is("polls too often") {
		req.Wait = durationpb.New(20 * time.Millisecond)
	}
	deadline := 8 * time.Second
	if w.is("sets no deadline") {
		deadline = time.Hour
	}
	for {
		sent := time.Now()
		call, cancel := context.WithTimeout(ctx, deadline)
		resp, err := w.leases.AcquireLease(call, req)
		cancel()
		inDoubt := status.Code(err) == codes.Unavailable && len(status.Convert(err).Details()) == 0
		if !inDoubt || w.is("forgets request_id") || !pause(ctx, 200*time.Millisecond) {
			return resp.GetLeases(), sent.Add(resp.GetWaited().AsDuration()), err
		}
	}
}

// handle works on one lease.
func (w *worker) handle(stop context.Context, l *pb.Lease, since time.Time) {
	held, lose := context.WithCancelCause(context.Background())
	defer lose(nil)
	working, end := context.WithCancelCause(held)
	defer context.AfterFunc(stop, func() { end(errStop) })()
	expiry := time.AfterFunc(time.Until(since.Add(l.GetRemaining().AsDuration())), func() {
		if !w.is("overstays its lease") {
			lose(errLost)
		}
	})
	defer expiry.Stop()
	go w.beats(held, l, lose, end, expiry)

	var payload struct{ Seconds int }
	_ = json.Unmarshal([]byte(l.GetJob().GetPayload().GetJson()), &payload) // it is the check's own
	if w.is("does nothing") {
		payload.Seconds = 0
	}
	switch done := pause(working, time.Duration(payload.Seconds)*time.Second); {
	case done:
		w.end(held, l, true)
	case errors.Is(context.Cause(working), errLost) && w.is("beats on after a loss"):
		pause(held, 5*time.Second)
	case !errors.Is(context.Cause(working), errLost):
		w.end(held, l, false)
	}
}

// end completes or releases, until that is answered or the lease has ended.
func (w *worker) end(held context.Context, l *pb.Lease, done bool) {
	for {
		call, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		var err error
		if done {
			_, err = w.leases.Complete(call, &pb.CompleteRequest{LeaseToken: l.GetLeaseToken()})
		} else {
			_, err = w.leases.Release(call, &pb.ReleaseRequest{LeaseToken: l.GetLeaseToken()})
		}
		cancel()
		w.dies("dies of an end", err)
		again := passes(err) && !w.is("completes once only")
		if w.is("retries for ever") && status.Code(err) == codes.FailedPrecondition {
			again, held = true, context.Background()
		}
		if !again || !pause(held, 300*time.Millisecond) {
			return
		}
	}
}

// beats renews a lease until held ends.
func (w *worker) beats(held context.Context, l *pb.Lease, lose, end context.CancelCauseFunc, expiry *time.Timer) {
	advised := l.GetNextHeartbeatIn().AsDuration()
	if w.is("beats rarely") {
		advised = advised * 18 / 10
	}
	deadline := time.Second
	if w.is("waits for its heartbeat") {
		deadline = time.Minute
	}
	for next := advised; pause(held, next); {
		if w.is("never beats") {
			continue
		}
		sent := time.Now()
		call, cancel := context.WithTimeout(held, deadline)
		resp, err := w.leases.Heartbeat(call, &pb.HeartbeatRequest{LeaseToken: l.GetLeaseToken()})
		cancel()
		w.dies("dies of a heartbeat", err)
		switch {
		case err == nil:
			next = advised
			expiry.Reset(time.Until(sent.Add(resp.GetRemaining().AsDuration())))
			if resp.GetCancelRequested() && !w.is("ignores cancel") {
				end(errStop)
			}
		case passes(err) && (status.Code(err) == codes.DeadlineExceeded || !w.is("gives up on an outage")):
			next = 200 * time.Millisecond
		case w.is("beats on after a loss"):
			expiry.Stop()
			end(errLost)
		case w.is("completes after a loss"):
			expiry.Stop()
			return
		default:
			lose(errLost)
		}
	}
}

// passes tells whether trying again may help.
func passes(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded, codes.Internal:
		return true
	}
	return false
}

// pause is false where ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
