package storetest

import (
	"reflect"
	"time"

	"github.com/leasehold/leasehold/store"
)

// answer is what a call of a token answers: a cell of the table of R17.
type answer string

const (
	accepted   answer = "accepted"
	late       answer = "accepted, late"
	applied    answer = "already_applied"
	expired    answer = "LEASE_EXPIRED"
	ended      answer = "LEASE_ENDED"
	superseded answer = "LEASE_SUPERSEDED"
)

// tokenCalls are the columns of the table.
var tokenCalls = []struct {
	name string
	call func(e *env, ref store.LeaseRef) (applied, late bool, err error)
}{
	{"Heartbeat", func(e *env, ref store.LeaseRef) (bool, bool, error) {
		return false, false, e.tryBeat(store.Heartbeat{Lease: ref, Stage: to("zombie"), Checkpoint: []byte("zombie")}).Err
	}},
	{"Complete", func(e *env, ref store.LeaseRef) (bool, bool, error) {
		out := e.tryComplete(store.Complete{Lease: ref, Result: text("result")})
		return out.AlreadyApplied, out.Late, out.Err
	}},
	{"Fail", func(e *env, ref store.LeaseRef) (bool, bool, error) {
		out := e.tryFail(store.Fail{Lease: ref, Error: store.JobError{Code: "zombie"}})
		return out.AlreadyApplied, false, out.Err
	}},
	{"Release", func(e *env, ref store.LeaseRef) (bool, bool, error) {
		out := e.tryRelease(store.Release{Lease: ref})
		return out.AlreadyApplied, false, out.Err
	}},
}

// endings bring a fresh lease to its end; the job then stands as that end left it.
var endings = map[string]func(e *env) store.LeaseRef{
	"expired": func(e *env) store.LeaseRef {
		ref := e.lease(e.queue())
		e.expire(ref, time.Hour)
		return ref
	},
	"overran": func(e *env) store.LeaseRef {
		ref := e.lease(e.queue(), maxRuntime(time.Minute))
		e.expire(ref, time.Hour)
		return ref
	},
	"stalled": func(e *env) store.LeaseRef {
		ref := e.lease(e.queue(stallsEnd), stallTimeout(time.Hour))
		e.expire(ref, 2*time.Hour)
		return ref
	},
	"undelivered": func(e *env) store.LeaseRef {
		ref := e.lease(e.queue())
		e.undeliver(ref)
		return ref
	},
	"completed": func(e *env) store.LeaseRef {
		ref := e.lease(e.queue())
		e.complete(store.Complete{Lease: ref, Result: text("result")})
		return ref
	},
	"failed": func(e *env) store.LeaseRef {
		ref := e.lease(e.queue())
		e.fail(store.Fail{Lease: ref, RetryAfter: to(time.Duration(0))})
		return ref
	},
	"failed_permanently": func(e *env) store.LeaseRef {
		ref := e.lease(e.queue())
		e.fail(store.Fail{Lease: ref, Permanent: true})
		return ref
	},
	"released": func(e *env) store.LeaseRef {
		ref := e.lease(e.queue())
		e.release(store.Release{Lease: ref})
		return ref
	},
	"held": func(e *env) store.LeaseRef {
		ref := e.lease(e.queue(holds))
		e.expire(ref, time.Hour)
		return ref
	},
	"dead_by_expiry": func(e *env) store.LeaseRef {
		ref := e.lease(e.queue(), jobPolicy(func(p *store.Policy) { p.MaxAttempts = to(int32(1)) }))
		e.expire(ref, time.Hour)
		return ref
	},
	"dead_by_overrun": func(e *env) store.LeaseRef {
		ref := e.lease(e.queue(), maxRuntime(time.Minute), jobPolicy(func(p *store.Policy) { p.MaxAttempts = to(int32(1)) }))
		e.expire(ref, time.Hour)
		return ref
	},
}

