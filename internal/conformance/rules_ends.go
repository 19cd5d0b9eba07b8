package conformance

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// lost are the leases that the worker was told to be over.
func (h *history) lost() []*lease {
	return slices.DeleteFunc(h.worked(), func(l *lease) bool { return l.told == 0 })
}

func judgeLossCalls(h *history) finding {
	lost := h.lost()
	for _, l := range lost {
		for _, c := range l.of(callBeat, callFail, callRelease) {
			if c.at > l.told+inFlight {
				return fail("%s, though the answer at %s had been %s", c, clock(l.told), l.loss.word())
			}
		}
	}
	if len(lost) < len(losses) {
		return notSeen(h, "%d of %d losses were told", len(lost), len(losses))
	}
	return pass("%d leases were lost, and nothing more was said about them", len(lost))
}

func judgeLossWork(h *history) finding {
	lost := h.lost()
	for _, l := range lost {
		for _, c := range l.of(callComplete) {
			if c.at > l.told {
				return fail("%s, though the answer at %s had been %s", c, clock(l.told), l.loss.word())
			}
		}
	}
	if len(lost) < len(losses) {
		return notSeen(h, "%d of %d losses were told", len(lost), len(losses))
	}
	return pass("%d leases were lost, and none was completed", len(lost))
}

func judgeCancel(h *history) finding {
	for _, l := range h.worked() {
		at := slices.IndexFunc(l.calls, func(c *call) bool { return c.asksToCancel && c.answered > 0 })
		if at < 0 {
			continue
		}
		told := l.calls[at].answered
		switch {
		case l.ended != "":
			return pass("%s was told at %s, and %s came %.2fs later", l, clock(told), l.ended, max(0, l.endedAt-told).Seconds())
		case h.exit != "":
			return fail("%s was told at %s, and the worker ended without another word: %s", l, clock(told), h.exit)
		case h.now < told+cancelPatience:
			return notSeen(h, "the scene ended too early")
		}
		return fail("%s was told at %s, and had not ended %.0fs later", l, clock(told), (h.now - told).Seconds())
	}
	return notSeen(h, "no heartbeat was answered cancel_requested")
}

func judgeDrainExits(h *history) finding {
	switch {
	case h.signalled == 0:
		return notSeen(h, "the worker held no lease that SIGTERM could meet")
	case h.exit == "":
		return fail("it still ran %.0fs after SIGTERM", h.grace.Seconds())
	}
	return pass("it ended %.2fs after SIGTERM: %s", (h.exited - h.signalled).Seconds(), h.exit)
}

// drained tells whether the worker ended by itself; else only drain-exits has something to say.
func drained(h *history) bool { return h.signalled > 0 && h.exit != "" }

func judgeDrainLeasing(h *history) finding {
	if !drained(h) {
		return notSeen(h, "the worker did not end by SIGTERM")
	}
	known := map[string]bool{}
	for _, c := range h.of(callAcquire) {
		// A poll that was cut off may be asked for again by its request id, to find what it brought.
		if c.at > h.signalled+inFlight && (c.requestID == "" || !known[c.requestID]) {
			return fail("%s, SIGTERM came at %s", c, clock(h.signalled))
		}
		known[c.requestID] = true
	}
	return pass("none was asked for after SIGTERM at %s", clock(h.signalled))
}

func judgeDrainGivesBack(h *history) finding {
	if !drained(h) {
		return notSeen(h, "the worker did not end by SIGTERM")
	}
	ends := map[string]int{}
	for _, l := range h.worked() {
		switch {
		case l.ended == "":
			return fail("%s was not ended; SIGTERM came at %s, the end of the process at %s", l, clock(h.signalled), clock(h.exited))
		case l.endedAt > l.until():
			return fail("%s ran out at %s, before its %s", l, clock(l.until()), l.ended)
		}
		ends[l.ended]++
	}
	return pass("%d completed, %d released, %d failed", ends[callComplete], ends[callRelease], ends[callFail])
}

