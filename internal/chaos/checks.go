package main

import (
	"cmp"
	"maps"
	"slices"
	"time"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest"
	"github.com/leasehold/leasehold/store/storetest/model"
)

// checks are the promises that matter most, each looked at by itself and without the help of
// the contract's oracle, so that a mistake in that hides nothing.
var checks = []func(*evidence, storetest.History, *verdict){
	checkNothingStrange, checkStored, checkCompletions, checkOneHolder, checkDelivered, checkRecords, checkRest, checkLedger, checkPauses, checkFollowUps,
}

// checkNothingStrange: every refusal is one that its call may meet.
func checkNothingStrange(e *evidence, _ storetest.History, v *verdict) {
	for _, i := range e.items {
		if i.refusal.strange(i.method) {
			v.broken("%s of %s was refused with %s: %s", i.method, i.process, i.refusal.Reason, i.refusal.Message)
		}
	}
}

// tries are the calls that may have stored one and the same job.
type tries struct {
	ids     map[store.JobID]bool // that were answered
	made    int                  // OK, created
	unknown int
	// Of a call with a key, which the service repeats by itself, the answer speaks of the last
	// of its tries only: what it found may be what an earlier one made, and where it did
	// nothing, an earlier one may have.
	found, refused int
}

// triesOf are the calls that enqueued, by what they enqueued.
func triesOf(items []item) map[content]*tries {
	by := map[content]*tries{}
	for _, i := range items {
		req, ok := i.request.(*pb.EnqueueRequest)
		if !ok {
			continue
		}
		c := asked(req)
		if by[c] == nil {
			by[c] = &tries{ids: map[store.JobID]bool{}}
		}
		switch answer, _ := i.answer.(*pb.EnqueueResponse); {
		case i.unknown():
			by[c].unknown++
		case answer != nil:
			by[c].ids[idIn(answer.GetJobId())] = true
			if answer.GetCreated() {
				by[c].made++
			} else {
				by[c].found++ // there is a key: others are always created
			}
		case i.refusal.nothingDone() && req.IdempotencyKey != nil:
			by[c].refused++
		}
	}
	return by
}

// checkStored: no job is lost, and none is there that nobody stored, or twice. A call
// without a key that was refused with nothing done has done nothing.
func checkStored(e *evidence, _ storetest.History, v *verdict) {
	st := index(e.Tables)
	for k, ids := range st.byKey {
		if len(ids) > 1 {
			v.broken("key %q of queue %s has jobs %v", k.key, k.queue, ids)
		}
	}
	by := triesOf(e.items)
	for c, t := range by {
		rows := st.byContent[c]
		for id := range t.ids {
			if !slices.Contains(rows, id) {
				v.broken("job %d of queue %s was stored and is lost: %s", id, c.queue, c.payload)
			}
		}
		switch n := max(len(rows), len(t.ids)); {
		case n > t.made+t.unknown+t.found+t.refused:
			v.broken("queue %s has jobs %v, answered as %v, of %d calls that stored it and %d that may have: %s",
				c.queue, rows, slices.Sorted(maps.Keys(t.ids)), t.made, t.unknown, c.payload)
		case n > t.made+t.unknown+t.found:
			v.doneAfterAll++
		}
	}
	for id, row := range e.Tables {
		if by[contentOf(row)] == nil && row.Job.ParentJobID == nil {
			v.broken("job %d was stored by nobody", id)
		}
	}
}

// checkCompletions: no job is completed twice.
func checkCompletions(_ *evidence, h storetest.History, v *verdict) {
	by := map[store.JobID]int64{}
	for _, c := range h {
		r, ok := c.Request.(model.Complete)
		if !ok || c.Unknown || c.Outcome.Err != nil || c.Outcome.AlreadyApplied {
			continue
		}
		if other, twice := by[c.Job]; twice {
			v.broken("job %d was completed twice, by leases %d and %d", c.Job, other, r.LeaseNo)
		}
		by[c.Job] = r.LeaseNo
	}
}

// checkOneHolder: who was told that a lease is theirs until a time was not the only one to
// be told so about another lease of that job before that time, unless they ended theirs.
func checkOneHolder(e *evidence, h storetest.History, v *verdict) {
	given, ends := map[store.JobID][]storetest.Call{}, map[store.LeaseRef]bool{}
	for _, c := range h {
		switch c.Request.(type) {
		case model.Acquire, model.Heartbeat:
			if !c.Unknown && c.Outcome.Err == nil && c.Outcome.LeaseNo != 0 {
				given[c.Job] = append(given[c.Job], c)
			}
		case model.Complete, model.Fail, model.Release:
			if c.Unknown || c.Outcome.Err == nil {
				ends[store.LeaseRef{JobID: c.Job, LeaseNo: storetest.LeaseNo(c.Request)}] = true
			}
		}
	}
	for id, calls := range given {
		slices.SortFunc(calls, func(a, b storetest.Call) int { return cmp.Compare(a.Outcome.LeaseNo, b.Outcome.LeaseNo) })
		for n, c := range calls {
			ref := store.LeaseRef{JobID: id, LeaseNo: c.Outcome.LeaseNo}
			row, _ := record(e.Tables, ref)
			if ends[ref] || row.End == store.EndStalled {
				continue // its holder may have ended it; a stall ends it whatever was promised
			}
			for _, later := range calls[n+1:] {
				began := later.Outcome.Until.Add(-later.Outcome.Remaining) // by the same clock
				if later.Outcome.LeaseNo > ref.LeaseNo && began.Before(c.Outcome.Until) {
					v.broken("job %d: lease %d was promised until %s, and lease %d was held at %s",
						id, ref.LeaseNo, c.Outcome.Until, later.Outcome.LeaseNo, began)
				}
			}
		}
	}
}

