package loop

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// running is a loop under test in a bubble of synctest, where time passes at once when
// everybody waits.
type running struct {
	*Loop
	passes chan Pass
	log    *bytes.Buffer
	stop   func()
}

func start(t *testing.T, work func(context.Context) error, cfg Config) *running {
	t.Helper()
	r := &running{passes: make(chan Pass), log: &bytes.Buffer{}}
	cfg.Name = "test"
	cfg.Logger = slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelInfo}))
	ctx, cancel := context.WithCancel(t.Context())
	cfg.OnPass = func(p Pass) {
		select {
		case r.passes <- p:
		case <-ctx.Done():
		}
	}
	r.Loop = New(work, cfg)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	r.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	return r
}

func TestLoopPassesAtItsInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var starts []time.Duration
		r := start(t, func(context.Context) error {
			starts = append(starts, time.Since(began))
			<-time.After(2 * time.Second) // the work: it must not shift the next start
			return nil
		}, Config{Interval: 10 * time.Second})
		defer r.stop()
		for range 4 {
			<-r.passes
		}
		if starts[0] > time.Second {
			t.Errorf("the first pass came after %v", starts[0])
		}
		for i := 1; i < len(starts); i++ {
			if gap := starts[i] - starts[i-1]; gap != 10*time.Second {
				t.Errorf("pass %d came %v after the one before", i, gap)
			}
		}
	})
}

func TestLoopStartsAtARandomMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := map[time.Duration]bool{}
		for range 20 {
			began := time.Now()
			r := start(t, func(context.Context) error { return nil }, Config{Interval: time.Hour, StartWithin: time.Minute})
			<-r.passes
			r.stop()
			after := time.Since(began)
			if after > time.Minute {
				t.Errorf("the first pass came after %v", after)
			}
			seen[after] = true
		}
		if len(seen) < 15 {
			t.Errorf("20 loops started at %d different moments", len(seen))
		}
	})
}

func TestLoopBacksOffWithJitterAndRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fail := errors.New("no database")
		var recovered atomic.Bool
		var at []time.Time
		r := start(t, func(context.Context) error {
			if recovered.Load() {
				return nil
			}
			at = append(at, time.Now())
			return fail
		}, Config{Interval: 30 * time.Second})
		defer r.stop()
		for want := 1; want <= 8; want++ {
			if p := <-r.passes; p.Failures != want || !errors.Is(p.Err, fail) {
				t.Fatalf("pass %+v, want failure %d", p, want)
			}
		}
		recovered.Store(true)
		longest := time.Second
		whole := 0
		for i := 1; i < len(at); i++ {
			gap := at[i].Sub(at[i-1])
			if gap < longest/2 || gap > longest {
				t.Errorf("retry %d after %v, want %v..%v", i, gap, longest/2, longest)
			}
			if gap == longest {
				whole++
			}
			longest = min(2*longest, 30*time.Second)
		}
		if whole > 3 {
			t.Error("the waits have no jitter")
		}
		if p := <-r.passes; p.Err != nil || p.Failures != 0 {
			t.Errorf("after recovery: %+v", p)
		}
		synctest.Wait()
		if n := strings.Count(r.log.String(), "background work failed"); n != 4 {
			t.Errorf("8 failures in a row were logged %d times, want the 1st, 2nd, 4th and 8th:\n%s", n, r.log)
		}
		if !strings.Contains(r.log.String(), `msg="background work goes on" loop=test failures=8`) {
			t.Errorf("recovery is not logged:\n%s", r.log)
		}
	})
}

func TestLoopSurvivesAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		metrics, err := NewMetrics(registry)
		if err != nil {
			t.Fatal(err)
		}
		passes := 0
		r := start(t, func(context.Context) error {
			if passes++; passes == 1 {
				panic("one bad row")
			}
			return nil
		}, Config{Interval: time.Second, Metrics: metrics})
		defer r.stop()
		first := <-r.passes
		if p, ok := errors.AsType[*PanicError](first.Err); !ok || p.Value != "one bad row" || len(p.Stack) == 0 {
			t.Errorf("the first pass: %+v", first)
		}
		if second := <-r.passes; second.Err != nil {
			t.Errorf("the second pass: %+v", second)
		}
		want := map[string]float64{"ok": 1, "error": 0, "panic": 1}
		if got := passesOf(t, registry); !maps.Equal(got, want) {
			t.Errorf("counted %v, want %v", got, want)
		}
		if !strings.Contains(r.log.String(), "one bad row") || !strings.Contains(r.log.String(), "stack=") {
			t.Errorf("the panic is not in the log:\n%s", r.log)
		}
	})
}

