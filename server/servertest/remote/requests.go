package remote

import (
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// Calls of a Store as requests of the API. They are written apart from the server's own
// conversions, so that a mistake there is not made here as well.

func idOut(id store.JobID) string { return strconv.FormatInt(int64(id), 10) }

func idsOut(ids []store.JobID) (out []string) {
	for _, id := range ids {
		out = append(out, idOut(id))
	}
	return out
}

func durationOut(d *time.Duration) *durationpb.Duration {
	if d == nil {
		return nil
	}
	return durationpb.New(*d)
}

func timeOut(t *time.Time) *timestamppb.Timestamp {
	if t == nil {
		return nil
	}
	return timestamppb.New(*t)
}

func payloadOut(p store.Payload) *pb.Payload {
	out := &pb.Payload{ContentType: p.ContentType}
	if p.JSON {
		out.Content = &pb.Payload_Json{Json: string(p.Data)}
	} else {
		out.Content = &pb.Payload_Data{Data: p.Data}
	}
	return out
}

func policyOut(p store.Policy) *pb.JobPolicy {
	return &pb.JobPolicy{
		MaxAttempts: p.MaxAttempts, MaxExpirations: p.MaxExpirations,
		Backoff: &pb.Backoff{
			Initial: durationOut(p.BackoffInitial), Factor: p.BackoffFactor, Cap: durationOut(p.BackoffCap), Jitter: p.BackoffJitter,
		},
		LeaseDuration: durationOut(p.LeaseDuration), MaxRuntime: durationOut(p.MaxRuntime), StallTimeout: durationOut(p.StallTimeout),
		CancelGrace: durationOut(p.CancelGrace), IdempotencyRetention: durationOut(p.IdempotencyRetention),
	}
}

func newJobOut(j store.NewJob) *pb.EnqueueRequest {
	return &pb.EnqueueRequest{
		Queue: j.Queue, Payload: payloadOut(j.Payload), Headers: j.Headers, Subject: j.Subject, Priority: j.Priority,
		RunAt: timeOut(j.RunAt), Delay: durationOut(j.Delay), IdempotencyKey: j.IdempotencyKey, Policy: policyOut(j.Policy),
	}
}

func followUpsOut(jobs []store.NewJob) (out []*pb.EnqueueRequest) {
	for _, j := range jobs {
		out = append(out, newJobOut(j))
	}
	return out
}

func filterOut(f store.JobFilter) *pb.JobFilter {
	out := &pb.JobFilter{
		Queue: f.Queue, Subject: f.Subject, CreatedFrom: timeOut(f.CreatedFrom), CreatedBefore: timeOut(f.CreatedBefore), ErrorCode: f.ErrorCode,
	}
	for _, s := range f.States {
		out.States = append(out.States, pb.JobState(s))
	}
	return out
}

func queueOut(q store.Queue) *pb.Queue {
	return &pb.Queue{Name: q.Name, Policy: policyOut(q.Policy), OnExpiry: pb.OnExpiry(q.OnExpiry), StallEndsLease: q.StallEndsLease}
}

func (r *Store) acquireOut(a store.Acquire) *pb.AcquireLeaseRequest {
	req := &pb.AcquireLeaseRequest{
		Queues: a.Queues, LeaseOwner: a.Owner, LeaseDuration: durationOut(a.LeaseDuration), RequestId: a.RequestID,
		MaxJobs: to(int32(a.MaxJobs)),
	}
	if a.JobID != 0 {
		req.JobId = to(idOut(a.JobID))
	}
	if r.Wait > 0 {
		req.Wait = durationpb.New(r.Wait)
	}
	return req
}

func (r *Store) heartbeatOut(h store.Heartbeat) *pb.HeartbeatRequest {
	return &pb.HeartbeatRequest{LeaseToken: r.token(h.Lease), Stage: h.Stage, Progress: h.Progress, Checkpoint: h.Checkpoint}
}

func (r *Store) completeOut(c store.Complete) *pb.CompleteRequest {
	return &pb.CompleteRequest{LeaseToken: r.token(c.Lease), Result: payloadOut(c.Result), ThenEnqueue: followUpsOut(c.ThenEnqueue)}
}

func (r *Store) failOut(f store.Fail) *pb.FailRequest {
	sendable := func(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }
	return &pb.FailRequest{
		LeaseToken: r.token(f.Lease), Permanent: f.Permanent, RetryAfter: durationOut(f.RetryAfter), ThenEnqueue: followUpsOut(f.ThenEnqueue),
		Error: &pb.JobError{Code: sendable(f.Error.Code), Message: sendable(f.Error.Message), Details: sendable(f.Error.Details)},
	}
}

func (r *Store) releaseOut(x store.Release) *pb.ReleaseRequest {
	return &pb.ReleaseRequest{LeaseToken: r.token(x.Lease), Delay: durationpb.New(x.Delay)}
}

func to[T any](v T) *T { return &v }
