package storetest

import (
	"maps"

	"github.com/leasehold/leasehold/store"
)

var jobQueueTests = []contractTest{
	{name: "S8_queues_of_jobs_live_and_finished", run: func(e *env) {
		q, r := e.queue(), e.queue()
		waits, done, other := e.enqueue(q), e.enqueue(q), e.enqueue(r)
		jobEnds["completed"](e, done)
		const none = store.JobID(1) << 60
		got, err := e.s.JobQueues(e.ctx, []store.JobID{done, none, other, waits, done})
		want := map[store.JobID]string{waits: q, done: q, other: r}
		if err != nil || !maps.Equal(got, want) {
			e.Fatalf("got %v, %v, want %v", got, err, want)
		}
		if got, err := e.s.JobQueues(e.ctx, nil); err != nil || len(got) != 0 {
			e.Fatalf("of no job: %v, %v", got, err)
		}
	}},
}
