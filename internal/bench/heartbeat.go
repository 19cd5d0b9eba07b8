package bench

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

const (
	// beatCallers send the beats, over beatConnections.
	beatCallers     = 500
	beatConnections = 20
)

// heartbeats is keeping leases alive, each beaten at a fixed pace by a call of its own. Its
// limit is the rate that is offered. of reads the number of leases from the plan.
func heartbeats(name string, of func(p Plan) int, bounded bool) workload {
	w := workload{figures: []figure{
		{name: name + "_rate", unit: "beats/s"},
		{name: name + "_hot", unit: "% heap-only"},
		{name: name + "_pg_cpu", unit: "% of a core"},
		{name: name + "_ended", unit: "leases"},
	}}
	if bounded {
		w.figures[0].bound = ofLimit(0.99)
		w.figures[1].bound = Bound{kind: valueAtLeast, value: 95}
		w.figures[2].bound = Bound{kind: valueAtMost, value: 33.3}
		w.figures[3].bound = Bound{kind: valueAtMost, value: 0}
	}
	w.prepare = func(ctx context.Context, r *rig) (rounds, error) {
		s, err := r.site(ctx)
		if err != nil {
			return rounds{}, err
		}
		c, err := s.clients(beatConnections)
		if err != nil {
			return rounds{}, err
		}
		n := of(r.plan)
		b := &beats{site: s, clients: c, every: r.plan.BeatEvery}
		if b.tokens, err = s.lease(ctx, n); err != nil {
			return rounds{}, err
		}
		b.start(ctx)
		return rounds{
			limit: func(context.Context) ([]float64, error) {
				return []float64{float64(n) / b.every.Seconds(), math.NaN(), math.NaN(), math.NaN()}, nil
			},
			round: b.window,
		}, nil
	}
	return w
}

// lease takes n leases and returns their tokens. It has a store of its own, because PostgreSQL
// counts what a connection did only when that ends or has done more: the claims would turn up
// among the beats.
func (s *site) lease(ctx context.Context, n int) ([]string, error) {
	s.rig.say("leasing %s jobs", number(float64(n)))
	if err := s.db.FillPending(ctx, queueName, int64(n), noopPayload); err != nil {
		return nil, err
	}
	st, end, err := s.rig.deps.OpenStore(ctx, s.db.URL())
	if err != nil {
		return nil, err
	}
	defer end()
	var mu sync.Mutex
	var tokens []string
	group, ctx := errgroup.WithContext(ctx)
	for range directCallers {
		group.Go(func() error {
			for {
				got, err := st.Acquire(ctx, []store.Acquire{{Queues: []string{queueName}, Owner: workerName, MaxJobs: maxBatch}})
				if err != nil {
					return err
				}
				if got[0].Err != nil || len(got[0].Leases) == 0 {
					return got[0].Err
				}
				mu.Lock()
				for i := range got[0].Leases {
					tokens = append(tokens, s.tokens.Seal(got[0].Leases[i].Ref()))
				}
				mu.Unlock()
			}
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if len(tokens) != n {
		return nil, errors.New("not all jobs could be leased")
	}
	return tokens, nil
}

// beats keeps leases alive.
type beats struct {
	site    *site
	clients *clients
	tokens  []string
	every   time.Duration

	sent, refused atomic.Int64
}

// start begins to beat, each lease at its own moment, until the workload is over.
func (b *beats) start(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	begin, callers := time.Now(), min(beatCallers, len(b.tokens))
	for caller := range callers {
		all.Go(func() { b.loop(ctx, caller, callers, begin) })
	}
	b.site.rig.later(func() error { cancel(); all.Wait(); return nil })
}

// loop beats every callers-th lease, round after round. Where it is late it does not leave one
// out: the rate falls.
func (b *beats) loop(ctx context.Context, caller, callers int, begin time.Time) {
	gap := b.every / time.Duration(len(b.tokens))
	for turn := time.Duration(0); ; turn++ {
		for i := caller; i < len(b.tokens); i += callers {
			due := begin.Add(turn*b.every + time.Duration(i)*gap)
			if pause(ctx, time.Until(due)) != nil {
				return
			}
			_, err := persist(ctx, func(ctx context.Context) (*pb.HeartbeatResponse, error) {
				return b.clients.lease(caller).Heartbeat(ctx, &pb.HeartbeatRequest{LeaseToken: b.tokens[i]})
			})
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				b.refused.Add(1)
			default:
				b.sent.Add(1)
			}
		}
	}
}

// window measures while every lease is beaten once.
func (b *beats) window(ctx context.Context) ([]float64, error) {
	s := b.site
	all, hot, err := s.db.Updates(ctx)
	if err != nil {
		return nil, err
	}
	start, sent, cpu := time.Now(), b.sent.Load(), s.rig.usage()
	if err := pause(ctx, b.every); err != nil {
		return nil, err
	}
	took, n, used := time.Since(start), b.sent.Load()-sent, s.rig.usage().since(cpu)
	allNow, hotNow, err := s.db.Updates(ctx)
	if err != nil {
		return nil, err
	}
	live, err := s.db.LiveLeases(ctx)
	if err != nil {
		return nil, err
	}
	if refused := b.refused.Load(); refused > 0 {
		s.rig.note("%d beats refused", refused)
	}
	s.rig.note("%s", used.cores(took))
	cpuShare := math.NaN()
	if s.rig.deps.Server.Postmaster() != 0 {
		cpuShare = percentOfCore(used.database, took)
	}
	return []float64{
		float64(n) / took.Seconds(),
		100 * float64(hotNow-hot) / float64(max(1, allNow-all)),
		cpuShare,
		float64(int64(len(b.tokens)) - live),
	}, nil
}
