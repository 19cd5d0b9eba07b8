package main

import (
	"maps"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest"
)

// lies are what a service that breaks its promises would leave behind, each with a word of
// the violation that must be found.
var lies = map[string]struct {
	found string
	tell  func(t *testing.T, e *evidence)
}{
	"completed twice": {"was completed twice", func(t *testing.T, e *evidence) {
		e.add(e.completed(t))
	}},
	"a job is lost": {"was stored and is lost", func(t *testing.T, e *evidence) {
		delete(e.Tables, e.completedJob(t))
	}},
	"a job is there twice": {"answered as", func(t *testing.T, e *evidence) {
		i := e.find(t, func(i item) bool {
			r, ok := i.request.(*pb.EnqueueRequest)
			return ok && i.answer != nil && r.IdempotencyKey == nil
		})
		row := e.Tables[idIn(i.answer.(*pb.EnqueueResponse).GetJobId())]
		row.Job.ID = 1 << 40
		row.Leases = nil
		e.Tables[row.Job.ID] = row
	}},
	"a key has two jobs": {"has jobs", func(t *testing.T, e *evidence) {
		for _, row := range e.Tables {
			if row.Job.IdempotencyKey != nil {
				row.Job.ID = 1 << 40
				e.Tables[row.Job.ID] = row
				return
			}
		}
		t.Fatal("no job has a key")
	}},
	"a job out of nothing": {"was stored by nobody", func(t *testing.T, e *evidence) {
		e.change(e.completedJob(t), func(r *storetest.JobRow) { r.Job.Payload, r.Job.ParentJobID = &store.Payload{Data: []byte("x")}, nil })
	}},
	"two valid leases at once": {"was promised until", func(t *testing.T, e *evidence) {
		i := e.completed(t)
		token := i.request.(*pb.CompleteRequest).GetLeaseToken()
		// Its holder has never ended it, and somebody else holds the next before its time.
		e.items = slices.DeleteFunc(e.items, func(i item) bool {
			r, ok := i.request.(interface{ GetLeaseToken() string })
			_, beat := i.request.(*pb.HeartbeatRequest)
			return ok && !beat && r.GetLeaseToken() == token
		})
		ref, _ := store.NewTokens(e.TokenKey).Open(token)
		grant := e.granted(t, ref)
		next := proto.Clone(grant.answer).(*pb.AcquireLeaseResponse)
		for _, l := range next.GetLeases() {
			l.LeaseNo++
			l.LeaseUntil = timestamppb.New(l.GetLeaseUntil().AsTime().Add(time.Millisecond))
		}
		grant.answer = next
		e.add(grant)
	}},
	"delivered and taken back": {"taken back as undelivered", func(t *testing.T, e *evidence) {
		id := e.completedJob(t)
		e.granted(t, store.LeaseRef{JobID: id, LeaseNo: e.Tables[id].Job.LeaseNo})
		e.change(id, func(r *storetest.JobRow) { r.Leases[len(r.Leases)-1].End = store.EndUndelivered })
	}},
	"a lease without an end": {"has no end on record", func(_ *testing.T, e *evidence) { e.Records[0].EndedBy = nil }},
	"a lease off the record": {"on record", func(_ *testing.T, e *evidence) { e.Records = e.Records[1:] }},
	"two records of a lease": {"is due", func(_ *testing.T, e *evidence) { e.Records = append(e.Records[:1:1], e.Records...) }},
	"still leased": {"is still leased", func(t *testing.T, e *evidence) {
		e.change(e.completedJob(t), func(r *storetest.JobRow) {
			r.Job.State, r.Job.LeaseOwner, r.Job.LeaseUntil = store.Processing, to("worker"), &r.Job.CreatedAt
		})
	}},
	"an effect is lost": {"the ledger took", func(t *testing.T, e *evidence) { delete(e.Effects, e.completedJob(t)) }},
	"a follow-up of nobody": {"no lease has made it", func(t *testing.T, e *evidence) {
		ids := slices.Sorted(maps.Keys(e.Tables))
		e.change(ids[0], func(r *storetest.JobRow) { r.Job.ParentJobID = &ids[1] })
	}},
	"leased from a paused queue": {"was paused since", func(t *testing.T, e *evidence) {
		i := e.completed(t)
		ref, _ := store.NewTokens(e.TokenKey).Open(i.request.(*pb.CompleteRequest).GetLeaseToken())
		grant, queue := e.granted(t, ref), e.Tables[ref.JobID].Job.Queue
		before, after := grant.start.Add(-time.Minute), grant.end.Add(time.Minute)
		e.add(item{event: &event{start: before, end: before}, request: &pb.PauseQueueRequest{Name: queue}, answer: &pb.PauseQueueResponse{}})
		e.items = slices.DeleteFunc(e.items, func(i item) bool { _, resume := i.request.(*pb.ResumeQueueRequest); return resume })
		e.add(item{event: &event{start: after, end: after}, request: &pb.ResumeQueueRequest{Name: queue}, answer: &pb.ResumeQueueResponse{}})
	}},
	"an INTERNAL error": {"was refused with INTERNAL", func(t *testing.T, e *evidence) {
		i := e.completed(t)
		i.answer, i.refusal = nil, &refusal{Code: "Internal", Reason: "INTERNAL"}
		e.add(i)
	}},
	"an attempt that nobody made": {"no order of the calls", func(t *testing.T, e *evidence) {
		id := e.completedJob(t)
		e.change(id, func(r *storetest.JobRow) {
			r.Leases[len(r.Leases)-1].Counted = true
			r.Job.AttemptsUsed++
		})
	}},
}

