package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold/leasehold/store"
)

// echo is an item whose answer is its own number, or its own error.
type echo struct {
	n    int
	err  error
	kind string
}

// echoes is a merger over a store that answers with what it was asked, whose batches wait
// for the gate and are written down.
type echoes struct {
	*merger[echo, echo]
	gate chan struct{}

	mu      sync.Mutex
	batches [][]int
	gone    []int
}

func newEchoes() *echoes {
	e := &echoes{gate: make(chan struct{}, 1000)}
	e.merger = &merger[echo, echo]{
		name: "Echo", run: e.answer, err: func(r *echo) *error { return &r.err },
		bytes: func(*echo) int { return 1 }, inFlight: 1, maxWaiting: 200,
		group:    func(i *echo) string { return i.kind },
		identity: func(i *echo) any { return i.n },
		abandoned: func(items, _ []echo) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.gone = append(e.gone, items[0].n)
		},
	}
	return e
}

var errPoison = errors.New("poison")

func (e *echoes) answer(ctx context.Context, items []echo) ([]echo, error) {
	<-e.gate
	var batch []int
	var out []echo
	poisoned := false
	for _, i := range items {
		batch = append(batch, i.n)
		poisoned = poisoned || errors.Is(i.err, errPoison)
		var busy *store.BusyError
		if errors.As(i.err, &busy) && !store.IsImpatient(ctx) {
			i.err = nil // alone it is waited for
		}
		out = append(out, i)
	}
	e.mu.Lock()
	e.batches = append(e.batches, batch)
	e.mu.Unlock()
	if poisoned {
		return nil, errPoison
	}
	return out, nil
}

// ask makes a call of its own goroutine and returns where its outcome will be.
func (e *echoes) ask(ctx context.Context, item echo) chan error {
	out := make(chan error, 1)
	go func() {
		got, err := e.do(ctx, []echo{item})
		if err == nil && got[0].n != item.n {
			err = fmt.Errorf("asked %d, answered %d", item.n, got[0].n)
		}
		if err == nil {
			err = got[0].err
		}
		out <- err
	}()
	synctest.Wait()
	return out
}

func (e *echoes) open(n int) {
	for range n {
		e.gate <- struct{}{}
	}
	synctest.Wait()
}

func TestR47_CallsThatArriveMeanwhileGoTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEchoes()
		calls := []chan error{e.ask(t.Context(), echo{n: 0})}
		for n := 1; n <= 100; n++ {
			calls = append(calls, e.ask(t.Context(), echo{n: n}))
		}
		e.open(2)
		for n, call := range calls {
			if err := <-call; err != nil {
				t.Errorf("call %d: %v", n, err)
			}
		}
		if len(e.batches) != 2 || len(e.batches[0]) != 1 || len(e.batches[1]) != 100 {
			t.Errorf("batches %v, want one of 1 and one of 100", e.batches)
		}
	})
}

func TestR47_ACallerPastItsDeadlineIsDroppedBeforeTheBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEchoes()
		first := e.ask(t.Context(), echo{n: 0})
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		late, stays := e.ask(short, echo{n: 1}), e.ask(t.Context(), echo{n: 2})
		if err := <-late; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the late caller is told %v", err)
		}
		e.open(2)
		if err := errors.Join(<-first, <-stays); err != nil {
			t.Error(err)
		}
		if got := fmt.Sprint(e.batches); got != "[[0] [2]]" {
			t.Errorf("batches %s", got)
		}
	})
}

func TestR47_APoisonousCallIsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEchoes()
		first := e.ask(t.Context(), echo{n: 0})
		var calls []chan error
		for n := 1; n <= 8; n++ {
			item := echo{n: n}
			if n == 5 {
				item.err = errPoison
			}
			calls = append(calls, e.ask(t.Context(), item))
		}
		e.open(20)
		if err := <-first; err != nil {
			t.Error(err)
		}
		for i, call := range calls {
			if err := <-call; errors.Is(err, errPoison) != (i+1 == 5) || (i+1 != 5 && err != nil) {
				t.Errorf("call %d: %v", i+1, err)
			}
		}
	})
}

func TestR34_ABatchOfUnknownOutcomeIsNotRunAgain(t *testing.T) {
	for _, err := range []error{&store.OutcomeUnknownError{}, &store.UnavailableError{}, &store.BusyError{}, context.DeadlineExceeded} {
		if isOwnFault(fmt.Errorf("wrapped: %w", err)) {
			t.Errorf("a batch that failed with %T would be run again", err)
		}
	}
	if !isOwnFault(errPoison) {
		t.Error("a poisoned batch would not be halved")
	}
}

func TestR32_ALockedItemIsTriedAgainAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEchoes()
		first := e.ask(t.Context(), echo{n: 0})
		locked, free := e.ask(t.Context(), echo{n: 1, err: &store.BusyError{}}), e.ask(t.Context(), echo{n: 2})
		e.open(2)
		if err := errors.Join(<-first, <-free); err != nil {
			t.Errorf("the others wait for the locked one: %v", err)
		}
		select {
		case err := <-locked:
			t.Errorf("the locked one was answered %v without another try", err)
		default:
		}
		e.open(1)
		if err := <-locked; err != nil {
			t.Error(err)
		}
		if got := fmt.Sprint(e.batches); got != "[[0] [1 2] [1]]" {
			t.Errorf("batches %s", got)
		}
	})
}

func TestR10_WhatABatchTookForACallerThatLeftIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEchoes()
		ctx, cancel := context.WithCancel(t.Context())
		call := e.ask(ctx, echo{n: 7})
		cancel()
		if err := <-call; !errors.Is(err, context.Canceled) {
			t.Errorf("the caller is told %v", err)
		}
		e.open(1)
		if got := fmt.Sprint(e.gone); got != "[7]" {
			t.Errorf("given back: %s", got)
		}
	})
}

func TestR47_OverloadedNamesItselfAndCallsOnOneThingGoApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEchoes()
		calls := []chan error{e.ask(t.Context(), echo{n: 0})}
		for range 100 {
			calls = append(calls, e.ask(t.Context(), echo{n: 1}), e.ask(t.Context(), echo{n: 2, kind: "other"}))
		}
		var overloaded *OverloadedError
		if err := <-e.ask(t.Context(), echo{n: 3}); !errors.As(err, &overloaded) || overloaded.Lane != "Echo" {
			t.Errorf("the call too many is told %v", err)
		}
		e.open(201)
		for _, call := range calls {
			if err := <-call; err != nil {
				t.Error(err)
			}
		}
		for _, batch := range e.batches {
			if len(batch) != 1 {
				t.Errorf("%v in one batch", batch)
			}
		}
	})
}

func TestAPanicInABatchAnswersItsCallers(t *testing.T) {
	m := &merger[echo, echo]{
		name: "Echo", err: func(r *echo) *error { return &r.err }, bytes: func(*echo) int { return 1 }, inFlight: 1, maxWaiting: 1,
		run: func(context.Context, []echo) ([]echo, error) { panic("boom") },
	}
	for range 2 { // the place of the worker must come free again
		if _, err := m.do(t.Context(), []echo{{}}); err == nil || !strings.Contains(err.Error(), "boom") {
			t.Errorf("answered %v", err)
		}
	}
}
