package bench

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// workerProcess is a worker with slots, as a client library runs one: it asks for leases as
// slots become free and completes what is done, many per call and both at once. Its jobs take
// no time.
type workerProcess struct {
	clients *clients
	slots   int
	// inFlight is how many calls of each kind may be under way.
	inFlight int
	// least is how many slots must be free before it asks for leases: a call for each slot
	// would make many small ones.
	least int

	mu        sync.Mutex
	changed   *sync.Cond
	free      int
	done      []string // tokens of leases whose work is done
	acquiring int
	stopping  bool
	failed    bool
}

// jobsPerCall is what a worker asks for at most in one call: with more slots it has several
// calls under way.
const jobsPerCall = 500

func (c *clients) worker(slots int) load {
	return func(ctx context.Context, stop <-chan struct{}, done func(n int)) error {
		inFlight := max(1, slots/jobsPerCall)
		w := &workerProcess{clients: c, slots: slots, inFlight: inFlight, least: max(1, slots/inFlight/2), free: slots}
		w.changed = sync.NewCond(&w.mu)
		return w.run(ctx, stop, done)
	}
}

func (w *workerProcess) run(ctx context.Context, stop <-chan struct{}, done func(n int)) error {
	group, ctx := errgroup.WithContext(ctx)
	for i := range w.inFlight {
		group.Go(func() error { return w.ended(w.acquireLoop(ctx, i)) })
		group.Go(func() error { return w.ended(w.completeLoop(ctx, i, done)) })
	}
	group.Go(func() error {
		select {
		case <-stop:
		case <-ctx.Done():
		}
		w.change(func() { w.stopping = true })
		return nil
	})
	return group.Wait()
}

// ended lets the other loops end when one has failed.
func (w *workerProcess) ended(err error) error {
	if err != nil {
		w.change(func() { w.stopping, w.failed = true, true })
	}
	return err
}

func (w *workerProcess) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	w.changed.Broadcast()
}

func (w *workerProcess) acquireLoop(ctx context.Context, caller int) error {
	for {
		n := w.takeFree()
		if n == 0 {
			return nil
		}
		leases, err := w.clients.acquire(ctx, caller, n, pollWait)
		w.change(func() {
			w.acquiring--
			w.free += n - len(leases)
			for _, l := range leases {
				w.done = append(w.done, l.GetLeaseToken())
			}
		})
		if err != nil {
			return err
		}
	}
}

// takeFree waits for free slots and takes them; none when the worker stops.
func (w *workerProcess) takeFree() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.free < w.least && !w.stopping {
		w.changed.Wait()
	}
	if w.stopping {
		return 0
	}
	n := min(w.free, jobsPerCall)
	w.free -= n
	w.acquiring++
	return n
}

func (w *workerProcess) completeLoop(ctx context.Context, caller int, done func(n int)) error {
	for {
		tokens := w.takeDone()
		if len(tokens) == 0 {
			return nil
		}
		again, err := w.clients.completeMany(ctx, caller, tokens)
		if err != nil {
			return err
		}
		done(len(tokens) - len(again))
		w.change(func() {
			w.free += len(tokens) - len(again)
			w.done = append(w.done, again...)
		})
	}
}

// takeDone waits for leases to complete and takes them; none when the worker stops and holds
// no lease any more.
func (w *workerProcess) takeDone() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.done) == 0 && !w.failed && (!w.stopping || w.acquiring > 0) {
		w.changed.Wait()
	}
	if w.failed {
		return nil
	}
	n := min(len(w.done), maxBatch)
	tokens := w.done[:n:n]
	w.done = w.done[n:]
	return tokens
}

// completeMany completes leases and returns the tokens of those that were busy.
func (c *clients) completeMany(ctx context.Context, caller int, tokens []string) (again []string, err error) {
	req := &pb.BatchCompleteRequest{Items: make([]*pb.CompleteRequest, len(tokens))}
	for i, token := range tokens {
		req.Items[i] = &pb.CompleteRequest{LeaseToken: token}
	}
	resp, err := persist(ctx, func(ctx context.Context) (*pb.BatchCompleteResponse, error) {
		return c.lease(caller).BatchComplete(ctx, req)
	})
	if err != nil {
		return nil, err
	}
	for i, r := range resp.GetResults() {
		switch e := r.GetError(); {
		case e == nil:
		case e.GetReason() == pb.ErrorReason_ERROR_REASON_JOB_BUSY:
			again = append(again, tokens[i])
		default:
			return nil, itemError("BatchComplete", e)
		}
	}
	return again, nil
}
