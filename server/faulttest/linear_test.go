package faulttest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest"
	"github.com/leasehold/leasehold/store/storetest/model"
)

var (
	linearFor  = flag.Duration("linear.for", 8*time.Second, "how long TestLinearizableUnderFaults lets clients and faults run")
	linearSeed = flag.Uint64("linear.seed", 0, "seed of TestLinearizableUnderFaults; 0: a random one, which is printed")
)

const (
	linearClients  = 12
	linearReplicas = 3
)

// linearQueues are the queues of the history: leases of a second, which run out while the
// test runs, and waits that are short against it.
var linearQueues = []store.Queue{
	{Name: "requeues", Policy: linearPolicy},
	{Name: "holds", OnExpiry: store.OnExpiryHold, Policy: linearPolicy},
}

var linearPolicy = store.Policy{
	LeaseDuration: to(time.Second), MaxAttempts: to(int32(5)), MaxExpirations: to(int32(4)), CancelGrace: to(2 * time.Second),
	BackoffInitial: to(50 * time.Millisecond), BackoffCap: to(400 * time.Millisecond),
}

// TestLinearizableUnderFaults: clients of three replicas enqueue, lease, beat, complete,
// fail, release and cancel, also with leases of one another and of the past, while leases
// run out, networks cut and swallow, replicas are killed and stopped, and the sessions of
// the database are terminated. Of every job, some order of the calls must explain all that
// was answered and what is stored; what the client never learned may have happened or not.
func TestLinearizableUnderFaults(t *testing.T) {
	t.Parallel()
	linearizable(t, newFleet(t, database(t), linearReplicas, linearArgs...))
}

var linearArgs = []string{"--watcher-interval", "200ms"}

func linearizable(t *testing.T, f *fleet) {
	t.Helper()
	seed := *linearSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("repeat with: go test ./server/faulttest -run %s -linear.seed=%d -linear.for=%s", t.Name(), seed, *linearFor)
	w := &linearWorld{scene: newSceneOf(t, f, linearQueues), seed: seed, unanswered: map[store.JobID]int{}}

	ctx, cancel := context.WithTimeout(t.Context(), *linearFor)
	defer cancel()
	var all sync.WaitGroup
	for n := range linearClients {
		c := w.client(t, n)
		all.Go(func() { c.run(ctx) })
	}
	faults := make([]*linearFaults, linearReplicas)
	for i, m := range w.fleet.members {
		faults[i] = &linearFaults{db: w.fleet.db, member: m, rng: rand.New(rand.NewPCG(seed, uint64(1000+i))), counts: map[string]int{}}
		all.Go(func() { faults[i].run(ctx, t) })
	}
	all.Wait()

	w.drain(t)
	history, tables := w.judge(t)
	t.Logf("%d jobs, %d calls: %s", len(tables), len(history), linearTally(history))
	w.mustRefuse(t, history, tables)
	for i, f := range faults {
		t.Logf("faults of replica %d: %v", i, f.counts)
		if len(f.counts) == 0 {
			t.Errorf("nothing happened to replica %d", i)
		}
	}
}

// linearWorld is what the clients share.
type linearWorld struct {
	*scene
	seed uint64

	mu     sync.Mutex
	jobs   []store.JobID // that some client was told of, latest last
	leases []store.LeaseRef

	unanswered map[store.JobID]int
}

// client is the n-th client, with a connection of its own to each replica.
func (w *linearWorld) client(t *testing.T, n int) *linearClient {
	t.Helper()
	c := &linearClient{
		world: w, owner: fmt.Sprint("worker-", n), rng: rand.New(rand.NewPCG(w.seed, uint64(n))),
	}
	for i := range linearReplicas {
		r := w.remote(t, i)
		if n%3 == 0 { // a third of the clients polls, for less than a call may take
			r.Wait = linearCall / 2
		}
		c.stores = append(c.stores, w.recorder.Client(n, r))
	}
	return c
}

// drain does what is left, as the workers of the next day: no job that waits is hidden from
// those who ask for its queue.
func (w *linearWorld) drain(t *testing.T) {
	t.Helper()
	w.settle(t)
	var workers [linearReplicas]store.Store
	for i := range workers {
		workers[i] = w.scene.client(t, i)
	}
	waiting := store.JobFilter{States: []store.State{store.Pending, store.Processing}}
	n := 0
	eventually(t, "every job that waits is done", func() bool {
		c := workers[n%linearReplicas]
		n++
		out, err := acquire(t, c, store.Acquire{Queues: []string{linearQueues[0].Name, linearQueues[1].Name}, Owner: "of the next day", MaxJobs: 10})
		if err != nil {
			return false // what broke last may be noticed only now
		}
		for i := range out.Leases {
			_, _ = completeWith(t, c, out.Leases[i].Ref(), "done") // else it comes back
		}
		page, err := w.direct.ListJobs(t.Context(), waiting, false, store.Page{Size: 1000})
		if err != nil {
			t.Fatal(err)
		}
		return len(page.Jobs) == 0 && page.Next == 0
	})
}

// mustRefuse proves that the same judgement refuses lies about the same history.
func (w *linearWorld) mustRefuse(t *testing.T, history storetest.History, tables storetest.Tables) {
	t.Helper()
	for name, lie := range linearLies {
		forged, of := lie(slices.Clone(history))
		if of == 0 {
			t.Logf("nothing happened that could be forged: %s", name)
			continue
		}
		if storetest.CheckLinearizable(forged, storetest.Tables{of: tables[of]}, w.linear()) == nil {
			t.Errorf("an order of the calls explains job %d: %s", of, name)
		}
	}
}

// linearLies forge a history, so that the same judgement must refuse it: they give the job
// whose calls cannot be explained any more, 0 where the history has no such call.
var linearLies = map[string]func(h storetest.History) (storetest.History, store.JobID){
	"a complete was accepted after its lease was superseded": func(h storetest.History) (storetest.History, store.JobID) {
		for i, c := range h {
			_, isComplete := c.Request.(model.Complete)
			if _, superseded := errors.AsType[*store.SupersededError](c.Outcome.Err); isComplete && superseded {
				h[i].Outcome = model.Outcome{}
				return h, c.Job
			}
		}
		return h, 0
	},
	"one lease was given to two": func(h storetest.History) (storetest.History, store.JobID) {
		for _, c := range h {
			a, isAcquire := c.Request.(model.Acquire)
			if isAcquire && !c.Unknown && c.Outcome.LeaseNo != 0 && c.RequestID == "" {
				a.Owner += "'s twin"
				c.Request = a
				return append(h, c), c.Job
			}
		}
		return h, 0
	},
}

// linearTally counts the calls by what came of them.
func linearTally(h storetest.History) string {
	counts := map[string]int{}
	for _, c := range h {
		what := "OK"
		switch {
		case c.Unknown:
			what = "unknown"
		case c.Outcome.Err != nil:
			what = strings.TrimPrefix(fmt.Sprintf("%T", c.Outcome.Err), "*store.")
		case c.Outcome.AlreadyApplied:
			what = "already applied"
		case c.Outcome.Late:
			what = "late"
		case c.Outcome.Empty != store.NotEmpty:
			what = "empty"
		}
		counts[c.Request.Name()+" "+what]++
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&b, "%s %d, ", name, counts[name])
	}
	return strings.TrimSuffix(b.String(), ", ")
}
