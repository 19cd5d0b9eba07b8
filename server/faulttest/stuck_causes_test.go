package faulttest

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// stuckCase is one job that needs a look, by what is the matter with it.
type stuckCase struct {
	queue  string // and owner of its leases
	policy *pb.JobPolicy
	hold   pb.OnExpiry
	// beats are the heartbeats of its worker, "" for as long as it lives. killed: it is
	// killed after them, else it hangs.
	beats  string
	killed bool

	want   pb.Diagnosis
	remedy pb.Remedy
	state  pb.JobState
	// from is when the diagnosis began to hold, by the leases of the job.
	from func([]*pb.LeaseRecord) time.Time
	// settled tells that another diagnosis fits as well by now. Nil: none has to.
	settled func(*pb.StuckJob) bool
}

const (
	stuckSilent = 12 * time.Second // a lease of which four seconds lie behind two advised intervals
	stuckShort  = 2 * time.Second
)

// lastLease is the newest of the leases of a job.
func lastLease(leases []*pb.LeaseRecord) *pb.LeaseRecord { return leases[len(leases)-1] }

func policyOf(lease, maxRuntime, stall time.Duration) *pb.JobPolicy {
	p := &pb.JobPolicy{LeaseDuration: durationpb.New(lease)}
	if maxRuntime > 0 {
		p.MaxRuntime = durationpb.New(maxRuntime)
	}
	if stall > 0 {
		p.StallTimeout = durationpb.New(stall)
	}
	return p
}

// unsweptCases are what is listed of jobs whose leases the watcher has not ended.
var unsweptCases = []stuckCase{{
	queue: "expired", policy: policyOf(stuckShort, 0, 0), beats: "1", killed: true,
	want: pb.Diagnosis_DIAGNOSIS_LEASE_EXPIRED, remedy: pb.Remedy_REMEDY_WAIT_FOR_WATCHER, state: stateProcessing,
	from: func(l []*pb.LeaseRecord) time.Time { return lastLease(l).GetLeaseUntil().AsTime() },
}, {
	queue: "expired-and-stalled", policy: policyOf(stuckShort, 0, stuckShort), beats: "1", killed: true,
	want: pb.Diagnosis_DIAGNOSIS_LEASE_EXPIRED, remedy: pb.Remedy_REMEDY_WAIT_FOR_WATCHER, state: stateProcessing,
	from:    func(l []*pb.LeaseRecord) time.Time { return lastLease(l).GetLeaseUntil().AsTime() },
	settled: func(s *pb.StuckJob) bool { return time.Since(s.GetSince().AsTime()) > stuckShort },
}, {
	queue: "never", policy: policyOf(stuckSilent, 0, 0), beats: "0",
	want: pb.Diagnosis_DIAGNOSIS_NEVER_HEARTBEATED, remedy: pb.Remedy_REMEDY_ADD_HEARTBEATS, state: stateProcessing,
	from: func(l []*pb.LeaseRecord) time.Time {
		return lastLease(l).GetLeasedAt().AsTime().Add(stuckSilent / 3 * 2)
	},
}, {
	queue: "silent", policy: policyOf(stuckSilent, 0, 0), beats: "1", killed: true,
	want: pb.Diagnosis_DIAGNOSIS_WORKER_SILENT, remedy: pb.Remedy_REMEDY_INSPECT_WORKER, state: stateProcessing,
	from: func(l []*pb.LeaseRecord) time.Time {
		return lastLease(l).GetLastBeatAt().AsTime().Add(stuckSilent / 3 * 2)
	},
}, {
	queue: "stalled", policy: policyOf(stuckSilent, 0, stuckShort), beats: "",
	want: pb.Diagnosis_DIAGNOSIS_STALLED, remedy: pb.Remedy_REMEDY_INSPECT_WORKER, state: stateProcessing,
	from: func(l []*pb.LeaseRecord) time.Time {
		return lastLease(l).GetStages()[0].GetAt().AsTime().Add(stuckShort)
	},
}, {
	queue: "stalled-and-never", policy: policyOf(stuckSilent, 0, stuckShort), beats: "0",
	want: pb.Diagnosis_DIAGNOSIS_STALLED, remedy: pb.Remedy_REMEDY_INSPECT_WORKER, state: stateProcessing,
	from:    func(l []*pb.LeaseRecord) time.Time { return lastLease(l).GetLeasedAt().AsTime().Add(stuckShort) },
	settled: func(s *pb.StuckJob) bool { return time.Until(s.GetLeaseUntil().AsTime()) < stuckSilent/3 },
}, {
	queue: "overrun", policy: policyOf(3*stuckShort, 2*stuckShort, 0), beats: "",
	want: pb.Diagnosis_DIAGNOSIS_OVERRUN, remedy: pb.Remedy_REMEDY_RAISE_MAX_RUNTIME, state: stateProcessing,
	from: func(l []*pb.LeaseRecord) time.Time { return lastLease(l).GetLeasedAt().AsTime().Add(stuckShort) },
}, {
	queue: "overrun-and-expired", policy: policyOf(3*stuckShort, 2*stuckShort, 0), beats: "1", killed: true,
	want: pb.Diagnosis_DIAGNOSIS_OVERRUN, remedy: pb.Remedy_REMEDY_RAISE_MAX_RUNTIME, state: stateProcessing,
	from:    func(l []*pb.LeaseRecord) time.Time { return lastLease(l).GetLeasedAt().AsTime().Add(stuckShort) },
	settled: func(s *pb.StuckJob) bool { return time.Now().After(s.GetLeaseUntil().AsTime()) },
}}

