package server

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest"
)

// upkeepStore lets a test play the part of the store that the background loops use.
type upkeepStore struct {
	*storetest.Memory
	sweepPage func(after store.JobID, size int) (store.Swept, error)
	begin     func(interval time.Duration) (bool, error)
	finished  atomic.Int64
	bury      func() (int, error)
	forget    func() (int, error)
	stamp     func() error
	partition func() error
	retain    func(facts, payloads *time.Duration) error
	health    func() (store.Health, error)
}

func newUpkeepStore() *upkeepStore {
	m := storetest.NewMemory(nil)
	m.AlwaysWritable()
	return &upkeepStore{Memory: m}
}

func (s *upkeepStore) SweepPage(ctx context.Context, after store.JobID, size int, queues []string) (store.Swept, error) {
	if s.sweepPage != nil {
		return s.sweepPage(after, size)
	}
	return s.Memory.SweepPage(ctx, after, size, queues)
}

func (s *upkeepStore) BeginSweep(ctx context.Context, interval time.Duration) (bool, error) {
	if s.begin != nil {
		return s.begin(interval)
	}
	return s.Memory.BeginSweep(ctx, interval)
}

func (s *upkeepStore) FinishSweep(ctx context.Context) error {
	s.finished.Add(1)
	return s.Memory.FinishSweep(ctx)
}

func (s *upkeepStore) BuryUnrunnable(ctx context.Context) (int, error) {
	if s.bury != nil {
		return s.bury()
	}
	return s.Memory.BuryUnrunnable(ctx)
}

func (s *upkeepStore) ForgetExpired(ctx context.Context) (int, error) {
	if s.forget != nil {
		return s.forget()
	}
	return s.Memory.ForgetExpired(ctx)
}

func (s *upkeepStore) StampWritable(ctx context.Context) error {
	if s.stamp != nil {
		return s.stamp()
	}
	return s.Memory.StampWritable(ctx)
}

func (s *upkeepStore) EnsurePartitions(ctx context.Context) error {
	if s.partition != nil {
		return s.partition()
	}
	return s.Memory.EnsurePartitions(ctx)
}

func (s *upkeepStore) ApplyRetention(ctx context.Context, facts, payloads *time.Duration) error {
	if s.retain != nil {
		return s.retain(facts, payloads)
	}
	return s.Memory.ApplyRetention(ctx, facts, payloads)
}

func (s *upkeepStore) Health(ctx context.Context) (store.Health, error) {
	if s.health != nil {
		return s.health()
	}
	return s.Memory.Health(ctx)
}

var silent = slog.New(slog.DiscardHandler)