// then goes on from an ending.
func then(ending string, next func(e *env, ref store.LeaseRef)) func(e *env) store.LeaseRef {
	return func(e *env) store.LeaseRef {
		e.Helper()
		ref := endings[ending](e)
		next(e, ref)
		return ref
	}
}

func leaseAgain(e *env, ref store.LeaseRef) { e.Helper(); e.acquire(ref.JobID) }

func operatorCancels(e *env, ref store.LeaseRef) { e.Helper(); e.cancel(ref.JobID) }

func operatorRetries(e *env, ref store.LeaseRef) { e.Helper(); e.retry(ref.JobID) }

func operatorResolves(result *store.Payload) func(e *env, ref store.LeaseRef) {
	return func(e *env, ref store.LeaseRef) {
		e.Helper()
		e.resolve(ref.JobID, result)
	}
}

// r17Rows is the table of R17, each row for every way to get there.
var r17Rows = []struct {
	name  string
	setUp func(e *env) store.LeaseRef
	want  [4]answer // Heartbeat, Complete, Fail, Release
}{
	{"live", func(e *env) store.LeaseRef { return e.lease(e.queue()) }, [4]answer{accepted, accepted, accepted, accepted}},
	{"past_its_end_and_not_ended", func(e *env) store.LeaseRef {
		ref := e.lease(e.queue())
		e.age(ref.JobID, time.Hour)
		return ref
	}, [4]answer{accepted, accepted, accepted, accepted}},
	{"cancel_requested", func(e *env) store.LeaseRef {
		ref := e.lease(e.queue())
		e.cancel(ref.JobID)
		return ref
	}, [4]answer{accepted, accepted, accepted, accepted}},

	{"ended_by_expiry", endings["expired"], [4]answer{expired, late, expired, expired}},
	{"ended_by_expiry_held", endings["held"], [4]answer{expired, late, expired, expired}},
	{"ended_by_expiry_dead", endings["dead_by_expiry"], [4]answer{expired, late, expired, expired}},
	{"ended_by_overrun", endings["overran"], [4]answer{expired, late, expired, expired}},
	{"ended_by_overrun_dead", endings["dead_by_overrun"], [4]answer{expired, late, expired, expired}},
	{"ended_by_stall", endings["stalled"], [4]answer{expired, late, expired, expired}},
	{"ended_as_undelivered", endings["undelivered"], [4]answer{expired, late, expired, expired}},

	{"ended_by_Complete", endings["completed"], [4]answer{ended, applied, ended, ended}},
	{"ended_by_late_Complete", then("expired", func(e *env, ref store.LeaseRef) {
		e.complete(store.Complete{Lease: ref, Result: text("result")})
	}), [4]answer{ended, applied, ended, ended}},
	{"ended_by_Fail", endings["failed"], [4]answer{ended, ended, applied, ended}},
	{"ended_by_Fail_permanent", endings["failed_permanently"], [4]answer{ended, ended, applied, ended}},
	{"ended_by_Release", endings["released"], [4]answer{ended, ended, ended, applied}},

	{"expired_then_CancelJob", then("expired", operatorCancels), [4]answer{ended, ended, ended, ended}},
	{"held_then_CancelJob", then("held", operatorCancels), [4]answer{ended, ended, ended, ended}},
	{"held_then_RetryJobs", then("held", operatorRetries), [4]answer{ended, ended, ended, ended}},
	{"dead_then_RetryJobs", then("dead_by_expiry", operatorRetries), [4]answer{ended, ended, ended, ended}},
	{"held_then_ResolveJob_completed", then("held", operatorResolves(to(text("settled")))), [4]answer{ended, ended, ended, ended}},
	{"held_then_ResolveJob_dead", then("held", operatorResolves(nil)), [4]answer{ended, ended, ended, ended}},
	{"dead_then_ResolveJob_dead", then("dead_by_expiry", operatorResolves(nil)), [4]answer{ended, ended, ended, ended}},
	{"expired_after_a_cancel_request", func(e *env) store.LeaseRef {
		ref := e.lease(e.queue())
		e.cancel(ref.JobID)
		e.expire(ref, time.Hour)
		return ref
	}, [4]answer{ended, ended, ended, ended}},

	{"earlier_lease_expired", then("expired", leaseAgain), [4]answer{superseded, superseded, superseded, superseded}},
	{"earlier_lease_overran", then("overran", leaseAgain), [4]answer{superseded, superseded, superseded, superseded}},
	{"earlier_lease_stalled", then("stalled", leaseAgain), [4]answer{superseded, superseded, superseded, superseded}},
	{"earlier_lease_undelivered", then("undelivered", leaseAgain), [4]answer{superseded, superseded, superseded, superseded}},
	{"earlier_lease_failed", then("failed", leaseAgain), [4]answer{superseded, superseded, applied, superseded}},
	{"earlier_lease_released", then("released", leaseAgain), [4]answer{superseded, superseded, superseded, applied}},
	{"earlier_lease_of_a_retried_job", then("dead_by_expiry", func(e *env, ref store.LeaseRef) {
		operatorRetries(e, ref)
		leaseAgain(e, ref)
	}), [4]answer{superseded, superseded, superseded, superseded}},
	{"earlier_lease_of_a_completed_job", then("expired", func(e *env, ref store.LeaseRef) {
		l := e.acquire(ref.JobID)
		e.complete(store.Complete{Lease: l.Ref(), Result: text("of the second")})
	}), [4]answer{superseded, superseded, superseded, superseded}},
}

