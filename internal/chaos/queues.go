package main

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// The queues, each with another way for a job to end badly.
const (
	queueOrders   = "orders"   // runs again for as long as it takes
	queuePayments = "payments" // holds what expired
	queueMails    = "mails"    // gives up soon
	queueExports  = "exports"  // ends what stalls or takes too long
	queueReceipts = "receipts" // gets follow-up jobs
)

var queueNames = []string{queueOrders, queuePayments, queueMails, queueExports, queueReceipts}

const (
	// leaseLeast and leaseMost bound the leases that workers ask for.
	leaseLeast = 2 * time.Second
	leaseMost  = 4 * time.Second
	// watcherInterval is that of the replicas.
	watcherInterval = time.Second
)

func queues() []*pb.Queue {
	// Backoffs are short, so that jobs come to rest within the time of the run.
	policy := func(p *pb.JobPolicy) *pb.JobPolicy {
		p.LeaseDuration = durationpb.New(3 * time.Second)
		p.Backoff = &pb.Backoff{Initial: durationpb.New(200 * time.Millisecond), Cap: durationpb.New(2 * time.Second)}
		return p
	}
	return []*pb.Queue{
		{Name: queueOrders, OnExpiry: pb.OnExpiry_ON_EXPIRY_REQUEUE, Policy: policy(&pb.JobPolicy{MaxExpirations: to(int32(8))})},
		{Name: queuePayments, OnExpiry: pb.OnExpiry_ON_EXPIRY_HOLD, Policy: policy(&pb.JobPolicy{CancelGrace: durationpb.New(2 * time.Second)})},
		{Name: queueMails, OnExpiry: pb.OnExpiry_ON_EXPIRY_REQUEUE, Policy: policy(&pb.JobPolicy{MaxAttempts: to(int32(2))})},
		{Name: queueExports, StallEndsLease: true, Policy: policy(&pb.JobPolicy{
			MaxRuntime: durationpb.New(6 * time.Second), StallTimeout: durationpb.New(3 * time.Second), MaxExpirations: to(int32(3)),
		})},
		{Name: queueReceipts, Policy: policy(&pb.JobPolicy{MaxAttempts: to(int32(5))})},
	}
}

func to[T any](v T) *T { return &v }