func watch(t *testing.T, st store.Maintenance) (w *watcher, freed *atomic.Int64) {
	t.Helper()
	freed = &atomic.Int64{}
	w, err := newWatcher(st, BackgroundConfig{WatcherInterval: time.Second, Log: silent}, func() { freed.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	return w, freed
}

// due makes every pass due.
func due(time.Duration) (bool, error) { return true, nil }

// TestR38_APassGoesThroughAllPages and wakes waiters where it freed jobs.
func TestR38_APassGoesThroughAllPages(t *testing.T) {
	t.Parallel()
	st := newUpkeepStore()
	var afters []store.JobID
	st.begin = due
	st.sweepPage = func(after store.JobID, size int) (store.Swept, error) {
		if size != watcherPage {
			t.Errorf("page size %d", size)
		}
		afters = append(afters, after)
		return map[store.JobID]store.Swept{0: {Next: 10}, 10: {Ended: 3, Next: 25}, 25: {}}[after], nil
	}
	w, freed := watch(t, st)
	if err := w.runOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(afters, []store.JobID{0, 10, 25}) || st.finished.Load() != 1 || freed.Load() != 1 {
		t.Errorf("pages after %v, finished %d times, woke %d times", afters, st.finished.Load(), freed.Load())
	}
}

// TestR38_APassIsSkippedWhereAnotherReplicaFinishedOne within half the interval.
func TestR38_APassIsSkippedWhereAnotherReplicaFinishedOne(t *testing.T) {
	t.Parallel()
	st := newUpkeepStore()
	st.sweepPage = func(store.JobID, int) (store.Swept, error) {
		t.Error("it sweeps all the same")
		return store.Swept{}, nil
	}
	st.begin = func(interval time.Duration) (bool, error) {
		if interval != time.Second {
			t.Errorf("it asks for an interval of %v", interval)
		}
		return false, nil
	}
	w, _ := watch(t, st)
	if err := w.runOnce(t.Context()); err != nil || st.finished.Load() != 0 {
		t.Errorf("%v, finished %d times", err, st.finished.Load())
	}
}

// TestR38_ABadRowStopsNobodyElse: the pass goes on behind it, in the middle and on the last
// page, counts as finished, and reports it.
func TestR38_ABadRowStopsNobodyElse(t *testing.T) {
	t.Parallel()
	bad := errors.New("a row that cannot be ended")
	for _, at := range []store.JobID{0, 10, 20} {
		st := newUpkeepStore()
		st.begin = due
		pages := 0
		st.sweepPage = func(after store.JobID, _ int) (store.Swept, error) {
			pages++
			swept := map[store.JobID]store.Swept{0: {Next: 10}, 10: {Next: 20}, 20: {}}[after]
			if after == at {
				return swept, bad
			}
			return swept, nil
		}
		w, _ := watch(t, st)
		if err := w.runOnce(t.Context()); !errors.Is(err, bad) || pages != 3 || st.finished.Load() != 1 {
			t.Errorf("bad row behind %d: %v, %d pages, finished %d times", at, err, pages, st.finished.Load())
		}
	}
}

// TestR38_AnOutageIsNoFinishedPass, else readiness would not show it.
func TestR38_AnOutageIsNoFinishedPass(t *testing.T) {
	t.Parallel()
	for _, fault := range []error{&store.UnavailableError{}, &store.BusyError{What: "the table"}, context.DeadlineExceeded} {
		st := newUpkeepStore()
		st.begin = due
		st.sweepPage = func(store.JobID, int) (store.Swept, error) { return store.Swept{}, fault }
		w, _ := watch(t, st)
		if err := w.runOnce(t.Context()); !errors.Is(err, fault) || st.finished.Load() != 0 {
			t.Errorf("%v: %v, finished %d times", fault, err, st.finished.Load())
		}
	}
}

// TestR38_ALongPassGoesOnWhereItStopped: more leased jobs than fit into one pass must not
// hide those behind them for ever.
func TestR38_ALongPassGoesOnWhereItStopped(t *testing.T) {
	t.Parallel()
	st := newUpkeepStore()
	st.begin = due
	ctx, timeIsOver := context.WithCancel(t.Context())
	var afters []store.JobID
	st.sweepPage = func(after store.JobID, _ int) (store.Swept, error) {
		afters = append(afters, after)
		if after == 10 && len(afters) == 2 {
			timeIsOver()
			return store.Swept{}, ctx.Err()
		}
		return map[store.JobID]store.Swept{0: {Next: 10}, 10: {Next: 20}, 20: {}}[after], nil
	}
	w, _ := watch(t, st)
	if err := w.runOnce(ctx); err == nil || st.finished.Load() != 0 {
		t.Errorf("cut off: %v, finished %d times", err, st.finished.Load())
	}
	if err := w.runOnce(t.Context()); err != nil || st.finished.Load() != 1 {
		t.Errorf("going on: %v, finished %d times", err, st.finished.Load())
	}
	if !slices.Equal(afters, []store.JobID{0, 10, 10, 20}) {
		t.Errorf("pages after %v", afters)
	}
}

func TestASweepThatGoesInCirclesEnds(t *testing.T) {
	t.Parallel()
	st := newUpkeepStore()
	st.begin = due
	st.sweepPage = func(store.JobID, int) (store.Swept, error) { return store.Swept{Next: 7}, nil }
	w, _ := watch(t, st)
	if err := w.runOnce(t.Context()); err == nil || st.finished.Load() != 0 || w.next != 0 {
		t.Errorf("%v, finished %d times, goes on at %d", err, st.finished.Load(), w.next)
	}
}

// TestR39_WornOutJobsAreBuried in rounds that are bounded.
func TestR39_WornOutJobsAreBuried(t *testing.T) {
	t.Parallel()
	st := newUpkeepStore()
	st.begin = due
	rounds := 0
	st.bury = func() (int, error) { rounds++; return max(0, 3-rounds), nil }
	w, _ := watch(t, st)
	if err := w.runOnce(t.Context()); err != nil || rounds != 3 {
		t.Errorf("%v after %d rounds, want 3", err, rounds)
	}
	rounds = 0
	st.bury = func() (int, error) { rounds++; return 1000, nil }
	if err := w.runOnce(t.Context()); err != nil || rounds != buryRounds {
		t.Errorf("%v after %d rounds, want %d", err, rounds, buryRounds)
	}
}

// TestR38_TheWatcherFreesTheJobOfADeadWorker through a server whose workers all wait.
func TestR38_TheWatcherFreesTheJobOfADeadWorker(t *testing.T) {
	t.Parallel()
	st := newUpkeepStore()
	if err := st.EnsureQueues(t.Context(), []string{"q"}); err != nil {
		t.Fatal(err)
	}
	s := serve(t, st, Config{})
	id := s.enqueueOne(t, &pb.EnqueueRequest{Queue: "q"})
	_ = s.acquireOne(t, "q") // and never heard of again
	number, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	st.Age(store.JobID(number), 2*time.Minute)
	runBackground(t, s, NewReadiness(ReadinessConfig{}), BackgroundConfig{WatcherInterval: MinWatcherInterval, Registry: prometheus.NewRegistry()})
	eventually(t, "the job is free", func() bool {
		got, err := s.jobs.GetJob(t.Context(), &pb.GetJobRequest{By: &pb.GetJobRequest_JobId{JobId: id}})
		return err == nil && got.GetJob().GetState() == pb.JobState_JOB_STATE_PENDING
	})
}