func judgeRequestID(h *history) finding {
	acquires := h.of(callAcquire)
	at := slices.IndexFunc(acquires, func(c *call) bool { return c.answer == answerCut && len(c.granted) > 0 })
	if at < 0 {
		return notSeen(h, "no lease was asked for")
	}
	lost := acquires[at]
	if lost.requestID == "" {
		return fail("%s had no request_id; its answer was lost, and with it %d leases", lost, len(lost.granted))
	}
	again := slices.IndexFunc(acquires[at+1:], func(c *call) bool { return c.requestID == lost.requestID })
	if again < 0 {
		return fail("the answer of %s was lost, and its request_id was not used again in %.0fs", lost, (h.now - lost.at).Seconds())
	}
	for _, l := range lost.granted {
		if len(l.calls) == 0 {
			return fail("%s asked for %s again, answered %q, and never spoke of it", acquires[at+1+again], l, acquires[at+1+again].answer)
		}
	}
	return pass("asked again %.2fs later; %d leases were taken up", (acquires[at+1+again].at - lost.answered).Seconds(), len(lost.granted))
}

func judgeBackOff(h *history) finding {
	acquires := h.of(callAcquire)
	for _, b := range backOffReasons {
		word := refuse(b.reason).word()
		at := slices.IndexFunc(acquires, func(c *call) bool { return c.answer == word })
		if at < 0 {
			return notSeen(h, "%s was never answered", word)
		}
		first, early := acquires[at], 0
		for _, c := range acquires[at+1:] {
			if c.at < first.answered+askToWait*4/5 {
				if early++; early > b.spare {
					return fail("%s, %.2fs after %s asked to wait %.0fs", c, (c.at - first.answered).Seconds(), word, askToWait.Seconds())
				}
			}
		}
		if !slices.ContainsFunc(acquires[at+1:], func(c *call) bool { return c.answer != word }) {
			return notSeen(h, "nothing came behind %s", word)
		}
	}
	return pass("it waited %.0fs, as it was asked", askToWait.Seconds())
}

func judgeSilence(h *history) finding {
	var evidence []string
	for _, method := range []string{callAcquire, callComplete} {
		calls := h.of(method)
		at := slices.IndexFunc(calls, func(c *call) bool { return c.answer == answerHung })
		if at < 0 {
			return notSeen(h, "no %s came", method)
		}
		next := cameBack(calls[at], h.calls)
		if next == nil {
			return fail("%s was not answered, and nothing came in %.0fs", calls[at], (h.now - calls[at].at).Seconds())
		}
		evidence = append(evidence, fmt.Sprintf("%.1fs for %s", (next.at-calls[at].at).Seconds(), method))
	}
	return pass("it waited %s", strings.Join(evidence, ", "))
}

func judgeLostEnd(h *history) finding {
	for _, l := range h.worked() {
		completes := l.of(callComplete)
		at := slices.IndexFunc(completes, func(c *call) bool { return c.answer == answerCut })
		if at < 0 {
			continue
		}
		if others := l.of(callFail, callRelease); len(others) > 0 {
			return fail("%s, though it had been completed: the answer to %s was lost", others[0], completes[at])
		}
		if len(completes) == at+1 {
			return fail("the answer to %s was lost, and it was not repeated in %.0fs", completes[at], (h.now - completes[at].at).Seconds())
		}
		var done time.Duration
		for _, c := range completes[at+1:] {
			switch {
			case c.result != completes[at].result:
				return fail("%s said something else than the one before: %s", c, c.answer)
			case done > 0 && c.at > done:
				return fail("%s, though it was answered already_applied at %s", c, clock(done))
			case c.answer == answerAgain && done == 0:
				done = c.answered
			}
		}
		return pass("repeated %.2fs later", (completes[at+1].at - completes[at].answered).Seconds())
	}
	return notSeen(h, "no Complete came")
}

func judgeRefusedEnd(h *history) finding {
	met := map[string]bool{}
	for _, l := range h.worked() {
		completes := l.of(callComplete)
		if len(completes) == 0 {
			continue
		}
		if len(completes) > 1 {
			return fail("%s, though %s was answered %s", completes[1], completes[0], completes[0].answer)
		}
		met[completes[0].answer] = true
	}
	for _, reason := range refusedEnds {
		if word := refuse(reason).word(); !met[word] {
			return notSeen(h, "%s could not be answered: no Complete came", word)
		}
	}
	return pass("%d refusals were taken as they are", len(refusedEnds))
}
