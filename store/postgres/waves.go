package postgres

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/leasehold/leasehold/store"
)

// batchPatience is how long a batch waits for items that others hold locked; a single call
// waits until its own deadline. A locked row must not delay its neighbours' answers for long.
const batchPatience = 500 * time.Millisecond

// repeatsPatience bounds a batch that names one thing many times, a statement for each time:
// a thousand heartbeats of one lease would keep others from the connection for seconds.
const repeatsPatience = time.Second

// impatientPatience covers the moment for which a claim holds rows that it then passes over.
const impatientPatience = 10 * time.Millisecond

// inWaves runs items through do in statements that never see one identity twice, and
// repeats those that do returns as locked, apart from the others and without holding a
// connection while they wait, until the caller's time or patience is over; then it calls
// fail for each, with nil as the error. An error of the first statement is the call's own;
// one of a later statement is that of its items only, because what the first did is done.
//
// A claim under way holds rows for a moment that it then passes over (it locked a newer
// version than it looked for), so a first skip means little.
func (s *Store) inWaves(ctx context.Context, items []int, identity func(int) any,
	do func(context.Context, []int) ([]int, error), fail func(int, error),
) error {
	var locked []int
	patience := batchPatience
	switch {
	case store.IsImpatient(ctx):
		patience = impatientPatience
	case len(items) == 1:
		patience = s.ends.statement
	}
	first, over := true, time.Now().Add(repeatsPatience)
	for len(items) > 0 {
		if !first && time.Now().After(over) {
			locked = append(locked, items...)
			break
		}
		wave, rest := splitWave(items, identity)
		again, err := do(ctx, wave)
		if err != nil && first {
			return err
		}
		if err != nil {
			failAll(wave, err, fail)
		}
		first = false
		locked = append(locked, again...)
		items = rest
	}
	end := time.Now().Add(patience)
	if deadline, ok := store.PatienceEnds(ctx); ok {
		end = earlier(end, deadline.Add(-answerReserve(time.Until(deadline))))
	}
	for wait := 2 * time.Millisecond; len(locked) > 0 && time.Now().Before(end); wait = min(2*wait, 200*time.Millisecond) {
		if !sleep(ctx, min(jittered(wait), max(0, time.Until(end)))) {
			break
		}
		wave, rest := splitWave(locked, identity)
		again, err := do(ctx, wave)
		switch {
		case err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()):
			again = wave // out of time they stay what they were: locked
		case err != nil:
			failAll(wave, err, fail)
		}
		locked = slices.Concat(again, rest)
	}
	failAll(locked, nil, fail)
	return nil
}

// answerReserve is what is kept of a caller's time for the way back, also on machines that
// are busy: one that is told at its very deadline is told nothing.
func answerReserve(left time.Duration) time.Duration {
	return min(max(left/5, deadlineMargin), 500*time.Millisecond)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// failAll gives items their error; nil says that they stayed locked.
func failAll(items []int, err error, fail func(int, error)) {
	for _, i := range items {
		fail(i, err)
	}
}

// splitWave takes the first item of each identity.
func splitWave(items []int, identity func(int) any) (wave, rest []int) {
	seen := make(map[any]bool, len(items))
	for _, i := range items {
		id := identity(i)
		if seen[id] {
			rest = append(rest, i)
			continue
		}
		seen[id] = true
		wave = append(wave, i)
	}
	return wave, rest
}
