package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// worker takes one job at a time, in a process of its own.
type worker struct {
	owner  string
	leases pb.LeaseServiceClient
	bank   *bankClient
	events *json.Encoder
}

// runWorker works until the parent goes away, which closes the standard input.
func runWorker(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("demo worker", flag.ContinueOnError)
	target := flags.String("service", "", "address of the service")
	bankURL := flags.String("bank", "", "URL of the bank")
	owner := flags.String("owner", "", "lease_owner")
	if err := flags.Parse(args); err != nil {
		return err
	}
	conn, err := grpc.NewClient(*target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // however it ends, the parent is gone
		stop()
	}()
	w := &worker{
		owner: *owner, leases: pb.NewLeaseServiceClient(conn),
		bank: newBankClient(*bankURL), events: json.NewEncoder(os.Stdout),
	}
	w.work(ctx)
	return nil
}

// work is the loop of every worker: wait for a lease, do the work, end the lease.
func (w *worker) work(ctx context.Context) {
	for ctx.Err() == nil {
		resp, err := w.leases.AcquireLease(ctx, &pb.AcquireLeaseRequest{
			Queues:     []string{queuePayments, queueReconciliation},
			LeaseOwner: w.owner,
			Wait:       durationpb.New(20 * time.Second),
		})
		if err != nil {
			pause(ctx, 100*time.Millisecond+rand.N(200*time.Millisecond))
			continue
		}
		for _, l := range resp.GetLeases() {
			w.handle(ctx, l)
		}
	}
}

// task is one lease and what this worker knows of its payment.
type task struct {
	lease *pb.Lease
	payment
	state checkpoint
	stage string
}

// checkpoint is what the next worker needs to go on where this one stopped.
type checkpoint struct {
	Auth string `json:"auth"`
	Done int    `json:"parts_done"`
}

var (
	// errLost: the lease is somebody else's or nobody's. Stop the work at once.
	errLost = errors.New("the lease is lost")
	// errPoison: no worker will ever be able to do this.
	errPoison = errors.New("not a payment")
)

func (w *worker) handle(ctx context.Context, l *pb.Lease) {
	t := &task{lease: l, payment: payment{ID: paymentOf(l.GetJob().GetSubject())}}
	var err error
	if l.GetJob().GetQueue() == queueReconciliation {
		err = w.reconcile(ctx, t)
	} else {
		err = w.pay(ctx, t)
	}
	switch {
	case err == nil || ctx.Err() != nil:
	case errors.Is(err, errLost):
		w.tooLate(ctx, t, err)
	case errors.Is(err, errPoison):
		w.giveUp(ctx, t, err)
	default:
		w.fail(ctx, t, err)
	}
}

// pay settles a payment. What must not happen twice is written into the checkpoint before the
// next step: whoever takes over goes on behind it.
func (w *worker) pay(ctx context.Context, t *task) error {
	if saved := t.lease.GetLastCheckpoint(); len(saved) > 0 {
		if err := json.Unmarshal(saved, &t.state); err != nil {
			return err
		}
	}
	w.tell(event{Kind: kindLeased, Stage: t.lease.GetLastStage(), Note: t.state.String()}, t)
	if t.state.Auth == "" {
		if err := w.authorize(ctx, t); err != nil {
			return err
		}
	} else if err := t.read(); err != nil {
		return err
	}
	for ; t.state.Done < t.Parts; t.state.Done++ {
		if err := w.beat(ctx, t, "capture"); err != nil {
			return err
		}
		pause(ctx, part)
	}
	if err := w.beat(ctx, t, "post"); err != nil {
		return err
	}
	return w.settle(ctx, t)
}

// authorize is the step that must not happen twice.
func (w *worker) authorize(ctx context.Context, t *task) error {
	if err := w.beat(ctx, t, "validate"); err != nil {
		return err
	}
	if err := t.read(); err != nil {
		return fmt.Errorf("%w: %w", errPoison, err)
	}
	if err := w.beat(ctx, t, "authorize"); err != nil {
		return err
	}
	auth, err := w.bank.authorize(ctx, t.payment)
	t.state.Auth = auth
	return err
}

// read takes the payment from the payload.
func (t *task) read() error {
	return json.Unmarshal([]byte(t.lease.GetJob().GetPayload().GetJson()), &t.payment)
}

// reconcile settles by hand what no worker could: the bank's statement says what is owed.
func (w *worker) reconcile(ctx context.Context, t *task) error {
	w.tell(event{Kind: kindLeased, Note: "from the reconciliation queue"}, t)
	if err := t.read(); err != nil {
		return err
	}
	if err := w.beat(ctx, t, "statement"); err != nil {
		return err
	}
	owed, err := w.bank.statement(ctx, t.ID)
	if err != nil {
		return err
	}
	t.Amount = owed.Amount
	return w.settle(ctx, t)
}

