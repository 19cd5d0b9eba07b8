package conformance

import (
	"context"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

const (
	queueName = "conformance"
	// leaseLength is short, so that a run is, and long enough for a busy machine: a worker that
	// beats as advised has four seconds in reserve.
	leaseLength = 6 * time.Second
	// startPatience is how long a worker may take to its first call.
	startPatience = 60 * time.Second
	// inFlight is how long a call may have been under way when the worker heard of what forbids it.
	inFlight = 2 * time.Second
	// lookEvery is how late a scene notices what only time brings about.
	lookEvery = 200 * time.Millisecond
	// patience is how long a scene waits for a worker to do what it must.
	patience = 20 * time.Second
	// stallAllowed is how long this process itself may have been held up; beyond that the machine
	// was too busy to judge a worker by its times.
	stallAllowed = time.Second
)

// scene is one run of the worker against a script.
type scene struct {
	*service
	scenario *scenario
	ctx      context.Context
	proc     *process
	grace    time.Duration
	trials   []trial
	exited   bool // by itself

	signalled, idle, stalled time.Duration // under the lock
}

// trial is one answer that the worker had to survive.
type trial struct {
	what     string
	seen     bool // the worker was given it
	survived bool
}

// NotAWorkerError says that the command ended, or said nothing, instead of leasing.
type NotAWorkerError struct {
	// Exit says how it ended; empty where it runs, and makes no call.
	Exit string
	// Said is the end of what it printed.
	Said string
}

func (e *NotAWorkerError) Error() string {
	text := "the command makes no call"
	if e.Exit != "" {
		text = "the command ended before its first call: " + e.Exit
	}
	if e.Said != "" {
		text += "; it said:\n" + e.Said
	}
	return text
}

// perform runs the worker through a scenario and returns what it did.
func perform(ctx context.Context, sc *scenario, cfg Config, out io.Writer) (*history, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	conns := newCutter(l)
	st := &scene{service: newService(queueName, conns, leaseLength), scenario: sc, ctx: ctx, grace: cfg.Grace}
	stopServing := st.serve(conns)
	err = st.run(l.Addr().String(), cfg, out)
	stopServing() // no handler writes to the history any more
	if err != nil {
		return nil, err
	}
	return st.history()
}

// serve serves the API until stop, which returns when all calls have.
func (st *scene) serve(l net.Listener) (stop func()) {
	server := grpc.NewServer(
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	)
	pb.RegisterLeaseServiceServer(server, st.service)
	healthpb.RegisterHealthServer(server, health.NewServer())
	reflection.Register(server)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l) // it ends by Stop; before that the worker's calls fail, which shows
	}()
	return func() {
		close(st.closing)
		server.Stop()
		<-served
	}
}

// run starts the worker, plays the scenario, and kills what is left of the worker.
func (st *scene) run(address string, cfg Config, out io.Writer) error {
	cfg.starts <- struct{}{}
	started := sync.OnceFunc(func() { <-cfg.starts })
	defer started()
	var err error
	st.proc, err = startProcess(cfg.Command, []string{
		EnvAddress + "=" + address, EnvQueue + "=" + queueName, EnvSlots + "=" + strconv.Itoa(st.scenario.slots),
	}, out)
	if err != nil {
		return err
	}
	stopWatch := st.watchStalls()
	defer stopWatch()
	if st.until(startPatience, func() bool { return len(st.calls) > 0 }) {
		started()
		st.scenario.play(st)
	}
	select {
	case <-st.proc.ended:
		st.exited = true
	default:
	}
	st.proc.kill()
	return nil
}

// history is what the worker did. Nothing changes any more.
func (st *scene) history() (*history, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	h := &history{
		now: st.now(), slots: st.scenario.slots, jobs: st.jobs, leases: st.leases, calls: st.calls,
		grace: st.grace, signalled: st.signalled, idle: st.idle, stalled: st.stalled, trials: st.trials,
	}
	if st.exited {
		h.exited, h.exit = st.proc.endedAt.Sub(st.began), st.proc.exit()
	}
	if st.ctx.Err() != nil {
		return nil, context.Cause(st.ctx)
	}
	if len(st.calls) == 0 {
		return nil, &NotAWorkerError{Exit: h.exit, Said: st.proc.said.String()}
	}
	return h, nil
}

// until waits for a condition, which is asked under the lock; false where it did not come about, or
// the worker has ended.
func (st *scene) until(limit time.Duration, is func() bool) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	tick := time.NewTicker(lookEvery) // leases run out without a call
	defer tick.Stop()
	for {
		st.mu.Lock()
		ok, changed := is(), st.changed
		st.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-timer.C:
			return false
		case <-st.proc.ended:
			return false
		case <-st.ctx.Done():
			return false
		}
	}
}

// pass lets time pass, to see what the worker does meanwhile.
func (st *scene) pass(d time.Duration) { st.until(d, func() bool { return false }) }

// passUntil lets time pass until a time of the scene.
func (st *scene) passUntil(at time.Duration) { st.pass(at - st.now()) }

// behave makes f answer for all that comes from now on; nil: nothing is at fault.
func (st *scene) behave(f func(c *call) fault) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.script = f
}

// completedAll tells whether jobs are completed.
func completedAll(jobs ...*job) func() bool {
	return func() bool {
		for _, j := range jobs {
			if j.completed() == nil {
				return false
			}
		}
		return true
	}
}

// settled tells whether the leases of jobs are over: completed, or given up in whatever way.
func (st *scene) settled(jobs ...*job) func() bool {
	return func() bool {
		now := st.now()
		for _, j := range jobs {
			if len(j.leases) == 0 || j.leases[0].ended == "" && j.leases[0].over(now) == now {
				return false
			}
		}
		return true
	}
}

// terminate sends SIGTERM and waits for the end of the worker.
func (st *scene) terminate() {
	st.mu.Lock()
	st.signalled = st.now()
	st.mu.Unlock()
	st.proc.terminate()
	st.pass(st.grace)
}

// watchStalls notes for how long this process was held up at most.
func (st *scene) watchStalls() (stop func()) {
	const every = 100 * time.Millisecond
	done, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for last := time.Now(); ; {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			now := time.Now()
			st.mu.Lock()
			st.stalled = max(st.stalled, now.Sub(last)-every)
			st.mu.Unlock()
			last = now
		}
	}()
	return func() { close(done); <-over }
}
