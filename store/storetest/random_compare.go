package storetest

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest/model"
)

// compare checks a job and its leases against the model, and takes over the times that
// the database has chosen.
func (w *randomWorld) compare(rt *rapid.T, j *randomJob) {
	rt.Helper()
	job, err := w.s.GetJob(w.ctx, j.ID, true)
	if err != nil {
		rt.Fatalf("GetJob: %v", err)
	}
	leases, err := readLeases(w.ctx, w.s, j.ID)
	if err != nil {
		rt.Fatalf("ListLeases: %v", err)
	}
	if err := errors.Join(sameJob(j, *job), sameLeaseRecords(j.State, leases)); err != nil {
		rt.Fatalf("job %d is not what the model says:\n%v\nthe model: %+v", j.ID, err, j.State)
	}
	j.State = observed(j.State, *job, leases)
}

// differences collects what is not as it should be.
type differences struct{ errs []error }

func (d *differences) want(ok bool, what string, got, want any) {
	if !ok {
		d.errs = append(d.errs, fmt.Errorf("%s is %v, want %v", what, show(got), show(want)))
	}
}

func (d *differences) same(what string, got, want any) {
	d.want(reflect.DeepEqual(got, want), what, got, want)
}

// about compares times that may be unset.
func (d *differences) about(what string, got, want *time.Time) {
	ok := (got == nil) == (want == nil) && (got == nil || near(*got, *want, slack, what) == nil)
	d.want(ok, what, got, want)
}

// show follows pointers, which say nothing in a report.
func show(v any) any {
	if r := reflect.ValueOf(v); r.Kind() == reflect.Pointer && !r.IsNil() {
		return r.Elem().Interface()
	}
	return v
}

func sameJob(j *randomJob, got store.Job) error {
	want := j.Job(true)
	d := &differences{}
	d.same("state", got.State, want.State)
	d.same("queue", got.Queue, want.Queue)
	d.same("priority", got.Priority, want.Priority)
	d.same("payload", got.Payload, want.Payload)
	d.same("parent", got.ParentJobID, want.ParentJobID)
	d.same("policy", got.Policy, want.Policy)
	d.same("lease_no", got.LeaseNo, want.LeaseNo)
	d.same("lease_owner", got.LeaseOwner, want.LeaseOwner)
	d.same("stage", got.Stage, want.Stage)
	d.same("progress", got.Progress, want.Progress)
	d.same("result", got.Result, want.Result)
	d.same("completed_late", got.CompletedLate, want.CompletedLate)
	d.about("lease_until", got.LeaseUntil, want.LeaseUntil)
	d.about("finished_at", got.FinishedAt, want.FinishedAt)
	d.about("created_at", &got.CreatedAt, &want.CreatedAt)
	if !j.CompletedLate {
		d.same("attempts_used", got.AttemptsUsed, want.AttemptsUsed)
	}
	if j.Live() {
		d.same("expirations", got.Expirations, want.Expirations)
		d.want(string(got.Checkpoint) == string(want.Checkpoint), "checkpoint", got.Checkpoint, want.Checkpoint)
	}
	if j.Phase == store.Processing {
		d.about("cancel_requested_at", got.CancelRequestedAt, want.CancelRequestedAt)
	}
	if j.Phase == store.Pending {
		d.want(j.RunAt.Holds(got.RunAt, slack), "run_at", got.RunAt, j.RunAt)
	}
	if j.Reason != "" {
		d.want(got.StateReason != "", "state_reason", got.StateReason, j.Reason)
	}
	if !j.noted {
		d.same("last_error", got.LastError, want.LastError)
	}
	return errors.Join(d.errs...)
}

func sameLeaseRecords(s model.State, got []store.LeaseRecord) error {
	d := &differences{}
	if len(got) != len(s.Leases) {
		d.same("number of leases", len(got), len(s.Leases))
		return errors.Join(d.errs...)
	}
	for i, want := range s.Leases {
		d.sameLease(fmt.Sprintf("lease %d: ", want.LeaseNo), got[i], want)
	}
	return errors.Join(d.errs...)
}

func (d *differences) sameLease(at string, got store.LeaseRecord, want model.Lease) {
	d.same(at+"job", got.JobID, want.JobID)
	d.same(at+"number", got.LeaseNo, want.LeaseNo)
	d.same(at+"owner", got.Owner, want.Owner)
	d.same(at+"end", got.End, want.End)
	d.same(at+"cancelled", got.Cancelled, want.Cancelled)
	d.same(at+"beats", got.Beats, want.Beats)
	d.same(at+"stage", got.Stage, want.Stage)
	d.same(at+"progress", got.Progress, want.Progress)
	d.same(at+"error", got.Error, want.Error)
	d.want(slices.Equal(got.FollowUps, want.FollowUps), at+"follow-ups", got.FollowUps, want.FollowUps)
	d.same(at+"stages", stagesOf(got), stagesOf(want.LeaseRecord))
	d.about(at+"leased_at", &got.LeasedAt, &want.LeasedAt)
	d.about(at+"until", &got.Until, &want.Until)
	d.about(at+"last_beat_at", got.LastBeatAt, want.LastBeatAt)
	// A Complete that came late has two ends, and may take the attempt back.
	if want.End != store.EndCompletedLate {
		d.same(at+"counted", got.Counted, want.Counted)
		d.about(at+"ended_at", got.EndedAt, want.EndedAt)
	}
	// Whether the end of a lease is a sign of life is open.
	longest := want.LargestGap
	if want.EndedAt != nil {
		longest = max(longest, want.EndedAt.Sub(want.LastSign()))
	}
	d.want(got.LargestGap >= want.LargestGap-slack && got.LargestGap <= longest+slack, at+"largest_gap", got.LargestGap, want.LargestGap)
	d.same(at+"late calls", lateCount(got), lateCount(want.LeaseRecord))
}

func lateCount(r store.LeaseRecord) string {
	if r.LateCalls == nil {
		return "none"
	}
	return fmt.Sprint(r.LateCalls.Count, " ", r.LateCalls.LastCall)
}

// observed is the state with the database's times in the place of the test's.
func observed(s model.State, job store.Job, leases []store.LeaseRecord) model.State {
	if s.Phase == store.Pending {
		s = s.Settle(job.RunAt)
	}
	s.CreatedAt, s.FinishedAt = job.CreatedAt, job.FinishedAt
	if s.Phase == store.Processing {
		s.CancelRequestedAt = job.CancelRequestedAt
	}
	for i, l := range s.Leases {
		l.LeasedAt, l.Until, l.LastBeatAt = leases[i].LeasedAt, leases[i].Until, leases[i].LastBeatAt
		l.EndedAt = leases[i].EndedAt
		s = s.WithLease(l)
	}
	return s
}
