// Package conformance judges worker programs, in any language, by what they do when things go wrong.
//
//	                environment: address, queue, slots
//	scenario ──► scene ───────────────────────────────► worker process
//	   │           │ ▲                                      │
//	   │ script    │ └───── gRPC: AcquireLease, Heartbeat, …┘
//	   ▼           ▼
//	faults      history ──► rules ──► report
//
// Each scenario is one run of the worker against a service of its own: a LeaseService in memory that
// answers as the contract has it, but for the faults of the scenario's script. It keeps every call,
// with its answer and both times, by its own clock. When the scenario is over the worker is killed,
// and the rules look at the history. They see nothing else of the worker: no log, no exit code but
// that of a drain.
//
// # Judging by times
//
// A worker is told durations, and its machine may be busy. So no rule asks for speed. What must come
// in time has seconds in reserve: a lease has six, of which a worker that beats as advised leaves
// four. What must not come is judged by when it would have come: work that is not stopped ends at a
// known time. What may have been under way when the worker heard of what forbids it is let pass for
// inFlight. A scene that was itself held up for longer than stallAllowed is played again, since the
// worker beside it was held up too.
//
// # Verdicts
//
// A rule passes only where its matter was seen. A worker that never beats is not told of a cancel
// request, and so neither honours nor ignores it: NOT SEEN, which is no pass.
//
// Each rule has a worker in the tests that breaks it and no other.
package conformance
