package client

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

const (
	// endCalls is how many calls of one kind are under way at once. While they are, the ends of
	// other handlers gather and go together.
	endCalls = 2
	// gatherTime is how long an end waits for others, while handlers run.
	gatherTime = time.Millisecond
	// endTimeout bounds one call.
	endTimeout = 10 * time.Second
	// endRetryFirst and endRetryMost bound the wait before an end is tried again.
	endRetryFirst = 100 * time.Millisecond
	endRetryMost  = 5 * time.Second
)

// verdict is what the service says of one end.
type verdict struct {
	err  *CallError
	late bool
}

// ends tells the service how leases ended, merged into batches, and repeats that until it is
// answered or the lease cannot be ours any more.
type ends struct {
	leases  pb.LeaseServiceClient
	now     clock
	log     *slog.Logger
	metrics *metrics
	running *counter        // handlers
	settled func([]*ending) // takes those that are answered, or given up
	hand    func(*ending)   // takes what is to be said in the place of a refused end

	ctx    context.Context // of the calls
	close  context.CancelFunc
	queues [endKinds]endQueue
	loops  sync.WaitGroup
}

// endQueue gathers the ends of one kind.
type endQueue struct {
	mu      sync.Mutex
	waiting []*ending
	calls   int
	closed  bool
}

// add takes an end on. It never blocks.
func (x *ends) add(list ...*ending) {
	for _, e := range list {
		x.queues[e.kind].add(x, e)
	}
}

func (q *endQueue) add(x *ends, e *ending) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return // Run has returned, and has named this job in its error
	}
	q.waiting = append(q.waiting, e)
	if q.calls < endCalls {
		q.calls++
		x.loops.Go(func() { x.loop(q) })
	}
}

// loop sends what has gathered until nothing has.
func (x *ends) loop(q *endQueue) {
	for {
		x.gather()
		batch := q.take()
		if len(batch) == 0 {
			return
		}
		x.send(batch)
	}
}

// gather waits a moment for handlers that are about to end, so that those of one poll go together.
// Where no handler runs it does not wait.
func (x *ends) gather() {
	timer := time.NewTimer(gatherTime)
	defer timer.Stop()
	select {
	case <-x.running.none():
	case <-timer.C:
	}
}

// take removes the next batch; an empty one ends the loop that takes it.
func (q *endQueue) take() []*ending {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, bytes, most := 0, 0, batchItems
	for _, e := range q.waiting {
		if e.most > 0 {
			most = min(most, e.most)
		}
		if bytes += e.size; n > 0 && (n >= most || bytes > batchBytes) {
			break
		}
		n++
	}
	batch := q.waiting[:n:n]
	if q.waiting = q.waiting[n:]; n == 0 {
		q.waiting = nil
		q.calls--
	}
	return batch
}

// stop cuts off the calls under way and waits for them. What is added later is dropped.
func (x *ends) stop() {
	x.close()
	for i := range x.queues {
		q := &x.queues[i]
		q.mu.Lock()
		q.closed, q.waiting = true, nil
		q.mu.Unlock()
	}
	x.loops.Wait()
}

// send makes one call and sorts what comes back: answered, to be repeated, or to be said otherwise.
func (x *ends) send(batch []*ending) {
	ctx, cancel := context.WithTimeout(x.ctx, endTimeout)
	defer cancel()
	verdicts, err := endFuncs[batch[0].kind](ctx, x.leases, batch)
	failed := x.failure(batch, len(verdicts), err)
	var done, again []*ending
	var wait time.Duration
	for i, e := range batch {
		v := verdict{err: failed}
		if failed == nil {
			v = verdicts[i]
		}
		switch next := x.judge(e, v, failed != nil, len(batch)); next {
		case nil:
			done = append(done, e)
		case e:
			e.tries++
			again = append(again, e)
			wait = max(wait, v.err.RetryAfter, backoff(e.tries-1, endRetryFirst, endRetryMost))
		default:
			x.hand(next)
		}
	}
	if len(done) > 0 {
		x.settled(done)
	}
	if len(again) > 0 {
		time.AfterFunc(wait, func() { x.add(again...) })
	}
}

// failure is what befell the whole call.
func (x *ends) failure(batch []*ending, results int, err error) *CallError {
	if err == nil && results == len(batch) {
		return nil
	}
	failed := &CallError{Code: codes.Internal, Message: "a batch with too few results"}
	if err != nil {
		failed = callError(err)
	}
	if x.ctx.Err() == nil {
		x.log.LogAttrs(x.ctx, slog.LevelWarn, "leases could not be ended yet", slog.String("call", endNames[batch[0].kind]),
			slog.Int("leases", len(batch)), slog.Any("error", failed))
	}
	return failed
}

