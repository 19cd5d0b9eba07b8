package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/leasehold/leasehold/internal/privatepg"
	"github.com/leasehold/leasehold/internal/replica"
)

// database is the name of the jobs database.
const database = "leasehold"

// performance is one run, from the first process to the verdict.
type performance struct {
	cfg   config
	out   io.Writer
	dir   string
	began time.Time

	pg       *privatepg.Server
	ledger   *ledger
	fleet    *fleet
	crew     *crew
	stranger *stranger
	clients  *clients
	operator *operator
	torments *tormentor

	mu     sync.Mutex
	faults []error // of the run itself, or ends that nobody wanted
}

// perform makes a run and returns the exit code.
func perform(ctx context.Context, cfg config, out io.Writer) int {
	p := &performance{cfg: cfg, out: out, began: time.Now(), dir: cfg.judge}
	if cfg.judge != "" {
		e, err := recall(p.journals(), p.final())
		if err != nil {
			fmt.Fprintln(out, err)
			return 1
		}
		p.cfg.seed = e.Seed
		return p.conclude(ctx, e, judge(e, cfg.judging))
	}
	tell(out, "chaos: seed=%d duration=%s: %d replicas, %d workers, %d producers", cfg.seed, cfg.duration, cfg.replicas, cfg.workers, cfg.producers)
	e, v, err := p.run(ctx)
	if err != nil {
		p.failed(err)
	}
	return p.conclude(ctx, e, v)
}

// failed notes what went wrong beside the promises.
func (p *performance) failed(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, err)
}

func (p *performance) say(format string, args ...any) {
	tell(p.out, "%6.1fs  %s", time.Since(p.began).Seconds(), fmt.Sprintf(format, args...))
}

// run sets everything up, torments it, lets it come to rest and judges. Whatever happens,
// nothing that it started is left when it returns.
func (p *performance) run(ctx context.Context) (e *evidence, v *verdict, err error) {
	if p.dir, err = os.MkdirTemp("", "leasehold-chaos-"); err != nil {
		return nil, nil, err
	}
	// PostgreSQL may run under another account, which has to get to its data.
	if err := os.Chmod(p.dir, 0o755); err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if err := p.start(ctx); err != nil {
		return nil, nil, err
	}
	p.torment(ctx)
	if err := p.heal(ctx); err != nil {
		return nil, nil, err
	}
	if err := p.settle(ctx); err != nil {
		return nil, nil, err
	}
	p.fleet.stop()
	p.say("all is at rest: reading the tables and the journals")
	if e, err = gather(ctx, p.journals(), p.pg.SocketURL(database)); err != nil {
		return nil, nil, err
	}
	e.Effects, e.Seed = p.ledger.effects, p.cfg.seed
	if err := e.save(p.final()); err != nil {
		return nil, nil, err
	}
	p.say("judging %d calls on %d jobs", len(e.items), len(e.Tables))
	return e, judge(e, p.cfg.judging), nil
}

func (p *performance) journals() string { return filepath.Join(p.dir, "journals") }
func (p *performance) final() string    { return filepath.Join(p.dir, "final.json") }

// start starts everything, from the database to the producers.
func (p *performance) start(ctx context.Context) (err error) {
	if err := os.Mkdir(p.journals(), 0o755); err != nil {
		return err
	}
	binary := p.cfg.binary
	if binary == "" {
		p.say("building the service")
		if binary, err = replica.Build(ctx, p.dir); err != nil {
			return err
		}
	}
	// Durable: a crash of PostgreSQL must lose nothing that it has confirmed.
	if p.pg, err = privatepg.Start(ctx, privatepg.Config{DataDir: filepath.Join(p.dir, "postgres")}); err != nil {
		return err
	}
	p.stranger = &stranger{url: p.pg.SocketURL("postgres")}
	if err := p.stranger.configure(ctx, "CREATE DATABASE "+database); err != nil {
		return err
	}
	p.stranger.url = p.pg.SocketURL(database)
	if p.ledger, err = openLedger(); err != nil {
		return err
	}
	if p.fleet, err = startFleet(ctx, p.cfg.replicas, binary, p.pg.URL(database), p.dir, p.failed); err != nil {
		return err
	}
	j, err := openJournal(filepath.Join(p.journals(), "operator"+journalSuffix))
	if err != nil {
		return err
	}
	if p.clients, err = dial(p.fleet.addresses(), j, 0); err != nil {
		return err
	}
	if err := createQueues(ctx, p.clients); err != nil {
		return err
	}
	p.operator = &operator{clients: p.clients, rng: rand.New(rand.NewPCG(p.cfg.seed, 3))}
	p.crew = &crew{
		seed: p.cfg.seed, rate: p.cfg.rate / float64(p.cfg.producers), dir: p.journals(),
		replicas: p.fleet.addresses(), ledger: p.ledger.url, failed: p.failed,
	}
	p.torments = newTormentor(p.pg, p.fleet, p.crew, p.stranger, p.failed)
	return p.crew.hire(p.cfg.workers, p.cfg.producers)
}

