package bench

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// load is work that goes on until stop is closed, and then ends in an orderly way: a call
// under way is waited for, a job that is leased is completed. It tells done what it did.
type load func(ctx context.Context, stop <-chan struct{}, done func(n int)) error

// turns is a load of so many callers, each of which takes one turn after the other.
func turns(callers int, turn func(ctx context.Context, caller int) (done int, err error)) load {
	return func(ctx context.Context, stop <-chan struct{}, done func(n int)) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		var all sync.WaitGroup
		for caller := range callers {
			all.Go(func() {
				for !isClosed(stop) && ctx.Err() == nil {
					n, err := turn(ctx, caller)
					if err != nil {
						cancel(err)
						return
					}
					done(n)
				}
			})
		}
		all.Wait()
		return context.Cause(ctx)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// measured is what was done in a time.
type measured struct {
	n    int64
	took time.Duration
	cpu  usage
	// all is what was done in all, also outside of that time.
	all int64
}

func (m measured) rate() float64 { return float64(m.n) / m.took.Seconds() }

// counter counts what a load does, and tells when it has done so much.
type counter struct {
	n    atomic.Int64
	most int64
	// begun is closed by the first that was done, reached when most is done.
	begun, reached chan struct{}
	first, last    sync.Once
}

func newCounter(most int64) *counter {
	return &counter{most: most, begun: make(chan struct{}), reached: make(chan struct{})}
}

func (c *counter) add(n int) {
	if n == 0 {
		return
	}
	now := c.n.Add(int64(n))
	c.first.Do(func() { close(c.begun) })
	if now >= c.most {
		c.last.Do(func() { close(c.reached) })
	}
}

// unlimited is more than any load does.
const unlimited = int64(1) << 62

// beginPatience bounds the time until a load has done its first.
const beginPatience = time.Minute

// measure runs a load, lets it warm up from its first on, and measures for a length of time or
// until it has done most.
func (r *rig) measure(ctx context.Context, l load, warm, length time.Duration, most int64) (m measured, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := newCounter(most)
	stop, ended := make(chan struct{}), make(chan struct{})
	var failed error // to be read after ended
	go func() {
		defer close(ended)
		failed = l(ctx, stop, c.add)
	}()
	if begun := wait(c.begun, ended, beginPatience); !begun {
		cancel()
		<-ended
		return m, errors.Join(failed, errors.New("the callers get nothing done"))
	}
	wait(c.reached, ended, warm)
	start, before, cpu := time.Now(), c.n.Load(), r.usage()
	wait(c.reached, ended, length)
	m = measured{n: c.n.Load() - before, took: time.Since(start), cpu: r.usage().since(cpu)}
	close(stop)
	<-ended
	m.all = c.n.Load()
	return m, failed
}

// wait waits for an event, for so long at most, or until the callers have ended. It tells
// whether the event came.
func wait(event, ended <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-event:
		return true
	case <-timer.C:
	case <-ended:
	}
	return false
}

// steady measures a load that needs no supply.
func (r *rig) steady(ctx context.Context, l load) (measured, error) {
	return r.measure(ctx, l, r.plan.Warm, r.plan.Round, unlimited)
}

// supply keeps a queue filled.
type supply struct {
	rig     *rig
	db      Database
	payload []byte
	// left is how many jobs are in the queue.
	left int64
	// rate is the highest rate of draining seen or expected, for the next filling.
	rate float64
	// stretch is how many jobs are drained before the queue is filled again to its backlog. 0:
	// it is filled with what a round needs.
	backlog, stretch int64
	// spare is left in the queue, so that no caller ever finds it empty.
	spare int64
}

const (
	// headroom is what a filling has above the highest rate seen.
	headroom = 1.3
	// firstRate is what is expected of full batches before anything was seen.
	firstRate = 30_000
)

// expected is a rate of draining by so many jobs under way at a time, before anything was seen.
func expected(underWay int) float64 { return min(firstRate, 1000*float64(underWay)) }

// refill fills the queue for so long a time and tells how many jobs may be drained.
func (s *supply) refill(ctx context.Context, length time.Duration) (most int64, err error) {
	want := s.backlog
	if s.stretch == 0 {
		want = int64(s.rate*headroom*length.Seconds()) + 2*s.spare
	}
	if missing := want - s.left; missing > 0 {
		if err := s.db.FillPending(ctx, queueName, missing, s.payload); err != nil {
			return 0, err
		}
		s.left = want
	}
	most = s.left - s.spare
	if s.stretch > 0 {
		most = min(most, s.stretch)
	}
	return most, nil
}

// drain measures a load that takes jobs out of the queue for a length of time. Where the queue
// runs dry, the callers and the clock pause while it is filled again.
func (s *supply) drain(ctx context.Context, l load, length time.Duration) (measured, error) {
	var sum measured
	warm := s.rig.plan.Warm
	if s.stretch > 0 {
		warm = s.rig.plan.WarmStretch
	}
	for sum.took < length {
		most, err := s.refill(ctx, warm+length-sum.took)
		if err != nil {
			return sum, err
		}
		m, err := s.rig.measure(ctx, l, warm, length-sum.took, most)
		s.left -= m.all
		if err != nil {
			return sum, err
		}
		s.rate = max(s.rate, m.rate())
		sum.n, sum.took, sum.cpu = sum.n+m.n, sum.took+m.took, sum.cpu.plus(m.cpu)
	}
	return sum, nil
}
