package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// worker leases jobs and works on them, well or badly.
type worker struct {
	*hand
	rng  *rand.Rand // of the loop that leases
	wait sync.WaitGroup

	// How this worker is.
	slots      int
	duration   *durationpb.Duration // of its leases; nil: the job's own
	queues     []string
	inGroups   bool // treats the leases of one answer alike, by batch methods
	repeatable bool // gives request ids
	stubborn   bool // repeats an end until it knows what became of it

	mu    sync.Mutex
	busy  int
	lost  []string      // jobs whose leases it let go, to ask for again by their ids
	freed chan struct{} // a slot may be free
	asked int           // acquires so far
}

func newWorker(h *hand) *worker {
	rng := h.chance(0)
	w := &worker{
		hand: h, rng: rng, slots: 1 + rng.IntN(8), inGroups: oneIn(rng, 3), repeatable: oneIn(rng, 2),
		stubborn: !oneIn(rng, 4), freed: make(chan struct{}, 1),
	}
	if !oneIn(rng, 4) {
		w.duration = durationpb.New(leaseLeast + upTo(rng, leaseMost-leaseLeast))
	}
	for _, i := range rng.Perm(len(queueNames))[:1+rng.IntN(len(queueNames))] {
		w.queues = append(w.queues, queueNames[i])
	}
	return w
}

// run leases and works until ctx ends, and then finishes what it has begun as it would
// anyway: leases that it lets go run out.
func (w *worker) run(ctx context.Context) error {
	for ctx.Err() == nil {
		free := w.free()
		if free == 0 {
			select {
			case <-w.freed:
			case <-ctx.Done():
			}
			continue
		}
		if !w.lease(ctx, free) {
			rest(ctx, 50*time.Millisecond+upTo(w.rng, 200*time.Millisecond))
		}
	}
	w.wait.Wait()
	return nil
}

func (w *worker) free() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.slots - w.busy
}

// lease asks for jobs and begins to work on those that it gets; false where it is better to
// wait a little before the next time.
func (w *worker) lease(ctx context.Context, free int) bool {
	w.asked++
	req := &pb.AcquireLeaseRequest{LeaseOwner: w.name, LeaseDuration: w.duration}
	limit := callTime
	if job := w.takeLost(); job != "" {
		req.JobId = &job
	} else {
		req.Queues = w.queues
		if w.calm.Load() {
			req.Queues = queueNames
		}
		req.MaxJobs = to(int32(free))
	}
	if wait := upTo(w.rng, 5*time.Second); !oneIn(w.rng, 3) {
		req.Wait = durationpb.New(wait)
		limit += wait
	}
	if oneIn(w.rng, 20) && !w.calm.Load() {
		limit = 10*time.Millisecond + upTo(w.rng, 300*time.Millisecond) // it will hardly hear the answer
	}
	tries := 1
	if w.repeatable {
		req.RequestId = to(fmt.Sprintf("%s/%d", w.name, w.asked))
		tries = 3
	}
	resp, err := w.acquire(ctx, req, limit, tries)
	if err != nil || len(resp.GetLeases()) == 0 {
		return err == nil && req.Wait != nil
	}
	w.begin(ctx, resp.GetLeases())
	return true
}

// acquire asks, and asks again for the same with the same request id where it has one.
func (w *worker) acquire(ctx context.Context, req *pb.AcquireLeaseRequest, limit time.Duration, tries int) (resp *pb.AcquireLeaseResponse, err error) {
	for range tries {
		resp, err = ask(ctx, w.clients, limit, acquireLease, req)
		if err == nil || !maybeElsewhere(err) || !rest(ctx, upTo(w.rng, 200*time.Millisecond)) {
			return resp, err
		}
	}
	return resp, err
}

func acquireLease(c client) func(context.Context, *pb.AcquireLeaseRequest, ...grpc.CallOption) (*pb.AcquireLeaseResponse, error) {
	return c.leases.AcquireLease
}

// takeLost gives now and then the id of a job that this worker has had: it asks for it again.
func (w *worker) takeLost() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.lost) == 0 || !oneIn(w.rng, 3) {
		return ""
	}
	job := w.lost[0]
	w.lost = w.lost[1:]
	return job
}

// begin works on leases, each in its own time or all of them together. The work goes on when
// the worker is to stop: what it then does not end runs out.
func (w *worker) begin(ctx context.Context, leases []*pb.Lease) {
	w.mu.Lock()
	w.busy += len(leases)
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), workTime)
	var tasks sync.WaitGroup
	if w.inGroups && len(leases) > 1 {
		tasks.Go(func() { w.workTogether(ctx, leases) })
	} else {
		for _, l := range leases {
			tasks.Go(func() {
				w.work(ctx, l)
				w.freeSlots(1)
			})
		}
	}
	w.wait.Go(func() {
		tasks.Wait()
		cancel()
	})
}

// workTime bounds the work on what one answer brought, with all repetitions.
const workTime = 40 * time.Second

func (w *worker) freeSlots(n int) {
	w.mu.Lock()
	w.busy -= n
	w.mu.Unlock()
	select {
	case w.freed <- struct{}{}:
	default:
	}
}

// lose notes a job whose lease was let go, or taken away.
func (w *worker) lose(job string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.lost) < 20 {
		w.lost = append(w.lost, job)
	}
}
