package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/leasehold/leasehold/store"
)

const (
	readinessInterval = time.Second
	readinessTimeout  = 2 * time.Second
	// staleStamp is the age of the last stamp above which the database takes no writes.
	staleStamp = 5 * time.Second
	// staleReading is how long the last reading of the database counts while newer ones
	// fail because it is busy.
	staleReading = 5 * time.Second
	// minPartitionsAhead: one may be used up while the next is being made.
	minPartitionsAhead = 2
	// sweepSlack is added to three intervals of the watcher, for the passes themselves.
	sweepSlack = 10 * time.Second
)

// ReadinessConfig says what ready means. The zero value is usable.
type ReadinessConfig struct {
	// WatcherInterval is that of the watcher: without a finished sweep for three of them and
	// 10 s a replica is not ready. Default: 30 s.
	WatcherInterval time.Duration
	// SchemaVersion is the least version of the schema that this binary runs on. Default:
	// any.
	SchemaVersion int64
}

// Readiness is whether a replica should get calls, and why not. It exists before the store
// does, so that a replica which waits for its database can say so. Safe for concurrent use.
type Readiness struct {
	cfg      ReadinessConfig
	now      func() time.Time
	mu       sync.Mutex
	waiting  string
	draining bool
	problems []string
	failure  string    // of the last reading that failed
	read     time.Time // when the last one succeeded
	ready    chan struct{}
	wasReady bool
}

// NewReadiness is not ready until the loops of a Background found that it is.
func NewReadiness(cfg ReadinessConfig) *Readiness {
	cfg.WatcherInterval = cmp.Or(cfg.WatcherInterval, DefaultWatcherInterval)
	return &Readiness{cfg: cfg, now: time.Now, waiting: "starting", ready: make(chan struct{})}
}

// Waiting says what the start waits for.
func (r *Readiness) Waiting(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = reason
}

// Drain makes the replica unready for good.
func (r *Readiness) Drain() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.draining = true
}

// Reasons are why the replica is not ready; none where it is.
func (r *Readiness) Reasons() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reasons()
}

func (r *Readiness) reasons() []string {
	switch age := r.now().Sub(r.read); {
	case r.draining:
		return []string{"draining: this replica is shutting down"}
	case r.waiting != "":
		return []string{r.waiting}
	case len(r.problems) > 0:
		return slices.Clone(r.problems)
	case age > staleReading:
		return []string{cmp.Or(r.failure, "the database has not been read") + fmt.Sprintf(", for more than %v", staleReading)}
	}
	return nil
}

// Ready is closed once the replica has been ready.
func (r *Readiness) Ready() <-chan struct{} { return r.ready }

// observe takes a reading of the database, or the error instead of one.
func (r *Readiness) observe(h store.Health, err error) (reasons []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch away, is := errors.AsType[*store.UnavailableError](err); {
	case is:
		r.waiting, r.problems = "", []string{describeAway(away)}
	case errors.Is(err, context.DeadlineExceeded):
		// Frozen, or behind a network that swallows all, or slow for a moment.
		r.waiting, r.failure = "", "the database does not answer"
	case err != nil:
		// Busy: the last reading counts for a while.
		r.waiting, r.failure = "", err.Error()
	default:
		r.waiting, r.problems, r.read = "", r.judge(h), r.now()
	}
	reasons = r.reasons()
	if len(reasons) == 0 && !r.wasReady {
		r.wasReady = true
		close(r.ready)
	}
	return reasons
}

func describeAway(err *store.UnavailableError) string {
	if err.Cause == nil {
		return err.Error()
	}
	return fmt.Sprintf("%s: %s", err, err.Cause)
}

// judge lists what is wrong with a reading.
func (r *Readiness) judge(h store.Health) []string {
	var problems []string
	say := func(bad bool, format string, args ...any) {
		if bad {
			problems = append(problems, fmt.Sprintf(format, args...))
		}
	}
	tooOld := 3*r.cfg.WatcherInterval + sweepSlack
	say(h.StampAge > staleStamp, "the database takes no writes: the last stamp is %v old, above %v", h.StampAge.Round(time.Second), staleStamp)
	say(h.SchemaVersion < r.cfg.SchemaVersion, "the schema is at version %d and this binary needs %d", h.SchemaVersion, r.cfg.SchemaVersion)
	say(h.SweepAge > tooOld, "the watcher's last finished sweep is %v old, above %v", h.SweepAge.Round(time.Second), tooOld)
	say(h.PartitionsAhead < minPartitionsAhead, "only %d partitions lie ahead, below %d", h.PartitionsAhead, minPartitionsAhead)
	return problems
}
