package storetest

import (
	"slices"
	"testing"
	"time"

	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest/model"
)

// repeating judges a story as that of a service that may try calls again.
func (s story) repeating() error {
	return CheckLinearizable(s.calls, s.tables, Linear{
		Queues: map[string]store.Queue{s.queue.Name: s.queue}, Timeout: time.Minute, Repeats: true,
	})
}

func (s story) violations() []Violation {
	return CheckInvariants(s.calls, s.tables, Checked{Repeats: true})
}

// TestHiddenTriesExplain: what a caller sees of a call whose first try took effect without
// the service learning of it. It is a lie of a service that tries each call once.
func TestHiddenTriesExplain(t *testing.T) {
	t.Parallel()
	for name, see := range map[string]func(s *story){
		"a fail that is applied already": func(s *story) {
			call[model.Fail](*s, 2, 0).Outcome.AlreadyApplied = true
		},
		"a complete that is applied already": func(s *story) {
			call[model.Complete](*s, 1, 1).Outcome.AlreadyApplied = true
		},
		"a heartbeat that counts twice": func(s *story) {
			s.change(1, func(r *JobRow) { r.Leases[0].Beats++ })
		},
		"a refused heartbeat whose first try came in time": func(s *story) {
			// The accepted one is seen as refused: its checkpoint is there all the same.
			c, late := call[model.Heartbeat](*s, 1, 0), call[model.Heartbeat](*s, 1, 1)
			c.Outcome, c.End = late.Outcome, late.End
			s.change(1, func(r *JobRow) { r.Leases[0].LateCalls.Count++ })
		},
		"a late call that nobody could write down": func(s *story) {
			s.change(1, func(r *JobRow) { r.Leases[0].LateCalls = nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := tell(t)
			see(&s)
			if err := s.repeating(); err != nil {
				t.Error(err)
			}
			if got := s.violations(); len(got) > 0 {
				t.Errorf("violations: %v", got)
			}
			if s.linearizable() == nil && len(CheckInvariants(s.calls, s.tables, Checked{})) == 0 {
				t.Error("without hidden tries, it is true as well")
			}
		})
	}
}

// TestHiddenTriesExcuseNothingElse: what no number of tries explains.
func TestHiddenTriesExcuseNothingElse(t *testing.T) {
	t.Parallel()
	for name, lie := range map[string]func(s *story){
		"a complete accepted after it was superseded": func(s *story) {
			call[model.Complete](*s, 1, 0).Outcome = model.Outcome{}
		},
		"two grants at once": func(s *story) {
			c := *call[model.Acquire](*s, 1, 1)
			c.Request = model.Acquire{Owner: "worker-3", ByID: true}
			s.calls = append(s.calls, c)
		},
		"a zombie's heartbeat accepted": func(s *story) {
			c, good := call[model.Heartbeat](*s, 1, 1), call[model.Heartbeat](*s, 1, 0)
			c.Outcome = good.Outcome
		},
		"leased while it was held": func(s *story) {
			call[model.Acquire](*s, 1, 2).Outcome = model.Outcome{Empty: store.JobNotDue}
		},
		"a checkpoint lost":   func(s *story) { call[model.Acquire](*s, 1, 1).Outcome.Checkpoint = nil },
		"an attempt skipped":  func(s *story) { call[model.Acquire](*s, 1, 1).Outcome.Attempt = 3 },
		"an attempt too many": func(s *story) { s.change(2, func(r *JobRow) { r.Job.AttemptsUsed++ }) },
		"another end":         func(s *story) { s.change(1, func(r *JobRow) { r.Leases[0].End = store.EndReleased }) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := tell(t)
			lie(&s)
			if s.repeating() == nil {
				t.Error("an order of the calls explains it")
			}
		})
	}
}

// requested makes the second lease of job 1 one that was asked for with a request id.
func (s *story) requested() *Call {
	c := call[model.Acquire](*s, 1, 1)
	c.RequestID = "r"
	return c
}

// TestRepeatedRequests: a request that is repeated is answered with its lease again, while
// that is live, and by whichever of its tries it was taken.
func TestRepeatedRequests(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		explained bool
		see       func(s *story)
	}{
		"repeated": {true, func(s *story) { s.calls = append(s.calls, *s.requested()) }},
		"the first answer was lost": {true, func(s *story) {
			first := *s.requested()
			first.Unknown, first.Outcome = true, model.Outcome{}
			s.calls = append(s.calls, first)
			// Somebody saw the job leased before the second try.
			blocked := call[model.Acquire](*s, 1, 2)
			again := s.requested()
			again.Start, again.End = blocked.End, blocked.End.Add(time.Microsecond)
		}},
		"repeated after the end": {false, func(s *story) {
			again := *s.requested()
			again.Start = s.calls[len(s.calls)-1].End.Add(time.Millisecond)
			again.End = again.Start.Add(time.Millisecond)
			s.calls = append(s.calls, again)
		}},
		"with the lease before": {false, func(s *story) {
			again := *s.requested()
			again.Outcome.LeaseNo = 1
			s.calls = append(s.calls, again)
		}},
		"another attempt": {false, func(s *story) { s.requested().Outcome.Attempt = 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := tell(t)
			c.see(&s)
			if err := s.linearizable(); (err == nil) != c.explained {
				t.Errorf("explained: %v, want %t", err, c.explained)
			}
		})
	}
}

// TestAnsweredLeasesAreNotTakenBack: a lease that was answered is never ended as one that
// could not be delivered (R12).
func TestAnsweredLeasesAreNotTakenBack(t *testing.T) {
	t.Parallel()
	s := tell(t)
	s.change(3, func(r *JobRow) {
		r.Leases[0].End, r.Leases[0].EndedAt = store.EndUndelivered, to(r.Leases[0].LeasedAt.Add(time.Millisecond))
	})
	got := CheckInvariants(s.calls, s.tables, Checked{})
	if !slices.ContainsFunc(got, func(v Violation) bool { return v.Invariant == "I1" && v.Job == 3 }) {
		t.Errorf("violations: %v, want I1 of job 3", got)
	}
}

// TestRecorderOfAServiceThatRepeats: an error that says that nothing was done is believed of
// a call that is tried once only.
func TestRecorderOfAServiceThatRepeats(t *testing.T) {
	t.Parallel()
	e := newEnv(t, MemoryHarness(t))
	q := e.queue()
	ref := e.lease(q)
	for repeats, want := range map[bool]int{false: 0, true: 3} {
		r := NewRecorder(nil)
		r.Repeats = repeats
		s := r.Client(1, WithFaults(e.s, func(string) error { return &store.UnavailableError{} }, nil))
		_, _ = s.Heartbeat(e.ctx, []store.Heartbeat{{Lease: ref}})
		_, _ = s.Enqueue(e.ctx, []store.NewJob{{Queue: q}})
		_, _ = s.Enqueue(e.ctx, []store.NewJob{keyed(q, "k", "p")})
		_, _ = s.Acquire(e.ctx, []store.Acquire{{Queues: []string{q}, Owner: "w"}})
		_, _ = s.Acquire(e.ctx, []store.Acquire{{Queues: []string{q}, Owner: "w", RequestID: to("r")}})
		if got := r.History(); len(got) != want || slices.ContainsFunc(got, func(c Call) bool { return !c.Unknown }) {
			t.Errorf("repeats %t: recorded %v, want %d of unknown outcome", repeats, got, want)
		}
	}
}
