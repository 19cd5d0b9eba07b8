package conformance

import (
	"fmt"
	"slices"
	"time"
)

// Verdict is what is known of one rule.
type Verdict string

// The verdicts. NotSeen is no pass: what the rule is about did not happen, often because the worker
// broke another rule before.
const (
	Pass    Verdict = "PASS"
	Fail    Verdict = "FAIL"
	NotSeen Verdict = "NOT SEEN"
)

// finding is a verdict with its evidence.
type finding struct {
	verdict  Verdict
	evidence string
}

func pass(format string, args ...any) finding { return finding{Pass, fmt.Sprintf(format, args...)} }
func fail(format string, args ...any) finding { return finding{Fail, fmt.Sprintf(format, args...)} }

// notSeen adds why, as far as the history tells.
func notSeen(h *history, format string, args ...any) finding {
	text := fmt.Sprintf(format, args...)
	if h.exit != "" && h.signalled == 0 {
		text += fmt.Sprintf("; the worker ended at %s: %s", clock(h.exited), h.exit)
	}
	return finding{NotSeen, text + h.lastRefused()}
}

// rule is one demand on a worker.
type rule struct {
	name     string
	says     string
	scenario string // in which it is judged; everywhere where empty
	judge    func(*history) finding
}

// rules are all, in the order of the report.
var rules = []rule{
	{"does-the-work", "Every job is completed once, and not before its work is done.", "steady", judgeWork},
	{"slots", "The worker asks for, and holds, no more leases than it has room for.", "", judgeSlots},
	{"idles-quietly", "A worker that has nothing to do asks a few times a second at most.", "steady", judgeIdle},
	{"beats-in-time", "A lease is renewed before it ends.", "steady", judgeBeatsInTime},
	{"beats-as-advised", "Heartbeats come about as often as advised: each third of the lease.", "steady", judgeBeatsAsAdvised},
	{"beats-through-hang", "A heartbeat without an answer does not hold up the next one.", "hung-beat", judgeHungBeat},
	{"beats-through-outage", "UNAVAILABLE and RESOURCE_EXHAUSTED do not end the work before the lease does.", "outage", judgeOutage},
	{"stops-at-local-end", "Work whose lease could not be renewed ends, counted from when the last renewal was asked for; it is not completed.", "local-end", judgeLocalEnd},
	{"loss-stops-calls", "After LEASE_SUPERSEDED, LEASE_EXPIRED or LEASE_ENDED nothing more is said about that lease.", "loss", judgeLossCalls},
	{"loss-stops-work", "A lost lease is never completed.", "loss", judgeLossWork},
	{"honours-cancel", "cancel_requested ends the work.", "cancel", judgeCancel},
	{"drain-stops-leasing", "After SIGTERM no more leases are taken.", "drain", judgeDrainLeasing},
	{"drain-gives-back", "After SIGTERM every lease is ended by a call before the process ends.", "drain", judgeDrainGivesBack},
	{"drain-exits", "After SIGTERM the process ends within its grace.", "drain", judgeDrainExits},
	{"request-id", "A lost answer of AcquireLease is asked for again by its request_id, and its leases are taken up.", "request-id", judgeRequestID},
	{"calls-have-deadlines", "A call without an answer does not stop the worker.", "silence", judgeSilence},
	{"backs-off", "RESOURCE_EXHAUSTED is not repeated before its RetryInfo says so.", "back-off", judgeBackOff},
	{"survives-acquire-errors", "Whatever AcquireLease is answered, the worker comes back.", "acquire-errors", judgeTrials(len(acquireErrors))},
	{"survives-beat-errors", "Whatever Heartbeat is answered, the worker goes on with other jobs.", "beat-errors", judgeTrials(len(beatErrors))},
	{"survives-end-errors", "Whatever Complete is answered, the worker goes on with other jobs.", "end-errors", judgeTrials(len(endErrors))},
	{"complete-is-repeated", "A Complete whose answer is lost is repeated in the same words; already_applied is success.", "lost-end", judgeLostEnd},
	{"refusal-is-final", "A Complete that is refused with FAILED_PRECONDITION is not repeated.", "refused-end", judgeRefusedEnd},
}

