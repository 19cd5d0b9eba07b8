package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest"
)

// verdict is what the evidence says.
type verdict struct {
	violations []string
	// judged and unjudged are the jobs for which an order of the calls was looked for, and
	// those of them for which the time was too short.
	judged, unjudged int
	// doneAfterAll are the jobs with a key that are stored though every call for them was
	// refused with nothing done.
	doneAfterAll int
}

func (v *verdict) broken(format string, args ...any) {
	v.violations = append(v.violations, fmt.Sprintf(format, args...))
}

// judge holds the histories of all processes against the tables: by checks that stand here
// alone, by the invariants of the store's contract, and, as far as the time goes, by looking
// for an order of the calls on each job that explains every answer.
func judge(e *evidence, bound time.Duration) *verdict {
	v := &verdict{}
	history := translate(e.items, store.NewTokens(e.TokenKey), e.Tables)
	for _, check := range checks {
		check(e, history, v)
	}
	byJob := map[store.JobID]storetest.History{}
	for _, c := range history {
		byJob[c.Job] = append(byJob[c.Job], c)
	}
	for _, family := range families(e.Tables) {
		rows, calls := storetest.Tables{}, storetest.History{}
		for _, id := range family {
			rows[id] = e.Tables[id]
			calls = append(calls, byJob[id]...)
		}
		for _, found := range storetest.CheckInvariants(calls, rows, storetest.Checked{Settled: true, Repeats: true}) {
			v.broken("%s", found)
		}
	}
	v.linearize(e, byJob, bound)
	return v
}

// families are the jobs of the tables, each together with its follow-ups: their records speak
// of each other, and of nobody else. Judged all at once, the invariants would take time by
// the square of their number.
func families(tables storetest.Tables) (all [][]store.JobID) {
	root := func(id store.JobID) store.JobID {
		for {
			parent := tables[id].Job.ParentJobID
			if parent == nil {
				return id
			}
			id = *parent
		}
	}
	byRoot := map[store.JobID][]store.JobID{}
	for id := range tables {
		r := root(id)
		byRoot[r] = append(byRoot[r], id)
	}
	for _, family := range byRoot {
		slices.Sort(family)
		all = append(all, family)
	}
	slices.SortFunc(all, func(a, b []store.JobID) int { return cmp.Compare(a[0], b[0]) })
	return all
}

const (
	// oneSearch bounds the search for an order of the calls on one job.
	oneSearch = 3 * time.Second
	// outOfTime is what storetest says of a job whose search did not come to an end.
	outOfTime = "could not be judged"
)

// linearize looks for orders that explain the answers: for jobs with the most eventful
// histories first, then for others by chance, until the time is over.
func (v *verdict) linearize(e *evidence, byJob map[store.JobID]storetest.History, bound time.Duration) {
	order := make([]store.JobID, 0, len(e.Tables))
	for id := range e.Tables {
		order = append(order, id)
	}
	slices.Sort(order)
	rng := rand.New(rand.NewPCG(e.Seed, 2))
	rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	eventful := func(id store.JobID) int { return min(len(e.Tables[id].Leases), 3) }
	slices.SortStableFunc(order, func(a, b store.JobID) int { return eventful(b) - eventful(a) })

	end := time.Now().Add(bound)
	next := make(chan store.JobID)
	var mu sync.Mutex
	var searchers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		searchers.Go(func() {
			for id := range next {
				err := storetest.CheckLinearizable(byJob[id], storetest.Tables{id: e.Tables[id]}, storetest.Linear{
					Queues: e.Queues, Timeout: oneSearch, Repeats: true,
				})
				mu.Lock()
				v.judged++
				switch {
				case err == nil:
				case strings.Contains(err.Error(), outOfTime):
					v.unjudged++
				default:
					v.broken("%v", err)
				}
				mu.Unlock()
			}
		})
	}
	for _, id := range order {
		if time.Now().After(end) {
			break
		}
		next <- id
	}
	close(next)
	searchers.Wait()
}
