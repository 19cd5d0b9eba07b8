package conformance

import (
	"strings"
	"testing"
	"time"
)

const second = time.Second

// story builds a history call by call.
type story struct {
	h history
	l *lease
}

func newStory() *story {
	l := &lease{job: &job{id: 1, seconds: 60}, no: 1, length: leaseLength, delivered: true, granted: second, since: second}
	return &story{l: l, h: history{now: 30 * second, slots: 1, grace: 10 * second, leases: []*lease{l}, jobs: []*job{l.job}}}
}

// says adds a call about the lease, answered a tenth of a second later.
func (s *story) says(method string, at time.Duration, answer, result string) *story {
	c := &call{method: method, at: at, answered: at + second/10, answer: answer, lease: s.l, result: result}
	s.l.calls = append(s.l.calls, c)
	s.h.calls = append(s.h.calls, c)
	if answer == answerOK && method != callBeat {
		s.l.ended, s.l.endedAt = method, at
	}
	return s
}

// acquires adds an acquire.
func (s *story) acquires(at time.Duration, id, answer string, granted ...*lease) *story {
	s.h.calls = append(s.h.calls, &call{
		method: callAcquire, at: at, answered: at + second/10, answer: answer, requestID: id, maxJobs: 1, granted: granted,
	})
	return s
}

func (s *story) drained(at time.Duration) *story {
	s.h.signalled, s.h.exited, s.h.exit = at, at+5*second, "exit status 0"
	return s
}

// TestJudges on histories that no worker of the tests makes.
func TestJudges(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		judge func(*history) finding
		story *story
		want  Verdict
		says  string
	}{
		"a poll that SIGTERM cut off is asked for again": {
			judgeDrainLeasing, newStory().acquires(second, "a", answerGone).acquires(9*second, "a", answerOK).drained(3 * second), Pass, "",
		},
		"a new poll after SIGTERM": {
			judgeDrainLeasing, newStory().acquires(second, "a", answerGone).acquires(9*second, "b", answerOK).drained(3 * second), Fail, "AcquireLease at +9.00s",
		},
		"polls without an id are not the same": {
			judgeDrainLeasing, newStory().acquires(second, "", answerGone).acquires(9*second, "", answerOK).drained(3 * second), Fail, "AcquireLease",
		},
		"a lease that ran out before it was given back": {
			judgeDrainGivesBack, newStory().says(callRelease, 8*second, answerOK, "").drained(3 * second), Fail, "ran out at +7.00s",
		},
		"a lease given back in time": {
			judgeDrainGivesBack, newStory().says(callRelease, 5*second, answerOK, "").drained(3 * second), Pass, "1 released",
		},
		"one call after OVERLOADED may go elsewhere": {
			judgeBackOff, newStory().acquires(second, "a", "RATE_LIMITED").acquires(5*second, "b", "OVERLOADED").
				acquires(5*second, "c", "OVERLOADED").acquires(9*second, "d", answerOK), Pass, "",
		},
		"two may not": {
			judgeBackOff, newStory().acquires(second, "a", "RATE_LIMITED").acquires(5*second, "b", "OVERLOADED").
				acquires(5*second, "c", "OVERLOADED").acquires(6*second, "d", "OVERLOADED").acquires(9*second, "e", answerOK), Fail, "after OVERLOADED",
		},
		"a Complete that says something else": {
			judgeLostEnd, newStory().says(callComplete, 2*second, answerCut, "1").says(callComplete, 3*second, "RESULT_CONFLICT", "2"), Fail, "something else",
		},
		"Fail in the place of a Complete whose answer was lost": {
			judgeLostEnd, newStory().says(callComplete, 2*second, answerCut, "1").says(callFail, 3*second, "LEASE_ENDED", ""), Fail, "Fail of lease 1 of job 1",
		},
		"Complete again after already_applied": {
			judgeLostEnd, newStory().says(callComplete, 2*second, answerCut, "1").says(callComplete, 3*second, answerAgain, "1").
				says(callComplete, 4*second, answerAgain, "1"), Fail, "already_applied at +3.10s",
		},
		"a lease that was dropped after a refusal does not count": {
			judgeSlots, withSecondLease(newStory().says(callComplete, 2*second, "INTERNAL", ""), 3*second), Pass, "at most 1 of 1",
		},
		"two leases at once": {
			judgeSlots, withSecondLease(newStory().says(callBeat, 2*second, answerOK, ""), 3*second), Fail, "2 leases held at once",
		},
		"a lease whose end is near does not count": {
			judgeSlots, withSecondLease(newStory(), second+leaseLength*9/10), Pass, "at most 1 of 1",
		},
		"a lease that is given back in an outage": {
			judgeOutage, newStory().says(callBeat, 3*second, "DRAINING", "").says(callRelease, 4*second, answerOK, ""), Fail, "though the lease lived until +7.00s",
		},
		"a heartbeat under way when the loss was told": {
			judgeLossCalls, lostAt(newStory().says(callBeat, 3*second, answerOK, ""), 2*second), NotSeen, "1 of 3",
		},
		"a heartbeat long after the loss": {
			judgeLossCalls, lostAt(newStory().says(callBeat, 5*second, "LEASE_ENDED", ""), 2*second), Fail, "Heartbeat of lease 1 of job 1 at +5.00s",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := c.judge(&c.story.h)
			if got.verdict != c.want || !strings.Contains(got.evidence, c.says) {
				t.Errorf("%s: %s", got.verdict, got.evidence)
			}
		})
	}
}

// withSecondLease grants another lease.
func withSecondLease(s *story, at time.Duration) *story {
	second := &lease{job: &job{id: 2}, no: 1, length: leaseLength, delivered: true, granted: at, since: at}
	s.h.leases = append(s.h.leases, second)
	return s.acquires(s.l.granted, "a", answerOK, s.l).acquires(at, "b", answerOK, second)
}

func lostAt(s *story, told time.Duration) *story {
	s.l.loss, s.l.told = refuse(losses[0]), told
	return s
}

// TestVerdictOverAllScenarios: one failure counts, and what was seen once is seen.
func TestVerdictOverAllScenarios(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		drain, steady, loss Verdict
		want                Verdict
		where               string
	}{
		{Pass, Pass, Pass, Pass, "steady"},
		{NotSeen, NotSeen, Pass, Pass, "loss"},
		{Pass, Fail, Pass, Fail, "steady"},
		{NotSeen, NotSeen, NotSeen, NotSeen, "steady"},
	} {
		verdicts := map[int]Verdict{1: c.drain, 2: c.steady, 3: c.loss}
		r := rule{judge: func(h *history) finding { return finding{verdict: verdicts[h.slots]} }}
		got := r.over(map[string]*history{"drain": {slots: 1}, "steady": {slots: 2}, "loss": {slots: 3}})
		if got.Verdict != c.want || got.Scenario != c.where {
			t.Errorf("%+v: %s in %s", c, got.Verdict, got.Scenario)
		}
	}
}