const (
	stateProcessing = pb.JobState_JOB_STATE_PROCESSING
	statePending    = pb.JobState_JOB_STATE_PENDING
	stateStuck      = pb.JobState_JOB_STATE_STUCK
)

// TestR21_LeasesThatNeedALook: workers that are killed, that hang, and that never make an
// end, where the watcher has not come by yet.
func TestR21_LeasesThatNeedALook(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 2, "--watcher-interval", "1h")
	for i := range unsweptCases {
		f.begin(t, &unsweptCases[i])
		w := startWorker(t, f.members[i%2], unsweptCases[i].queue, unsweptCases[i].queue, unsweptCases[i].beats)
		w.leased()
		if unsweptCases[i].killed {
			w.awaits("beat")
			w.kill()
		}
	}
	f.wantDiagnoses(t, unsweptCases)
}

// endOfLast is when the newest lease of a job ended.
func endOfLast(l []*pb.LeaseRecord) time.Time { return lastLease(l).GetEndedAt().AsTime() }

// sweptCases are what is listed of jobs whose leases the watcher has ended.
var sweptCases = []stuckCase{{
	queue: "held", policy: policyOf(stuckShort, 0, 0), hold: pb.OnExpiry_ON_EXPIRY_HOLD, beats: "1", killed: true,
	want: pb.Diagnosis_DIAGNOSIS_HELD, remedy: pb.Remedy_REMEDY_DECIDE, state: stateStuck, from: endOfLast,
}, {
	queue: "overran", policy: policyOf(stuckShort, stuckShort, 0), beats: "",
	want: pb.Diagnosis_DIAGNOSIS_OVERRUN, remedy: pb.Remedy_REMEDY_RAISE_MAX_RUNTIME, state: statePending, from: endOfLast,
}}

// crashCases are of jobs three of whose workers are killed, one after the other.
var crashCases = []stuckCase{{
	queue: "crashes", policy: policyOf(time.Second, 0, 0), beats: "1", killed: true,
	want: pb.Diagnosis_DIAGNOSIS_CRASH_LOOP, remedy: pb.Remedy_REMEDY_FIX_THEN_RETRY, state: statePending, from: endOfLast,
}, {
	queue: "crashes-and-held", beats: "1", killed: true,
	policy: &pb.JobPolicy{LeaseDuration: durationpb.New(time.Second), MaxExpirations: to(int32(3))},
	want:   pb.Diagnosis_DIAGNOSIS_HELD, remedy: pb.Remedy_REMEDY_DECIDE, state: stateStuck, from: endOfLast,
}}

// crashedAgain is the first of crashCases, when its fourth worker has the job and is
// killed as well: in this moment its lease is one that never ran out.
var crashedAgain = stuckCase{
	queue: "crashes", policy: policyOf(time.Second, 0, 0), beats: "1", killed: true,
	want: pb.Diagnosis_DIAGNOSIS_CRASH_LOOP, remedy: pb.Remedy_REMEDY_FIX_THEN_RETRY, state: stateProcessing,
	from: func(l []*pb.LeaseRecord) time.Time { return l[len(l)-2].GetEndedAt().AsTime() },
}

