package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/leasehold/leasehold/store"
)

// merger gathers the calls of one kind that arrive while earlier ones run, of all
// connections, and runs them together as one batch: at load one statement and one commit
// serve a hundred workers, and an idle service adds no latency, because a call that finds a
// free place starts at once (R47).
//
// Each caller gets its own answer and leaves at its own deadline. A caller that is past it
// is dropped before the batch starts. A batch that fails for a reason of its own is halved
// until the poisonous call is alone. An item that was locked is tried again by its caller
// alone, so that nobody else waits for it.
type merger[I, O any] struct {
	name string
	run  func(context.Context, []I) ([]O, error)
	err  func(*O) *error
	// group keeps calls apart that cannot share a statement; identity keeps calls on one
	// thing out of one batch, where they would only run one after the other. Nil: none.
	group    func(*I) string
	identity func(*I) any
	bytes    func(*I) int
	// jobs is how many jobs an item is about. Nil: one.
	jobs func(*I) int
	// abandoned takes back what a batch did for a caller that left meanwhile. Nil: nothing.
	abandoned func([]I, []O)
	// inFlight bounds the batches that run at a time, maxWaiting the calls that wait.
	inFlight, maxWaiting int
	// linger is how long a small batch may wait for more. 0: the first call runs at once.
	linger time.Duration
	// seen measures the batches. Nil: nobody does.
	seen *mergeSeries

	tracer trace.Tracer // of the spans of batches; nil: they have none

	mu      sync.Mutex
	waiting []*mergeCall[I, O]
	jobsDue int // of the calls that wait
	running int
	armed   bool // a timer will look after the calls that wait
}

const (
	// worthwhile is how many jobs make a statement of their own beside one that runs: what a
	// statement costs whatever is in it is a small part then (measured, see docs/performance.md).
	worthwhile = 100
	// besidePatience is how long fewer wait for the statement that runs, which on its way to
	// them may be a slow one.
	besidePatience = 3 * time.Millisecond
	// mergedItems and mergedBytes bound one batch.
	mergedItems = store.MaxBatch
	mergedBytes = 8 << 20
	// aloneAtOnce bounds how many locked items of one call are tried again at a time.
	aloneAtOnce = 4
	// alonePatience bounds that for a call of several items, as the store's own batches.
	alonePatience = 500 * time.Millisecond
)

type mergeCall[I, O any] struct {
	ctx     context.Context
	items   []I
	results []O
	err     error
	done    chan struct{}
	since   time.Time
	// settled is set once, by whoever is first: the caller that leaves, or the batch that
	// answers. It decides who takes care of what the batch did.
	settled atomic.Bool
}

// do runs items with those of other callers.
func (m *merger[I, O]) do(ctx context.Context, items []I) ([]O, error) {
	c := &mergeCall[I, O]{ctx: ctx, items: items, done: make(chan struct{}), since: time.Now()}
	m.mu.Lock()
	if len(m.waiting) >= m.maxWaiting {
		m.mu.Unlock()
		return nil, &OverloadedError{Lane: m.name, Waiting: m.maxWaiting}
	}
	m.waiting = append(m.waiting, c)
	m.jobsDue += m.jobsOf(items)
	m.schedule()
	m.mu.Unlock()
	if err := m.wait(c); err != nil {
		return nil, err
	}
	if c.err != nil {
		return nil, c.err
	}
	return c.results, m.alone(ctx, c)
}

// schedule sees to it that the calls that wait are run: now, where nothing runs or a batch is
// worth it, or else when the one that runs is done or its patience is over. Many small
// batches side by side would only make each other slower. The caller holds the lock.
func (m *merger[I, O]) schedule() {
	if len(m.waiting) == 0 || m.running >= m.inFlight {
		return
	}
	patience := besidePatience
	if m.running == 0 {
		patience = m.linger
	}
	switch {
	case m.jobsDue >= worthwhile || patience == 0:
		m.running++
		go m.work()
	case !m.armed:
		m.armed = true
		time.AfterFunc(patience, m.patienceOver)
	}
}

func (m *merger[I, O]) jobsOf(items []I) int {
	if m.jobs == nil {
		return len(items)
	}
	n := 0
	for i := range items {
		n += m.jobs(&items[i])
	}
	return n
}

// patienceOver runs what waits, however little.
func (m *merger[I, O]) patienceOver() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.armed = false
	if len(m.waiting) > 0 && m.running < m.inFlight {
		m.running++
		go m.work()
	}
}

// wait waits for the answer of a call. A caller that goes while its call still waits for a
// batch takes it back; one whose batch has begun waits as long as its context allows.
func (m *merger[I, O]) wait(c *mergeCall[I, O]) error {
	caller := callerOf(c.ctx)
	select {
	case <-c.done:
		return nil
	case <-caller.Done():
		if m.withdraw(c) {
			return caller.Err()
		}
	}
	select {
	case <-c.done:
	case <-c.ctx.Done():
		if c.settled.CompareAndSwap(false, true) {
			return c.ctx.Err()
		}
		<-c.done
	}
	return nil
}

// withdraw takes a call out of those that wait; false where its batch has begun.
func (m *merger[I, O]) withdraw(c *mergeCall[I, O]) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.Index(m.waiting, c)
	if i < 0 {
		return false
	}
	m.waiting = slices.Delete(m.waiting, i, i+1)
	m.jobsDue -= m.jobsOf(c.items)
	return true
}

// work runs batches until nobody waits, or too few for one that lingers.
func (m *merger[I, O]) work() {
	for {
		batch := m.take()
		if len(batch) == 0 {
			return
		}
		m.measure(batch)
		m.flush(batch)
		if m.linger > 0 && m.rest() {
			return
		}
	}
}