func judgeWork(h *history) finding {
	for _, j := range h.jobs {
		l := j.completed()
		ranOut := slices.ContainsFunc(j.leases, func(l *lease) bool { return l.over(h.now) == l.until() })
		switch {
		case len(j.leases) == 0:
			return notSeen(h, "job %d was never leased", j.id)
		case l == nil && ranOut:
			return notSeen(h, "%s ran out, which is what beats-in-time is about", j.leases[0])
		case l == nil:
			return fail("job %d, whose work takes %ds, was not completed; %s ended by %q", j.id, j.seconds, j.leases[0], j.leases[0].ended)
		case l.endedAt-l.granted < time.Duration(j.seconds)*time.Second-100*time.Millisecond:
			return fail("the work of job %d takes %ds, and was completed after %.2fs", j.id, j.seconds, (l.endedAt - l.granted).Seconds())
		}
	}
	if len(h.jobs) == 0 {
		return notSeen(h, "no job was offered")
	}
	return pass("%d jobs were completed", len(h.jobs))
}

// holds tells whether the worker surely held a lease at a time. A worker that was refused may drop a
// lease, and one whose lease is near its end may have given it up already.
func (l *lease) holds(at time.Duration) bool {
	renewed := l.granted
	for _, c := range l.calls {
		switch {
		case c.at > at:
		case c.method != callBeat || c.answer != answerOK:
			return false
		default:
			renewed = c.at
		}
	}
	return l.delivered && l.granted <= at && at < renewed+l.length*4/5
}

func judgeSlots(h *history) finding {
	most := 0
	for _, c := range h.of(callAcquire) {
		if c.maxJobs > h.slots {
			return fail("%s asked for %d jobs; it may hold %d", c, c.maxJobs, h.slots)
		}
		for _, granted := range c.granted {
			held := 0
			for _, l := range h.leases {
				if l.holds(granted.granted) {
					held++
				}
			}
			if most = max(most, held); held > h.slots {
				return fail("%s made %d leases held at once; it may hold %d", c, held, h.slots)
			}
		}
	}
	if most == 0 {
		return notSeen(h, "no lease was taken")
	}
	return pass("at most %d of %d", most, h.slots)
}

// idlePolls is how many polls a second one slot may make that has nothing to do.
const idlePolls = 5

func judgeIdle(h *history) finding {
	if h.idle == 0 {
		return notSeen(h, "there was always something to do")
	}
	polls := 0
	for _, c := range h.of(callAcquire) {
		if c.at > h.idle {
			polls++
		}
	}
	if perSecond := float64(polls) / (h.now - h.idle).Seconds(); perSecond > float64(idlePolls*h.slots) {
		return fail("%.0f polls a second for %d slots, when there was no job", perSecond, h.slots)
	}
	return pass("%d polls in %.0fs without a job", polls, (h.now - h.idle).Seconds())
}

// worked are the leases that the worker got to know.
func (h *history) worked() []*lease {
	return slices.DeleteFunc(slices.Clone(h.leases), func(l *lease) bool { return !l.delivered })
}

func judgeTrials(want int) func(*history) finding {
	return func(h *history) finding {
		seen := 0
		for _, t := range h.trials {
			if t.seen && !t.survived {
				how := "it took no other job for " + errorPatience.String()
				if h.exit != "" {
					how = fmt.Sprintf("it ended at %s: %s", clock(h.exited), h.exit)
				}
				return fail("after %s %s", t.what, how)
			}
			if !t.seen {
				return notSeen(h, "%s could not be answered: no such call came", t.what)
			}
			seen++
		}
		if seen < want {
			return notSeen(h, "%d of %d errors were answered", seen, want)
		}
		return pass("%d errors were answered", seen)
	}
}
