package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasehold/leasehold/store"
)

// directCallers is how many batches are under way at a time, below the 8 connections of the
// store: more were no faster on the two cores where it was tried.
const directCallers = 4

// directDrain is L1: batches of leases taken and completed by the store's statements, without
// calls around them.
func (s *site) directDrain(callers, batch int) load {
	return turns(callers, func(ctx context.Context, _ int) (int, error) {
		got, err := s.store.Acquire(ctx, []store.Acquire{{Queues: []string{queueName}, Owner: workerName, MaxJobs: batch}})
		if err != nil {
			return 0, err
		}
		if got[0].Err != nil || len(got[0].Leases) == 0 {
			return 0, got[0].Err
		}
		ends := make([]store.Complete, len(got[0].Leases))
		for i := range ends {
			ends[i].Lease = got[0].Leases[i].Ref()
		}
		return len(ends), s.directComplete(ctx, ends)
	})
}

// directComplete completes leases, those that another statement held again.
func (s *site) directComplete(ctx context.Context, ends []store.Complete) error {
	for len(ends) > 0 {
		results, err := s.store.Complete(ctx, ends)
		if err != nil {
			return err
		}
		var again []store.Complete
		for i := range results {
			if results[i].Err == nil {
				continue
			}
			if _, busy := errors.AsType[*store.BusyError](results[i].Err); !busy {
				return fmt.Errorf("complete job %d: %w", ends[i].Lease.JobID, results[i].Err)
			}
			again = append(again, ends[i])
		}
		ends = again
	}
	return nil
}

// directEnqueue is Lbatch: batches of jobs stored by the store's statement.
func (s *site) directEnqueue(callers, batch int) load {
	jobs := make([]store.NewJob, batch)
	for i := range jobs {
		jobs[i] = store.NewJob{Queue: queueName, Payload: store.Payload{Data: s.supply.payload}}
	}
	return turns(callers, func(ctx context.Context, _ int) (int, error) {
		results, err := s.store.Enqueue(ctx, jobs)
		if err != nil {
			return 0, err
		}
		for i := range results {
			if results[i].Err != nil {
				return 0, results[i].Err
			}
		}
		return len(results), nil
	})
}
