package main

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/leasehold/leasehold/internal/faultproxy"
	"github.com/leasehold/leasehold/internal/privatepg"
)

// tormentor does what a schedule says.
type tormentor struct {
	pg       *privatepg.Server
	fleet    *fleet
	crew     *crew
	stranger *stranger
	failed   func(error) // told where a fault could not be done or healed

	mu    sync.Mutex
	done  map[kind]int
	lanes map[string]*sync.Mutex
}

func newTormentor(pg *privatepg.Server, f *fleet, c *crew, s *stranger, failed func(error)) *tormentor {
	return &tormentor{pg: pg, fleet: f, crew: c, stranger: s, failed: failed, done: map[kind]int{}, lanes: map[string]*sync.Mutex{}}
}

// run does the schedule, and returns when all of it is healed or ctx has ended, which ends
// what is under way.
func (t *tormentor) run(ctx context.Context, s shape, schedule []fault) {
	start := time.Now()
	var underWay sync.WaitGroup
	defer underWay.Wait()
	for _, f := range schedule {
		if !rest(ctx, time.Until(start.Add(f.at))) {
			return
		}
		underWay.Go(func() { t.perform(ctx, f, s.lanes(f)) })
	}
}

// perform does one fault when its lanes are free, which they are unless the one before took
// longer than planned.
func (t *tormentor) perform(ctx context.Context, f fault, lanes []string) {
	for _, name := range lanes {
		lane := t.lane(name)
		lane.Lock()
		defer lane.Unlock()
	}
	if ctx.Err() != nil {
		return
	}
	t.mu.Lock()
	t.done[f.kind]++
	t.mu.Unlock()
	if err := t.inflict(ctx, f); err != nil {
		t.failed(fmt.Errorf("%s: %w", f, err))
	}
}

func (t *tormentor) lane(name string) *sync.Mutex {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lanes[name] == nil {
		t.lanes[name] = &sync.Mutex{}
	}
	return t.lanes[name]
}

// counts is how often each kind was done so far.
func (t *tormentor) counts() (of map[kind]int, sum int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	of = map[kind]int{}
	for k, n := range t.done {
		of[k] = n
		sum += n
	}
	return of, sum
}

// inflict does a fault, waits for its length and heals it.
func (t *tormentor) inflict(ctx context.Context, f fault) error {
	switch f.kind {
	case handKill, handFreeze:
		return t.onHand(ctx, f, t.crew.posts[f.target])
	case replicaKill, replicaFreeze, replicaRestart, replicasKill, replicasRoll:
		t.onReplica(ctx, f)
		return nil
	case outerCut, outerRefuse, outerSwallow, outerDelay:
		t.onProxy(ctx, f, t.fleet.members[f.target].outer)
		return nil
	case innerCut, innerRefuse, innerSwallow, innerDelay:
		t.onProxy(ctx, f, t.fleet.members[f.target].inner)
		return nil
	case postgresRestart, postgresKill, postgresFreeze:
		return t.onPostgres(ctx, f)
	}
	return t.stranger.meddle(ctx, f)
}

func (t *tormentor) onHand(ctx context.Context, f fault, p *post) error {
	if f.kind == handFreeze {
		p.signal(syscall.SIGSTOP)
		rest(ctx, f.length)
		p.signal(syscall.SIGCONT)
		return nil
	}
	p.kill()
	rest(ctx, f.length)
	return p.start()
}

func (t *tormentor) onReplica(ctx context.Context, f fault) {
	m := t.fleet.members[f.target]
	switch f.kind {
	case replicaKill:
		m.kill()
		rest(ctx, f.length)
		m.start()
	case replicaFreeze:
		m.Freeze()
		rest(ctx, f.length)
		m.Thaw()
	case replicaRestart:
		m.restart()
	case replicasKill:
		for _, m := range t.fleet.members {
			m.kill()
		}
		rest(ctx, f.length)
		for _, m := range t.fleet.members {
			m.start()
		}
	case replicasRoll:
		for _, m := range t.fleet.members {
			m.restart()
			// The next goes when this one serves, unless it cannot, as during other faults.
			serving, cancel := context.WithTimeout(ctx, rollTime)
			_ = m.AwaitReady(serving) // it may take longer than a roll waits
			cancel()
		}
	}
}

func (t *tormentor) onProxy(ctx context.Context, f fault, p *faultproxy.Proxy) {
	d := faultproxy.Direction(int(f.how * 2)) // either
	switch f.kind {
	case outerCut, innerCut:
		p.Cut()
	case outerRefuse, innerRefuse:
		p.Refuse(true)
		p.Cut()
		rest(ctx, f.length)
		p.Refuse(false)
	case outerSwallow, innerSwallow:
		p.Swallow(d, true)
		rest(ctx, f.length)
		p.Swallow(d, false)
	case outerDelay, innerDelay:
		p.Delay(d, time.Duration(f.how*float64(500*time.Millisecond)))
		rest(ctx, f.length)
		p.Delay(d, 0)
	}
}

func (t *tormentor) onPostgres(ctx context.Context, f fault) error {
	patient, cancel := context.WithTimeout(context.WithoutCancel(ctx), startPatience)
	defer cancel()
	switch f.kind {
	case postgresFreeze:
		if err := t.pg.Freeze(); err != nil {
			return err
		}
		rest(ctx, f.length)
		return t.pg.Thaw()
	case postgresKill:
		if err := t.pg.Kill(); err != nil {
			return err
		}
		rest(ctx, f.length)
	}
	return t.pg.Restart(patient)
}