// torment lets faults happen for as long as was asked.
func (p *performance) torment(ctx context.Context) {
	s := shape{
		duration: p.cfg.duration, pause: p.cfg.pause, replicas: p.cfg.replicas, hands: p.cfg.workers + p.cfg.producers,
	}
	schedule := plan(p.cfg.seed, s)
	p.say("%d faults are planned", len(schedule))
	ctx, cancel := context.WithTimeout(ctx, p.cfg.duration)
	defer cancel()
	var all sync.WaitGroup
	all.Go(func() { p.torments.run(ctx, s, schedule) })
	all.Go(func() { p.operator.run(ctx) })
	all.Go(func() {
		for rest(ctx, progressEvery) {
			p.progress(ctx)
		}
	})
	all.Wait()
	<-ctx.Done() // a schedule may end before its time
}

const progressEvery = 5 * time.Second

// progress says how far the run is.
func (p *performance) progress(ctx context.Context) {
	_, faults := p.torments.counts()
	s, err := p.stranger.look(ctx)
	if err != nil {
		p.say("%d faults; the database does not answer", faults)
		return
	}
	p.say("%d faults; %d jobs stored, %d ended, %d leased, %d wait", faults, s.Stored, s.Ended, s.Leased, s.Waiting)
}

// heal ends what the faults have left behind, and waits until all replicas serve.
func (p *performance) heal(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p.say("the faults are over")
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	if err := p.stranger.allowWriting(ctx); err != nil {
		return err
	}
	for _, m := range p.fleet.members {
		if err := m.heal(ctx); err != nil {
			return fmt.Errorf("the replica at %s does not serve after all is healed: %w; it said:\n%s", m.GRPC(), err, lastLines(m.Log(), 30))
		}
	}
	return p.operator.resumeAll(ctx)
}

const (
	// drainPatience bounds the working off of what is left; looking on every second.
	drainPatience = 2 * time.Minute
	lookEvery     = 500 * time.Millisecond
)

// settle lets the workers finish, and gives every lease the time to be ended after them.
// Where one is left all the same, the tables will show it.
func (p *performance) settle(ctx context.Context) error {
	if err := p.crew.dismiss(ctx, roleProducer); err != nil {
		return err
	}
	p.crew.calm()
	p.say("the workers finish what is left")
	if !p.await(ctx, drainPatience, func(s standing) bool { return s.Waiting == 0 && s.Leased == 0 }) {
		s, _ := p.stranger.look(ctx) // zeroes then, which are as telling
		p.failed(fmt.Errorf("after %s without faults %d jobs still wait and %d are leased", drainPatience, s.Waiting, s.Leased))
	}
	if err := p.crew.dismiss(ctx, roleWorker); err != nil {
		return err
	}
	p.await(ctx, restTime, func(s standing) bool { return s.Leased == 0 })
	return ctx.Err()
}

// await looks until the jobs stand as they should, or the patience is over.
func (p *performance) await(ctx context.Context, patience time.Duration, there func(standing) bool) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		if s, err := p.stranger.look(ctx); err == nil && there(s) {
			return true
		}
		if !rest(ctx, lookEvery) {
			return false
		}
	}
}

// close ends everything that was started, the last first.
func (p *performance) close() error {
	if p.crew != nil {
		p.crew.close()
	}
	if p.clients != nil {
		p.clients.close()
	}
	if p.fleet != nil {
		p.fleet.close(p.dir)
	}
	if p.ledger != nil {
		p.ledger.close()
	}
	if p.pg == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	return p.pg.Stop(ctx)
}
