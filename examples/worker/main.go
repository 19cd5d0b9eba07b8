// Command worker is a whole worker: it takes one lease at a time from the queue "payments",
// renews it while it works, and ends it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

var (
	errStop      = errors.New("asked to stop")
	errLost      = errors.New("the lease is lost")
	errPermanent = errors.New("no attempt will succeed")
)

// work is yours. It returns soon after ctx ends, and gives the fencing number lease_no to
// whatever it changes, so that a worker which overslept its lease changes nothing.
func work(ctx context.Context, lease *pb.Lease) (result string, err error) {
	var payment struct{ Amount, Millis int }
	if err := json.Unmarshal([]byte(lease.GetJob().GetPayload().GetJson()), &payment); err != nil {
		return "", fmt.Errorf("%w: %w", errPermanent, err)
	}
	if !pause(ctx, time.Duration(payment.Millis)*time.Millisecond) {
		return "", context.Cause(ctx)
	}
	return fmt.Sprintf(`{"settled":%d,"fence":%d}`, payment.Amount, lease.GetLeaseNo()), nil
}

func main() {
	service := flag.String("service", "127.0.0.1:7070", "address of the service")
	flag.Parse()
	conn, err := grpc.NewClient(*service, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		slog.Error("bad address", "error", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	w := &worker{leases: pb.NewLeaseServiceClient(conn), owner: fmt.Sprintf("worker/%d", os.Getpid())}
	for ctx.Err() == nil {
		w.takeOne(ctx)
	}
}

type worker struct {
	leases pb.LeaseServiceClient
	owner  string // for diagnosis: which process held the lease
}

func (w *worker) takeOne(ctx context.Context) {
	call, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	sent := time.Now()
	resp, err := w.leases.AcquireLease(call, &pb.AcquireLeaseRequest{
		Queues: []string{"payments"}, LeaseOwner: w.owner, Wait: durationpb.New(20 * time.Second),
	})
	if err != nil && ctx.Err() == nil {
		slog.Warn("no lease", "error", err)
		pause(ctx, time.Second+rand.N(time.Second))
	}
	for _, lease := range resp.GetLeases() { // none where nothing came within 20 s
		w.handle(ctx, lease, sent.Add(resp.GetWaited().AsDuration()))
	}
}

// handle works on a lease that had not begun yet at the time `since`.
func (w *worker) handle(ctx context.Context, lease *pb.Lease, since time.Time) {
	held, lose := context.WithCancelCause(context.WithoutCancel(ctx)) // as long as the lease
	defer lose(nil)
	working, stop := context.WithCancelCause(held)
	defer context.AfterFunc(ctx, func() { stop(errStop) })()
	go w.beat(held, lose, stop, lease, since)

	result, err := work(working, lease)
	token, stopped := lease.GetLeaseToken(), context.Cause(working)
	for {
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		var refused error
		switch {
		case err == nil:
			_, refused = w.leases.Complete(call, &pb.CompleteRequest{
				LeaseToken: token, Result: &pb.Payload{Content: &pb.Payload_Json{Json: result}},
			})
		case errors.Is(stopped, errLost): // somebody else may have it: nothing to end
		case stopped != nil:
			_, refused = w.leases.Release(call, &pb.ReleaseRequest{LeaseToken: token})
		default:
			_, refused = w.leases.Fail(call, &pb.FailRequest{
				LeaseToken: token, Error: &pb.JobError{Message: err.Error()}, Permanent: errors.Is(err, errPermanent),
			})
		}
		cancel()
		// The calls that end a lease may be repeated: the service knows them again.
		if !mayRepeat(refused) || !pause(held, time.Second+rand.N(time.Second)) {
			slog.Info("ended", "job", lease.GetJob().GetJobId(), "lease_no", lease.GetLeaseNo(), "work", err, "refused", refused)
			return
		}
	}
}

// beat renews the lease until held ends. It ends held itself where the lease is lost.
func (w *worker) beat(held context.Context, lose, stop context.CancelCauseFunc, lease *pb.Lease, since time.Time) {
	next := lease.GetNextHeartbeatIn().AsDuration()
	end := since.Add(lease.GetRemaining().AsDuration()) // on this machine's monotonic clock
	for pause(held, next) {
		sent := time.Now()
		call, cancel := context.WithTimeout(held, min(5*time.Second, time.Until(end)))
		resp, err := w.leases.Heartbeat(call, &pb.HeartbeatRequest{LeaseToken: lease.GetLeaseToken()})
		cancel()
		switch {
		case err == nil:
			next, end = resp.GetNextHeartbeatIn().AsDuration(), sent.Add(resp.GetRemaining().AsDuration())
			if resp.GetCancelRequested() {
				stop(errStop)
			}
		case !mayRepeat(err) || time.Now().After(end):
			lose(errLost)
		default:
			next = min(next, 100*time.Millisecond+rand.N(400*time.Millisecond)) // soon again
		}
	}
}

func mayRepeat(err error) bool {
	code := status.Code(err)
	return code == codes.Unavailable || code == codes.ResourceExhausted || code == codes.DeadlineExceeded
}

// pause is false where ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
