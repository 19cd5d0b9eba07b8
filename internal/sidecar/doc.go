// Package sidecar is the service's stand-in beside a worker. It serves the same API on a socket
// of the machine, and forwards each call to the replicas of the service:
//
//	worker ──unix socket──▶ sidecar ──TLS, identity──▶ replica 1, 2, 3 ──▶ PostgreSQL
//
// The worker needs no TLS, no credentials, no load balancing and no repetition of its own. What
// it is told (answers, status, details, trailers) is what the service says, word for word; only a
// call that may be repeated without harm, and failed for a reason that may pass, is repeated here
// for as long as its caller waits.
//
//	calls.go    the methods that are more than forwarded: heartbeats and ends, which are merged,
//	            and acquires, whose long wait goes upstream in pieces
//	lane.go     merging
//	forward.go  everything else, byte by byte: methods that are newer than the sidecar, too
//	retry.go    what is repeated, and when
//	sidecar.go  the server, its health and its drain
//
// It holds no state: whatever it forgets by a kill -9, the service knows.
package sidecar
