package main

import (
	"fmt"
	"strings"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// checkLedger: in the ledger once, with the right amount, and authorised no more than once.
func checkLedger(f *faults, r record) {
	f.unless(len(r.ledger.postings) == 1, "%s is in the ledger %d times", r.ID, len(r.ledger.postings))
	for _, p := range r.ledger.postings {
		f.unless(p.Amount == r.Amount, "%s was settled with %d instead of %d", r.ID, p.Amount, r.Amount)
	}
	auths := 1
	if r.kind == "poisonous" {
		auths = 0 // settled from the bank's statement
	}
	f.unless(r.ledger.auths == auths, "%s was authorised %d times", r.ID, r.ledger.auths)
}

// checkLeases: numbers without a gap, and of each lease owner, stage and end.
func checkLeases(f *faults, r record) {
	for _, j := range r.jobs {
		id := j.job.GetJobId()
		f.unless(int64(len(j.leases)) == j.job.GetLeaseNo(), "job %s: %d leases on record, the last is number %d", id, len(j.leases), j.job.GetLeaseNo())
		for i, l := range j.leases {
			f.unless(l.GetLeaseNo() == int64(i+1), "job %s: lease %d on record stands at place %d", id, l.GetLeaseNo(), i+1)
			f.unless(l.GetLeaseOwner() != "", "job %s, lease %d has no owner", id, l.GetLeaseNo())
			f.unless(l.GetEnd() != pb.LeaseEnd_LEASE_END_UNSPECIFIED && l.GetEndedAt() != nil, "job %s, lease %d has no end", id, l.GetLeaseNo())
			f.unless(l.GetStage() != "", "job %s, lease %d has no stage", id, l.GetLeaseNo())
		}
	}
}

// The ends of leases, short.
const (
	completed = pb.LeaseEnd_LEASE_END_COMPLETED
	failed    = pb.LeaseEnd_LEASE_END_FAILED
	forGood   = pb.LeaseEnd_LEASE_END_FAILED_PERMANENTLY
	expired   = pb.LeaseEnd_LEASE_END_EXPIRED
)

// ends are how the leases of each kind of payment must have ended.
var ends = map[string][]pb.LeaseEnd{
	"killed":    {expired, completed},
	"stopped":   {expired, completed},
	"slow":      {completed},
	"plain":     {completed},
	"poisonous": {forGood},
}

// checkStory: each payment went the way that its kind goes.
func (p *play) checkStory(f *faults, r record) {
	own := r.jobs[0]
	want := ends[r.kind]
	if r.kind == "failing" {
		for range r.outages {
			want = append(want, failed)
		}
		want = append(want, completed)
	}
	f.unless(len(own.leases) == len(want), "%s had %d leases, want %d", r.ID, len(own.leases), len(want))
	for i, l := range own.leases {
		if i < len(want) {
			f.unless(l.GetEnd() == want[i], "%s: lease %d ended as %s, want %s", r.ID, l.GetLeaseNo(), word(l.GetEnd().String()), word(want[i].String()))
		}
	}
	switch r.kind {
	case "killed":
		p.checkTakeOver(f, r, p.killed)
	case "stopped":
		p.checkTakeOver(f, r, p.stopped)
	case "slow":
		held := own.leases[0].GetEndedAt().AsTime().Sub(own.leases[0].GetLeasedAt().AsTime())
		f.unless(held > leaseDuration, "%s held its lease for %v only: heartbeats were not needed", r.ID, held)
	case "poisonous":
		checkReconciled(f, r)
	}
	if r.kind != "poisonous" {
		f.unless(own.job.GetState() == pb.JobState_JOB_STATE_COMPLETED, "%s is %s", r.ID, word(own.job.GetState().String()))
	}
}

// checkTakeOver: another worker went on at the stage and with the checkpoint of the first.
func (p *play) checkTakeOver(f *faults, r record, first string) {
	leases := r.jobs[0].leases
	if len(leases) != 2 {
		return // said already
	}
	f.unless(leases[0].GetLeaseOwner() == first, "%s was leased to %s first, it happened to %s", r.ID, leases[0].GetLeaseOwner(), first)
	f.unless(leases[1].GetLeaseOwner() != first, "%s was not taken over by another", r.ID)
	f.unless(leases[0].GetStage() == "capture", "%s: the first lease ended in stage %q", r.ID, leases[0].GetStage())
	e, ok := p.takenOver[r.ID]
	f.unless(ok && e.Stage == "capture" && strings.Contains(e.Note, fmt.Sprintf("%d parts captured", interfereAt)), "%s was not taken over with stage and checkpoint: %+v", r.ID, e)
}

// checkReconciled: the poisonous payment is dead, and its follow-up settled it.
func checkReconciled(f *faults, r record) {
	f.unless(r.jobs[0].job.GetState() == pb.JobState_JOB_STATE_DEAD, "%s is %s", r.ID, word(r.jobs[0].job.GetState().String()))
	if len(r.jobs) != 2 {
		f.unless(false, "%s has %d jobs, want its own and the one that reconciled it", r.ID, len(r.jobs))
		return
	}
	follow := r.jobs[1].job
	f.unless(follow.GetQueue() == queueReconciliation && follow.GetParentJobId() == r.jobs[0].job.GetJobId(),
		"job %s did not follow from job %s", follow.GetJobId(), r.jobs[0].job.GetJobId())
	f.unless(follow.GetState() == pb.JobState_JOB_STATE_COMPLETED, "%s was not reconciled: %s", r.ID, word(follow.GetState().String()))
}

// checkLate: all that the stopped worker tried afterwards was refused.
func (p *play) checkLate(f *faults) {
	for _, call := range lateCalls {
		e, ok := p.refused[call]
		f.unless(ok && e.Payment == stoppedPayment, "the late %s was not refused", call)
		if call != callPosting {
			f.unless(e.Reason == "LEASE_SUPERSEDED", "the late %s was refused with %q", call, e.Reason)
		}
	}
	f.unless(p.killed != "" && p.stopped != "" && p.killed != p.stopped, "killed %q, stopped %q", p.killed, p.stopped)
}
