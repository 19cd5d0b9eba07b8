package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

const (
	failing  = 5000 // payments that the provider could not take
	crashing = 40   // payments that a worker version died of
)

// TestIncident is a night of an operator: the provider is down and thousands of payments back
// off, a worker version crashes and its payments are held; and the operator's own terminal
// dies in the middle of the repair.
func TestIncident(t *testing.T) {
	t.Parallel()
	o := operateOne(t)
	o.run(0, "queues", "create", "payments", "--on-expiry", "hold", "--backoff-initial", "12h", "--backoff-cap", "1d")
	o.enqueue("payments", crashing+failing)
	crashed := o.acquire("payments", "payments-v42/1", crashing, time.Second)
	o.failAll(o.acquire("payments", "payments-v41/1", failing, 10*time.Minute))
	for _, lease := range crashed {
		o.awaitState(lease.GetJob().GetJobId(), pb.JobState_JOB_STATE_STUCK)
	}

	// What is wrong?
	var stuck pb.ListStuckResponse
	o.runJSON(&stuck, exitFound, "stuck", "--queue", "payments", "--limit", "0", "--check")
	if len(stuck.GetJobs()) != crashing {
		t.Fatalf("stuck finds %d jobs, want %d", len(stuck.GetJobs()), crashing)
	}
	for _, j := range stuck.GetJobs() {
		if j.GetDiagnosis() != pb.Diagnosis_DIAGNOSIS_HELD || j.GetLeaseOwner() != "payments-v42/1" {
			t.Fatalf("stuck: %v", j)
		}
	}

	// Stop the harm; then three that the bank's books know of.
	o.run(0, "queues", "pause", "payments", "--actor", "ann", "--note", "provider down, v42 crashes")
	resolved := make([]string, 3)
	for i := range resolved {
		resolved[i] = stuck.GetJobs()[i].GetJobId()
	}
	o.run(exitUsage, append([]string{"jobs", "resolve", "--completed", "--note", "settled, see the ledger"}, resolved...)...)
	o.run(0, append([]string{"jobs", "resolve", "--completed", "--yes", "--actor", "ann", "--note", "settled, see the ledger", "--result", `{"by":"hand"}`}, resolved...)...)

	const left = failing + crashing - 3
	if n := o.dryRun(exitFound); n != left {
		t.Fatalf("the dry run counts %d jobs, want %d", n, left)
	}
	if n := o.acts("retry"); n != 0 {
		t.Fatalf("a dry run recorded %d acts", n)
	}
	o.retryTwice(left)
	if n := o.dryRun(exitDone); n != 0 {
		t.Errorf("%d jobs are left", n)
	}
	o.checkRecord(resolved, crashed[10].GetJob().GetJobId(), left)

	// The provider is back.
	o.run(0, "queues", "resume", "payments")
	for _, lease := range o.acquire("payments", "payments-v41/2", left, time.Hour)[:3] {
		o.must(o.complete(lease))
	}
}

var retryArgs = []string{"jobs", "retry", "--queue", "payments", "--state", "stuck,pending,dead", "--actor", "ann", "--note", "provider is back"}

// retryTwice retries all in small batches; the first client is killed in the middle.
func (o *operated) retryTwice(left int) {
	o.Helper()
	client := begin(o.T, []string{"LEASEHOLD_ADDRESS=" + o.address}, append(retryArgs, "--yes", "--batch", "20")...)
	eventually(o.T, "some batches", func() bool { return o.acts("retry") >= 100 })
	if err := client.cmd.Process.Kill(); err != nil {
		o.Fatal(err)
	}
	client.mustExit(o.T, -1)
	rest := o.dryRun(exitFound)
	if rest < 1 || rest > left-100 {
		o.Fatalf("after the client was killed %d of %d are left", rest, left)
	}
	var done struct{ Jobs int }
	// A batch of the killed client may still have been under way.
	o.must(json.Unmarshal([]byte(o.run(0, append(retryArgs, "--yes")...)), &done))
	if done.Jobs > rest || done.Jobs < rest-20 {
		o.Errorf("the second client retried %d jobs, %d were left", done.Jobs, rest)
	}
}

func (o *operated) dryRun(code int) int {
	o.Helper()
	var seen struct{ Jobs int }
	o.must(json.Unmarshal([]byte(o.run(code, append(retryArgs, "--dry-run")...)), &seen))
	return seen.Jobs
}

// failAll fails leases as a provider that is away makes them fail.
func (o *operated) failAll(leases []*pb.Lease) {
	o.Helper()
	for len(leases) > 0 {
		n := min(len(leases), 1000)
		var items []*pb.FailRequest
		for _, lease := range leases[:n] {
			items = append(items, &pb.FailRequest{LeaseToken: lease.GetLeaseToken(), Error: &pb.JobError{Code: "provider_down"}})
		}
		resp, err := o.leases.BatchFail(o.Context(), &pb.BatchFailRequest{Items: items})
		o.must(err)
		for _, r := range resp.GetResults() {
			if r.GetError() != nil {
				o.Fatal(r.GetError())
			}
		}
		leases = leases[n:]
	}
}

// acts counts the acts of a kind, whoever did them.
func (o *operated) acts(kind string) int {
	o.Helper()
	if o.sql == nil {
		o.sql = connect(o.T, o.url)
	}
	rows, err := o.sql.Query(o.Context(), `SELECT count(*)::int FROM leasehold.operator_acts WHERE act = $1`, kind)
	o.must(err)
	n, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[int])
	o.must(err)
	return n
}

// checkRecord: who did what, and each job once, though the retry was begun twice.
func (o *operated) checkRecord(resolved []string, retried string, left int) {
	o.Helper()
	if n := o.acts("retry"); n != left {
		o.Errorf("%d retries are on record, want one for each of %d jobs", n, left)
	}
	want := map[string]string{retried: "retry ann provider is back"}
	for _, id := range resolved {
		want[id] = "resolve_completed ann settled, see the ledger"
	}
	for id, act := range want {
		resp, err := o.jobs.GetJob(o.Context(), &pb.GetJobRequest{By: &pb.GetJobRequest_JobId{JobId: id}, RecentLeases: proto.Int32(5)})
		o.must(err)
		acts := resp.GetOperatorActs()
		if len(acts) != 1 || fmt.Sprint(acts[0].GetAct(), " ", acts[0].GetActor(), " ", acts[0].GetNote()) != act {
			o.Errorf("job %s has the record %v, want %q", id, acts, act)
		}
		if n, _ := strconv.Atoi(id); n == 0 || len(resp.GetLeases()) != 1 || resp.GetLeases()[0].GetEnd() != pb.LeaseEnd_LEASE_END_EXPIRED {
			o.Errorf("job %s: the lease that crashed is not on record: %v", id, resp.GetLeases())
		}
	}
	q, err := o.queues.GetQueue(o.Context(), &pb.GetQueueRequest{Name: "payments"})
	o.must(err)
	if q.GetQueue().GetPausedBy() != "ann" || q.GetQueue().GetPauseNote() != "provider down, v42 crashes" {
		o.Errorf("the pause is not on record: %v", q)
	}
}
