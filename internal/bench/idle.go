package bench

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// parkPatience bounds the wait until polls are parked, parkLook is how often it looks.
	parkPatience = 30 * time.Second
	parkLook     = 20 * time.Millisecond
	// longestPoll is the longest wait that the service takes.
	longestPoll = time.Minute
	// connectionLook is how often connections are counted.
	connectionLook = 50 * time.Millisecond
)

var parkedMetric = regexp.MustCompile(`(?m)^leasehold_parked_polls (\S+)$`)

// awaitParked waits until so many polls are parked in the service.
func (s *site) awaitParked(ctx context.Context, want int) error {
	ctx, cancel := context.WithTimeout(ctx, parkPatience)
	defer cancel()
	for {
		n, err := s.parked(ctx)
		if err != nil || n >= want {
			return err
		}
		if err := pause(ctx, parkLook); err != nil {
			return fmt.Errorf("%d of %d polls are parked: %w", n, want, context.Cause(ctx))
		}
	}
}

func (s *site) parked(ctx context.Context) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.service.http+"/metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	found := parkedMetric.FindSubmatch(text)
	if found == nil {
		return 0, fmt.Errorf("/metrics has no %v", parkedMetric)
	}
	n, err := strconv.ParseFloat(string(found[1]), 64)
	return int(n), err
}

// parkedPolls is what polls cost that wait for jobs which never come.
func parkedPolls(polls, connections int) workload {
	name := named("parked_", polls)
	return workload{
		figures: []figure{
			{name: name + "_memory", unit: "MiB", bound: Bound{kind: valueAtMost, value: 150}},
			{name: name + "_cpu", unit: "% of a core", bound: Bound{kind: valueAtMost, value: 2}},
			{name: name + "_transactions", unit: "1/s"},
		},
		prepare: func(ctx context.Context, r *rig) (rounds, error) {
			s, err := r.site(ctx)
			if err != nil {
				return rounds{}, err
			}
			c, err := s.clients(connections)
			if err != nil {
				return rounds{}, err
			}
			polling, cancel := context.WithCancel(ctx)
			var all sync.WaitGroup
			for caller := range polls {
				all.Go(func() {
					for polling.Err() == nil {
						// It fails when the workload is over; a service that is gone is noticed by the metric.
						_, _ = c.acquire(polling, caller, 1, longestPoll)
					}
				})
			}
			r.later(func() error { cancel(); all.Wait(); return nil })
			if err := s.awaitParked(ctx, polls); err != nil {
				return rounds{}, err
			}
			return rounds{round: func(ctx context.Context) ([]float64, error) {
				cpu, transactions, err := s.idleFor(ctx, r.plan.Idle)
				memory, known := residentMiB(s.service.pid())
				if !known {
					memory = math.NaN()
				}
				return []float64{memory, cpu, transactions}, err
			}}, nil
		},
	}
}

// idleCost is what a service costs that has nothing to do and nobody who asks.
func idleCost(bound Bound) workload {
	return workload{
		figures: []figure{{name: "idle_transactions", unit: "1/s", bound: bound}, {name: "idle_cpu", unit: "% of a core"}},
		prepare: func(ctx context.Context, r *rig) (rounds, error) {
			s, err := r.site(ctx)
			if err != nil {
				return rounds{}, err
			}
			once := func(ctx context.Context) ([]float64, error) {
				cpu, transactions, err := s.idleFor(ctx, r.plan.Idle)
				return []float64{transactions, cpu}, err
			}
			// PostgreSQL counts what a connection did up to 10 s later: what the start took
			// must not be among what idling takes.
			_, err = once(ctx)
			return rounds{round: once}, err
		},
	}
}

// idleFor tells the service's share of a core, in percent, and the database's transactions per
// second while nothing is done.
func (s *site) idleFor(ctx context.Context, d time.Duration) (cpu, transactions float64, err error) {
	before, err := s.db.Transactions(ctx)
	if err != nil {
		return 0, 0, err
	}
	start, used := time.Now(), processTime(s.service.pid())
	if err := pause(ctx, d); err != nil {
		return 0, 0, err
	}
	after, err := s.db.Transactions(ctx)
	if err != nil {
		return 0, 0, err
	}
	took := time.Since(start)
	transactions = float64(after-before) / took.Seconds()
	if used == 0 { // no process has started without any
		return math.NaN(), transactions, nil
	}
	return percentOfCore(processTime(s.service.pid())-used, took), transactions, nil
}

func percentOfCore(used, took time.Duration) float64 { return 100 * used.Seconds() / took.Seconds() }

// durableCommit is how long a commit takes that writes next to nothing: what a lone caller waits
// for most, and what merging divides by the number of callers.
func durableCommit() workload {
	return workload{
		figures: []figure{{name: "durable_commit", unit: "ms"}},
		prepare: func(ctx context.Context, r *rig) (rounds, error) {
			s, err := r.site(ctx)
			if err != nil {
				return rounds{}, err
			}
			return rounds{round: func(ctx context.Context) ([]float64, error) {
				var took []float64
				for end := time.Now().Add(r.plan.Round); len(took) == 0 || time.Now().Before(end); {
					start := time.Now()
					if err := s.db.Commit(ctx); err != nil {
						return nil, err
					}
					took = append(took, milliseconds(time.Since(start)))
				}
				return []float64{median(took)}, nil
			}}, nil
		},
	}
}

// connectionsUsed is how many connections to PostgreSQL the service has while so many workers
// drain a queue.
func connectionsUsed(workers, connections int, bound Bound) workload {
	return workload{
		figures: []figure{{name: named("connections_", workers), unit: "connections", bound: bound}},
		prepare: func(ctx context.Context, r *rig) (rounds, error) {
			s, err := r.site(ctx)
			if err != nil {
				return rounds{}, err
			}
			c, err := s.clients(connections)
			if err != nil {
				return rounds{}, err
			}
			return rounds{round: func(ctx context.Context) ([]float64, error) {
				watching, stop := context.WithCancel(ctx)
				most := s.mostConnections(watching)
				m, err := s.supply.drain(ctx, c.oneJob(workers), r.plan.Idle)
				stop()
				r.note("%s jobs/s", number(m.rate()))
				return []float64{float64(<-most)}, err
			}}, nil
		},
	}
}

// mostConnections counts the service's connections until ctx ends and then tells the most.
func (s *site) mostConnections(ctx context.Context) <-chan int64 {
	var most atomic.Int64
	told := make(chan int64, 1)
	go func() {
		for pause(ctx, connectionLook) == nil {
			if n, err := s.db.Connections(ctx); err == nil {
				most.Store(max(most.Load(), int64(n)))
			}
		}
		told <- most.Load()
	}()
	return told
}
