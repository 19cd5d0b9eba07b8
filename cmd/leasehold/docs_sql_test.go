package main

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/doctest"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
)

const viewGuide = "docs/sql.md"

// viewHeadings are those of the part about the views. TestSQLGuideIsTrue runs the rest.
var viewHeadings = []string{"The views", "queue_stats", "stuck_jobs", "all_jobs", "all_leases"}

// TestViewGuideIsTrue: the columns are those of the views, and each query finds what it
// speaks of in a database to which that has happened.
func TestViewGuideIsTrue(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t, nil)
	p := beginService(t, "serve", "--database-url", url, "--auto-create-queues")
	grpcAddress, _ := p.addresses(t)
	conn := connect(t, url)
	makeHistory(t, conn, grpcAddress)
	guide := doctest.Read(t, viewGuide)
	for _, view := range []string{"queue_stats", "stuck_jobs", "all_jobs", "all_leases"} {
		compareColumns(t, conn, view, guide.Table(t, view))
	}
	tx, err := conn.Begin(t.Context()) // a role belongs to the whole server: it must not stay
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range guide.Examples("sql") {
		if !slices.Contains(viewHeadings, e.Heading) {
			continue
		}
		tag, err := tx.Exec(t.Context(), e.Text)
		if err != nil {
			t.Fatalf("%s:%d: %v", viewGuide, e.Line, err)
		}
		if tag.Select() && tag.RowsAffected() == 0 {
			t.Errorf("%s:%d finds nothing:\n%s", viewGuide, e.Line, e.Text)
		}
		// The role of the first block must be able to run the others.
		if _, err := tx.Exec(t.Context(), "SET LOCAL ROLE reporting"); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestFenceOfTheContractGuide runs the guide's SQL in an application's own database.
func TestFenceOfTheContractGuide(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t, nil))
	fenced := 0
	for _, e := range doctest.Read(t, contractGuide).Examples("sql") {
		tag, err := conn.Exec(t.Context(), e.Text)
		if err != nil {
			t.Fatalf("%s:%d: %v", contractGuide, e.Line, err)
		}
		if e.Answer == nil {
			continue
		}
		fenced++
		if err := e.Answer.Check(tag.String()); err != nil {
			t.Errorf("%s:%d: %v in %q", contractGuide, e.Line, err, tag)
		}
	}
	if fenced != 2 {
		t.Errorf("%d writes have an answer, want that of the second lease and that of the first", fenced)
	}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// compareColumns holds a table of names and types against a view, both ways.
func compareColumns(t *testing.T, conn *pgx.Conn, view string, rows [][]string) {
	t.Helper()
	type column struct{ Name, Type string }
	found, err := conn.Query(t.Context(), `
SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod) AS type
FROM pg_attribute a WHERE a.attrelid = ('leasehold.' || $1)::regclass AND a.attnum > 0 ORDER BY a.attnum`, view)
	if err != nil {
		t.Fatal(err)
	}
	columns, err := pgx.CollectRows(found, pgx.RowToStructByName[column])
	if err != nil {
		t.Fatal(err)
	}
	for i := range max(len(columns), len(rows)) {
		switch {
		case i >= len(rows):
			t.Errorf("%s: the column %s is not in the guide", view, columns[i].Name)
		case i >= len(columns):
			t.Errorf("%s: there is no column %s", view, rows[i][0])
		case rows[i][0] != "`"+columns[i].Name+"`" || rows[i][1] != columns[i].Type || rows[i][2] == "":
			t.Errorf("%s: column %d is %v, the guide says %q", view, i+1, columns[i], rows[i])
		}
	}
}

// makeHistory lets happen what the guide asks about: a takeover and a late call, a job that
// was given up, one that an operator has to look at, and a worker that has gone silent.
func makeHistory(t *testing.T, conn *pgx.Conn, grpcAddress string) {
	t.Helper()
	h := history{t: t, jobs: pb.NewJobServiceClient(dial(t, grpcAddress)), leases: pb.NewLeaseServiceClient(dial(t, grpcAddress))}
	_, err := pb.NewQueueServiceClient(dial(t, grpcAddress)).CreateQueue(t.Context(), &pb.CreateQueueRequest{
		Queue: &pb.Queue{Name: "transfers", OnExpiry: pb.OnExpiry_ON_EXPIRY_HOLD},
	})
	if err != nil {
		t.Fatal(err)
	}
	h.enqueue("payments", "payment/1")
	slow := h.acquire("payments", "payments/1", time.Second)
	h.enqueue("transfers", "transfer/1")
	h.acquire("transfers", "transfers/1", time.Second)

	second := h.acquire("payments", "payments/2", time.Minute)
	if second.GetLeaseNo() != slow.GetLeaseNo()+1 {
		t.Fatalf("leases %d and %d", slow.GetLeaseNo(), second.GetLeaseNo())
	}
	if _, err := h.leases.Heartbeat(t.Context(), &pb.HeartbeatRequest{LeaseToken: slow.GetLeaseToken()}); err == nil {
		t.Fatal("the first lease is still renewed")
	}
	_, err = h.leases.Complete(t.Context(), &pb.CompleteRequest{LeaseToken: second.GetLeaseToken()})
	if err != nil {
		t.Fatal(err)
	}
	h.enqueue("payments", "payment/2")
	_, err = h.leases.Fail(t.Context(), &pb.FailRequest{
		LeaseToken: h.acquire("payments", "payments/2", time.Minute).GetLeaseToken(), Permanent: true,
		Error: &pb.JobError{Code: "card_declined"},
	})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "a job that is held", func() bool {
		// An acquire that finds nothing lets the expired lease be seen.
		_, err := h.leases.AcquireLease(t.Context(), &pb.AcquireLeaseRequest{Queues: []string{"transfers"}, LeaseOwner: "transfers/2"})
		stuck, listErr := h.leases.ListStuck(t.Context(), &pb.ListStuckRequest{Diagnoses: []pb.Diagnosis{pb.Diagnosis_DIAGNOSIS_HELD}})
		return err == nil && listErr == nil && len(stuck.GetJobs()) == 1
	})
	h.enqueue("exports", "export/1")
	h.acquire("exports", "exports/1", time.Hour)
	h.enqueue("exports", "export/2")
	// Nobody waits for a worker to be silent for three quarters of an hour.
	_, err = conn.Exec(t.Context(), `UPDATE leasehold.jobs SET leased_at = leased_at - interval '45 minutes' WHERE subject = 'export/1'`)
	if err != nil {
		t.Fatal(err)
	}
}

// history makes calls that must go well.
type history struct {
	t      *testing.T
	jobs   pb.JobServiceClient
	leases pb.LeaseServiceClient
}

func (h history) enqueue(queue, subject string) {
	h.t.Helper()
	_, err := h.jobs.Enqueue(h.t.Context(), &pb.EnqueueRequest{
		Queue: queue, Subject: proto.String(subject),
		Payload: &pb.Payload{Content: &pb.Payload_Json{Json: `{"amount":4200}`}},
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h history) acquire(queue, owner string, length time.Duration) *pb.Lease {
	h.t.Helper()
	resp, err := h.leases.AcquireLease(h.t.Context(), &pb.AcquireLeaseRequest{
		Queues: []string{queue}, LeaseOwner: owner, LeaseDuration: durationpb.New(length), Wait: durationpb.New(patience),
	})
	if err != nil || len(resp.GetLeases()) != 1 {
		h.t.Fatalf("acquire from %s: %v, %v", queue, resp, err)
	}
	return resp.GetLeases()[0]
}
