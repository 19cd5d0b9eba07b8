// Package server is the gRPC side of Leasehold: it turns calls into batches of store.Store
// and results into answers. It keeps nothing that correctness needs. A replica that dies
// takes along calls that were under way and parked polls, and their clients go to another.
//
//	call ─► request id ─► metrics ─► logging ─► errors ─► auth ─► validation ─► recovery ─► handler
//	                                                                                          │
//	             lease_token ─► (job id, lease_no); proto ─► store.NewJob, store.Complete …  ◄┘
//	                                  │
//	                             store.Store ─► results ─► answer, or per item {ok, error}
//
// # Handlers
//
// A handler converts, calls the store once and maps the result. Single calls are batches of
// one, so that both say the same. The items of a batch are validated one by one, those that
// pass go to the store together, and results stand in the order of the items (R3). What
// protovalidate can say is declared in the proto; what it cannot (JSON, sums, times
// relative to now) is checked by the conversion. Both give the same violations, with field
// and bound.
//
// # Errors
//
// Handlers return the store's typed errors. One function, faultOf, maps them by errors.As to
// code, reason and facts, for statuses and for ItemErrors alike. What it does not know is
// INTERNAL with a fixed message and the request id, and the text goes to the log: no words
// of a driver and no stack reach a client. Reasons stand in ErrorInfo and again in the
// trailer leasehold-reason. A call that its caller cancelled or let time out has a code and
// no reason: the caller's own gRPC library has made that status before ours arrives.
//
// # Who may do what
//
// The auth interceptor asks package identity who calls, and looks at the role that the proto
// declares for the method. An identity that may act on every queue passes at no further cost.
// For others each method has a visit (auth_visits.go) that checks the queues of the request
// and takes out of the answer what they may not see; a method without one is closed to them.
// Items of Enqueue, Heartbeat, Complete, Fail, Release and their batches are checked one by
// one behind the conversion (auth_items.go). A call that names a job is looked up by
// store.JobQueues: a job never changes its queue, so the answer is cached.
//
// # AcquireLease
//
//	                ┌── leases ──────────────────────────────► answer
//	claim at once ──┤                                            ▲
//	                └── none ─► early sweep ─► park ─► woken ─► claim ── none ─► park again
//	                                            │
//	                                            ├─ min(wait, deadline - 500 ms) ─► empty answer
//	                                            ├─ the caller is gone ───────────► no claim
//	                                            └─ Drain ────────────────────────► DRAINING
//
// A parked poll is a goroutine and an entry in a registry; it holds no connection. It
// registers before the claim whose emptiness makes it wait, so that a job which comes in
// between finds it. It is woken by what happens in this replica (Enqueue, follow-ups,
// Release, Fail, ResumeQueue, RetryJobs) at once, by hints of other replicas, by a timer
// when a job becomes due, and by the truth behind all of these: one statement a second for
// all queues that are waited for (R41).
//
// A wake is a reason to look, never a job. One job wakes as many polls as are needed for it,
// not all: each takes a grant for so many jobs. A grant is never lost with its waiter. If the
// waiter goes away without looking, all of it goes to the next; if it found other jobs or
// fewer, the rest does; if it found nothing, one more waiter looks, and then the job is
// taken to be gone. Where nobody knows how many jobs there are (poll, hint), a few waiters are
// woken and each that finds one wakes the next.
//
// A poll for one job by its id has no queue to wait on: it is woken by calls for that job
// in this replica, and looks again each second.
//
// Claims of different callers are merged (merge.go): while statements run, the calls that
// arrive wait and go together in the next one. A caller that is gone before its claim begins does not claim. A claim that has
// begun is not cut off, because nobody would know whether it committed; if its caller is
// gone when it returns, its leases are given back ("undelivered"). That is checked at the
// last moment before the answer is handed to gRPC. An answer that is lost behind that point
// cannot be seen from here, and its leases run until they expire.
//
// # Merging
//
// mergedStore gathers the calls of one kind of all connections: Enqueue, AcquireLease,
// Heartbeat, Complete, Fail and Release each have a merger, with a few batches in flight. A
// caller leaves at its own deadline; a batch that fails for what is in it is halved until the
// poisonous call is alone; an item that was locked is tried again by its caller alone.
//
// # What cannot be delayed
//
// Heartbeat, Complete, Fail and Release share no merger, slot or connection with acquires: a beat
// that waits behind claims is a lease lost by a healthy worker.
//
// # Shutdown
//
// Drain, in this order: health NOT_SERVING; parked polls and new acquires answer DRAINING;
// heartbeats answer server_draining; streams of gRPC's own services end; calls under way are
// answered; when the time is over, connections are closed. Claims under way are delivered or
// given back before Drain returns, so the store must outlive it.
//
// # Loops
//
// RunWaking runs the poll, the early sweep, the listener and the sender of hints; Background
// runs it beside the stamper and the watcher. A panic or error of a pass never ends a loop.
// Without the listener jobs of other replicas are found up to a second later; without the
// poll parked polls end empty at their time, and each new call still looks for itself.
package server
