package bench

import "context"

// batchCallers is how many callers store many jobs per call.
const batchCallers = 4

// enqueueOne is storing one job per call. A job costs the store's time, measured by direct
// batches, and that of one call.
func enqueueOne(callers, batch int, bound Bound) workload {
	return workload{
		figures: []figure{{name: named("enqueue_one_", callers), unit: "jobs/s", bound: bound}},
		prepare: func(ctx context.Context, r *rig) (rounds, error) {
			s, err := r.site(ctx)
			if err != nil {
				return rounds{}, err
			}
			producers, err := s.clients(connectionsFor(callers))
			if err != nil {
				return rounds{}, err
			}
			noop, err := r.noop(ctx, connectionsFor(callers))
			if err != nil {
				return rounds{}, err
			}
			l1 := r.steadily(s.directEnqueue(min(callers, directCallers), batch))
			return rounds{
				limit: r.composed(l1, r.steadily(noop.enqueue(callers, noopPayload))),
				round: s.stored(producers.enqueue(callers, noopPayload)),
			}, nil
		},
	}
}

// enqueueMany is storing many jobs per call. Its limit is the same batches stored directly.
func enqueueMany(batch int, bound Bound) workload {
	return workload{
		figures: []figure{{name: named("enqueue_many_", batch), unit: "jobs/s", bound: bound}},
		prepare: func(ctx context.Context, r *rig) (rounds, error) {
			s, err := r.site(ctx)
			if err != nil {
				return rounds{}, err
			}
			producers, err := s.clients(1)
			if err != nil {
				return rounds{}, err
			}
			return rounds{
				limit: r.steadily(s.directEnqueue(directCallers, batch)),
				round: s.stored(producers.enqueueMany(batchCallers, batch, noopPayload)),
			}, nil
		},
	}
}

// stored is steadily, and notes whose processor time it took.
func (s *site) stored(l load) round {
	return func(ctx context.Context) ([]float64, error) {
		m, err := s.rig.steady(ctx, l)
		s.rig.note("%s", m.cpu.cores(m.took))
		return []float64{m.rate()}, err
	}
}
