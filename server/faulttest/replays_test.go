package faulttest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold/leasehold/internal/faultproxy"
	"github.com/leasehold/leasehold/store"
)

// TestReplayMeetsGiveBack: a caller gives up its AcquireLease at about the time at which it
// is committed, so that the replica gives the lease back, and repeats it with its request_id
// at another replica in that moment. Either the repetition has the lease, and then nobody
// takes it back, or it has none.
func TestReplayMeetsGiveBack(t *testing.T) {
	t.Parallel()
	const clients, each = 6, 15
	s := newScene(t, 2, []store.Queue{queueOf("q", time.Minute)})
	slow := s.fleet.members[0].inner
	slow.Delay(faultproxy.ToServer, 10*time.Millisecond)
	slow.Delay(faultproxy.ToClient, 10*time.Millisecond)
	var kept, none, both atomic.Int64
	side(clients, func(n int) {
		first, again := s.client(t, 0), s.client(t, 1)
		var held []store.LeaseRef
		for i, id := range s.enqueued(t, again, each, store.NewJob{Queue: "q"}) {
			a := store.Acquire{JobID: id, Owner: fmt.Sprint("w-", n), MaxJobs: 1, RequestID: to(fmt.Sprintf("%d/%d", n, i))}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond+rand.N(50*time.Millisecond))
			answered := make(chan bool, 1)
			go func() {
				out, err := first.Acquire(ctx, []store.Acquire{a})
				answered <- err == nil && len(out[0].Leases) == 1
			}()
			linearWait(ctx, time.Minute) // until the first call is given up
			cancel()
			linearWait(t.Context(), rand.N(120*time.Millisecond)) // the give-back is under way, or was
			out, err := acquire(t, again, a)
			if err != nil {
				t.Errorf("repeated: %v", err)
			}
			if <-answered {
				both.Add(1)
			}
			if len(out.Leases) == 0 {
				none.Add(1)
				continue
			}
			kept.Add(1)
			held = append(held, out.Leases[0].Ref()) // long enough for the give-back to come
		}
		for _, ref := range held {
			if done, err := completeWith(t, again, ref, "done"); err != nil || done.Late {
				t.Errorf("the lease of a repetition: %+v, %v", done, err)
			}
		}
	})
	t.Logf("%d repetitions had the lease, %d had none; %d first calls were answered in time", kept.Load(), none.Load(), both.Load())
	slow.Delay(faultproxy.ToServer, 0)
	slow.Delay(faultproxy.ToClient, 0)
	if kept.Load() == 0 {
		t.Error("no repetition had a lease: this proves nothing")
	}
	for _, left := range s.leasedNow(t) { // what a first call was answered, and did not repeat
		if _, err := failWith(t, s.client(t, 1), store.Fail{Lease: left, Permanent: true}); err != nil {
			t.Error(err)
		}
	}
	_, tables := s.judge(t)
	givenBack := 0
	for _, row := range tables {
		for _, l := range row.Leases {
			if l.End == store.EndUndelivered {
				givenBack++
			}
		}
	}
	t.Logf("%d leases were given back", givenBack)
}

// leasedNow are the leases that are live.
func (s *scene) leasedNow(t *testing.T) (refs []store.LeaseRef) {
	t.Helper()
	page, err := s.direct.ListJobs(t.Context(), store.JobFilter{States: []store.State{store.Processing}}, false, store.Page{Size: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range page.Jobs {
		refs = append(refs, store.LeaseRef{JobID: j.ID, LeaseNo: j.LeaseNo})
	}
	return refs
}
