package model

import (
	"time"

	"github.com/leasehold/leasehold/store"
)

// crashLoopLeases is how many leases in a row must expire for CRASH_LOOP.
const crashLoopLeases = 3

// diagnoses is R21: what may be wrong with a job, and since when. The first that fits
// holds.
var diagnoses = []struct {
	is    store.Diagnosis
	since func(s State, l Lease, now time.Time) (time.Time, bool)
}{
	{store.Held, held},
	{store.CrashLoop, crashLoop},
	{store.Overrun, overrun},
	{store.LeaseExpired, leaseExpired},
	{store.Stalled, stalledSince},
	{store.NeverHeartbeated, neverHeartbeated},
	{store.WorkerSilent, workerSilent},
}

// Diagnose says what is wrong with the job, or false where nothing is.
func Diagnose(s State, now time.Time) (store.StuckJob, bool) {
	l, ok := s.Latest()
	if !ok || !s.Live() {
		return store.StuckJob{}, false
	}
	for _, d := range diagnoses {
		since, fits := d.since(s, l, now)
		if !fits {
			continue
		}
		j := store.StuckJob{
			JobID: s.ID, Queue: s.Spec.Queue, State: s.Phase, Subject: s.Spec.Subject,
			Diagnosis: d.is, Since: since, Owner: ptr(l.Owner), LeaseNo: s.LeaseNo,
			LastBeatAt: l.LastBeatAt, Stage: s.Stage,
			AttemptsUsed: s.AttemptsUsed, MaxAttempts: s.Limits().MaxAttempts, Expirations: s.Expirations,
		}
		if s.Phase == store.Processing {
			j.LeaseUntil = ptr(l.Until)
		}
		return j, true
	}
	return store.StuckJob{}, false
}

func held(s State, l Lease, _ time.Time) (time.Time, bool) {
	return endOf(l), s.Phase == store.Stuck
}

func crashLoop(s State, l Lease, _ time.Time) (time.Time, bool) {
	if s.Phase == store.Processing && len(s.Leases) > 1 {
		l = s.Leases[len(s.Leases)-2]
	}
	return endOf(l), s.Expirations >= crashLoopLeases
}

func overrun(s State, l Lease, now time.Time) (time.Time, bool) {
	if s.Phase == store.Pending {
		return endOf(l), l.End == store.EndOverran
	}
	m := s.Limits().MaxRuntime
	if m == nil {
		return time.Time{}, false
	}
	from := l.LeasedAt.Add(*m).Add(-l.AdvisedInterval())
	return from, s.Phase == store.Processing && !now.Before(from)
}

func leaseExpired(s State, l Lease, now time.Time) (time.Time, bool) {
	return l.Until, s.Phase == store.Processing && l.Until.Before(now)
}

func stalledSince(s State, l Lease, now time.Time) (time.Time, bool) {
	return l.ChangedAt, s.Phase == store.Processing && s.stalled(l, now)
}

func neverHeartbeated(s State, l Lease, now time.Time) (time.Time, bool) {
	return l.LeasedAt, s.Phase == store.Processing && l.Beats == 0 && silent(l, now)
}

func workerSilent(s State, l Lease, now time.Time) (time.Time, bool) {
	return l.LastSign(), s.Phase == store.Processing && l.Beats > 0 && silent(l, now)
}

// silent: no sign of life for two advised intervals.
func silent(l Lease, now time.Time) bool {
	return !now.Before(l.LastSign().Add(2 * l.AdvisedInterval()))
}

func endOf(l Lease) time.Time {
	if l.EndedAt != nil {
		return *l.EndedAt
	}
	return l.Until
}
