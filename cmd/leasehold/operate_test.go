package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
)

// operated is a running service, with what an operator and a worker do to it.
type operated struct {
	*testing.T
	url, address string
	jobs         pb.JobServiceClient
	leases       pb.LeaseServiceClient
	queues       pb.QueueServiceClient
	sql          *pgx.Conn // made when it is needed
}

// operateOne starts a service whose watcher passes all the time.
func operateOne(t *testing.T, args ...string) *operated {
	t.Helper()
	return operateOn(t, pgtest.Database(t, nil), append([]string{"--watcher-interval", "100ms"}, args...)...)
}

func operateOn(t *testing.T, url string, args ...string) *operated {
	t.Helper()
	p := beginService(t, append([]string{"serve", "--database-url", url}, args...)...)
	address, _ := p.addresses(t)
	conn := dial(t, address)
	return &operated{
		T: t, url: url, address: address,
		jobs: pb.NewJobServiceClient(conn), leases: pb.NewLeaseServiceClient(conn), queues: pb.NewQueueServiceClient(conn),
	}
}

func (o *operated) env() map[string]string { return map[string]string{"LEASEHOLD_ADDRESS": o.address} }

// run runs a command of an operator that must end with a code.
func (o *operated) run(code int, args ...string) string {
	o.Helper()
	got, stdout, stderr := runIn(o.T, o.env(), args...)
	if got != code {
		o.Fatalf("leasehold %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), got, code, stdout, stderr)
	}
	return stdout
}

// runJSON reads the answer of a command into a message of the API.
func (o *operated) runJSON(into proto.Message, code int, args ...string) {
	o.Helper()
	if err := protojson.Unmarshal([]byte(o.run(code, args...)), into); err != nil {
		o.Fatalf("leasehold %s: %v", strings.Join(args, " "), err)
	}
}

// enqueue stores n jobs, with subjects by their number.
func (o *operated) enqueue(queue string, n int) (ids []string) {
	o.Helper()
	for done := 0; done < n; done += 1000 {
		var items []*pb.EnqueueRequest
		for i := done; i < min(n, done+1000); i++ {
			items = append(items, &pb.EnqueueRequest{
				Queue: queue, Subject: proto.String(fmt.Sprintf("payment/%d", i)), Payload: &pb.Payload{Content: &pb.Payload_Json{Json: "{}"}},
			})
		}
		resp, err := o.jobs.BatchEnqueue(o.Context(), &pb.BatchEnqueueRequest{Items: items})
		if err != nil {
			o.Fatal(err)
		}
		for _, r := range resp.GetResults() {
			if r.GetError() != nil {
				o.Fatal(r.GetError())
			}
			ids = append(ids, r.GetOk().GetJobId())
		}
	}
	return ids
}

// acquire takes n leases of a length.
func (o *operated) acquire(queue, owner string, n int, length time.Duration) (leases []*pb.Lease) {
	o.Helper()
	eventually(o.T, fmt.Sprintf("%d leases of %s", n, queue), func() bool {
		resp, err := o.leases.AcquireLease(o.Context(), &pb.AcquireLeaseRequest{
			Queues: []string{queue}, LeaseOwner: owner, MaxJobs: proto.Int32(int32(min(n-len(leases), 1000))), LeaseDuration: durationpb.New(length),
		})
		if err != nil {
			o.Fatal(err)
		}
		leases = append(leases, resp.GetLeases()...)
		return len(leases) == n
	})
	return leases
}

func (o *operated) complete(lease *pb.Lease) error {
	_, err := o.leases.Complete(o.Context(), &pb.CompleteRequest{LeaseToken: lease.GetLeaseToken()})
	return err
}

func (o *operated) must(err error) {
	o.Helper()
	if err != nil {
		o.Fatal(err)
	}
}

// awaitState waits until a job is in a state.
func (o *operated) awaitState(id string, want pb.JobState) {
	o.Helper()
	eventually(o.T, fmt.Sprintf("job %s is %s", id, want), func() bool {
		resp, err := o.jobs.GetJob(o.Context(), &pb.GetJobRequest{By: &pb.GetJobRequest_JobId{JobId: id}})
		o.must(err)
		return resp.GetJob().GetState() == want
	})
}

func TestExplainSaysWhyAJobDoesNotRun(t *testing.T) {
	t.Parallel()
	o := operateOne(t)
	o.run(0, "queues", "create", "payments", "--on-expiry", "hold")
	ids := o.enqueue("payments", 3)
	why := func(id string) *pb.JobExplanation {
		t.Helper()
		var resp pb.GetJobResponse
		o.runJSON(&resp, 0, "jobs", "get", id, "--why")
		e := resp.GetExplanation()
		if len(e.GetReasons()) == 0 || len(e.GetReasons()) != len(e.GetTexts()) || e.GetAsOf() == nil {
			t.Fatalf("job %s: %v", id, e)
		}
		return e
	}
	want := func(e *pb.JobExplanation, reasons ...pb.WaitReason) {
		t.Helper()
		if !slices.Equal(e.GetReasons(), reasons) {
			t.Errorf("got %v, want %v", e, reasons)
		}
	}
	e := why(ids[2])
	want(e, pb.WaitReason_WAIT_REASON_NO_WORKER, pb.WaitReason_WAIT_REASON_JOBS_AHEAD)
	if e.GetJobsAhead() != 2 || e.GetLastLeaseAt() != nil {
		t.Errorf("two jobs come first and nobody ever took one: %v", e)
	}
	o.run(0, "queues", "pause", "payments", "--actor", "ann", "--note", "provider down")
	e = why(ids[0])
	want(e, pb.WaitReason_WAIT_REASON_QUEUE_PAUSED)
	if e.GetPausedBy() != "ann" || !strings.Contains(e.GetTexts()[0], "ann") || !strings.Contains(e.GetTexts()[0], "provider down") {
		t.Errorf("who paused it, and why: %v", e)
	}
	o.run(0, "queues", "resume", "payments")
	lease := o.acquire("payments", "payments-7f9c/1", 1, time.Hour)[0]
	e = why(lease.GetJob().GetJobId())
	want(e, pb.WaitReason_WAIT_REASON_LEASED)
	if !strings.Contains(e.GetTexts()[0], "payments-7f9c/1") || e.GetLeaseRemaining().AsDuration() < 50*time.Minute {
		t.Errorf("by whom, until when: %v", e)
	}
	want(why(ids[1]), pb.WaitReason_WAIT_REASON_NEXT) // a worker took one a moment ago
	o.must(o.complete(lease))
	want(why(lease.GetJob().GetJobId()), pb.WaitReason_WAIT_REASON_FINISHED)

	held := o.acquire("payments", "payments-7f9c/1", 1, time.Second)[0].GetJob().GetJobId()
	o.awaitState(held, pb.JobState_JOB_STATE_STUCK)
	want(why(held), pb.WaitReason_WAIT_REASON_HELD)

	later := strings.TrimSpace(o.run(0, "enqueue", "payments", "--delay", "2d", "-o", "table"))
	e = why(later)
	want(e, pb.WaitReason_WAIT_REASON_NOT_DUE)
	if in := e.GetDueIn().AsDuration(); in < 47*time.Hour || in > 48*time.Hour {
		t.Errorf("due in %v, want two days", in)
	}
}

// TestExplainKnowsWhoWaits: a worker that polls and gets nothing is no missing worker.
func TestExplainKnowsWhoWaits(t *testing.T) {
	t.Parallel()
	o := operateOne(t, "--auto-create-queues")
	ids := o.enqueue("payments", 1)
	o.run(0, "queues", "pause", "payments")
	go func() {
		_, _ = o.leases.AcquireLease(t.Context(), &pb.AcquireLeaseRequest{ // it ends with the test
			Queues: []string{"payments"}, LeaseOwner: "w/1", Wait: durationpb.New(time.Minute),
		})
	}()
	eventually(t, "a waiting worker", func() bool {
		var resp pb.GetJobResponse
		o.runJSON(&resp, 0, "jobs", "get", ids[0], "--why")
		return resp.GetExplanation().GetWaitingWorkers() == 1
	})
}

func TestStoryOfOneJob(t *testing.T) {
	t.Parallel()
	o := operateOne(t, "--auto-create-queues")
	id := o.enqueue("payments", 1)[0]
	first := o.acquire("payments", "old-version/1", 1, 5*time.Second)[0]
	for _, stage := range []string{"validate", "psp_call"} {
		_, err := o.leases.Heartbeat(t.Context(), &pb.HeartbeatRequest{LeaseToken: first.GetLeaseToken(), Stage: proto.String(stage)})
		o.must(err)
	}
	o.awaitState(id, pb.JobState_JOB_STATE_PENDING)
	second := o.acquire("payments", "new-version/2\x1b[2J", 1, time.Hour)[0]
	if o.complete(first) == nil {
		t.Fatal("the first lease was completed")
	}
	_, err := o.leases.Fail(t.Context(), &pb.FailRequest{
		LeaseToken: second.GetLeaseToken(), Permanent: true, Error: &pb.JobError{Code: "card_declined", Message: "no\r\nfunds"},
	})
	o.must(err)
	o.run(0, "jobs", "retry", id, "--actor", "ann", "--note", "new card")
	story := o.run(0, "jobs", "get", id, "-o", "table")
	for _, line := range []string{
		"#1", "EXPIRED", "by old-version/1", "2 beats", "+", "validate", "psp_call  ← stopped here", "double run: its holder made 1 call", "the last Complete",
		"#2", "FAILED_PERMANENTLY", `by new-version/2\x1b[2J`, "card_declined", `no\r\nfunds`,
		"acts", "retry", "ann", "new card",
	} {
		_, rest, is := strings.Cut(story, line)
		if !is {
			t.Fatalf("%q does not follow in:\n%s", line, o.run(0, "jobs", "get", id, "-o", "table"))
		}
		story = rest
	}
	if strings.ContainsAny(o.run(0, "jobs", "list", "-o", "table"), "\x1b\r") {
		t.Error("what a worker wrote reaches the terminal as it is")
	}
}

func TestOutputsOfTheOperatorsCommands(t *testing.T) {
	t.Parallel()
	o := operateOne(t, "--auto-create-queues")
	o.enqueue("payments", 60)
	var list pb.ListJobsResponse
	o.runJSON(&list, 0, "jobs", "list")
	if len(list.GetJobs()) != 50 {
		t.Errorf("%d jobs, want the default of 50", len(list.GetJobs()))
	}
	o.runJSON(&list, 0, "jobs", "list", "--limit", "0", "--state", "pending", "--created-from", "1h")
	if len(list.GetJobs()) != 60 {
		t.Errorf("%d jobs, want all 60", len(list.GetJobs()))
	}
	if text := o.run(0, "jobs", "list", "-o", "yaml", "--limit", "1"); !strings.HasPrefix(text, "jobs:\n  - jobId: \"") {
		t.Errorf("no YAML:\n%s", text)
	}
	if text := o.run(0, "jobs", "list", "-o", "table", "--subject", "payment/7"); strings.Count(text, "\n") != 2 || !strings.Contains(text, "payment/7") {
		t.Errorf("no table of one job:\n%s", text)
	}
	var top struct {
		Queues struct{ Stats []struct{ Ready string } }
	}
	o.must(json.Unmarshal([]byte(o.run(0, "top")), &top))
	if len(top.Queues.Stats) != 1 || top.Queues.Stats[0].Ready != "60" {
		t.Errorf("top: %+v", top)
	}
	if text := o.run(0, "top", "-o", "table"); !strings.Contains(text, "payments  60") {
		t.Errorf("top:\n%s", text)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if text := o.run(0, "completion", shell); !strings.Contains(text, "leasehold") {
			t.Errorf("completion %s: %q", shell, text)
		}
	}
	if text := o.run(0, "__complete", "queues", "get", "pay"); !strings.HasPrefix(text, "payments\n") {
		t.Errorf("names of queues are not completed: %q", text)
	}
}

func TestQueueCommands(t *testing.T) {
	t.Parallel()
	o := operateOne(t)
	get := func() *pb.Queue {
		var resp pb.GetQueueResponse
		o.runJSON(&resp, 0, "queues", "get", "exports")
		return resp.GetQueue()
	}
	o.run(0, "queues", "create", "exports", "--lease-duration", "2m", "--max-attempts", "7", "--backoff-cap", "1d", "--on-expiry", "requeue")
	o.run(1, "queues", "create", "exports")
	o.run(0, "queues", "set", "exports", "--on-expiry", "hold", "--unset", "max-attempts")
	q := get()
	if q.GetOnExpiry() != pb.OnExpiry_ON_EXPIRY_HOLD || q.GetPolicy().MaxAttempts != nil || q.GetPolicy().GetLeaseDuration().GetSeconds() != 120 ||
		q.GetPolicy().GetBackoff().GetCap().GetSeconds() != 86400 {
		t.Errorf("after set: %v", q)
	}
	for _, args := range [][]string{
		{"queues", "set", "exports"}, {"queues", "set", "exports", "--unset", "colour"}, {"queues", "set", "exports", "--on-expiry", "maybe"},
		{"queues", "set", "exports", "--lease-duration", "13h"}, {"queues", "create", "Exports"}, {"queues", "delete", "exports"}, {"queues", "frobnicate"},
		{"queues"}, {"jobs", "retry"}, {"jobs", "retry", "1", "--queue", "exports"}, {"jobs", "resolve", "1", "--dead"}, {"jobs", "list", "--state", "odd"},
		{"jobs", "list", "-o", "xml"}, {"jobs", "list", "--timeout", "1ns"}, {"lint", "--severity", "odd"}, {"lint", "--size-budget", "many"}, {"jobs", "get"},
		{"jobs", "cancel", "1"}, {"enqueue", "exports", "--header", "odd"}, {"completion", "tcsh"},
	} {
		o.run(exitUsage, args...)
	}
	o.enqueue("exports", 1)
	o.run(1, "queues", "delete", "exports", "--yes")
	o.run(exitUsage, "jobs", "cancel", "--queue", "exports") // nobody can be asked
	o.run(exitFound, "jobs", "cancel", "--queue", "exports", "--dry-run")
	o.run(0, "jobs", "cancel", "--queue", "exports", "--yes", "--note", "not needed")
	o.run(0, "jobs", "cancel", "--queue", "exports", "--dry-run")
	o.run(0, "queues", "delete", "exports", "--yes")
	o.run(1, "queues", "get", "exports")
}

func unmarshalJSON(text string, into proto.Message) error {
	return protojson.Unmarshal([]byte(text), into)
}