// copied is evidence that may be changed without changing e.
func (e *evidence) copied() *evidence {
	c := *e
	c.items, c.Records = slices.Clone(e.items), slices.Clone(e.Records)
	c.Tables, c.Effects = maps.Clone(e.Tables), maps.Clone(e.Effects)
	return &c
}

func (e *evidence) change(id store.JobID, how func(*storetest.JobRow)) {
	row := e.Tables[id]
	row.Leases = slices.Clone(row.Leases)
	how(&row)
	e.Tables[id] = row
}

func (e *evidence) add(i item) { e.items = append(e.items, i) }

func (e *evidence) find(t *testing.T, is func(item) bool) item {
	t.Helper()
	n := slices.IndexFunc(e.items, is)
	if n < 0 {
		t.Fatal("nothing of this kind has happened")
	}
	return e.items[n]
}

// completed is a Complete that was applied while its lease was live, of a job that a producer
// has stored and its worker was told of.
func (e *evidence) completed(t *testing.T) item {
	t.Helper()
	return e.find(t, func(i item) bool {
		req, ok := i.request.(*pb.CompleteRequest)
		answer, answered := i.answer.(*pb.CompleteResponse)
		if !ok || !answered || answer.GetAlreadyApplied() || answer.GetLate() {
			return false
		}
		ref, _ := store.NewTokens(e.TokenKey).Open(req.GetLeaseToken())
		stored := slices.ContainsFunc(e.items, func(i item) bool {
			a, ok := i.answer.(*pb.EnqueueResponse)
			return ok && a.GetCreated() && idIn(a.GetJobId()) == ref.JobID
		})
		row := e.Tables[ref.JobID]
		return stored && row.Job.State == store.Completed && ref.LeaseNo == row.Job.LeaseNo
	})
}

func (e *evidence) completedJob(t *testing.T) store.JobID {
	t.Helper()
	ref, _ := store.NewTokens(e.TokenKey).Open(e.completed(t).request.(*pb.CompleteRequest).GetLeaseToken())
	return ref.JobID
}

// granted is the AcquireLease that gave a lease.
func (e *evidence) granted(t *testing.T, ref store.LeaseRef) item {
	t.Helper()
	return e.find(t, func(i item) bool {
		answer, ok := i.answer.(*pb.AcquireLeaseResponse)
		return ok && slices.ContainsFunc(answer.GetLeases(), func(l *pb.Lease) bool {
			return idIn(l.GetJob().GetJobId()) == ref.JobID && l.GetLeaseNo() == ref.LeaseNo
		})
	})
}
