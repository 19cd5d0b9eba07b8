package server

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// arena makes the messages of one answer. A lease has a dozen of them: allocated one by one
// they took a third of the time that an answer of many leases takes. The zero arena
// allocates each by itself.
type arena struct {
	leases    []pb.Lease
	jobs      []pb.Job
	times     []timestamppb.Timestamp
	durations []durationpb.Duration
	payloads  []pb.Payload

	// Neighbours mostly have one policy. Its message is shared: an answer is only read.
	policy store.Policy
	shared *pb.JobPolicy
}

// newArena is an arena with room for n leases.
func newArena(n int) *arena {
	return &arena{
		leases: make([]pb.Lease, n), jobs: make([]pb.Job, n), payloads: make([]pb.Payload, n),
		times: make([]timestamppb.Timestamp, 4*n), durations: make([]durationpb.Duration, 2*n),
	}
}

// take is the next of a slice, or a new one where that is used up.
func take[T any](from *[]T) *T {
	if len(*from) == 0 {
		return new(T)
	}
	next := &(*from)[0]
	*from = (*from)[1:]
	return next
}

func (a *arena) time(t time.Time) *timestamppb.Timestamp {
	out := take(&a.times)
	out.Seconds, out.Nanos = t.Unix(), int32(t.Nanosecond())
	return out
}

func (a *arena) timeOrNil(t *time.Time) *timestamppb.Timestamp {
	if t == nil {
		return nil
	}
	return a.time(*t)
}

func (a *arena) duration(d time.Duration) *durationpb.Duration {
	out := take(&a.durations)
	out.Seconds, out.Nanos = int64(d/time.Second), int32(d%time.Second)
	return out
}

// defaults is the message of a policy that nobody chose anything of.
var defaults = policyOut(inForce(store.Policy{}))

// policyInForce converts a policy with its defaults filled in.
func (a *arena) policyInForce(p store.Policy) *pb.JobPolicy {
	if p == (store.Policy{}) {
		return defaults
	}
	if a.shared == nil || !samePolicy(a.policy, p) {
		a.policy, a.shared = p, policyOut(inForce(p))
	}
	return a.shared
}

func samePolicy(p, q store.Policy) bool {
	return same(p.MaxAttempts, q.MaxAttempts) && same(p.MaxExpirations, q.MaxExpirations) &&
		same(p.BackoffInitial, q.BackoffInitial) && same(p.BackoffFactor, q.BackoffFactor) &&
		same(p.BackoffCap, q.BackoffCap) && same(p.BackoffJitter, q.BackoffJitter) &&
		same(p.LeaseDuration, q.LeaseDuration) && same(p.MaxRuntime, q.MaxRuntime) &&
		same(p.StallTimeout, q.StallTimeout) && same(p.CancelGrace, q.CancelGrace) &&
		same(p.IdempotencyRetention, q.IdempotencyRetention)
}

func same[T comparable](p, q *T) bool {
	return p == q || p != nil && q != nil && *p == *q
}