// measure tells how large a batch is and how long each of its calls waited for it.
func (m *merger[I, O]) measure(batch []*mergeCall[I, O]) {
	if m.seen == nil {
		return
	}
	now, items := time.Now(), 0
	for _, c := range batch {
		items += len(c.items)
		m.seen.wait.Observe(now.Sub(c.since).Seconds())
	}
	m.seen.size.Observe(float64(items))
}

// rest gives up the place of the worker where what waits is to linger.
func (m *merger[I, O]) rest() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.jobsDue >= worthwhile {
		return false
	}
	m.running--
	m.schedule()
	return true
}

// take removes the calls of the next batch from those that wait, in their order; none, and
// the place of the worker, where nobody waits.
func (m *merger[I, O]) take() []*mergeCall[I, O] {
	m.mu.Lock()
	defer m.mu.Unlock()
	var batch, rest []*mergeCall[I, O]
	room := newBatchRoom(m)
	for i, c := range m.waiting {
		if room.items <= 0 {
			rest = append(rest, m.waiting[i:]...)
			break
		}
		switch {
		case callerOf(c.ctx).Err() != nil:
			m.drop(c)
		case room.admit(c.items, len(batch) == 0):
			batch = append(batch, c)
		default:
			rest = append(rest, c)
		}
	}
	m.waiting, m.jobsDue = rest, 0
	for _, c := range rest {
		m.jobsDue += m.jobsOf(c.items)
	}
	switch {
	case len(batch) == 0:
		m.running--
	default:
		m.schedule() // what did not fit may be worth a statement beside this one
	}
	return batch
}

// drop answers a caller that is gone without running anything for it.
func (m *merger[I, O]) drop(c *mergeCall[I, O]) {
	if c.settled.CompareAndSwap(false, true) {
		c.err = callerOf(c.ctx).Err()
	}
	close(c.done)
}

// flush runs a batch and answers its callers.
func (m *merger[I, O]) flush(batch []*mergeCall[I, O]) {
	var items []I
	for _, c := range batch {
		items = append(items, c.items...)
	}
	ctx, cancel := lastDeadline(batch)
	defer cancel()
	ctx, end := m.span(ctx, batch)
	results, err := m.guarded(store.Impatient(ctx), items)
	end()
	if err != nil && len(batch) > 1 && isOwnFault(err) {
		m.flush(batch[:len(batch)/2])
		m.flush(batch[len(batch)/2:])
		return
	}
	var gone []*mergeCall[I, O]
	for _, c := range batch {
		if err != nil {
			c.err = err
		} else {
			c.results, results = results[:len(c.items):len(c.items)], results[len(c.items):]
		}
		if !c.settled.CompareAndSwap(false, true) && err == nil {
			gone = append(gone, c)
		}
		close(c.done)
	}
	for _, c := range gone { // after the others have their answers
		if m.abandoned != nil {
			_ = guard(func() error { m.abandoned(c.items, c.results); return nil }) // it has nobody to tell
		}
	}
}

// guarded turns a panic into an error: the callers of the batch wait for an answer.
func (m *merger[I, O]) guarded(ctx context.Context, items []I) (results []O, err error) {
	err = guard(func() (err error) {
		results, err = m.run(ctx, items)
		return err
	})
	if err == nil && len(results) != len(items) {
		err = fmt.Errorf("%s answered %d of %d items", m.name, len(results), len(items))
	}
	return results, err
}

// lastDeadline is a context that ends when no caller of the batch can wait any longer.
func lastDeadline[I, O any](batch []*mergeCall[I, O]) (context.Context, context.CancelFunc) {
	ctx := context.WithoutCancel(batch[0].ctx)
	var last, patience time.Time
	all := true
	for _, c := range batch {
		deadline, ok := c.ctx.Deadline()
		ends, _ := store.PatienceEnds(c.ctx)
		all, last, patience = all && ok, later(last, deadline), later(patience, ends)
	}
	if !all {
		return context.WithCancel(store.PatientUntil(ctx, time.Time{}))
	}
	return context.WithDeadline(store.PatientUntil(ctx, patience), last)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// isOwnFault tells errors that come from what is in a batch, and not from the state of the
// database: halving a batch helps against the former only. A write whose outcome is unknown
// must not be run again at all.
func isOwnFault(err error) bool {
	var unavailable *store.UnavailableError
	var busy *store.BusyError
	var unknown *store.OutcomeUnknownError
	return !errors.As(err, &unavailable) && !errors.As(err, &busy) && !errors.As(err, &unknown) &&
		!errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled)
}

// alone tries the items of a call that were locked again, within the caller's time.
func (m *merger[I, O]) alone(ctx context.Context, c *mergeCall[I, O]) error {
	each, cancel := ctx, context.CancelFunc(func() {})
	if len(c.items) > 1 {
		// The other answers of the call wait for these.
		each, cancel = context.WithTimeout(ctx, alonePatience)
	}
	defer cancel()
	var group errgroup.Group
	group.SetLimit(aloneAtOnce)
	for i := range c.results {
		var busy *store.BusyError
		if !errors.As(*m.err(&c.results[i]), &busy) {
			continue
		}
		group.Go(func() error {
			again, err := m.guarded(each, c.items[i:i+1])
			switch {
			case err == nil:
				c.results[i] = again[0]
			case each.Err() == nil || ctx.Err() != nil:
				*m.err(&c.results[i]) = err
			}
			return nil // out of patience it stays locked
		})
	}
	return group.Wait()
}

// callerKey holds the context of the caller of a call that runs beyond it.
type callerKey struct{}

// callerOf is the caller whose going away makes a call that has not begun needless.
func callerOf(ctx context.Context) context.Context {
	if caller, ok := ctx.Value(callerKey{}).(context.Context); ok {
		return caller
	}
	return ctx
}
