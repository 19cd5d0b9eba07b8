package conformance

import (
	"time"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// scenario is one run of the worker, with what the service does to it.
type scenario struct {
	name  string
	says  string
	slots int // most leases that the worker may hold
	play  func(*scene)
}

// scenarios are all, the longest first, so that those which run side by side end together.
var scenarios = []*scenario{
	{"silence", "AcquireLease and Complete are not answered at all", 1, playSilence},
	{"drain", "SIGTERM comes while leases are held", 3, playDrain},
	{"acquire-errors", "AcquireLease is answered each error", 1, playAcquireErrors},
	{"end-errors", "Complete is answered each error that passes, or that only the worker can mend", 2, playEndErrors},
	{"beat-errors", "Heartbeat is answered each error", 3, playBeatErrors},
	{"steady", "nothing goes wrong", 3, playSteady},
	{"local-end", "a heartbeat is answered late, all others fail for longer than the lease", 1, playLocalEnd},
	{"loss", "leases are superseded, expired and ended", 3, playLoss},
	{"hung-beat", "the first heartbeat of each lease is never answered", 2, playHungBeat},
	{"request-id", "the answer with the leases is lost", 2, playRequestID},
	{"outage", "for a while every call is refused", 2, playOutage},
	{"lost-end", "the answer to Complete is lost", 1, playLostEnd},
	{"back-off", "the service asks to wait", 1, playBackOff},
	{"refused-end", "Complete is refused for good", 2, playRefusedEnd},
	{"cancel", "somebody cancels the job", 1, playCancel},
}

// playSteady: long jobs, and more short ones than the worker has room for.
func playSteady(st *scene) {
	jobs := st.offer(9, 3, 3, 0, 0, 0, 0, 0, 0)
	if st.until(2*patience, st.settled(jobs...)) {
		st.mu.Lock()
		st.idle = st.now()
		st.mu.Unlock()
		st.pass(idleTime)
	}
}

// idleTime is how long a worker is watched that has nothing to do.
const idleTime = 3 * time.Second

var losses = []pb.ErrorReason{
	pb.ErrorReason_ERROR_REASON_LEASE_SUPERSEDED, pb.ErrorReason_ERROR_REASON_LEASE_EXPIRED, pb.ErrorReason_ERROR_REASON_LEASE_ENDED,
}

const lossSeconds = 6

// playLoss: the first heartbeat of each lease says that it is over, by another reason each.
func playLoss(st *scene) {
	st.behave(func(c *call) fault {
		if c.method != callBeat || c.lease == nil || c.lease.loss != nil {
			return fault{}
		}
		r := refuse(losses[(c.lease.job.id-1)%len(losses)])
		if r.reason == pb.ErrorReason_ERROR_REASON_LEASE_SUPERSEDED {
			r.facts = map[string]string{"current_lease_no": "2"}
		}
		return fault{refuse: r}
	})
	jobs := st.offer(lossSeconds, lossSeconds, lossSeconds)
	st.until(2*patience, func() bool { return toldOfLoss(jobs) == len(jobs) })
	st.mu.Lock()
	var over time.Duration // when the work of the last would be done
	for _, l := range st.leases {
		over = max(over, l.granted+lossSeconds*time.Second)
	}
	st.mu.Unlock()
	st.passUntil(over + inFlight)
}

func toldOfLoss(jobs []*job) (n int) {
	for _, j := range jobs {
		if len(j.leases) > 0 && j.leases[0].told > 0 {
			n++
		}
	}
	return n
}

const (
	localEndSeconds = 10
	lateAnswer      = 3 * time.Second
)

// playLocalEnd: the first heartbeat is answered so late that counting from its answer, instead of
// from when it was sent, makes the lease look longer than its work; all others fail.
func playLocalEnd(st *scene) {
	beats := 0
	st.behave(func(c *call) fault {
		if c.method != callBeat {
			return fault{}
		}
		if beats++; beats == 1 {
			return fault{delay: lateAnswer}
		}
		return fault{refuse: refuse(pb.ErrorReason_ERROR_REASON_DATABASE_UNAVAILABLE)}
	})
	j := st.offer(localEndSeconds)[0]
	if st.until(patience, func() bool { return len(j.leases) > 0 }) {
		st.passUntil(j.leases[0].granted + localEndSeconds*time.Second + inFlight)
	}
}

const outageLength = 1500 * time.Millisecond

// outageReasons are the refusals of the outage, in turn.
var outageReasons = []pb.ErrorReason{
	pb.ErrorReason_ERROR_REASON_DATABASE_UNAVAILABLE, pb.ErrorReason_ERROR_REASON_DRAINING, pb.ErrorReason_ERROR_REASON_OVERLOADED,
}

// playOutage: from the first heartbeat on everything is refused for a while.
func playOutage(st *scene) {
	var began time.Duration
	n := 0
	st.behave(func(c *call) fault {
		if began == 0 && c.method == callBeat {
			began = c.at
		}
		if began == 0 || c.at > began+outageLength {
			return fault{}
		}
		n++
		return fault{refuse: refuse(outageReasons[n%len(outageReasons)])}
	})
	jobs := st.offer(8, 8)
	st.until(2*patience, st.settled(jobs...))
}

// playHungBeat: the first heartbeat of each lease has no answer.
func playHungBeat(st *scene) {
	st.behave(func(c *call) fault {
		return fault{hang: c.method == callBeat && c.lease != nil && len(c.lease.of(callBeat)) == 1}
	})
	jobs := st.offer(9, 9)
	st.until(2*patience, st.settled(jobs...))
}

const (
	// acquireSilence is how much longer than it asked to wait a worker may wait for an answer.
	acquireSilence = 15 * time.Second
	// endSilence is how long it may wait for the answer to a Complete.
	endSilence = 30 * time.Second
)

// playSilence: one call of each kind is never answered.
func playSilence(st *scene) {
	if hung := st.silence(callAcquire); hung != nil && st.until(hung.wait+acquireSilence, st.comesBack(hung)) {
		if hung := st.silence(callComplete); hung != nil {
			st.until(endSilence, st.comesBack(hung))
		}
	}
}

// silence lets the next call of a kind hang, and returns it; nil where none comes.
func (st *scene) silence(method string) (hung *call) {
	st.behave(func(c *call) fault {
		if hung != nil || c.method != method {
			return fault{}
		}
		hung = c
		return fault{hang: true}
	})
	st.offer(0) // a poll that is parked already must end before the next one comes
	st.until(patience, func() bool { return hung != nil })
	return hung
}

// comesBack tells whether the worker repeats a call that hangs, or takes up other work.
func (st *scene) comesBack(hung *call) func() bool {
	return func() bool { return cameBack(hung, st.calls) != nil }
}

// cancelPatience is how long a worker may take to stop after it was told of a cancel.
const cancelPatience = 10 * time.Second

// playCancel: CancelJob, and the heartbeats say so.
func playCancel(st *scene) {
	st.behave(func(c *call) fault { return fault{cancel: c.method == callBeat} })
	j := st.offer(60)[0]
	told := func() bool {
		return len(j.leases) > 0 && len(j.leases[0].renewals()) > 0
	}
	if st.until(patience, told) {
		st.until(cancelPatience, func() bool { return j.leases[0].ended != "" })
	}
}

// playDrain: SIGTERM while one job is far from its end, another near, and a slot is free. The worker
// has spoken of both leases by then: an answer that SIGTERM overtook would not be its fault.
func playDrain(st *scene) {
	known := func(j *job) func() bool {
		return func() bool { return len(j.leases) > 0 && len(j.leases[0].calls) > 0 }
	}
	long := st.offer(600)[0]
	if !st.until(patience, func() bool { return len(long.leases) > 0 }) {
		return
	}
	short := st.offer(5)[0]
	st.until(2*time.Second, func() bool { return len(short.leases) > 0 }) // a worker may have one slot
	st.mu.Lock()
	st.pending = nil
	two := len(short.leases) > 0
	st.mu.Unlock()
	if st.until(patience, known(long)) && (!two || st.until(patience, known(short))) {
		st.terminate()
	}
}

// playRequestID: the first answer that has leases is lost.
func playRequestID(st *scene) {
	st.mu.Lock()
	st.loses = 1
	st.length = 2 * leaseLength // room to ask again
	st.mu.Unlock()
	jobs := st.offer(1, 1)
	if !st.until(patience, func() bool { return len(st.leases) > 0 }) {
		return
	}
	st.until(3*leaseLength, st.settled(jobs...))
}

// playLostEnd: the first Complete takes effect, and its answer is lost.
func playLostEnd(st *scene) {
	st.behave(func(c *call) fault {
		return fault{lose: c.method == callComplete && c.lease != nil && c.lease.job.id == 1 && len(c.lease.of(callComplete)) == 1}
	})
	first := st.offer(1)[0]
	again := func() bool { return len(first.leases) > 0 && len(first.leases[0].of(callComplete)) > 1 }
	ranOut := func() bool { return len(first.leases) > 0 && st.now() > first.leases[0].until() }
	if st.until(patience, func() bool { return again() || ranOut() }) {
		st.until(patience, completedAll(st.offer(1)...))
		st.pass(inFlight)
	}
}
