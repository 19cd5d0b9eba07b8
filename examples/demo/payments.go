package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// The two queues of the demo.
const (
	queuePayments       = "payments"
	queueReconciliation = "reconciliation"
)

const (
	// leaseDuration is short, so that a lease that runs out is soon seen to.
	leaseDuration = 3 * time.Second
	// part is how long one part of a capture takes. Each ends with a heartbeat.
	part = 300 * time.Millisecond
)

// payment is the payload of a job.
type payment struct {
	ID     string `json:"payment"`
	Amount int    `json:"amount"` // cents
	// Parts is how many parts the capture of this payment has: how long it takes.
	Parts int `json:"parts"`
}

// interfereAt is after how many parts somebody interferes with the two payments below.
const interfereAt = 3

// The two payments that somebody interferes with.
const (
	killedPayment  = "pay-01" // its worker is killed
	stoppedPayment = "pay-02" // its worker is stopped, and continued too late
)

// scenario is one payment, with what is special about it.
type scenario struct {
	payment
	kind string
	// outages is how often the provider is away when it is asked about this payment.
	outages int
	// payload stands for that of the payment where it is not one.
	payload  string
	priority int32
}

// scenarios are the payments of the demo.
func scenarios() []scenario {
	out := []scenario{
		// First in line, so that two workers are busy with them when it happens.
		{payment: payment{killedPayment, 4200, 8}, kind: "killed", priority: 1},
		{payment: payment{stoppedPayment, 1999, 8}, kind: "stopped", priority: 1},
		// Longer than a lease: heartbeats carry it. Last, or all the others would wait.
		{payment: payment{"pay-03", 120000, 13}, kind: "slow", priority: 9},
		{payment: payment{"pay-04", 7550, 13}, kind: "slow", priority: 9},
		{payment: payment{"pay-05", 310, 1}, kind: "failing", outages: 2},
		{payment: payment{"pay-06", 990, 1}, kind: "failing", outages: 1},
		{payment: payment{"pay-07", 666, 1}, kind: "poisonous", payload: `{"payment":"pay-07","amount":"six sixty-six"}`},
	}
	for i := 8; i <= 12; i++ {
		out = append(out, scenario{payment: payment{fmt.Sprintf("pay-%02d", i), 100 * i, 1}, kind: "plain"})
	}
	return out
}

// request is the call that enqueues a payment. The key makes it repeatable: a producer that
// lost the answer asks again, and there is still one job.
func (s scenario) request() (*pb.EnqueueRequest, error) {
	payload := s.payload
	if payload == "" {
		text, err := json.Marshal(s.payment)
		if err != nil {
			return nil, err
		}
		payload = string(text)
	}
	req := &pb.EnqueueRequest{
		Queue:          queuePayments,
		Payload:        &pb.Payload{Content: &pb.Payload_Json{Json: payload}},
		Subject:        proto.String(subjectOf(s.ID)),
		IdempotencyKey: proto.String(s.ID),
	}
	if s.priority != 0 {
		req.Priority = proto.Int32(s.priority)
	}
	return req, nil
}

// subjectOf is the business key by which every job about a payment is found.
func subjectOf(paymentID string) string { return subjectPrefix + paymentID }

func paymentOf(subject string) string { return strings.TrimPrefix(subject, subjectPrefix) }

const subjectPrefix = "payment/"

// queues are how the demo's queues are set up.
func queues() []*pb.Queue {
	return []*pb.Queue{
		{
			Name:     queuePayments,
			OnExpiry: pb.OnExpiry_ON_EXPIRY_REQUEUE,
			Policy: &pb.JobPolicy{
				LeaseDuration: durationpb.New(leaseDuration),
				MaxAttempts:   proto.Int32(5),
				Backoff:       &pb.Backoff{Initial: durationpb.New(300 * time.Millisecond)},
			},
		},
		{
			Name:     queueReconciliation,
			OnExpiry: pb.OnExpiry_ON_EXPIRY_REQUEUE,
			Policy:   &pb.JobPolicy{LeaseDuration: durationpb.New(leaseDuration)},
		},
	}
}