// checkDelivered: a lease that its worker has got is never taken back as undelivered.
func checkDelivered(e *evidence, h storetest.History, v *verdict) {
	for _, c := range h {
		if _, ok := c.Request.(model.Acquire); !ok || c.Unknown || c.Outcome.Err != nil || c.Outcome.LeaseNo == 0 {
			continue
		}
		if row, ok := record(e.Tables, store.LeaseRef{JobID: c.Job, LeaseNo: c.Outcome.LeaseNo}); ok && row.End == store.EndUndelivered {
			v.broken("lease %d of job %d was delivered to %s, and taken back as undelivered", c.Outcome.LeaseNo, c.Job, row.Owner)
		}
	}
}

// checkRecords: one record per lease, each with an end, by the view that people read.
func checkRecords(e *evidence, _ storetest.History, v *verdict) {
	next := map[int64]int64{}
	for _, r := range e.Records {
		next[r.JobID]++
		if r.LeaseNo != next[r.JobID] {
			v.broken("job %d has a record of lease %d where lease %d is due", r.JobID, r.LeaseNo, next[r.JobID])
		}
		if r.EndedBy == nil {
			v.broken("lease %d of job %d has no end on record", r.LeaseNo, r.JobID)
		}
	}
	for id, row := range e.Tables {
		if got := next[int64(id)]; got != row.Job.LeaseNo {
			v.broken("job %d had %d leases, %d are on record", id, row.Job.LeaseNo, got)
		}
	}
}

// checkRest: when all has settled, nobody holds anything.
func checkRest(e *evidence, _ storetest.History, v *verdict) {
	for id, row := range e.Tables {
		if row.Job.State == store.Processing {
			v.broken("job %d is still leased by %q until %s", id, *row.Job.LeaseOwner, row.Job.LeaseUntil)
		}
	}
}

// checkLedger: what a job was completed with is the last effect that the ledger took.
func checkLedger(e *evidence, _ storetest.History, v *verdict) {
	for id, row := range e.Tables {
		if len(row.Leases) == 0 || row.Job.State != store.Completed {
			continue
		}
		last := row.Leases[len(row.Leases)-1]
		if last.End != store.EndCompleted && last.End != store.EndCompletedLate {
			continue // an operator said so
		}
		of := e.Effects[id]
		if len(of) == 0 || of[len(of)-1] != last.LeaseNo {
			v.broken("job %d was completed by lease %d, the ledger took the effects of leases %v", id, last.LeaseNo, of)
		}
	}
}

// checkFollowUps: a follow-up is there if and only if the lease that made it ended so.
func checkFollowUps(e *evidence, _ storetest.History, v *verdict) {
	made := map[store.JobID]bool{}
	for id, row := range e.Tables {
		for _, l := range row.Leases {
			for _, child := range l.FollowUps {
				made[child] = true
				if parent := e.Tables[child].Job.ParentJobID; parent == nil || *parent != id {
					v.broken("lease %d of job %d made job %d, which knows nothing of it", l.LeaseNo, id, child)
				}
			}
		}
	}
	for id, row := range e.Tables {
		if row.Job.ParentJobID != nil && !made[id] {
			v.broken("job %d follows job %d, of which no lease has made it", id, *row.Job.ParentJobID)
		}
	}
}

// lateResume is how long a resume may take effect after its caller has given up.
const lateResume = 20 * time.Second

// checkPauses: after a pause was answered, no later call leases from the queue, by any path,
// until somebody may have resumed it.
func checkPauses(e *evidence, h storetest.History, v *verdict) {
	type span struct{ from, to time.Time }
	paused := map[string][]span{}
	for _, i := range e.items {
		req, ok := i.request.(*pb.PauseQueueRequest)
		if !ok || i.unknown() || i.refusal != nil {
			continue
		}
		s := span{from: i.end}
		for _, j := range e.items {
			resume, ok := j.request.(*pb.ResumeQueueRequest)
			if !ok || resume.GetName() != req.GetName() {
				continue
			}
			if j.start.After(i.start) && (s.to.IsZero() || j.start.Before(s.to)) {
				s.to = j.start
			}
			if j.unknown() && j.start.Before(i.start) && i.start.Sub(j.start) < lateResume {
				s.from = j.start.Add(lateResume)
			}
		}
		paused[req.GetName()] = append(paused[req.GetName()], s)
	}
	for _, c := range h {
		if _, ok := c.Request.(model.Acquire); !ok || c.Unknown || c.Outcome.Err != nil || c.Outcome.LeaseNo == 0 {
			continue
		}
		queue := e.Tables[c.Job].Job.Queue
		for _, s := range paused[queue] {
			if c.Start.After(s.from) && c.End.Before(s.to) {
				v.broken("lease %d of job %d was given though queue %s was paused since %s", c.Outcome.LeaseNo, c.Job, queue, s.from)
			}
		}
	}
}

// record finds the record of a lease.
func record(tables storetest.Tables, ref store.LeaseRef) (store.LeaseRecord, bool) {
	leases := tables[ref.JobID].Leases
	i := slices.IndexFunc(leases, func(l store.LeaseRecord) bool { return l.LeaseNo == ref.LeaseNo })
	if i < 0 {
		return store.LeaseRecord{}, false
	}
	return leases[i], true
}
