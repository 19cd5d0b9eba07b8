package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// TestMain lets the test binary be the workers of the demo: they are processes of the program
// that runs the demo.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "worker" {
		if err := run(context.Background(), os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// good are the records of a demo that went as promised.
func good() (*play, []record) {
	p := &play{
		killed: "worker-1", stopped: "worker-2",
		takenOver: map[string]event{}, refused: map[string]event{},
	}
	for _, call := range lateCalls {
		p.refused[call] = event{Call: call, Payment: stoppedPayment, Reason: "LEASE_SUPERSEDED"}
	}
	silent := map[string]string{"killed": p.killed, "stopped": p.stopped}
	var records []record
	for i, s := range scenarios() {
		r := record{scenario: s, ledger: settled{auths: 1, postings: []posting{{Payment: s.ID, Amount: s.Amount}}}}
		own := jobOf(fmt.Sprint(i+1), pb.JobState_JOB_STATE_COMPLETED, append(slices.Repeat([]pb.LeaseEnd{failed}, s.outages), completed)...)
		switch s.kind {
		case "killed", "stopped":
			own = jobOf(fmt.Sprint(i+1), pb.JobState_JOB_STATE_COMPLETED, expired, completed)
			own.leases[0].LeaseOwner = silent[s.kind]
			p.takenOver[s.ID] = event{Stage: "capture", Note: checkpoint{Auth: "A", Done: interfereAt}.String()}
		case "poisonous":
			own = jobOf(fmt.Sprint(i+1), pb.JobState_JOB_STATE_DEAD, forGood)
			r.ledger.auths = 0
		}
		r.jobs = []*jobRecord{own}
		if s.kind == "poisonous" {
			follow := jobOf("100", pb.JobState_JOB_STATE_COMPLETED, completed)
			follow.job.Queue, follow.job.ParentJobId = queueReconciliation, proto.String(own.job.GetJobId())
			r.jobs = append(r.jobs, follow)
		}
		records = append(records, r)
	}
	return p, records
}

func jobOf(id string, state pb.JobState, ends ...pb.LeaseEnd) *jobRecord {
	j := &jobRecord{job: &pb.Job{JobId: id, Queue: queuePayments, State: state, LeaseNo: int64(len(ends))}}
	for i, end := range ends {
		j.leases = append(j.leases, &pb.LeaseRecord{
			LeaseNo: int64(i + 1), LeaseOwner: "worker-3", Stage: proto.String("capture"), End: end,
			LeasedAt: &timestamppb.Timestamp{}, EndedAt: &timestamppb.Timestamp{Seconds: 4},
		})
	}
	return j
}

func judge(p *play, records []record) string {
	f := &faults{}
	for _, r := range records {
		checkLedger(f, r)
		checkLeases(f, r)
		p.checkStory(f, r)
	}
	p.checkLate(f)
	var said []string
	for _, err := range f.list {
		said = append(said, err.Error())
	}
	return strings.Join(said, "\n")
}

// TestVerdictSeesWhatIsNotAsPromised: a proof that nothing can refute proves nothing.
func TestVerdictSeesWhatIsNotAsPromised(t *testing.T) {
	if said := judge(good()); said != "" {
		t.Fatalf("records as promised are refused:\n%s", said)
	}
	for want, spoil := range map[string]func(p *play, r []record){
		"pay-08 is in the ledger 2 times": func(_ *play, r []record) {
			r[7].ledger.postings = append(r[7].ledger.postings, r[7].ledger.postings[0])
		},
		"pay-03 is in the ledger 0 times":                func(_ *play, r []record) { r[2].ledger.postings = nil },
		"pay-08 was settled with 1 instead of 800":       func(_ *play, r []record) { r[7].ledger.postings[0].Amount = 1 },
		"pay-01 was authorised 2 times":                  func(_ *play, r []record) { r[0].ledger.auths = 2 },
		"pay-07 was authorised 1 times":                  func(_ *play, r []record) { r[6].ledger.auths = 1 },
		"job 5: 2 leases on record, the last is":         func(_ *play, r []record) { r[4].jobs[0].leases = r[4].jobs[0].leases[1:] },
		"job 8, lease 1 has no owner":                    func(_ *play, r []record) { r[7].jobs[0].leases[0].LeaseOwner = "" },
		"job 8, lease 1 has no stage":                    func(_ *play, r []record) { r[7].jobs[0].leases[0].Stage = nil },
		"job 8, lease 1 has no end":                      func(_ *play, r []record) { r[7].jobs[0].leases[0].EndedAt = nil },
		"pay-03 had 2 leases, want 1":                    func(_ *play, r []record) { r[2].jobs[0] = jobOf("3", 4, expired, completed) },
		"pay-06: lease 1 ended as expired, want failed":  func(_ *play, r []record) { r[5].jobs[0].leases[0].End = expired },
		"pay-03 held its lease for 2s only":              func(_ *play, r []record) { r[2].jobs[0].leases[0].EndedAt.Seconds = 2 },
		"pay-01 was not taken over by another":           func(_ *play, r []record) { r[0].jobs[0].leases[1].LeaseOwner = "worker-1" },
		"pay-02 was leased to worker-3 first":            func(_ *play, r []record) { r[1].jobs[0].leases[0].LeaseOwner = "worker-3" },
		"pay-01 was not taken over with stage":           func(p *play, _ []record) { p.takenOver[killedPayment] = event{Stage: "capture"} },
		"pay-01 is stuck":                                func(_ *play, r []record) { r[0].jobs[0].job.State = pb.JobState_JOB_STATE_STUCK },
		"pay-07 is completed":                            func(_ *play, r []record) { r[6].jobs[0].job.State = pb.JobState_JOB_STATE_COMPLETED },
		"pay-07 has 1 jobs":                              func(_ *play, r []record) { r[6].jobs = r[6].jobs[:1] },
		"job 100 did not follow from job 7":              func(_ *play, r []record) { r[6].jobs[1].job.ParentJobId = nil },
		"pay-07 was not reconciled: dead":                func(_ *play, r []record) { r[6].jobs[1].job.State = pb.JobState_JOB_STATE_DEAD },
		"the late Complete was not refused":              func(p *play, _ []record) { delete(p.refused, "Complete") },
		"the late posting into the ledger was not":       func(p *play, _ []record) { delete(p.refused, callPosting) },
		`the late Heartbeat was refused with "INTERNAL"`: func(p *play, _ []record) { p.refused["Heartbeat"] = event{Payment: stoppedPayment, Reason: "INTERNAL"} },
		`killed "worker-2", stopped "worker-2"`:          func(p *play, _ []record) { p.killed = p.stopped },
	} {
		t.Run(want, func(t *testing.T) {
			p, records := good()
			spoil(p, records)
			if said := judge(p, records); !strings.Contains(said, want) {
				t.Errorf("it says: %s", said)
			}
		})
	}
}

// TestLedgerTakesEachPaymentOnce, and never from a lease that was superseded.
func TestLedgerTakesEachPaymentOnce(t *testing.T) {
	b, err := openBank()
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	c := newBankClient(b.url)
	defer c.http.CloseIdleConnections()
	for _, step := range []struct {
		posting
		refused string
	}{
		{posting{Payment: "pay-01", JobID: "1", LeaseNo: 2, Amount: 4200}, ""},
		{posting{Payment: "pay-01", JobID: "1", LeaseNo: 1, Amount: 4200}, "lease 2 has written, lease 1 comes too late"},
		{posting{Payment: "pay-01", JobID: "1", LeaseNo: 3, Amount: 4200}, "it is settled already"},
		{posting{Payment: "pay-02", JobID: "2", LeaseNo: 1, Amount: 1999}, ""},
	} {
		_, err := c.post(t.Context(), step.posting)
		if step.refused == "" && err != nil || step.refused != "" && (err == nil || !strings.HasSuffix(err.Error(), step.refused)) {
			t.Errorf("%+v: %v, want %q", step.posting, err, step.refused)
		}
	}
	if n, cents := b.total(); n != 2 || cents != 6199 {
		t.Errorf("%d postings, %d", n, cents)
	}
	// An authorisation is no such thing: that is what checkpoints are for.
	for range 2 {
		if _, err := c.authorize(t.Context(), payment{ID: "pay-01"}); err != nil {
			t.Error(err)
		}
	}
	if got := b.of("pay-01"); got.auths != 2 || len(got.postings) != 1 {
		t.Errorf("%+v", got)
	}
}
