package bench

import (
	"bytes"
	"context"
	"errors"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestOnlyPicksByPattern(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string][]string{
		"^drain_many_10$": {"drain_many_10"},
		"drain_many":      {"drain_many_10", "drain_many_100", "drain_many_1000"},
		// What is measured together comes together.
		"idle_cpu": {"idle_transactions", "idle_cpu"},
		"no such":  nil,
	} {
		if got := Names(regexp.MustCompile(pattern)); !slices.Equal(got, want) {
			t.Errorf("%q picks %v, want %v", pattern, got, want)
		}
	}
	if all := Names(nil); len(all) < 40 {
		t.Errorf("all are %v", all)
	}
}

func TestNamesAreDifferent(t *testing.T) {
	t.Parallel()
	names := slices.Sorted(slices.Values(Names(nil)))
	if len(slices.Compact(slices.Clone(names))) != len(names) {
		t.Errorf("a name is there twice: %v", names)
	}
}

// series is a round that gives one value after the other and writes down that it ran.
func series(log *[]string, name string, values ...float64) round {
	return func(context.Context) ([]float64, error) {
		*log = append(*log, name)
		v := values[0]
		values = values[1:]
		return []float64{v}, nil
	}
}

func testRig(rounds int) (r *rig, said *bytes.Buffer) {
	said = &bytes.Buffer{}
	return &rig{deps: Deps{Progress: said, Server: noServer{}}, plan: Plan{Rounds: rounds, Round: time.Hour}}, said
}

// noServer is a server of which nothing is known.
type noServer struct{}

func (noServer) NewDatabase(context.Context) (Database, error) { return nil, errors.New("none") }
func (noServer) Postmaster() int                               { return 0 }

func TestRoundsAlternate(t *testing.T) {
	t.Parallel()
	var log []string
	closed := false
	w := workload{
		figures: []figure{{name: "w", unit: "jobs/s"}},
		prepare: func(_ context.Context, r *rig) (rounds, error) {
			r.later(func() error { closed = true; return nil })
			return rounds{limit: series(&log, "limit", 100, 10, 1), round: series(&log, "round", 50, 6, 0.7)}, nil
		},
	}
	r, said := testRig(3)
	rows, err := runWorkload(t.Context(), r, w)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Fields("limit round limit round limit round"); !slices.Equal(log, want) {
		t.Errorf("the rounds ran as %v", log)
	}
	if len(rows) != 1 || !near(*rows[0].Ratio, 0.6) || rows[0].Median != 6 {
		t.Errorf("the rows are %+v", rows)
	}
	if !closed {
		t.Error("what the workload opened is not closed")
	}
	if n := strings.Count(said.String(), "\n"); n != 3 || !strings.Contains(said.String(), "round 2 of 3: 6.00 jobs/s of 10.0, ratio 0.60") {
		t.Errorf("the progress is\n%s", said)
	}
}

func TestFigureThatCannotBeKnownIsLeftOut(t *testing.T) {
	t.Parallel()
	w := workload{
		figures: []figure{{name: "known"}, {name: "unknown", bound: Bound{kind: valueAtMost, value: 1}}},
		prepare: func(context.Context, *rig) (rounds, error) {
			return rounds{round: func(context.Context) ([]float64, error) { return []float64{1, math.NaN()}, nil }}, nil
		},
	}
	r, said := testRig(2)
	rows, err := runWorkload(t.Context(), r, w)
	if err != nil || len(rows) != 1 || rows[0].Workload != "known" || !strings.Contains(said.String(), "unknown cannot be known") {
		t.Errorf("%v, %v\n%s", rows, err, said)
	}
}

