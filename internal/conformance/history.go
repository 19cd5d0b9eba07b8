package conformance

import (
	"fmt"
	"time"
)

// The calls of a worker, as the history names them.
const (
	callAcquire  = "AcquireLease"
	callBeat     = "Heartbeat"
	callComplete = "Complete"
	callFail     = "Fail"
	callRelease  = "Release"
)

// answerOK is the answer of a call that succeeded; answerAgain that of an end that had been applied
// before. All other answers are the words of their reasons, or say why there was none.
const (
	answerOK    = "OK"
	answerAgain = "already_applied"
	answerCut   = "connection cut"
	answerHung  = "not answered"
	answerGone  = "caller gone"
)

// call is one call of the worker, or one item of a batch. Times count from the start of the scene.
type call struct {
	method   string
	at       time.Duration // when it came in
	answered time.Duration // when the answer was made; 0: not yet
	answer   string
	lease    *lease // of a beat or an end; nil where the token is unknown

	requestID string // of an acquire
	maxJobs   int
	arguments string
	granted   []*lease
	wait      time.Duration // that it asked for

	asksToCancel bool // the answer carried cancel_requested
	result       string
}

func (c *call) String() string {
	if c.lease == nil {
		return fmt.Sprintf("%s at %s", c.method, clock(c.at))
	}
	return fmt.Sprintf("%s of %s at %s", c.method, c.lease, clock(c.at))
}

// clock is a time of the history as people read it.
func clock(d time.Duration) string { return fmt.Sprintf("+%.2fs", d.Seconds()) }

// job is one job that a script offers.
type job struct {
	id      int
	seconds int // how long its work takes
	leases  []*lease
}

// lease is one lease, with all that the worker said about it.
type lease struct {
	job     *job
	no      int64
	token   string
	request string // id of the acquire that took it; may be empty

	granted time.Duration
	since   time.Duration // from when length counts
	length  time.Duration
	// delivered is false where the answer that granted it was lost and nobody has asked again.
	delivered bool
	calls     []*call

	ended   string // the call that ended it; empty while none has
	endedAt time.Duration
	result  string // of Complete
	loss    *refusal
	told    time.Duration // when the loss was first answered; 0: not yet
	cancel  bool          // CancelJob was called
}

func (l *lease) String() string { return fmt.Sprintf("lease %d of job %d", l.no, l.job.id) }

// until is the end of the lease unless renewed.
func (l *lease) until() time.Duration { return l.since + l.length }

// advised is when the worker should send the next heartbeat, after the last.
func (l *lease) advised() time.Duration { return l.length / 3 }

// of lists the calls of one kind, oldest first.
func (l *lease) of(methods ...string) (out []*call) {
	for _, c := range l.calls {
		for _, m := range methods {
			if c.method == m {
				out = append(out, c)
			}
		}
	}
	return out
}

// renewals are the heartbeats that took effect.
func (l *lease) renewals() (out []*call) {
	for _, c := range l.of(callBeat) {
		if c.answer == answerOK {
			out = append(out, c)
		}
	}
	return out
}

// over is when the worker held the lease no more, as far as its service knows.
func (l *lease) over(now time.Duration) time.Duration {
	over := min(l.until(), now)
	if l.ended != "" {
		over = min(over, l.endedAt)
	}
	if l.told > 0 {
		over = min(over, l.told)
	}
	return over
}

// silent is how long nothing was heard of the lease at most, and from when, until it was over.
func (l *lease) silent(now time.Duration) (longest, from time.Duration) {
	last := l.granted
	over := l.over(now)
	for _, at := range append(times(l.renewals()), over) {
		if gap := min(at, over) - last; gap > longest {
			longest, from = gap, last
		}
		last = at
	}
	return longest, from
}

func times(calls []*call) (out []time.Duration) {
	for _, c := range calls {
		out = append(out, c.at)
	}
	return out
}

// history is what a worker did on one scene. It is read when nothing changes any more.
type history struct {
	now    time.Duration // its end
	slots  int
	jobs   []*job
	leases []*lease
	calls  []*call

	signalled time.Duration // when SIGTERM was sent; 0: never
	grace     time.Duration
	exited    time.Duration // when the process ended; 0: it was killed at the end
	exit      string        // how
	idle      time.Duration // since when there is nothing to do; 0: there always was
	stalled   time.Duration // longest time for which this process itself was held up
	trials    []trial
}

// of lists the calls of one kind, oldest first.
func (h *history) of(method string) (out []*call) {
	for _, c := range h.calls {
		if c.method == method {
			out = append(out, c)
		}
	}
	return out
}

// lastRefused is the latest call that was refused, for people who wonder why nothing came.
func (h *history) lastRefused() string {
	for i := len(h.calls) - 1; i >= 0; i-- {
		if c := h.calls[i]; c.answer != "" && c.answer != answerGone && c.answer != answerOK && c.answer != answerAgain {
			return fmt.Sprintf("; the last refusal: %s, %s", c, c.answer)
		}
	}
	return ""
}

// cameBack is the first call behind one that hangs by which a worker shows that it waits no longer;
// nil: there is none.
func cameBack(hung *call, calls []*call) *call {
	for _, c := range calls {
		if c.at > hung.at && (c.method == hung.method || c.method == callAcquire) {
			return c
		}
	}
	return nil
}

// completed is the lease by which a job was completed.
func (j *job) completed() *lease {
	for _, l := range j.leases {
		if l.ended == callComplete {
			return l
		}
	}
	return nil
}
