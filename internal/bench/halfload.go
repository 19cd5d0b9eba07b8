package bench

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

const (
	// fullCallers saturate the service; halfCallers are enough that none is missing at half
	// that rate.
	fullCallers, halfCallers = 100, 200
)

// halfLoad is how long Enqueue and Complete take at half the rate at which callers that store,
// lease and complete a job each saturate the service. The limit is one direct statement and a
// call that does nothing, with nothing else going on.
func halfLoad() workload {
	return workload{
		figures: []figure{
			{name: "half_load_enqueue_p50", unit: "ms"},
			{name: "half_load_enqueue_p99", unit: "ms"},
			{name: "half_load_complete_p50", unit: "ms"},
			{name: "half_load_complete_p99", unit: "ms"},
		},
		prepare: func(ctx context.Context, r *rig) (rounds, error) {
			s, err := r.site(ctx)
			if err != nil {
				return rounds{}, err
			}
			c, err := s.clients(connectionsFor(halfCallers))
			if err != nil {
				return rounds{}, err
			}
			noop, err := r.noop(ctx, 1)
			if err != nil {
				return rounds{}, err
			}
			full, err := r.steady(ctx, turns(fullCallers, func(ctx context.Context, caller int) (int, error) {
				return 1, c.cycle(ctx, caller, &latencies{})
			}))
			if err != nil {
				return rounds{}, err
			}
			r.say("saturated at %s jobs/s stored, leased and completed", number(full.rate()))
			return rounds{
				limit: func(ctx context.Context) ([]float64, error) { return s.unloaded(ctx, noop) },
				round: func(ctx context.Context) ([]float64, error) { return r.paced(ctx, c, full.rate()/2) },
			}, nil
		},
	}
}

// latencies are times in milliseconds.
type latencies struct {
	mu                sync.Mutex
	enqueue, complete []float64
}

func (l *latencies) add(enqueue, complete time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.enqueue = append(l.enqueue, milliseconds(enqueue))
	l.complete = append(l.complete, milliseconds(complete))
}

// cycle stores a job, leases one and completes it.
func (c *clients) cycle(ctx context.Context, caller int, l *latencies) error {
	start := time.Now()
	_, err := persist(ctx, func(ctx context.Context) (*pb.EnqueueResponse, error) {
		return c.job(caller).Enqueue(ctx, newJob(noopPayload))
	})
	if err != nil {
		return err
	}
	enqueue := time.Since(start)
	// Each caller stored one, so there is one for each; another may be served first.
	leases, err := c.acquire(ctx, caller, 1, pollWait)
	if err != nil || len(leases) == 0 {
		return err
	}
	start = time.Now()
	if err := c.complete(ctx, caller, leases[0].GetLeaseToken()); err != nil {
		return err
	}
	l.add(enqueue, time.Since(start))
	return nil
}

// paced runs cycles at a rate, whatever they take.
func (r *rig) paced(ctx context.Context, c *clients, rate float64) ([]float64, error) {
	l := &latencies{}
	begin, gap := time.Now(), time.Duration(float64(time.Second)/rate)
	last := int64(r.plan.Round / gap)
	var next atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for caller := range halfCallers {
		group.Go(func() error {
			for {
				n := next.Add(1)
				if n > last {
					return nil
				}
				if err := pause(ctx, time.Until(begin.Add(time.Duration(n)*gap))); err != nil {
					return err
				}
				if err := c.cycle(ctx, caller, l); err != nil {
					return err
				}
			}
		})
	}
	err := group.Wait()
	if err != nil {
		return nil, err
	}
	r.note("%s jobs/s", number(float64(len(l.enqueue))/time.Since(begin).Seconds()))
	return []float64{
		median(l.enqueue), quantile(l.enqueue, 0.99), median(l.complete), quantile(l.complete, 0.99),
	}, nil
}

// unloaded times direct statements for one job and calls that do nothing, one after the other.
func (s *site) unloaded(ctx context.Context, noop *clients) ([]float64, error) {
	l := &latencies{}
	job := []store.NewJob{{Queue: queueName, Payload: store.Payload{Data: noopPayload}}}
	for end := time.Now().Add(s.rig.plan.Round); time.Now().Before(end); {
		start := time.Now()
		if _, err := s.store.Enqueue(ctx, job); err != nil {
			return nil, err
		}
		enqueue := time.Since(start)
		got, err := s.store.Acquire(ctx, []store.Acquire{{Queues: []string{queueName}, Owner: workerName, MaxJobs: 1}})
		if err != nil {
			return nil, err
		}
		if err := notOne(got); err != nil {
			return nil, err
		}
		start = time.Now()
		if _, err := s.store.Complete(ctx, []store.Complete{{Lease: got[0].Leases[0].Ref()}}); err != nil {
			return nil, err
		}
		complete := time.Since(start)
		start = time.Now()
		if err := noop.complete(ctx, 0, "no lease"); err != nil {
			return nil, err
		}
		call := time.Since(start)
		l.add(enqueue+call, complete+call)
	}
	e, c := median(l.enqueue), median(l.complete)
	return []float64{e, e, c, c}, nil
}
