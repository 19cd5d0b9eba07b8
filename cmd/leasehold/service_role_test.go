package main

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
)

// TestR46TheServiceRunsWithoutOwnersRights: migrations are run apart, by the owner, and the
// process that serves has the role of the service and nothing else.
func TestR46TheServiceRunsWithoutOwnersRights(t *testing.T) {
	t.Parallel()
	owner := pgtest.Database(t, nil)
	if code, stdout, stderr := runIn(t, nil, "migrate", "--database-url", owner); code != exitDone || strings.Contains(stdout, "missing") {
		t.Fatalf("migrate ends with %d: %s%s", code, stdout, stderr)
	}
	conn := connect(t, owner)
	mustSQL(t, conn, `CREATE ROLE serving LOGIN PASSWORD 'only for tests' IN ROLE leasehold_service`)
	serving, err := url.Parse(owner)
	if err != nil {
		t.Fatal(err)
	}
	serving.User = url.UserPassword("serving", "only for tests")
	p := beginService(t, "serve", "--database-url", serving.String(), "--migrate", "check", "--watcher-interval", "200ms", "--retain-facts", "24h")
	grpcAddress, httpAddress := p.addresses(t)
	h := history{t: t, jobs: pb.NewJobServiceClient(dial(t, grpcAddress)), leases: pb.NewLeaseServiceClient(dial(t, grpcAddress))}
	if _, err := pb.NewQueueServiceClient(dial(t, grpcAddress)).CreateQueue(t.Context(), &pb.CreateQueueRequest{Queue: &pb.Queue{Name: "q"}}); err != nil {
		t.Fatal(err)
	}
	h.enqueue("q", "s")
	mustSQL(t, conn, `SELECT leasehold.enqueue('q', subject => 'by sql')`)
	first := h.acquire("q", "w", time.Minute)
	if _, err := h.leases.Heartbeat(t.Context(), &pb.HeartbeatRequest{LeaseToken: first.GetLeaseToken(), Checkpoint: []byte("here")}); err != nil {
		t.Error(err)
	}
	if _, err := h.leases.Fail(t.Context(), &pb.FailRequest{LeaseToken: first.GetLeaseToken(), Error: &pb.JobError{Code: "x"}, RetryAfter: durationpb.New(0)}); err != nil {
		t.Error(err)
	}
	for range 2 {
		lease := h.acquire("q", "w", time.Second)
		if lease.GetJob().GetSubject() == "s" {
			continue // it is left to the watcher
		}
		if _, err := h.leases.Complete(t.Context(), &pb.CompleteRequest{LeaseToken: lease.GetLeaseToken()}); err != nil {
			t.Error(err)
		}
	}
	again := h.acquire("q", "w", time.Minute)
	if again.GetLeaseNo() != 3 || string(again.GetLastCheckpoint()) != "here" {
		t.Errorf("the watcher's job comes back with lease %d, checkpoint %q", again.GetLeaseNo(), again.GetLastCheckpoint())
	}
	eventually(t, "readiness", func() bool { status, _ := get(t, "http://"+httpAddress+"/readyz"); return status == http.StatusOK })
	if log := p.err.String(); strings.Contains(log, "permission denied") || strings.Contains(log, "42501") {
		t.Errorf("it lacks a right:\n%s", log)
	}
	if n := sqlValue[int](t, conn, `SELECT count(*)::int FROM pg_stat_activity WHERE datname = current_database() AND usename = 'serving'`); n == 0 {
		t.Error("nobody serves as that user: this proves nothing")
	}
	if code, _, stderr := runIn(t, nil, "migrate", "--database-url", serving.String()); code != exitFailed || !strings.Contains(stderr, "42501") {
		t.Errorf("the user of the service migrates: %d, %s", code, stderr)
	}
}
