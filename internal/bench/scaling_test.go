package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/leasehold/leasehold/internal/doctest"
)

// The costs of statements that the simulation works with, of PostgreSQL's processor time: what one
// takes whatever is in it, and for each job (docs/decisions.md has the measurement).
const (
	claimFixed, claimEach = 900 * time.Microsecond, 45 * time.Microsecond
	endFixed, endEach     = 400 * time.Microsecond, 30 * time.Microsecond
	callTravels           = 300 * time.Microsecond
	simulatedCores        = 4
	simulatedFlights      = 2 // statements of a kind that a replica has under way
	simulatedBatch        = 500
	simulatedTime         = 20 * time.Second
)

// kind of a call: callers claim and end in turns.
type kind int

const (
	claiming kind = iota
	ending
)

// simulation is callers of one job per call in a closed loop, replicas that merge what comes while
// their statements run, and a database with some cores. Time goes by steps.
type simulation struct {
	replicas []*simulatedReplica
	travels  [][]caller // by step, those that arrive then
	queue    []*statement
	busy     int
	ends     map[int][]*statement // by step
	done     int
}

type caller struct {
	replica int
	kind    kind
}

type simulatedReplica struct{ waiting, flights [2]int }

type statement struct {
	caller
	jobs int
}

const step = 50 * time.Microsecond

// simulate returns how many jobs a second are done.
func simulate(callers, replicas int) int {
	s := &simulation{ends: map[int][]*statement{}}
	for range replicas {
		s.replicas = append(s.replicas, &simulatedReplica{})
	}
	steps := int(simulatedTime / step)
	s.travels = make([][]caller, steps+int(callTravels/step)+1)
	for i := range callers {
		s.travels[i%100] = append(s.travels[i%100], caller{replica: i % replicas}) // they do not begin as one
	}
	for now := range steps {
		s.step(now)
	}
	return int(float64(s.done) / simulatedTime.Seconds())
}

func (s *simulation) step(now int) {
	for _, st := range s.ends[now] {
		s.busy--
		s.replicas[st.replica].flights[st.kind]--
		if st.kind == ending {
			s.done += st.jobs
		}
		next := caller{replica: st.replica, kind: 1 - st.kind}
		for range st.jobs {
			s.travels[now+int(callTravels/step)] = append(s.travels[now+int(callTravels/step)], next)
		}
	}
	delete(s.ends, now)
	for _, c := range s.travels[now] {
		s.replicas[c.replica].waiting[c.kind]++
	}
	for i, r := range s.replicas {
		for k := range r.waiting {
			for r.waiting[k] > 0 && r.flights[k] < simulatedFlights && (r.flights[k] == 0 || r.waiting[k] >= worthBeside) {
				n := min(r.waiting[k], simulatedBatch)
				r.waiting[k] -= n
				r.flights[k]++
				s.queue = append(s.queue, &statement{caller: caller{replica: i, kind: kind(k)}, jobs: n})
			}
		}
	}
	for s.busy < simulatedCores && len(s.queue) > 0 {
		st := s.queue[0]
		s.queue = s.queue[1:]
		s.busy++
		took := claimFixed + time.Duration(st.jobs)*claimEach
		if st.kind == ending {
			took = endFixed + time.Duration(st.jobs)*endEach
		}
		s.ends[now+max(1, int(took/step))] = append(s.ends[now+max(1, int(took/step))], st)
	}
}

// worthBeside is how many calls make a statement of their own beside one that runs, as in the service.
const worthBeside = 100

// TestScalingGuideHasTheSimulation: the table of docs/scaling.md is what the simulation says.
func TestScalingGuideHasTheSimulation(t *testing.T) {
	t.Parallel()
	rows := doctest.Read(t, "docs/scaling.md").Table(t, "What one PostgreSQL carries, simulated")
	for i, callers := range []int{30, 100, 1000, 5000} {
		want := []string{[]string{"30", "100", "1,000", "5,000"}[i]}
		for _, replicas := range []int{1, 3, 10} {
			want = append(want, number(float64(simulate(callers, replicas))))
		}
		if i >= len(rows) || fmt.Sprint(rows[i]) != fmt.Sprint(want) {
			t.Errorf("the table has no row %q", want)
		}
	}
}