// posting is what goes into the ledger, with the lease's number as fence.
func (w *worker) posting(t *task) posting {
	return posting{
		Payment: t.ID, Amount: t.Amount, Auth: t.state.Auth,
		JobID: t.lease.GetJob().GetJobId(), LeaseNo: t.lease.GetLeaseNo(), Owner: w.owner,
	}
}

// settle writes into the ledger and completes the job.
func (w *worker) settle(ctx context.Context, t *task) error {
	receipt, err := w.bank.post(ctx, w.posting(t))
	if err != nil {
		return err
	}
	_, err = w.leases.Complete(ctx, &pb.CompleteRequest{
		LeaseToken: t.lease.GetLeaseToken(),
		Result:     &pb.Payload{Content: &pb.Payload_Json{Json: fmt.Sprintf(`{"receipt":%q}`, receipt)}},
	})
	if err != nil {
		return lost(err)
	}
	w.tell(event{Kind: kindSettled, Note: receipt}, t)
	return nil
}

// beat renews the lease, and puts stage and checkpoint on record.
func (w *worker) beat(ctx context.Context, t *task, stage string) error {
	saved, err := json.Marshal(t.state)
	if err != nil {
		return err
	}
	progress := 0.0
	if t.Parts > 0 {
		progress = float64(t.state.Done) / float64(t.Parts)
	}
	_, err = w.leases.Heartbeat(ctx, &pb.HeartbeatRequest{
		LeaseToken: t.lease.GetLeaseToken(), Stage: proto.String(stage),
		Progress: proto.Float64(progress), Checkpoint: saved,
	})
	if err != nil {
		return lost(err)
	}
	w.tell(event{Kind: kindBeat, Stage: stage, Done: t.state.Done, Quiet: t.stage == stage}, t)
	t.stage = stage
	return nil
}

// fail reports what went wrong; the service decides when the job runs again.
func (w *worker) fail(ctx context.Context, t *task, cause error) {
	resp, err := w.leases.Fail(ctx, &pb.FailRequest{
		LeaseToken: t.lease.GetLeaseToken(),
		Error:      &pb.JobError{Code: "provider_away", Message: cause.Error()},
	})
	if err != nil {
		w.tell(event{Kind: kindRefused, Call: "Fail", Reason: reasonOf(err)}, t)
		return
	}
	w.tell(event{Kind: kindFailed, Note: fmt.Sprintf("%v; again in %v", cause, resp.GetNextRunIn().AsDuration().Round(time.Millisecond))}, t)
}

// giveUp ends a poisonous job for good, and in the same transaction enqueues another for those
// who can settle it: there is no moment at which neither exists.
func (w *worker) giveUp(ctx context.Context, t *task, cause error) {
	resp, err := w.leases.Fail(ctx, &pb.FailRequest{
		LeaseToken: t.lease.GetLeaseToken(),
		Error:      &pb.JobError{Code: "poisonous", Message: cause.Error()},
		Permanent:  true,
		ThenEnqueue: []*pb.EnqueueRequest{{
			Queue:          queueReconciliation,
			Payload:        &pb.Payload{Content: &pb.Payload_Json{Json: fmt.Sprintf(`{"payment":%q}`, t.ID)}},
			Subject:        proto.String(subjectOf(t.ID)),
			IdempotencyKey: proto.String(t.ID),
		}},
	})
	if err != nil {
		w.tell(event{Kind: kindRefused, Call: "Fail", Reason: reasonOf(err)}, t)
		return
	}
	w.tell(event{Kind: kindGivenUp, Note: fmt.Sprintf("%v; in the same transaction job %s was put into the queue %s",
		errPoison, strings.Join(resp.GetThenEnqueueJobIds(), ", "), queueReconciliation)}, t)
}

// tooLate does what a worker should not do: it goes on although its lease is gone, as one does
// that was stopped at the worst moment. Neither the ledger nor the service lets it.
func (w *worker) tooLate(ctx context.Context, t *task, refusal error) {
	w.tell(event{Kind: kindRefused, Call: "Heartbeat", Reason: reasonOf(refusal)}, t)
	_, err := w.bank.post(ctx, w.posting(t))
	if refused, ok := errors.AsType[*refusedError](err); ok {
		w.tell(event{Kind: kindRefused, Call: callPosting, Reason: refused.why}, t)
	}
	_, err = w.leases.Complete(ctx, &pb.CompleteRequest{LeaseToken: t.lease.GetLeaseToken()})
	if err != nil {
		w.tell(event{Kind: kindRefused, Call: "Complete", Reason: reasonOf(err)}, t)
	}
}

// lost tells errors after which the work must stop from all others.
func lost(err error) error {
	switch reasonOf(err) {
	case "LEASE_SUPERSEDED", "LEASE_EXPIRED", "LEASE_ENDED":
		return fmt.Errorf("%w: %w", errLost, err)
	}
	return err
}

// reasonOf is the machine-readable reason of a refused call.
func reasonOf(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (c checkpoint) String() string {
	if c.Auth == "" {
		return ""
	}
	return fmt.Sprintf("%s, %d parts captured", c.Auth, c.Done)
}
