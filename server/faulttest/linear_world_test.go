package faulttest

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/leasehold/leasehold/internal/faultproxy"
	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/postgres/backdoor"
)

// What the clients share: the jobs and leases that some of them was told of.

func (w *linearWorld) noteJob(id store.JobID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unanswered[id] < linearMaxUnanswered {
		w.jobs = linearKeep(w.jobs, id)
	}
}

func (w *linearWorld) noteLease(ref store.LeaseRef) {
	w.noteJob(ref.JobID)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unanswered[ref.JobID] < linearMaxUnanswered {
		w.leases = linearKeep(w.leases, ref)
	}
}

// noteUnanswered counts calls on a job that were not answered. One with many is left alone:
// each doubles the orders that have to be looked through. It tells whether that is so.
func (w *linearWorld) noteUnanswered(id store.JobID) (enough bool) {
	if id == 0 {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unanswered[id]++; w.unanswered[id] < linearMaxUnanswered {
		return false
	}
	w.jobs = slices.DeleteFunc(w.jobs, func(other store.JobID) bool { return other == id })
	w.leases = slices.DeleteFunc(w.leases, func(ref store.LeaseRef) bool { return ref.JobID == id })
	return true
}

// noteEnd takes a job that was completed out of those that are open; its leases stay.
func (w *linearWorld) noteEnd(ref store.LeaseRef, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.jobs = slices.DeleteFunc(w.jobs, func(id store.JobID) bool { return id == ref.JobID })
	}
}

// linearKeep adds one that is not there, and drops the oldest.
func linearKeep[T comparable](all []T, one T) []T {
	if slices.Contains(all, one) {
		return all
	}
	if all = append(all, one); len(all) > linearKept {
		all = all[1:]
	}
	return all
}

func (w *linearWorld) open() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.jobs)
}

func (w *linearWorld) anyJob(rng *rand.Rand) (store.JobID, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return linearAny(w.jobs, rng)
}

func (w *linearWorld) anyLease(rng *rand.Rand) (store.LeaseRef, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return linearAny(w.leases, rng)
}

// linearAny gives any of them, the later the likelier: what is long over answers the same
// for ever.
func linearAny[T any](all []T, rng *rand.Rand) (one T, ok bool) {
	if len(all) == 0 {
		return one, false
	}
	return all[max(rng.IntN(len(all)), rng.IntN(len(all)))], true
}

// linearFaults breaks one thing of a replica after the other, and heals it.
type linearFaults struct {
	db     *backdoor.Database
	member *member
	rng    *rand.Rand
	counts map[string]int
}

// linearFault is begun, and ended after a while.
type linearFault struct {
	name       string
	begin, end func(t *testing.T, f *linearFaults)
}

var linearFaultKinds = []linearFault{
	{"clients cut off", func(_ *testing.T, f *linearFaults) { f.member.outer.Cut() }, linearNothing},
	{"database cut off", func(_ *testing.T, f *linearFaults) { f.member.inner.Cut() }, linearNothing},
	linearSwallows("requests swallowed", func(m *member) *faultproxy.Proxy { return m.outer }, faultproxy.ToServer),
	linearSwallows("answers swallowed", func(m *member) *faultproxy.Proxy { return m.outer }, faultproxy.ToClient),
	linearSwallows("statements swallowed", func(m *member) *faultproxy.Proxy { return m.inner }, faultproxy.ToServer),
	linearSwallows("results swallowed", func(m *member) *faultproxy.Proxy { return m.inner }, faultproxy.ToClient),
	{"killed", func(_ *testing.T, f *linearFaults) { f.member.Kill() }, func(t *testing.T, f *linearFaults) {
		if err := f.member.Start(t.Context()); err != nil {
			t.Error(err)
		}
	}},
	{"drained", func(_ *testing.T, f *linearFaults) { f.member.Terminate() }, func(t *testing.T, f *linearFaults) {
		if code := f.member.ExitCode(); code != 0 { // it waits for the end
			t.Errorf("a replica that was told to drain ended with exit code %d", code)
		}
		if err := f.member.Start(t.Context()); err != nil {
			t.Error(err)
		}
	}},
	{"stopped", func(_ *testing.T, f *linearFaults) { f.member.Freeze() }, func(_ *testing.T, f *linearFaults) { f.member.Thaw() }},
	{"sessions terminated", func(t *testing.T, f *linearFaults) {
		f.db.Exec(t, `SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a WHERE a.application_name = 'leasehold'
			AND a.datname = current_database() AND random() < 0.7`)
	}, linearNothing},
}

func linearNothing(*testing.T, *linearFaults) {}

// linearSwallows is a network that swallows one direction; what it held is lost in the end.
func linearSwallows(name string, where func(*member) *faultproxy.Proxy, d faultproxy.Direction) linearFault {
	return linearFault{
		name: name, begin: func(_ *testing.T, f *linearFaults) { where(f.member).Swallow(d, true) },
		end: func(_ *testing.T, f *linearFaults) {
			if f.rng.IntN(2) == 0 { // else it comes late
				where(f.member).Cut()
			}
			where(f.member).Swallow(d, false)
		},
	}
}

// run breaks and heals until the context ends; then nothing is broken.
func (f *linearFaults) run(ctx context.Context, t *testing.T) {
	for {
		linearWait(ctx, time.Duration(500+f.rng.IntN(2500))*time.Millisecond)
		if ctx.Err() != nil {
			return
		}
		kind := linearFaultKinds[f.rng.IntN(len(linearFaultKinds))]
		f.counts[kind.name]++
		kind.begin(t, f)
		linearWait(ctx, time.Duration(f.rng.IntN(1500))*time.Millisecond) // longer than a lease, now and then
		kind.end(t, f)
	}
}

func linearWait(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}
