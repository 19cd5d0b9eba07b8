package server

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/leasehold/leasehold/internal/loop"
	"github.com/leasehold/leasehold/store"
)

// runBackground runs the background work of s until the test ends.
func runBackground(t *testing.T, s *served, ready *Readiness, cfg BackgroundConfig) {
	t.Helper()
	cfg.Log = silent
	b, err := NewBackground(s.Server, ready, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("background: %v", err)
		}
	})
}

func TestBackgroundConfig(t *testing.T) {
	t.Parallel()
	for _, good := range []BackgroundConfig{
		{},
		{WatcherInterval: MinWatcherInterval, RetainFacts: MinRetention, RetainPayloads: 10 * MinRetention},
		{WatcherInterval: MaxWatcherInterval},
	} {
		if err := good.Validate(); err != nil {
			t.Errorf("%+v: %v", good, err)
		}
	}
	err := BackgroundConfig{WatcherInterval: time.Millisecond, RetainFacts: time.Hour, RetainPayloads: -MinRetention}.Validate()
	for _, want := range []string{"watcher", "facts", "payloads"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not among the faults: %v", want, err)
		}
	}
	if _, err := NewBackground(serve(t, newStore(t), Config{}).Server, NewReadiness(ReadinessConfig{}), BackgroundConfig{WatcherInterval: 1}); err == nil {
		t.Error("an interval of 1 ns is taken")
	}
}

// TestBackgroundMakesAReplicaReady, and gRPC health follows, both ways.
func TestBackgroundMakesAReplicaReady(t *testing.T) {
	t.Parallel()
	st := newUpkeepStore()
	s := serve(t, st, Config{})
	s.SetServing(false)
	ready := NewReadiness(ReadinessConfig{})
	registry := prometheus.NewRegistry()
	runBackground(t, s, ready, BackgroundConfig{Registry: registry})
	<-ready.Ready()
	metrics := NewHTTPServer(ready, registry, silent).Handler
	eventually(t, "the metrics say so", func() bool {
		_, body := page(t, metrics, http.MethodGet, "/metrics")
		return strings.Contains(body, "leasehold_ready 1") && strings.Contains(body, "leasehold_partitions_ahead 8") &&
			strings.Contains(body, `leasehold_loop_passes_total{loop="watcher",outcome="ok"}`)
	})
	serving := func() bool {
		resp, err := grpc_health_v1.NewHealthClient(s.conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		return err == nil && resp.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING
	}
	eventually(t, "health is SERVING", serving)
	st.SetWritable(time.Hour, time.Minute)
	eventually(t, "it is ready all the same, or again: a stamp follows", func() bool { return len(ready.Reasons()) == 0 && serving() })
	ready.Drain()
	eventually(t, "health is NOT_SERVING", func() bool { return !serving() })
}

// TestR35_StampsComeEachSecond, soon after a failure too, and a pass that panics ends
// nothing.
func TestR35_StampsComeEachSecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := newUpkeepStore()
		var at []time.Duration
		began := time.Now()
		st.stamp = func() error {
			at = append(at, time.Since(began))
			switch len(at) {
			case 3:
				panic("a row that nobody expected")
			case 4:
				return &store.UnavailableError{}
			}
			return nil
		}
		job := stampJob(st)
		job.cfg.Logger = silent
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := loop.New(job.runOnce, job.cfg).Run(ctx); err != nil {
			t.Error(err)
		}
		if len(at) < 19 || at[0] > stampStart {
			t.Fatalf("%d stamps in 20 s, at %v", len(at), at)
		}
		for i := 1; i < len(at); i++ {
			// Expiry needs a stamp that is younger than 3 s.
			if gap := at[i] - at[i-1]; gap > stampInterval+time.Millisecond {
				t.Errorf("a gap of %v", gap)
			}
		}
	})
}

// TestR44_PartitionsAreMadeAtTheStart and again every 10 s; a failure of one upkeep does not
// touch the others.
func TestR44_PartitionsAreMadeAtTheStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := newUpkeepStore()
		made, forgotten, retained := 0, 0, 0
		st.partition = func() error { made++; return nil }
		st.forget = func() (int, error) { forgotten++; return 0, errors.New("locked") }
		st.retain = func(facts, payloads *time.Duration) error {
			retained++
			if facts != nil || *payloads != 48*time.Hour {
				t.Errorf("retention of facts %v, payloads %v", facts, payloads)
			}
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour+2*time.Minute)
		defer cancel()
		var runs []func(context.Context) error
		for _, job := range upkeepJobs(st, BackgroundConfig{RetainPayloads: 48 * time.Hour}) {
			job.cfg.Logger = silent
			runs = append(runs, loop.New(job.runOnce, job.cfg).Run)
		}
		if err := runLoops(ctx, runs...); err != nil {
			t.Error(err)
		}
		if made < 700 || forgotten < 100 || retained != 3 {
			t.Errorf("in two hours: partitions %d times, forgetting %d, retention %d", made, forgotten, retained)
		}
	})
}

func TestNothingIsDroppedByDefault(t *testing.T) {
	t.Parallel()
	for _, job := range upkeepJobs(newUpkeepStore(), BackgroundConfig{}) {
		if job.cfg.Name == "retention" {
			t.Error("retention runs though history is kept for ever")
		}
	}
}

func TestForgettingGoesOnUntilNothingIsLeft(t *testing.T) {
	t.Parallel()
	left := []int{1000, 1000, 3, 0, 1}
	st := newUpkeepStore()
	st.forget = func() (int, error) { n := left[0]; left = left[1:]; return n, nil }
	if err := forgetExpired(t.Context(), st); err != nil || !slices.Equal(left, []int{1}) {
		t.Errorf("%v, left %v", err, left)
	}
	rounds := 0
	st.forget = func() (int, error) { rounds++; return 1000, nil }
	if err := forgetExpired(t.Context(), st); err != nil || rounds != forgetRounds {
		t.Errorf("%v after %d rounds, want %d", err, rounds, forgetRounds)
	}
}
