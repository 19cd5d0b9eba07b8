package storetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest/model"
)

// Violation is one broken invariant.
//
//	I1 At any instant at most one live lease per job; lease numbers strictly increase, and
//	   what a holder was promised is kept.
//	I2 At most one transition into a terminal state; nothing but an operator leads out.
//	I3 Every Enqueue that was answered OK is in the tables once, and nothing else is.
//	I4 A refused call changes nothing but the records of R17 and R18.
//	I5 Attempts stay within their maximum; one record per lease, each end true.
//	I6 PROCESSING if and only if there are owner, end and an open lease.
//	I7 When all is settled, nothing is leased.
//	I9 Every refusal has its own documented error.
//
// That a service returns to its baseline when there is nothing to do (I8) is not to be
// seen from here.
type Violation struct {
	Invariant string
	Job       store.JobID
	Text      string
}

func (v Violation) String() string { return fmt.Sprintf("%s: job %d: %s", v.Invariant, v.Job, v.Text) }

// Checked says what CheckInvariants may assume.
type Checked struct {
	// Settled tells that no worker lives and every lease has had the time to be swept.
	Settled bool
	// Repeats tells that what answers may have tried a repeatable call more than once, see
	// Recorder: then beats and late calls on record may be more than were answered, and the
	// record of a late call, which is no part of its answer, may be missing.
	Repeats bool
}

// CheckInvariants judges a complete history of calls against the tables as they stand
// after it.
func CheckInvariants(h History, t Tables, cfg Checked) []Violation {
	c := &checker{history: h, tables: t, cfg: cfg}
	c.checkEnqueues()
	c.checkRefusals()
	for id, row := range t {
		j := &jobChecker{checker: c, id: id, row: row, calls: h.of(id)}
		j.checkLeases()
		j.checkPromises()
		j.checkTerminal()
		j.checkRefused()
		j.checkEnds()
		j.checkCounters()
		j.checkShape()
	}
	for _, call := range h {
		if _, ok := t[call.Job]; !ok && call.Job != 0 && answeredOK(call) {
			c.report("I3", call.Job, "%s was accepted, and the tables have no such job", call.Request.Name())
		}
	}
	return c.found
}

type checker struct {
	cfg     Checked
	history History
	tables  Tables
	found   []Violation
}

func (c *checker) report(invariant string, id store.JobID, format string, args ...any) {
	c.found = append(c.found, Violation{Invariant: invariant, Job: id, Text: fmt.Sprintf(format, args...)})
}

// answeredOK tells that a call was answered OK and did something.
func answeredOK(c Call) bool { return !c.Unknown && c.Outcome.Err == nil }

// checkEnqueues is I3: every OK has its row, one key has one job, and every row has a call
// that may have made it.
func (c *checker) checkEnqueues() {
	known, stored, possible := map[store.JobID]int{}, map[store.JobID]int{}, map[string]int{}
	owners := map[queueKey]store.JobID{}
	for _, call := range c.history {
		switch r := call.Request.(type) {
		case model.Enqueue:
			if call.Unknown {
				possible[r.Job.Queue]++
				continue
			}
			if call.Outcome.Err != nil {
				continue
			}
			if !call.Outcome.Passed {
				known[call.Job]++
				stored[call.Job]++
			} else if c.cfg.Repeats { // the try before stored it
				known[call.Job]++
			}
			c.checkOwner(owners, r, call.Job)
		case model.Complete:
			c.countFollowUps(call, r.ThenEnqueue, known, possible)
		case model.Fail:
			if call.Unknown {
				continue
			}
			for _, id := range call.Outcome.FollowUps {
				known[id]++
			}
		}
	}
	for id, row := range c.tables {
		if stored[id] > 1 {
			c.report("I3", id, "%d calls were told that they had stored it", stored[id])
		}
		if known[id] > 0 || row.Job.ParentJobID != nil {
			continue
		}
		if possible[row.Job.Queue]--; possible[row.Job.Queue] < 0 {
			c.report("I3", id, "no call may have stored it")
		}
	}
}

// checkOwner checks that one key has one job, while keys live.
func (c *checker) checkOwner(owners map[queueKey]store.JobID, r model.Enqueue, id store.JobID) {
	if r.Job.IdempotencyKey == nil {
		return
	}
	k := queueKey{r.Job.Queue, *r.Job.IdempotencyKey}
	if other, ok := owners[k]; ok && other != id {
		c.report("I3", id, "key %q of queue %q belongs to job %d as well", k.key, k.queue, other)
	}
	owners[k] = id
}

func (c *checker) countFollowUps(call Call, items []store.NewJob, known map[store.JobID]int, possible map[string]int) {
	if call.Unknown {
		for _, j := range items {
			possible[j.Queue]++
		}
		return
	}
	for _, id := range call.Outcome.FollowUps {
		known[id]++
		if _, ok := c.tables[id]; !ok {
			c.report("I3", id, "a follow-up of job %d is not in the tables", call.Job)
		}
	}
}