// TestFailedWorkloadDoesNotHideTheOthers: its error is told, and those after it are measured.
func TestFailedWorkloadDoesNotHideTheOthers(t *testing.T) {
	t.Parallel()
	var said bytes.Buffer
	rows, err := Run(t.Context(), Deps{Progress: &said, Server: noServer{}}, Plan{Rounds: 1}, regexp.MustCompile("^idle_cpu$|^drain_many_10$"))
	if len(rows) != 0 || err == nil || !strings.Contains(err.Error(), "drain_many_10: none") || !strings.Contains(err.Error(), "idle_cpu: none") {
		t.Errorf("%v, %v\n%s", rows, err, said.String())
	}
}

// pond is a database whose queue is a number.
type pond struct {
	Database
	jobs  atomic.Int64
	fills []int64
}

func (p *pond) FillPending(_ context.Context, _ string, n int64, _ []byte) error {
	p.fills = append(p.fills, n)
	p.jobs.Add(n)
	return nil
}

// fisher takes one job a turn, at most 10,000 a second.
func (p *pond) fisher(t *testing.T) load {
	tick := time.NewTicker(100 * time.Microsecond)
	t.Cleanup(tick.Stop)
	return turns(4, func(context.Context, int) (int, error) {
		<-tick.C
		if p.jobs.Add(-1) < 0 {
			p.jobs.Add(1)
			return 0, nil
		}
		return 1, nil
	})
}

// TestRoundThatRunsDryGoesOn: the queue is filled again until the round has its length.
func TestRoundThatRunsDryGoesOn(t *testing.T) {
	t.Parallel()
	r, _ := testRig(1)
	p := &pond{}
	s := &supply{rig: r, db: p, spare: 20, rate: 1} // far below what the callers do
	m, err := s.drain(t.Context(), p.fisher(t), 200*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.fills) < 2 {
		t.Errorf("it was filled %d times", len(p.fills))
	}
	if m.took < 200*time.Millisecond || m.n == 0 || s.left != p.jobs.Load() {
		t.Errorf("%d in %v; %d are left, the supply believes in %d", m.n, m.took, p.jobs.Load(), s.left)
	}
}

func TestBacklogIsKept(t *testing.T) {
	t.Parallel()
	r, _ := testRig(1)
	p := &pond{}
	s := &supply{rig: r, db: p, spare: 500, backlog: 50_000, stretch: 20}
	if _, err := s.drain(t.Context(), p.fisher(t), 200*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if len(p.fills) < 2 || p.fills[0] != 50_000 {
		t.Errorf("it was filled with %v", p.fills)
	}
	if slices.Min(p.fills[1:]) < 20 || slices.Max(p.fills[1:]) > 10_000 {
		t.Errorf("it was filled with %v", p.fills)
	}
}

func TestLoadThatFailsEndsTheRound(t *testing.T) {
	t.Parallel()
	r, _ := testRig(1)
	broken := errors.New("broken")
	var n atomic.Int64
	_, err := r.measure(t.Context(), turns(3, func(context.Context, int) (int, error) {
		if n.Add(1) > 10 {
			return 0, broken
		}
		return 1, nil
	}), 0, time.Hour, unlimited)
	if !errors.Is(err, broken) {
		t.Errorf("the error is %v", err)
	}
	if _, err := r.measure(t.Context(), turns(1, func(context.Context, int) (int, error) { return 0, broken }), 0, time.Hour, unlimited); !errors.Is(err, broken) {
		t.Errorf("the error of the first turn is %v", err)
	}
}

// TestLeaseBeforeTheAnswerIsNoTime, and only jobs that are both stored and leased count.
func TestLeaseBeforeTheAnswerIsNoTime(t *testing.T) {
	t.Parallel()
	p := newPickUps(1)
	p.noteLeased("7")
	p.noteStored("8")
	if isClosed(p.all) {
		t.Error("nothing was picked up")
	}
	p.noteStored("7")
	p.noteLeased("7") // again, as after a lost answer
	if !isClosed(p.all) || len(p.took) != 1 || p.took[0] != 0 {
		t.Errorf("the times are %v", p.took)
	}
}
