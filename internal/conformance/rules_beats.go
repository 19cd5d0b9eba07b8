package conformance

import (
	"slices"
	"time"
)

func judgeBeatsInTime(h *history) finding {
	seen := false
	var longest, from time.Duration
	var of *lease
	for _, l := range h.worked() {
		gap, since := l.silent(h.now)
		if l.over(h.now) == l.until() {
			return fail("%s ran out at %s, %.2fs after the last sign of life", l, clock(l.until()), l.length.Seconds())
		}
		seen = seen || len(l.renewals()) > 1
		if gap > longest {
			longest, from, of = gap, since, l
		}
	}
	if !seen {
		return notSeen(h, "no lease was held for long enough to be renewed twice")
	}
	return pass("the longest silence was %.2fs of %.0fs: %s from %s", longest.Seconds(), of.length.Seconds(), of, clock(from))
}

// The median is judged, because one heartbeat that a busy machine held up says nothing of a worker.
func judgeBeatsAsAdvised(h *history) finding {
	var gaps []time.Duration
	var advised time.Duration
	for _, l := range h.worked() {
		last := l.granted
		for _, c := range l.renewals() {
			gaps = append(gaps, c.at-last)
			last = c.at
		}
		advised = l.advised()
	}
	if len(gaps) < 2 {
		return notSeen(h, "%d heartbeats came", len(gaps))
	}
	slices.Sort(gaps)
	median := gaps[len(gaps)/2]
	if median > advised*3/2 || median < advised/5 {
		return fail("the median of %d intervals is %.2fs, the advice is %.2fs", len(gaps), median.Seconds(), advised.Seconds())
	}
	return pass("the median of %d intervals is %.2fs, the advice is %.2fs", len(gaps), median.Seconds(), advised.Seconds())
}

// kept tells whether leases that met trouble with a heartbeat were kept: beaten on, and renewed.
func kept(h *history, trouble func(*call) bool) (f finding, met int) {
	for _, l := range h.worked() {
		beats := l.of(callBeat)
		at := slices.IndexFunc(beats, trouble)
		if at < 0 {
			continue
		}
		met++
		bad := beats[at]
		for _, c := range l.of(callFail, callRelease) {
			if c.at < l.until() {
				return fail("%s, though the lease lived until %s: %s at %s was answered %q", c, clock(l.until()), bad, clock(bad.answered), bad.answer), met
			}
		}
		renewed := slices.ContainsFunc(beats[at:], func(c *call) bool { return c.answer == answerOK })
		switch {
		case renewed:
		case l.ended == callComplete && l.endedAt <= l.until():
		case len(beats[at:]) == 1:
			return fail("no heartbeat came behind %s, which was answered %q; the lease ran out at %s", bad, bad.answer, clock(l.until())), met
		default:
			return fail("%s ran out at %s; none of the %d heartbeats behind %s came in time", l, clock(l.until()), len(beats[at:])-1, bad), met
		}
	}
	return finding{}, met
}

func judgeHungBeat(h *history) finding {
	f, met := kept(h, func(c *call) bool { return c.answer == answerHung })
	switch {
	case f.verdict == Fail:
		return f
	case met == 0:
		return notSeen(h, "no heartbeat came")
	}
	return pass("%d leases were renewed by another heartbeat", met)
}

func judgeOutage(h *history) finding {
	f, met := kept(h, func(c *call) bool { return c.answer != answerOK && c.answer != "" })
	switch {
	case f.verdict == Fail:
		return f
	case met == 0:
		return notSeen(h, "no heartbeat was refused")
	}
	return pass("%d leases were renewed after an outage of %.1fs", met, outageLength.Seconds())
}

func judgeLocalEnd(h *history) finding {
	if len(h.leases) == 0 {
		return notSeen(h, "no lease was taken")
	}
	l := h.leases[0]
	end := l.until()
	done := l.granted + localEndSeconds*time.Second
	refused := slices.ContainsFunc(l.of(callBeat), func(c *call) bool { return c.answer != answerOK && c.answer != "" })
	for _, c := range l.of(callComplete) {
		if c.at > end+localEndSlack {
			return fail("%s, but the lease surely ended at %s: no heartbeat after %s was accepted", c, clock(end), clock(l.since))
		}
	}
	switch {
	case !refused:
		return notSeen(h, "no heartbeat was refused")
	case done < end+localEndSlack || h.now < done:
		return notSeen(h, "the lease lasted until %s, as long as its work", clock(end))
	}
	return pass("the lease ended at %s, and nothing was completed when its work would have been done, at %s", clock(end), clock(done))
}

// localEndSlack is what the way of a call may take.
const localEndSlack = 500 * time.Millisecond