// judge says what comes next of an end: nothing, the same again, or another end. whole tells that
// the call failed, with all of its items.
func (x *ends) judge(e *ending, v verdict, whole bool, items int) *ending {
	switch {
	case v.err == nil:
		x.ended(e, v.late)
		return nil
	case x.ctx.Err() != nil:
		return nil // Run has given it up, and says so
	case whole && items > 1 && (v.err.final() || v.err.Code == codes.Internal || v.err.Code == codes.Unknown):
		e.most = items / 2 // one of them may be what does it: it must not take the others along
		return e
	case v.err.leaseOver() || v.err.Reason == pb.ErrorReason_ERROR_REASON_RESULT_CONFLICT:
		x.metrics.ended(e, outcomeLost)
		x.log.LogAttrs(x.ctx, slog.LevelInfo, "the end of a lease came too late", append(e.attrs(), slog.Any("error", v.err))...)
		return nil
	case v.err.final():
		x.log.LogAttrs(x.ctx, slog.LevelError, "the end of a lease was refused", append(e.attrs(), slog.Any("error", v.err))...)
		next := e.instead(v.err)
		if next == nil {
			x.metrics.ended(e, outcomeLost)
		}
		return next
	case x.now() >= e.until():
		x.metrics.ended(e, outcomeLost)
		x.log.LogAttrs(x.ctx, slog.LevelError, "the end of a lease could not be told in time", append(e.attrs(), slog.Any("error", v.err))...)
		return nil
	}
	return e
}

func (x *ends) ended(e *ending, late bool) {
	outcome := e.outcome()
	if late {
		outcome = outcomeLate
	}
	x.metrics.ended(e, outcome)
	if x.log.Enabled(x.ctx, slog.LevelDebug) {
		x.log.LogAttrs(x.ctx, slog.LevelDebug, "lease ended", append(e.attrs(), slog.Bool("late", late))...)
	}
}

func (e *ending) attrs() []slog.Attr {
	return []slog.Attr{
		slog.String("job_id", e.lease.job.ID()), slog.Int64("lease_no", e.lease.job.LeaseNo()), slog.String("call", endNames[e.kind]),
	}
}

// outcome is the word for an end that was accepted.
func (e *ending) outcome() string {
	switch {
	case e.kind == endComplete:
		return outcomeCompleted
	case e.kind == endRelease:
		return outcomeReleased
	case e.panicked:
		return outcomePanicked
	case e.fail.GetPermanent():
		return outcomeFailedForGood
	}
	return outcomeFailed
}

var endNames = [endKinds]string{"Complete", "Fail", "Release"}

// endFuncs make the call of each kind.
var endFuncs = [endKinds]func(context.Context, pb.LeaseServiceClient, []*ending) ([]verdict, error){
	func(ctx context.Context, leases pb.LeaseServiceClient, batch []*ending) ([]verdict, error) {
		req := &pb.BatchCompleteRequest{Items: make([]*pb.CompleteRequest, len(batch))}
		for i, e := range batch {
			req.Items[i] = e.complete
		}
		resp, err := leases.BatchComplete(ctx, req)
		return verdicts(resp.GetResults(), func(r *pb.BatchCompleteResult) verdict {
			return verdict{err: itemError(r.GetError()), late: r.GetOk().GetLate()}
		}), err
	},
	func(ctx context.Context, leases pb.LeaseServiceClient, batch []*ending) ([]verdict, error) {
		req := &pb.BatchFailRequest{Items: make([]*pb.FailRequest, len(batch))}
		for i, e := range batch {
			req.Items[i] = e.fail
		}
		resp, err := leases.BatchFail(ctx, req)
		return verdicts(resp.GetResults(), func(r *pb.BatchFailResult) verdict { return verdict{err: itemError(r.GetError())} }), err
	},
	func(ctx context.Context, leases pb.LeaseServiceClient, batch []*ending) ([]verdict, error) {
		req := &pb.BatchReleaseRequest{Items: make([]*pb.ReleaseRequest, len(batch))}
		for i, e := range batch {
			req.Items[i] = e.release
		}
		resp, err := leases.BatchRelease(ctx, req)
		return verdicts(resp.GetResults(), func(r *pb.BatchReleaseResult) verdict { return verdict{err: itemError(r.GetError())} }), err
	},
}

func verdicts[R any](results []R, of func(R) verdict) []verdict {
	out := make([]verdict, len(results))
	for i, r := range results {
		out[i] = of(r)
	}
	return out
}
