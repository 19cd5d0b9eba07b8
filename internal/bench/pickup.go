package bench

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/leasehold/leasehold/store"
)

const (
	// parkedWorkers wait for the jobs of a measurement of pick-up.
	parkedWorkers = 10
	// pickupPatience bounds the wait for jobs that were stored and not leased yet.
	pickupPatience = 30 * time.Second
	// farFromPoll is well below the service's poll interval of a second: what takes longer was
	// found by the poll and not by a wake.
	farFromPoll = 500
)

// pickup is the time from Enqueue's answer to the worker's having the lease, at a rate at which
// workers are idle. Its limit is a direct claim of one job and a call that does nothing.
func pickup(rate int, p50, p99 Bound) workload {
	name := named("pickup_", rate)
	return workload{
		figures: []figure{
			{name: name + "_p50", unit: "ms", bound: p50},
			{name: name + "_p99", unit: "ms", bound: p99},
			{name: name + "_max", unit: "ms", bound: Bound{kind: valueAtMost, value: farFromPoll}},
		},
		prepare: func(ctx context.Context, r *rig) (rounds, error) {
			s, err := r.site(ctx)
			if err != nil {
				return rounds{}, err
			}
			both, err := s.clients(1)
			if err != nil {
				return rounds{}, err
			}
			noop, err := r.noop(ctx, 1)
			if err != nil {
				return rounds{}, err
			}
			return rounds{
				limit: func(ctx context.Context) ([]float64, error) {
					took, err := s.claimAndCall(ctx, noop, rate)
					if err != nil {
						return nil, err
					}
					return []float64{median(took), median(took), math.NaN()}, nil
				},
				round: func(ctx context.Context) ([]float64, error) {
					took, err := s.pickUp(ctx, both, rate)
					if err != nil {
						return nil, err
					}
					return []float64{median(took), quantile(took, 0.99), quantile(took, 1)}, nil
				},
			}, nil
		},
	}
}

// samples is how many jobs are timed in a round.
func (p Plan) samples(rate int) int { return max(2, int(float64(rate)*p.Pickup.Seconds())) }

// claimAndCall takes the times, in milliseconds, of direct claims of one job and of calls.
func (s *site) claimAndCall(ctx context.Context, noop *clients, rate int) ([]float64, error) {
	n := s.rig.plan.samples(rate)
	if err := s.db.FillPending(ctx, queueName, int64(n), noopPayload); err != nil {
		return nil, err
	}
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	var took []float64
	for len(took) < n {
		<-tick.C
		start := time.Now()
		got, err := s.store.Acquire(ctx, []store.Acquire{{Queues: []string{queueName}, Owner: workerName, MaxJobs: 1}})
		if err = errors.Join(err, notOne(got)); err != nil {
			return nil, err
		}
		if _, err := noop.acquire(ctx, 0, 1, 0); err != nil {
			return nil, err
		}
		took = append(took, milliseconds(time.Since(start)))
		if _, err := s.store.Complete(ctx, []store.Complete{{Lease: got[0].Leases[0].Ref()}}); err != nil {
			return nil, err
		}
	}
	return took, nil
}

// notOne is the error of a claim that has no lease where there is a job.
func notOne(got []store.Acquired) error {
	switch {
	case len(got) != 1:
		return errors.New("no answer to a claim")
	case got[0].Err != nil:
		return got[0].Err
	case len(got[0].Leases) != 1:
		return errors.New("a claim found no job where there was one")
	}
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// pickUps notes when jobs were stored and leased, by the producer's and the workers' clock,
// which is one.
type pickUps struct {
	mu             sync.Mutex
	stored, leased map[string]time.Time
	// took are the times of the jobs that are both, in milliseconds, of want in all.
	took []float64
	want int
	all  chan struct{}
}

func newPickUps(want int) *pickUps {
	return &pickUps{stored: map[string]time.Time{}, leased: map[string]time.Time{}, want: want, all: make(chan struct{})}
}

func (p *pickUps) noteStored(id string) { p.note(p.stored, id) }
func (p *pickUps) noteLeased(id string) { p.note(p.leased, id) }

// note keeps the time from the producer's answer to the worker's lease. The lease may come
// first, since both are sent at once: that is no time at all.
func (p *pickUps) note(into map[string]time.Time, id string) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, twice := into[id]; twice {
		return
	}
	into[id] = now
	stored, isStored := p.stored[id]
	leased, isLeased := p.leased[id]
	if isStored && isLeased {
		p.took = append(p.took, max(0, milliseconds(leased.Sub(stored))))
		if len(p.took) == p.want {
			close(p.all)
		}
	}
}

// pickUp stores jobs at a rate while workers are parked, and takes the times in milliseconds.
func (s *site) pickUp(ctx context.Context, c *clients, rate int) ([]float64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := newPickUps(s.rig.plan.samples(rate))
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel(nil) // ends the polls that are parked
	for worker := range parkedWorkers {
		all.Go(func() {
			cancel(c.pickUpLoop(ctx, worker, p)) // the first error stays
		})
	}
	if err := s.awaitParked(ctx, parkedWorkers); err != nil {
		return nil, err
	}
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	for range p.want {
		<-tick.C
		all.Go(func() {
			resp, err := c.job(0).Enqueue(ctx, newJob(noopPayload))
			if err != nil {
				cancel(err)
				return
			}
			p.noteStored(resp.GetJobId())
		})
	}
	select {
	case <-p.all:
		return p.took, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(pickupPatience):
		return nil, errors.New("jobs that were stored are not leased by parked workers")
	}
}

// pickUpLoop is one worker, until ctx ends or a call fails.
func (c *clients) pickUpLoop(ctx context.Context, worker int, p *pickUps) error {
	for {
		leases, err := c.acquire(ctx, worker, 1, pollWait)
		if err != nil {
			return err
		}
		for _, l := range leases {
			p.noteLeased(l.GetJob().GetJobId())
			if err := c.complete(ctx, worker, l.GetLeaseToken()); err != nil {
				return err
			}
		}
	}
}
