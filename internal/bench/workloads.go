package bench

import "strconv"

// workloads are what the benchmark measures, in the order of the table, with what each must
// reach.
var workloads = []workload{
	durableCommit(),
	drainMany("drain_many_10", 10, 10, Bound{}),
	drainMany("drain_many_100", 100, 100, ofLimit(0.75)),
	drainMany("drain_many_1000", 1000, 500, ofLimit(0.75)),
	drainOne(1, 1, ofLimit(0.8)), // at most 1.25 times the time
	drainTen(ofLimit(5)),
	drainOne(100, 100, ofLimit(0.6)),
	drainOne(1000, 100, ofLimit(0.85)),
	enqueueOne(1, 1, Bound{}),
	enqueueOne(10, 10, Bound{}),
	enqueueOne(100, 100, ofLimit(0.6)),
	enqueueMany(100, Bound{}),
	enqueueMany(1000, ofLimit(0.8)),
	pickup(10, Bound{}, Bound{}),
	pickup(100, timesLimit(1.5), timesLimit(5)),
	halfLoad(),
	drainPending("drain_pending_1m", func(p Plan) int64 { return p.PendingLarge }, ofLimit(0.9)),
	drainPending("drain_pending_10m", func(p Plan) int64 { return p.PendingHuge }, ofLimit(0.9)),
	drainFinished(ofLimit(0.95)),
	drainSnapshot(ofLimit(0.8)),
	drainPayload("drain_payload_100b", 100, Bound{}),
	drainPayload("drain_payload_1k", 1<<10, Bound{}),
	drainPayload("drain_payload_16k", 16<<10, Bound{}),
	heartbeats("heartbeats_10k", func(p Plan) int { return p.LeasesFew }, false),
	heartbeats("heartbeats_100k", func(p Plan) int { return p.LeasesMany }, true),
	connectionsUsed(2000, 20, Bound{kind: valueAtMost, value: 10}),
	parkedPolls(2000, 20),
	idleCost(Bound{kind: valueAtMost, value: 3}),
}

func named(prefix string, n int) string { return prefix + strconv.Itoa(n) }
