package bench

import "context"

// drainMany is draining by one worker process that leases and completes many jobs per call.
// Its limit is L1 at a size of batch. How much of that the store gives to as many jobs under
// way as the worker has slots is noted beside it: the rest no service could reach.
func drainMany(name string, slots, batch int, bound Bound) workload {
	return workload{
		figures: []figure{{name: name, unit: "jobs/s", bound: bound}},
		prepare: func(ctx context.Context, r *rig) (rounds, error) {
			s, err := r.site(ctx)
			if err != nil {
				return rounds{}, err
			}
			worker, err := s.clients(1)
			if err != nil {
				return rounds{}, err
			}
			s.supply.rate = expected(slots)
			l1, few := s.drained(s.directDrain(directCallers, batch)), s.drained(s.directDrain(max(1, slots/batch), batch))
			return rounds{
				limit: func(ctx context.Context) ([]float64, error) {
					sameSlots, err := few(ctx)
					if err != nil {
						return nil, err
					}
					r.note("the store alone with %d jobs under way: %s", slots, number(sameSlots[0]))
					return l1(ctx)
				},
				round: s.drainedWith(worker.worker(slots)),
			}, nil
		},
	}
}

// drainOne is draining by callers that lease and complete one job per call. A job costs the
// store's time, measured by L1 at a size of batch, and that of two calls: L2, counted in jobs.
func drainOne(callers, batch int, bound Bound) workload {
	return workload{
		figures: []figure{{name: named("drain_one_", callers), unit: "jobs/s", bound: bound}},
		prepare: func(ctx context.Context, r *rig) (rounds, error) {
			s, err := r.site(ctx)
			if err != nil {
				return rounds{}, err
			}
			workers, err := s.clients(connectionsFor(callers))
			if err != nil {
				return rounds{}, err
			}
			noop, err := r.noop(ctx, connectionsFor(callers))
			if err != nil {
				return rounds{}, err
			}
			s.supply.rate = expected(batch)
			l1 := s.drained(s.directDrain(min(callers, directCallers), batch))
			return rounds{
				limit: r.composed(l1, r.steadily(noop.oneJob(callers))),
				round: s.drainedWith(workers.oneJob(callers)),
			}, nil
		},
	}
}

// drainTen is draining by 10 one-job callers. Its limit is what a single one does.
func drainTen(bound Bound) workload {
	return workload{
		figures: []figure{{name: "drain_one_10", unit: "jobs/s", bound: bound}},
		prepare: func(ctx context.Context, r *rig) (rounds, error) {
			s, err := r.site(ctx)
			if err != nil {
				return rounds{}, err
			}
			workers, err := s.clients(1)
			if err != nil {
				return rounds{}, err
			}
			s.supply.rate = expected(10)
			return rounds{limit: s.drained(workers.oneJob(1)), round: s.drainedWith(workers.oneJob(10))}, nil
		},
	}
}

type round = func(ctx context.Context) ([]float64, error)

// drained is a round of a load that empties the queue, as jobs per second.
func (s *site) drained(l load) round {
	return func(ctx context.Context) ([]float64, error) {
		m, err := s.supply.drain(ctx, l, s.rig.plan.Round)
		return []float64{m.rate()}, err
	}
}

// drainedWith is drained, and notes whose processor time it took.
func (s *site) drainedWith(l load) round {
	return func(ctx context.Context) ([]float64, error) {
		s.rig.watched = s.service
		m, err := s.supply.drain(ctx, l, s.rig.plan.Round)
		s.rig.note("%s", m.cpu.cores(m.took))
		return []float64{m.rate()}, err
	}
}

// steadily is a round of a load that needs no supply, as turns per second.
func (r *rig) steadily(l load) round {
	return func(ctx context.Context) ([]float64, error) {
		m, err := r.steady(ctx, l)
		return []float64{m.rate()}, err
	}
}

// composed is the limit of work that costs its time at the store and in calls.
func (r *rig) composed(store, calls round) round {
	return func(ctx context.Context) ([]float64, error) {
		l1, err := store(ctx)
		if err != nil {
			return nil, err
		}
		l2, err := calls(ctx)
		if err != nil {
			return nil, err
		}
		r.note("limit of the store's %s and the calls' %s", number(l1[0]), number(l2[0]))
		return []float64{together(l1[0], l2[0])}, nil
	}
}
