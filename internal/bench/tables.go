package bench

import (
	"context"
	"math/rand/v2"
)

// slotsOfTables is the worker's size in what compares tables with each other.
const slotsOfTables = 1000

// drainPending is draining a queue with a large backlog. Its limit is the same with a small
// one. of reads the size from the plan.
func drainPending(name string, of func(p Plan) int64, bound Bound) workload {
	return workload{
		figures: []figure{{name: name, unit: "jobs/s", bound: bound}},
		prepare: func(ctx context.Context, r *rig) (rounds, error) {
			small, err := r.backlogged(ctx, r.plan.PendingSmall)
			if err != nil {
				return rounds{}, err
			}
			large, err := r.backlogged(ctx, of(r.plan))
			if err != nil {
				return rounds{}, err
			}
			return r.compared(small, large)
		},
	}
}

// backlogged is a site whose queue is kept as full as that.
func (r *rig) backlogged(ctx context.Context, backlog int64) (*site, error) {
	s, err := r.site(ctx)
	if err != nil {
		return nil, err
	}
	r.say("filling a queue with %s jobs", number(float64(backlog)))
	s.supply.backlog, s.supply.stretch = backlog, r.plan.Stretch
	if _, err := s.supply.refill(ctx, 0); err != nil {
		return nil, err
	}
	return s, s.db.Settle(ctx)
}

// compared are rounds of the same worker on two sites: the first is the limit.
func (r *rig) compared(a, b *site) (rounds, error) {
	onA, err := a.clients(1)
	if err != nil {
		return rounds{}, err
	}
	onB, err := b.clients(1)
	if err != nil {
		return rounds{}, err
	}
	return rounds{limit: a.drained(onA.worker(slotsOfTables)), round: b.drainedWith(onB.worker(slotsOfTables))}, nil
}

// drainFinished is draining with a long history of finished jobs. Its limit is the same with
// none but those of the measurement itself.
func drainFinished(bound Bound) workload {
	return workload{
		figures: []figure{{name: "drain_finished_5m", unit: "jobs/s", bound: bound}},
		prepare: func(ctx context.Context, r *rig) (rounds, error) {
			none, err := r.site(ctx)
			if err != nil {
				return rounds{}, err
			}
			many, err := r.site(ctx)
			if err != nil {
				return rounds{}, err
			}
			r.say("filling in %s finished jobs", number(float64(r.plan.Finished)))
			if err := many.db.FillFinished(ctx, queueName, r.plan.Finished, noopPayload); err != nil {
				return rounds{}, err
			}
			for _, s := range []*site{none, many} {
				if err := s.db.Settle(ctx); err != nil {
					return rounds{}, err
				}
			}
			return r.compared(none, many)
		},
	}
}

// drainSnapshot is draining while somebody holds a snapshot, which keeps every dead row from
// being removed, in the time after a run-in. Its limit is the same without.
func drainSnapshot(bound Bound) workload {
	return workload{
		figures: []figure{{name: "drain_snapshot", unit: "jobs/s", bound: bound}},
		prepare: func(ctx context.Context, r *rig) (rounds, error) {
			s, err := r.site(ctx)
			if err != nil {
				return rounds{}, err
			}
			c, err := s.clients(1)
			if err != nil {
				return rounds{}, err
			}
			worker := c.worker(slotsOfTables)
			return rounds{
				limit: s.drained(worker),
				round: func(ctx context.Context) ([]float64, error) { return s.drainHeld(ctx, worker) },
			}, nil
		},
	}
}

// drainHeld drains under a snapshot: a run-in that is only told, and what counts.
func (s *site) drainHeld(ctx context.Context, worker load) ([]float64, error) {
	p := s.rig.plan
	if _, err := s.supply.refill(ctx, p.SnapshotRunIn+p.Snapshot+2*p.Warm); err != nil {
		return nil, err
	}
	end, err := s.db.HoldSnapshot(ctx)
	if err != nil {
		return nil, err
	}
	held := true
	defer func() {
		if held {
			_ = end() // the error that ends the round says more
		}
	}()
	before, err := s.supply.drain(ctx, worker, p.SnapshotRunIn)
	if err != nil {
		return nil, err
	}
	m, err := s.supply.drain(ctx, worker, p.Snapshot)
	if err != nil {
		return nil, err
	}
	s.rig.note("run-in %s", number(before.rate()))
	s.rig.note("%s", m.cpu.cores(m.took))
	held = false
	if err := end(); err != nil {
		return nil, err
	}
	return []float64{m.rate()}, s.db.RemoveDead(ctx)
}

// drainPayload is draining jobs with a payload of so many bytes, which no compression makes
// smaller. Its limit is L1 with the same payload.
func drainPayload(name string, bytes int, bound Bound) workload {
	return workload{
		figures: []figure{{name: name, unit: "jobs/s", bound: bound}},
		prepare: func(ctx context.Context, r *rig) (rounds, error) {
			s, err := r.site(ctx)
			if err != nil {
				return rounds{}, err
			}
			c, err := s.clients(1)
			if err != nil {
				return rounds{}, err
			}
			s.supply.payload = incompressible(bytes)
			s.supply.spare = min(r.plan.Spare, 1000)
			// What was measured at 100 bytes falls with the size.
			s.supply.rate = firstRate / (1 + float64(bytes)/2000)
			return rounds{
				limit: s.drained(s.directDrain(directCallers, 100)),
				round: s.drainedWith(c.worker(100)),
			}, nil
		},
	}
}

func incompressible(n int) []byte {
	seeded := rand.NewChaCha8([32]byte{})
	out := make([]byte, n)
	_, _ = seeded.Read(out) // never fails
	return out
}
