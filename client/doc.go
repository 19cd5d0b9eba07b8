// Package client is the Go worker runtime of Leasehold: it leases jobs, keeps their leases alive,
// cancels handlers in time, and tells the service how each lease ended. It also has a Producer,
// which enqueues jobs. Handlers are tested without a service by package clienttest.
//
//	service, err := client.Connect([]string{"leasehold-0:7070", "leasehold-1:7070"}, client.ConnectConfig{})
//	…
//	worker, err := client.NewWorker(service, client.WorkerConfig{
//		Queues:  []string{"payments"},
//		Handler: client.JSON(settle), // func(ctx context.Context, job *client.Job, p Payment) error
//	})
//	…
//	err = client.RunUntilSignal(ctx, worker)
//
// # What a handler may rely on
//
// Its context lives as long as the lease is surely its own. It is cancelled, with a cause that says
// why, before the lease can be another's. But a process can be stopped at any moment, between a look
// at the context and the effect that follows: give job.LeaseNo to every system that the work changes,
// and let it refuse a number below the highest that it has seen for the job. Nothing else makes two
// runs harmless.
//
//	cause of the context    | the lease is              | what the handler returns then
//	------------------------|---------------------------|-------------------------------------------
//	*LostError              | another's, or ended by    | is told to nobody
//	                        |   a call                  |
//	*LostError with reason  | ended by its time         | nil is still told: it is accepted, late, if
//	  LEASE_EXPIRED         |                           |   nobody else has begun
//	*ExpiredError           | in doubt                  | the same
//	*CancelRequestedError   | its own, for cancel_grace | nil: COMPLETED; else: CANCELLED
//	*ShutdownError          | its own                   | nil: COMPLETED; else: given back, without
//	                        |                           |   using an attempt
//
// # Shape
//
//	        ┌─────────────── slots ◄─────────────────────────────────┐ freed when the end is answered
//	        ▼                                                        │
//	poll: AcquireLease ──► begin ──► handler ──► ending ──► merged into BatchComplete, BatchFail,
//	  for all free slots     │         ▲                     BatchRelease, two calls of a kind at once
//	                         ▼         │ cancel
//	                       keeper ─────┘
//	                         │  one BatchHeartbeat for all leases, each on time
//	                         ▼
//	                   its own connections
//
// A lease is in one of these states, under the lock of the keeper:
//
//	working ──┬──► completing ──┬──► gone
//	          └──► closing ─────┘
//
// While working, the handler runs and the lease beats. It may be late (not renewed in time: the
// handler is cancelled, the lease beats on, in case that nobody else has it) or lost (it beats no
// more). While completing, the handler has returned nil and Complete is on its way; the lease beats
// on, because until that is answered the job must not run again. While closing, Fail or Release is on
// its way, and the lease beats no more: behind the call that hands the job to somebody else, a
// heartbeat would look as if the work ran twice. For the same reason that call waits up to 2 s for a
// heartbeat that is under way. When it is gone, its end was answered or given up, and its slot is
// free.
//
// # Time
//
// The service says what remains of a lease, never a time of day. It is counted from when the call was
// sent, plus the `waited` of a long poll: a moment at which the lease had not begun. The clock is one
// that counts the sleep of the machine (CLOCK_BOOTTIME on Linux, elsewhere the wall clock held
// against the monotonic one). Go's timers stand still meanwhile, so the keeper looks at the clock at
// least each second, and so does the handler's context whenever it is asked for Err or Done.
//
// A lease beats each third of its length. One that is due takes along those that will be within half
// of their interval, so that soon all beat together. A heartbeat that is not answered does not keep
// the next from being sent: that follows after a ninth of the lease, 0.1 s to 2 s, by another
// connection, and then at growing distances, but always at least once in the last third of what is
// left. A tenth of the lease before its end, at most 3 s, the handler is cancelled.
//
// # What happens on failure
//
//	a poll's answer is lost       it is asked for again by its request id, on another replica
//	a poll is refused             logged, and tried again with growing pauses, at most 10 s; no answer
//	                              ends the loop
//	a replica does not answer     the next call goes by another connection; it is tried again after a
//	                              second, then less often, at most each 30 s
//	a replica drains              the same, at once
//	a heartbeat fails             the next follows soon; all others are not touched
//	one lease of many is lost     its handler is cancelled; all others are renewed
//	a call that ends leases fails it is repeated, in the same words, until it is answered or the
//	                              lease has run out (Complete: a minute longer)
//	one end of many is poisonous  the batch is halved until it is alone
//	Complete is refused for good  the job fails with code "result_refused"
//	a handler panics              the job fails with code "panic" and the stack
//	the service is away           handlers go on until their leases are in doubt; nothing is blamed on
//	                              them if all replicas were away; the worker comes back by itself
//	this process is stopped       when it goes on, handlers whose leases ran out are cancelled at once
//
// # Shutdown
//
// The end of Run's context, Shutdown, or the first signal of RunUntilSignal: no more leases. A poll
// that is cut off may have leases on its way; it is repeated once by its request id, and what it
// brings is given back. Handlers may finish within the grace; then their contexts end, and what they
// did not finish is given back without using an attempt. The second signal, or Hurry, only cuts the
// grace short. A handler that does not return though it was cancelled keeps its job: to give that to
// somebody else while it works would be the double run that leases are there to prevent. Run then
// returns *DrainError, and the lease runs out when the process is gone.
//
// # Load
//
// A worker holds no more leases than it has slots, asks for all free ones in one call, and takes no
// lease that it does not begin at once. While a queue has more jobs than it can hold, it waits until
// half of its slots are free, but no longer than a poll takes, at most 20 ms. Ends and stages that
// come while calls are under way go together in the next one; ends wait a millisecond for others
// while handlers run, and for nothing where none does. With 1,000 slots a worker of
// jobs that do nothing drains a queue about as fast as bare loops of 500 jobs a call.
//
// Each job has a goroutine and no timer. Handlers that compute share the processors with the
// heartbeats: with more of them than processors, heartbeats wait for their turn, 10 ms for each that
// is before them.
package client