// refusals are the errors that each call may answer (I9).
var refusals = map[string][]string{
	"Enqueue":      {"*store.QueueNotFoundError", "*store.KeyReusedError", "*store.BusyError", "*store.InvalidError"},
	"AcquireLease": {"*store.QueueNotFoundError", "*store.JobNotFoundError", "*store.RequestReusedError", "*store.BusyError"},
	"Heartbeat":    {"*store.SupersededError", "*store.ExpiredError", "*store.EndedError", "*store.JobNotFoundError", "*store.BusyError"},
	"Complete": {"*store.SupersededError", "*store.EndedError", "*store.ConflictError", "*store.JobNotFoundError",
		"*store.BusyError", "*store.FollowUpError"},
	"Fail": {"*store.SupersededError", "*store.ExpiredError", "*store.EndedError", "*store.JobNotFoundError",
		"*store.BusyError", "*store.FollowUpError"},
	"Release":    {"*store.SupersededError", "*store.ExpiredError", "*store.EndedError", "*store.JobNotFoundError", "*store.BusyError"},
	"CancelJob":  {"*store.JobNotFoundError", "*store.StateError", "*store.BusyError"},
	"RetryJobs":  {"*store.JobNotFoundError", "*store.StateError", "*store.BusyError"},
	"ResolveJob": {"*store.JobNotFoundError", "*store.StateError", "*store.BusyError"},
}

func (c *checker) checkRefusals() {
	for _, call := range c.history {
		if call.Unknown || call.Outcome.Err == nil {
			continue
		}
		if name := fmt.Sprintf("%T", call.Outcome.Err); !slices.Contains(refusals[call.Request.Name()], name) {
			c.report("I9", call.Job, "%s was refused with %s: %v", call.Request.Name(), name, call.Outcome.Err)
		}
	}
}

// jobChecker judges one job.
type jobChecker struct {
	*checker
	id    store.JobID
	row   JobRow
	calls History
}

// grants are the leases that callers were told of.
func (j *jobChecker) grants() (calls []Call) {
	for _, c := range j.calls {
		if _, ok := c.Request.(model.Acquire); ok && answeredOK(c) && c.Outcome.LeaseNo != 0 {
			calls = append(calls, c)
		}
	}
	return calls
}

func (j *jobChecker) record(no int64) (store.LeaseRecord, bool) {
	for _, l := range j.row.Leases {
		if l.LeaseNo == no {
			return l, true
		}
	}
	return store.LeaseRecord{}, false
}

// checkLeases is I1 and the records of I5.
func (j *jobChecker) checkLeases() {
	for i, l := range j.row.Leases {
		if l.LeaseNo != int64(i+1) {
			j.report("I5", j.id, "record %d is of lease %d: one record per lease, from 1", i+1, l.LeaseNo)
		}
		if l.End == store.EndNone && i < len(j.row.Leases)-1 {
			j.report("I1", j.id, "lease %d has not ended, and there is a later one", l.LeaseNo)
		}
		if (l.End == store.EndNone) != (l.EndedAt == nil) {
			j.report("I5", j.id, "lease %d has end %d and ended_at %v", l.LeaseNo, l.End, l.EndedAt)
		}
		if i > 0 && j.row.Leases[i-1].EndedAt != nil && l.LeasedAt.Before(*j.row.Leases[i-1].EndedAt) {
			j.report("I1", j.id, "lease %d began before lease %d had ended", l.LeaseNo, l.LeaseNo-1)
		}
	}
	if n := int64(len(j.row.Leases)); n != j.row.Job.LeaseNo {
		j.report("I5", j.id, "%d records, lease_no %d", n, j.row.Job.LeaseNo)
	}
	grants := j.grants()
	for i, a := range grants {
		no := a.Outcome.LeaseNo
		owner := a.Request.(model.Acquire).Owner
		if r, ok := j.record(no); !ok || r.Owner != owner {
			j.report("I5", j.id, "lease %d of %q is on record as %+v", no, owner, r)
		}
		for _, b := range grants[:i] {
			other := b.Outcome.LeaseNo
			if b.End.Before(a.Start) && other > no || a.End.Before(b.Start) && no > other {
				j.report("I1", j.id, "lease numbers %d and %d were given in the wrong order", other, no)
			}
			if other == no && b.Request.(model.Acquire).Owner != owner {
				j.report("I1", j.id, "lease %d was given to %q and to %q", no, b.Request.(model.Acquire).Owner, owner)
			}
		}
	}
}

// checkPromises is I1 for what holders were told: unless its holder ended it, a lease is
// not taken away before the time that was promised last.
func (j *jobChecker) checkPromises() {
	for _, c := range j.grants() {
		if r, ok := j.record(c.Outcome.LeaseNo); ok && r.End == store.EndUndelivered && !maybe[model.Undeliver](j.calls) {
			j.report("I1", j.id, "lease %d was answered to client %d, and taken back as undelivered", r.LeaseNo, c.Client)
		}
	}
	for _, c := range j.calls {
		if !answeredOK(c) || c.Outcome.Until.IsZero() {
			continue
		}
		r, ok := j.record(c.Outcome.LeaseNo)
		if !ok || r.EndedAt == nil || r.Cancelled || r.End != store.EndExpired && r.End != store.EndOverran {
			continue
		}
		if promised := c.Outcome.Until.Add(-j.aged(c.End)); r.EndedAt.Add(time.Microsecond).Before(promised) {
			j.report("I1", j.id, "lease %d was promised until %s by %s and ended as expired at %s",
				r.LeaseNo, promised, c.Request.Name(), *r.EndedAt)
		}
	}
}

// aged is by how much the job's times were shifted after a time.
func (j *jobChecker) aged(after time.Time) (d time.Duration) {
	for _, c := range j.calls {
		if a, ok := c.Request.(model.Age); ok && c.End.After(after) {
			d += a.By
		}
	}
	return d
}
