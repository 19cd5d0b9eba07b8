// Package bench measures the service against the limits of what it stands on, with real
// processes: the service and a gRPC server that does nothing are children of the benchmark,
// PostgreSQL is a server beside them, and workers and producers are goroutines of the
// benchmark itself.
//
//	            ┌── L2: calls ──────────► gRPC server without a store behind (child)
//	benchmark ──┼── the workload ───────► leasehold serve (child) ──► PostgreSQL
//	            └── L1: batches ────────► store.Store, in this process ──► PostgreSQL
//
// # Rounds
//
// A machine is noisy, and the same program is 10 to 40 % faster or slower a minute later. So a
// limit is never compared with a figure of another time: rounds come in pairs, a round of the
// limit and a round of the workload in alternation, and the median of the ratios of the pairs
// is what a bound judges. Where a limit is made of two (a job costs the store's time and two
// calls), each is measured for a whole round, and the limit is 1/(1/L1 + 1/L2).
//
// A round is steady state: callers run before its clock starts and after it has stopped. The
// queue is filled before; where it runs dry early, the callers and the clock pause while it
// is filled again.
//
// # Databases
//
// Each workload has a database of its own, made for it and dropped after it, and a service of
// its own. No workload finds what another left behind, and a server that holds other
// databases can be measured without harm to them.
//
// # Parts
//
// A workload ([workload]) prepares its rounds; the runner ([Run]) alternates, counts and
// reports progress; [WriteTable] and [WriteJSON] print. What must be reached stands as data
// beside each figure (workloads.go).
package bench
