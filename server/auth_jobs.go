package server

import (
	"context"
	"sync"
	"unique"

	"github.com/leasehold/leasehold/store"
)

// maxKnownJobs bounds one of the two generations of what is remembered: about 5 MB each.
const maxKnownJobs = 50_000

// jobQueues tells the queue of jobs. A job never changes its queue and its id is never used
// again, so that what was read once stays true.
type jobQueues struct {
	store store.JobStore

	mu sync.Mutex
	// young fills up and becomes old, which drops what nobody has asked for since.
	young, old map[store.JobID]unique.Handle[string]
}

func newJobQueues(st store.JobStore) *jobQueues {
	return &jobQueues{store: st, young: map[store.JobID]unique.Handle[string]{}}
}

// remember notes the queue of a job that was seen otherwise.
func (q *jobQueues) remember(id store.JobID, queue string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.add(id, unique.Make(queue))
}

func (q *jobQueues) add(id store.JobID, queue unique.Handle[string]) {
	if len(q.young) >= maxKnownJobs {
		q.old, q.young = q.young, make(map[store.JobID]unique.Handle[string], maxKnownJobs)
	}
	q.young[id] = queue
}

// known fills found with what is remembered, and returns the rest.
func (q *jobQueues) known(ids []store.JobID, found map[store.JobID]string) (rest []store.JobID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, id := range ids {
		queue, is := q.young[id]
		if !is {
			if queue, is = q.old[id]; !is {
				rest = append(rest, id)
				continue
			}
			q.add(id, queue)
		}
		found[id] = queue.Value()
	}
	return rest
}

// of finds the queues of jobs, with one statement for those that are not remembered. A job
// that does not exist is not in the result.
func (q *jobQueues) of(ctx context.Context, ids ...store.JobID) (map[store.JobID]string, error) {
	found := make(map[store.JobID]string, len(ids))
	rest := q.known(ids, found)
	if len(rest) == 0 {
		return found, nil
	}
	read, err := q.store.JobQueues(ctx, rest)
	if err != nil {
		return nil, err
	}
	for id, queue := range read {
		q.remember(id, queue)
		found[id] = queue
	}
	return found, nil
}
