// Package store is the domain of Leasehold: its types, its typed errors, and the Store
// interface with its contract. It knows neither gRPC nor SQL.
//
//	client ─► server ─► store.Store ─► store/postgres ─► PostgreSQL
//
// # States of a job
//
//	Enqueue ─► PENDING ──Acquire──► PROCESSING ──Complete──► COMPLETED
//	             ▲  ▲                 │  │ │ └──Fail, permanent or last attempt──► DEAD
//	             │  └─Fail, Release───┘  │ └────ended by time, last attempt──────► DEAD
//	             └────ended by time──────┤
//	                                     └──ended by time, queue holds, or too often in a row──► STUCK
//
// COMPLETED, DEAD and CANCELLED are terminal. They change only by RetryJobs (DEAD, STUCK →
// PENDING), ResolveJob, and a late Complete.
//
// # Leases
//
// A lease is the claim of one worker on one job until an end. It is named by job and number;
// the number rises by one with every lease of the job and is what downstream systems compare
// (the fencing number). The lease token is that name under a MAC. A call on a lease is scoped
// to it: a message from the past finds another number and changes nothing.
//
// # Which end uses what
//
//	end                        attempt  next run
//	Complete                   no       never
//	Fail                       yes      backoff or retry_after; DEAD on the last
//	Fail, permanent            yes      never: DEAD
//	expired, overran, stalled  yes      at once the first time in a row, then backoff; STUCK
//	                                    where the queue holds or at max_expirations; else DEAD
//	                                    on the last attempt
//	Release, undelivered       no       at once or after the delay; from the fourth at once in
//	                                    a row with backoff; the hundredth counts as failed
//	any but Complete, after a  no       never: CANCELLED
//	cancel request
//
// # Who may blame silence
//
// Ending a lease by time needs proof that the service could have taken its heartbeats: some
// replica stamps the database each second after a write was possible, and every statement
// that ends a lease by time asks that the stamp is fresh and unbroken for long enough (R35).
package store