// TestR21_JobsThatNeedALook: a queue that holds, a job that never fits into its time, and one
// that kills its workers, each as the watcher left it.
func TestR21_JobsThatNeedALook(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 2, "--watcher-interval", "500ms")
	f.mayBlame(t, stuckSilent)
	var single []*workerProcess
	for i := range sweptCases {
		f.begin(t, &sweptCases[i])
		single = append(single, startWorker(t, f.members[i%2], sweptCases[i].queue, sweptCases[i].queue, sweptCases[i].beats))
	}
	for i := range crashCases {
		f.begin(t, &crashCases[i])
	}
	for range 3 {
		for i := range crashCases {
			f.crash(t, crashCases[i].queue)
		}
	}
	for i, w := range single {
		w.leased()
		if sweptCases[i].killed {
			w.awaits("beat")
			w.kill()
		}
	}
	f.wantDiagnoses(t, append(sweptCases, crashCases...))
	// Whose worker lives, and beats, is still the job that has killed three.
	w := startWorker(t, f.members[0], "crashes", "crashes", "")
	w.leased()
	w.awaits("beat")
	f.wantDiagnoses(t, []stuckCase{crashedAgain})
}

// crash lets a worker lease a job and die.
func (f *fleet) crash(t *testing.T, queue string) {
	t.Helper()
	w := startWorker(t, f.members[1], queue, queue, "1")
	w.leased()
	w.awaits("beat")
	w.kill()
}

// begin makes the queue of a case and its job.
func (f *fleet) begin(t *testing.T, c *stuckCase) {
	t.Helper()
	accepted(t, f.members[0].queues.CreateQueue, &pb.CreateQueueRequest{Queue: &pb.Queue{Name: c.queue, Policy: c.policy, OnExpiry: c.hold}})
	accepted(t, f.members[0].jobs.Enqueue, &pb.EnqueueRequest{Queue: c.queue, Subject: to("payment/" + c.queue)})
}

// wantDiagnoses waits until each case is listed as it should be, and checks what is said of
// it. Where two diagnoses fit, the first in the order of R21 must be said.
func (f *fleet) wantDiagnoses(t *testing.T, cases []stuckCase) {
	t.Helper()
	open := map[string]*stuckCase{}
	for i := range cases {
		open[cases[i].queue] = &cases[i]
	}
	n := 0
	eventually(t, "all diagnoses", func() bool {
		n++ // the replicas say the same
		for _, s := range accepted(t, f.members[n%2].leases.ListStuck, &pb.ListStuckRequest{}).GetJobs() {
			c := open[s.GetQueue()]
			is := c != nil && s.GetDiagnosis() == c.want && s.GetState() == c.state
			switch {
			case c == nil || c.settled != nil && !c.settled(s) || c.settled == nil && !is:
				continue // seen already, or on its way
			case is:
				f.wantFacts(t, c, s)
			default:
				t.Errorf("%s is listed as %s, %s; want %s, %s", c.queue, s.GetDiagnosis(), s.GetState(), c.want, c.state)
			}
			delete(open, c.queue)
		}
		return len(open) == 0
	})
}

// wantFacts checks what is said of a job beside its diagnosis, against its history.
func (f *fleet) wantFacts(t *testing.T, c *stuckCase, s *pb.StuckJob) {
	t.Helper()
	got := accepted(t, f.members[0].jobs.GetJob, &pb.GetJobRequest{By: &pb.GetJobRequest_JobId{JobId: s.GetJobId()}, RecentLeases: to(int32(5))})
	job, leases := got.GetJob(), got.GetLeases()
	last := lastLease(leases)
	says := fmt.Sprint(s.GetRemedy(), s.GetLeaseOwner(), s.GetLeaseNo(), s.GetSubject(), s.GetStage(), s.GetExpirations(), s.GetMaxAttempts())
	want := fmt.Sprint(c.remedy, c.queue, last.GetLeaseNo(), "payment/"+c.queue, last.GetStage(), job.GetExpirations(), 25)
	if says != want || s.GetRemedyText() == "" || (s.GetLastBeatAt() == nil) != (c.beats == "0") {
		t.Errorf("%s: listed as %v, want %s; the job is %v, its last lease %v", c.queue, s, want, job, last)
	}
	if (s.GetLeaseUntil() != nil) != (c.state == stateProcessing) {
		t.Errorf("%s: a job that is %s is listed with a lease until %v", c.queue, c.state, s.GetLeaseUntil())
	}
	if since, from := s.GetSince().AsTime(), c.from(leases); since.Sub(from).Abs() > time.Millisecond {
		t.Errorf("%s: since %s, want %s", c.queue, since, from)
	}
}