var tableR17Tests = r17Tests()

// r17Tests has one test for each cell of the table.
func r17Tests() (tests []contractTest) {
	for _, row := range r17Rows {
		for i, c := range tokenCalls {
			want := row.want[i]
			tests = append(tests, contractTest{
				name: "R17_" + row.name + "/" + c.name,
				run: func(e *env) {
					ref := row.setUp(e)
					before := e.snapshot(ref.JobID)
					gotApplied, gotLate, err := c.call(e, ref)
					e.wantAnswer(want, gotApplied, gotLate, err)
					if want != accepted && want != late {
						e.wantUnchanged(before, e.snapshot(ref.JobID))
					}
				},
			})
		}
	}
	return append(tests, r17Details...)
}

func (e *env) wantAnswer(want answer, gotApplied, gotLate bool, err error) {
	e.Helper()
	switch want {
	case expired:
		wantErr[*store.ExpiredError](e, err)
	case ended:
		wantErr[*store.EndedError](e, err)
	case superseded:
		wantErr[*store.SupersededError](e, err)
	default:
		if err != nil || gotApplied != (want == applied) || want != applied && gotLate != (want == late) {
			e.Fatalf("already_applied %t, late %t, error %v; want %s", gotApplied, gotLate, err, want)
		}
	}
}

// snapshot is all that a refused call must leave as it was.
type snapshot struct {
	job    store.Job
	leases []store.LeaseRecord
}

func (e *env) snapshot(id store.JobID) snapshot {
	e.Helper()
	return snapshot{e.job(id), e.leases(id)}
}

// wantUnchanged compares two snapshots, but for what R17 and R18 record: late calls and a
// noted error.
func (e *env) wantUnchanged(before, after snapshot) {
	e.Helper()
	for i := range before.leases {
		after.leases[i].LateCalls = before.leases[i].LateCalls
		if before.leases[i].Error == nil {
			after.leases[i].Error, after.job.LastError = nil, before.job.LastError
		}
	}
	if !reflect.DeepEqual(before, after) {
		e.Fatalf("a refused call changed the job:\nbefore %+v\nafter  %+v", before, after)
	}
}

func (e *env) resolve(id store.JobID, result *store.Payload) *store.Job {
	e.Helper()
	j, err := e.s.ResolveJob(e.ctx, store.Resolution{JobID: id, Result: result, Actor: store.Actor{Name: "operator", Note: "why"}})
	if err != nil {
		e.Fatalf("ResolveJob: %v", err)
	}
	return j
}
