package server

import (
	"testing"
	"testing/synctest"
	"time"
)

func (e *echoes) underWay() int {
	e.merger.mu.Lock()
	defer e.merger.mu.Unlock()
	return e.running
}

func TestR47_FewCallsWaitForTheStatementThatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEchoes()
		e.inFlight = 2
		calls := []chan error{e.ask(t.Context(), echo{n: 0})}
		for n := 1; n < worthwhile; n++ {
			calls = append(calls, e.ask(t.Context(), echo{n: n}))
		}
		if n := e.underWay(); n != 1 {
			t.Errorf("%d statements run for one call and few others", n)
		}
		elapse(besidePatience)
		if n := e.underWay(); n != 2 {
			t.Errorf("%d statements run when the patience of the few is over", n)
		}
		e.open(2)
		for _, call := range calls {
			if err := <-call; err != nil {
				t.Error(err)
			}
		}
		if len(e.batches) != 2 || len(e.batches[0])+len(e.batches[1]) != worthwhile {
			t.Errorf("batches %v", e.batches)
		}
	})
}

func TestR47_ManyCallsAreWorthAStatementBesideTheOneThatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEchoes()
		e.inFlight = 2
		calls := []chan error{e.ask(t.Context(), echo{n: 0})}
		for n := 1; n <= worthwhile; n++ {
			calls = append(calls, e.ask(t.Context(), echo{n: n}))
		}
		if n := e.underWay(); n != 2 {
			t.Errorf("%d statements run for one call and %d others", n, worthwhile)
		}
		e.open(2)
		for _, call := range calls {
			if err := <-call; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestR47_BeatsAloneLingerForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEchoes()
		e.linger = beatsLinger
		e.open(10)
		for round := range 2 { // the second after a batch that has run
			began := time.Now()
			calls := []chan error{e.ask(t.Context(), echo{n: 10 * round})}
			elapse(beatsLinger / 2)
			calls = append(calls, e.ask(t.Context(), echo{n: 10*round + 1}))
			for _, call := range calls {
				if err := <-call; err != nil {
					t.Error(err)
				}
			}
			if took := time.Since(began); took != beatsLinger {
				t.Errorf("answered after %v, want %v", took, beatsLinger)
			}
		}
		if len(e.batches) != 2 || len(e.batches[0]) != 2 || len(e.batches[1]) != 2 {
			t.Errorf("batches %v, want two of two", e.batches)
		}
	})
}
