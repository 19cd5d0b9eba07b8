package server

import (
	"cmp"
	"fmt"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

var backoffFields = []store.QueueField{
	store.FieldBackoffInitial, store.FieldBackoffFactor, store.FieldBackoffCap, store.FieldBackoffJitter,
}

var policyFields = append([]store.QueueField{
	store.FieldMaxAttempts, store.FieldMaxExpirations, store.FieldLeaseDuration, store.FieldMaxRuntime,
	store.FieldStallTimeout, store.FieldCancelGrace, store.FieldIdempotencyRetention,
}, backoffFields...)

var queueFields = append([]store.QueueField{store.FieldOnExpiry, store.FieldStallEndsLease}, policyFields...)

func queueIn(q *pb.Queue) store.Queue {
	return store.Queue{
		Name:           q.GetName(),
		Policy:         policyIn(q.GetPolicy()),
		OnExpiry:       store.OnExpiry(q.GetOnExpiry()),
		StallEndsLease: q.GetStallEndsLease(),
	}
}

func (in *intake) queueUpdate(r *pb.UpdateQueueRequest) store.QueueUpdate {
	u := store.QueueUpdate{Queue: queueIn(r.GetQueue())}
	paths := r.GetUpdateMask().GetPaths()
	if len(paths) == 0 {
		in.refuse("update_mask", "must name at least one field")
	}
	for i, path := range paths {
		fields := maskFields(path)
		if len(fields) == 0 {
			in.refuse(fmt.Sprintf("update_mask.paths[%d]", i),
				`must be "policy", a field of policy or policy.backoff as "policy.max_attempts", "on_expiry" or "stall_ends_lease"`)
		}
		for _, f := range fields {
			if !slices.Contains(u.Fields, f) {
				u.Fields = append(u.Fields, f)
			}
		}
	}
	return u
}

// maskFields are the fields that a path of a mask names; none where there is no such path.
func maskFields(path string) []store.QueueField {
	switch path {
	case "policy":
		return policyFields
	case "policy.backoff":
		return backoffFields
	}
	if f := store.QueueField(path); slices.Contains(queueFields, f) {
		return []store.QueueField{f}
	}
	return nil
}

func queueOut(q *store.Queue) *pb.Queue {
	out := &pb.Queue{
		Name:           q.Name,
		Policy:         policyOut(q.Policy),
		OnExpiry:       pb.OnExpiry(q.OnExpiry),
		StallEndsLease: q.StallEndsLease,
		CreatedAt:      timestamppb.New(q.CreatedAt),
		Paused:         q.PausedAt != nil,
		PausedAt:       timeOut(q.PausedAt),
		PausedBy:       q.PausedBy,
		PauseNote:      q.PauseNote,
	}
	return out
}

// policyOut converts a policy as it is set; nil where nothing is.
func policyOut(p store.Policy) *pb.JobPolicy {
	if p == (store.Policy{}) {
		return nil
	}
	out := &pb.JobPolicy{
		MaxAttempts:          p.MaxAttempts,
		MaxExpirations:       p.MaxExpirations,
		LeaseDuration:        durationOut(p.LeaseDuration),
		MaxRuntime:           durationOut(p.MaxRuntime),
		StallTimeout:         durationOut(p.StallTimeout),
		CancelGrace:          durationOut(p.CancelGrace),
		IdempotencyRetention: durationOut(p.IdempotencyRetention),
	}
	b := &pb.Backoff{
		Initial: durationOut(p.BackoffInitial),
		Factor:  p.BackoffFactor,
		Cap:     durationOut(p.BackoffCap),
		Jitter:  p.BackoffJitter,
	}
	if b.Initial != nil || b.Factor != nil || b.Cap != nil || b.Jitter != nil {
		out.Backoff = b
	}
	return out
}

// inForce fills in what nobody set.
func inForce(p store.Policy) store.Policy {
	fill(&p.MaxAttempts, store.DefaultMaxAttempts)
	fill(&p.MaxExpirations, store.DefaultMaxExpirations)
	fill(&p.BackoffInitial, store.DefaultBackoffInitial)
	fill(&p.BackoffFactor, store.DefaultBackoffFactor)
	fill(&p.BackoffCap, store.DefaultBackoffCap)
	fill(&p.BackoffJitter, store.DefaultBackoffJitter)
	fill(&p.LeaseDuration, store.DefaultLeaseDuration)
	fill(&p.CancelGrace, store.DefaultCancelGrace)
	fill(&p.IdempotencyRetention, store.DefaultIdempotencyRetention)
	return p
}

func fill[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

// selection converts what a bulk act is about; batch is its size, 0 for the default.
func (in *intake) selection(sel *pb.JobSelection, batch int) store.Selection {
	out := store.Selection{Page: store.Page{Size: cmp.Or(batch, store.MaxBatch)}}
	for i, id := range sel.GetJobIds() {
		out.IDs = append(out.IDs, in.jobID(fmt.Sprintf("selection.job_ids[%d]", i), id))
	}
	if sel.GetFilter() != nil {
		f := filterIn(sel.GetFilter())
		out.Filter = &f
	}
	return out
}

func (in *intake) resolution(r *pb.ResolveJobRequest) store.Resolution {
	out := store.Resolution{
		JobID: in.jobID("job_id", r.GetJobId()),
		Actor: store.Actor{Name: r.GetActor(), Note: r.GetNote()},
	}
	if c, ok := r.GetResolution().(*pb.ResolveJobRequest_Completed); ok {
		result := in.payload("completed.result", c.Completed.GetResult())
		out.Result = &result
	}
	return out
}
