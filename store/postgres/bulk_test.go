package postgres_test

import (
	"testing"

	"github.com/leasehold/leasehold/store"
)

// TestR22RetryTellsWhatItDidThoughTheRestFails: STUCK jobs are retried by one statement and
// DEAD ones by another. Where the second cannot be run, the first has happened all the same.
func TestR22RetryTellsWhatItDidThoughTheRestFails(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	if _, err := h.store.CreateQueue(t.Context(), store.Queue{Name: "q"}); err != nil {
		t.Fatal(err)
	}
	made, err := h.store.Enqueue(t.Context(), []store.NewJob{{Queue: "q"}, {Queue: "q"}})
	if err != nil {
		t.Fatal(err)
	}
	live, other := made[0].JobID, made[1].JobID
	conn := connect(t, h.URL)
	exec(t, conn, `UPDATE leasehold.jobs SET state = 3`)
	if _, err := h.store.ResolveJob(t.Context(), store.Resolution{JobID: other, Actor: store.Actor{Name: "ann", Note: "never"}}); err != nil {
		t.Fatal(err)
	}
	exec(t, conn, `BEGIN`)
	exec(t, conn, `LOCK TABLE leasehold.finished_jobs IN ACCESS EXCLUSIVE MODE`)
	act := store.BulkAct{Selection: store.Selection{IDs: []store.JobID{live, other}}, Actor: store.Actor{Name: "ann"}}
	out, err := h.store.RetryJobs(t.Context(), act)
	exec(t, conn, `ROLLBACK`)
	if err != nil || len(out.Items) != 2 {
		t.Fatalf("the first was retried, and the answer is %+v, %v", out, err)
	}
	if out.Items[0].State != store.Pending || out.Items[0].Err != nil || out.Items[1].Err == nil {
		t.Errorf("got %+v", out.Items)
	}
	for id, want := range map[store.JobID]store.State{live: store.Pending, other: store.Dead} {
		if job, err := h.store.GetJob(t.Context(), id, false); err != nil || job.State != want {
			t.Errorf("job %d: %+v, %v", id, job, err)
		}
	}
	if out, err = h.store.RetryJobs(t.Context(), act); err != nil || out.Items[0].Err != nil || out.Items[1].State != store.Pending {
		t.Errorf("again: %+v, %v", out, err)
	}
}
