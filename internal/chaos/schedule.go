package main

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// kind is a kind of fault.
type kind string

// The kinds. A worker is a producer now and then. Those of proxies are of one side of one replica: outer is towards its clients,
// inner towards PostgreSQL.
const (
	handKill   kind = "worker killed"
	handFreeze kind = "worker stopped"

	replicaKill    kind = "replica killed"
	replicaFreeze  kind = "replica stopped"
	replicaRestart kind = "replica restarted"
	replicasKill   kind = "all replicas killed"
	replicasRoll   kind = "rolling restart"

	outerCut     kind = "clients cut off"
	outerRefuse  kind = "clients refused"
	outerSwallow kind = "clients black-holed"
	outerDelay   kind = "clients delayed"
	innerCut     kind = "database cut off"
	innerRefuse  kind = "database refused"
	innerSwallow kind = "database black-holed"
	innerDelay   kind = "database delayed"

	postgresRestart kind = "PostgreSQL restarted"
	postgresKill    kind = "PostgreSQL crashed"
	postgresFreeze  kind = "PostgreSQL stopped"

	sqlRows      kind = "rows locked by a stranger"
	sqlKeys      kind = "keys locked by a stranger"
	sqlTable     kind = "table locked by a stranger"
	sqlSnapshot  kind = "snapshot held by a stranger"
	sqlTerminate kind = "sessions terminated"
	sqlReadOnly  kind = "database read-only"
)

// fault is one entry of a schedule.
type fault struct {
	at     time.Duration // from the start
	length time.Duration // until it is healed; 0: it is over at once
	kind   kind
	target int     // which worker or replica, where the kind is of one
	how    float64 // 0..1: what the kind leaves open, as a direction or a delay
}

func (f fault) String() string {
	return fmt.Sprintf("%7.2fs %s (%d) for %s", f.at.Seconds(), f.kind, f.target, f.length.Round(time.Millisecond))
}

// lanes are what a fault has to itself: two faults of one lane never happen at a time.
func (s shape) lanes(f fault) []string {
	switch f.kind {
	case handKill, handFreeze:
		return []string{fmt.Sprint("hand ", f.target)}
	case replicaKill, replicaFreeze, replicaRestart:
		return []string{fmt.Sprint("replica ", f.target)}
	case replicasKill, replicasRoll:
		var all []string
		for i := range s.replicas {
			all = append(all, fmt.Sprint("replica ", i))
		}
		return all
	case outerCut, outerRefuse, outerSwallow, outerDelay:
		return []string{fmt.Sprint("outer ", f.target)}
	case innerCut, innerRefuse, innerSwallow, innerDelay:
		return []string{fmt.Sprint("inner ", f.target)}
	case postgresRestart, postgresKill, postgresFreeze:
		return []string{"postgres"}
	}
	return []string{"sql"}
}

// kinds are how often each kind comes, and how long it lasts. Stops last longer than a lease
// mostly, so that who is stopped wakes up too late.
var kinds = []struct {
	kind        kind
	weight      int
	least, most time.Duration
}{
	{handKill, 14, 0, 3 * time.Second},
	{handFreeze, 12, time.Second, 9 * time.Second},
	{replicaKill, 6, 200 * time.Millisecond, 5 * time.Second},
	{replicaFreeze, 5, time.Second, 8 * time.Second},
	{replicaRestart, 2, 0, 0},
	{replicasKill, 2, 0, 6 * time.Second},
	{replicasRoll, 2, 0, 0},
	{outerCut, 5, 0, 0},
	{outerRefuse, 2, time.Second, 5 * time.Second},
	{outerSwallow, 5, time.Second, 7 * time.Second},
	{outerDelay, 3, time.Second, 7 * time.Second},
	{innerCut, 5, 0, 0},
	{innerRefuse, 2, time.Second, 5 * time.Second},
	{innerSwallow, 5, time.Second, 7 * time.Second},
	{innerDelay, 3, time.Second, 7 * time.Second},
	{postgresRestart, 2, 0, 0},
	{postgresKill, 2, 0, 4 * time.Second},
	{postgresFreeze, 2, 500 * time.Millisecond, 7 * time.Second},
	{sqlRows, 3, time.Second, 8 * time.Second},
	{sqlKeys, 1, time.Second, 6 * time.Second},
	{sqlTable, 1, 500 * time.Millisecond, 3 * time.Second},
	{sqlSnapshot, 1, 2 * time.Second, 10 * time.Second},
	{sqlTerminate, 2, 0, 0},
	{sqlReadOnly, 1, time.Second, 6 * time.Second},
}

const (
	// warmUp is before the first fault.
	warmUp = time.Second
	// laneRest is how long a lane has peace after a fault, so that what was done to it has
	// effects that differ from those of one long outage.
	laneRest = 1500 * time.Millisecond
	// rollTime is what a restart takes that waits for a drain.
	rollTime = 4 * time.Second
)

// shape is what a schedule depends on beside its seed.
type shape struct {
	duration        time.Duration
	pause           time.Duration
	hands, replicas int
}

// plan is the schedule that follows from a seed.
func plan(seed uint64, s shape) []fault {
	rng := rand.New(rand.NewPCG(seed, 1))
	busy := map[string]time.Duration{}
	var schedule []fault
	for at := warmUp; at < s.duration; at += time.Duration(rng.ExpFloat64() * float64(s.pause)) {
		f := s.draw(rng, at)
		lanes := s.lanes(f)
		free := true
		for _, lane := range lanes {
			free = free && busy[lane] <= at
		}
		if !free {
			continue
		}
		for _, lane := range lanes {
			busy[lane] = at + f.length + s.takes(f) + laneRest
		}
		schedule = append(schedule, f)
	}
	return schedule
}

// draw is one fault by chance.
func (s shape) draw(rng *rand.Rand, at time.Duration) fault {
	sum := 0
	for _, k := range kinds {
		sum += k.weight
	}
	f := fault{at: at, how: rng.Float64()}
	n := rng.IntN(sum)
	for _, k := range kinds {
		if n -= k.weight; n < 0 {
			f.kind = k.kind
			f.length = k.least
			if k.most > k.least {
				f.length += upTo(rng, k.most-k.least)
			}
			break
		}
	}
	if f.kind == handKill || f.kind == handFreeze {
		f.target = rng.IntN(s.hands)
	} else {
		f.target = rng.IntN(s.replicas)
	}
	return f
}

// takes is about how long a fault takes beside its length.
func (s shape) takes(f fault) time.Duration {
	switch f.kind {
	case replicaRestart:
		return rollTime
	case replicasRoll:
		return rollTime * time.Duration(s.replicas)
	case postgresRestart, postgresKill:
		return 2 * time.Second
	}
	return 0
}
