package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// work leases jobs, beats, and ends each lease as the job's number and the lease's say.
func (l *load) work(name string) {
	conn, err := l.dial()
	if err != nil {
		return
	}
	leases := pb.NewLeaseServiceClient(conn)
	for n := 0; l.workerStop.Err() == nil; n++ {
		request := fmt.Sprint(name, "/", n)
		resp, err := insist(l, "AcquireLease", leases.AcquireLease, &pb.AcquireLeaseRequest{
			Queues: []string{queue}, LeaseOwner: request, RequestId: &request, MaxJobs: to(int32(3)), Wait: durationpb.New(2 * time.Second),
		})
		if err != nil {
			continue
		}
		for _, lease := range resp.GetLeases() {
			l.granted(lease, request)
		}
		for _, lease := range resp.GetLeases() {
			l.finish(leases, lease)
		}
	}
}

// granted notes a lease, and whether somebody else was told of the same one.
func (l *load) granted(lease *pb.Lease, owner string) {
	key := grantKey{job: number(lease.GetJob().GetJobId()), no: lease.GetLeaseNo()}
	l.mu.Lock()
	defer l.mu.Unlock()
	if other := l.grants[key]; other != nil && other.owner != owner {
		l.doubled = append(l.doubled, fmt.Sprintf("lease %d of job %d was given to %s and to %s", key.no, key.job, other.owner, owner))
		return
	}
	l.grants[key] = &grant{owner: owner, began: time.Now()}
}

// finish works on a lease and ends it: of ten, one fails, one is released, eight complete.
func (l *load) finish(leases pb.LeaseServiceClient, lease *pb.Lease) {
	key := grantKey{job: number(lease.GetJob().GetJobId()), no: lease.GetLeaseNo()}
	token := lease.GetLeaseToken()
	rest(context.Background(), time.Duration(key.job%20)*time.Millisecond)
	stage := "working"
	if _, err := insist(l, "Heartbeat", leases.Heartbeat, &pb.HeartbeatRequest{LeaseToken: token, Stage: &stage}); err != nil {
		return
	}
	var end string
	var err error
	switch way := (key.job*7 + key.no*3) % 10; {
	case way == 0 && key.no < 5:
		end = "FAILED"
		_, err = insist(l, "Fail", leases.Fail, &pb.FailRequest{LeaseToken: token, Error: &pb.JobError{Code: "no_luck"}})
	case way == 1 && key.no < 5:
		end = "RELEASED"
		_, err = insist(l, "Release", leases.Release, &pb.ReleaseRequest{LeaseToken: token})
	default:
		end = "COMPLETED"
		_, err = insist(l, "Complete", leases.Complete, &pb.CompleteRequest{LeaseToken: token})
	}
	if err != nil {
		return
	}
	l.mu.Lock()
	if g := l.grants[key]; g != nil {
		g.ended = end
	}
	l.mu.Unlock()
	l.ended.Add(1)
}

// number reads a job's id; a service that writes it otherwise is met by a 0 that fits nothing.
func number(id string) int64 {
	n, _ := strconv.ParseInt(id, 10, 64)
	return n
}

// reasonIn is the reason that the service gave for an error, "" for none.
func reasonIn(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}

func to[T any](v T) *T { return &v }