// passesOf reads the counter of passes by outcome.
func passesOf(t *testing.T, registry prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, family := range families {
		if family.GetName() != "leasehold_loop_passes_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				if label.GetName() == "outcome" {
					out[label.GetValue()] = m.GetCounter().GetValue()
				}
			}
		}
	}
	return out
}

func TestLoopBoundsEachPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}, Config{Interval: time.Minute, Timeout: 3 * time.Second})
		defer r.stop()
		if p := <-r.passes; !errors.Is(p.Err, context.DeadlineExceeded) || p.Took != 3*time.Second {
			t.Errorf("got %+v", p)
		}
		if p := <-r.passes; p.Failures != 2 {
			t.Errorf("the loop did not go on: %+v", p)
		}
	})
}

func TestKickLetsThePassComeNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, func(context.Context) error { return nil }, Config{Interval: time.Hour})
		defer r.stop()
		<-r.passes
		synctest.Wait()
		kicked := time.Now()
		r.Kick()
		<-r.passes
		if d := time.Since(kicked); d != 0 {
			t.Errorf("the pass came %v after the kick", d)
		}
		<-r.passes
		if d := time.Since(kicked); d != time.Hour {
			t.Errorf("the pass after that came %v after the kick", d)
		}
	})
}

// TestKickDuringAPassIsNotLost: the pass may have looked before what the kick is about.
func TestKickDuringAPassIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r *running
		passes := 0
		ready := make(chan struct{})
		r = start(t, func(context.Context) error {
			<-ready
			if passes++; passes == 1 {
				for range 3 {
					r.Kick()
				}
			}
			return nil
		}, Config{Interval: time.Hour})
		defer r.stop()
		close(ready)
		<-r.passes
		first := time.Now()
		<-r.passes
		if d := time.Since(first); d != 0 {
			t.Errorf("the second pass came after %v", d)
		}
		<-r.passes
		if d := time.Since(first); d != time.Hour {
			t.Errorf("the third pass came after %v: three kicks are one", d)
		}
	})
}

// TestKickDoesNotHurryAFailingLoop: no hot loop against a broken database.
func TestKickDoesNotHurryAFailingLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, func(context.Context) error { return errors.New("broken") }, Config{Interval: time.Hour})
		defer r.stop()
		<-r.passes
		failed := time.Now()
		synctest.Wait()
		r.Kick()
		<-r.passes
		if d := time.Since(failed); d < 500*time.Millisecond {
			t.Errorf("the retry came after %v", d)
		}
	})
}

func TestEndOfTheContextIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := make(chan struct{})
		r := start(t, func(ctx context.Context) error {
			close(begun)
			<-ctx.Done()
			return ctx.Err()
		}, Config{Interval: time.Minute})
		<-begun
		r.stop()
		if r.log.Len() != 0 {
			t.Errorf("logged: %s", r.log)
		}
	})
}

func TestConfigNamesAllItsFaults(t *testing.T) {
	err := Config{Interval: -1, Timeout: -1}.Validate()
	for _, want := range []string{"needs a name", "must be above 0", "negative duration"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in: %v", want, err)
		}
	}
	if err := (Config{Name: "x", Interval: 1}).Validate(); err != nil {
		t.Error(err)
	}
}

func TestRetryNeverOverflows(t *testing.T) {
	l := New(nil, Config{Name: "x", Interval: time.Hour})
	for _, failures := range []int{1, 2, 60, 64, 1 << 20} {
		if d := l.retryIn(failures); d <= 0 || d > 30*time.Second {
			t.Errorf("after %d failures %v", failures, d)
		}
	}
}
