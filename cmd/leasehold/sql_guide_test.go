package main

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/doctest"
	"github.com/leasehold/leasehold/internal/privatepg"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
)

// sqlGuide is the guide with a service of its own: it makes roles, which belong to a server.
type sqlGuide struct {
	*doctest.Document
	owner, shop string // URLs of the database
	queues      pb.QueueServiceClient
	leases      pb.LeaseServiceClient
}

func newSQLGuide(t *testing.T) *sqlGuide {
	t.Helper()
	owner := pgtest.Server(t).URL("postgres")
	grpcAddress, _ := beginService(t, "serve", "--database-url", owner).addresses(t)
	g := &sqlGuide{
		Document: doctest.Read(t, viewGuide), owner: owner,
		queues: pb.NewQueueServiceClient(dial(t, grpcAddress)), leases: pb.NewLeaseServiceClient(dial(t, grpcAddress)),
	}
	for _, queue := range []string{"payments", "receipts"} {
		if _, err := g.queues.CreateQueue(t.Context(), &pb.CreateQueueRequest{Queue: &pb.Queue{Name: queue}}); err != nil {
			t.Fatal(err)
		}
	}
	u, err := url.Parse(owner)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("shop", "change me")
	g.shop = u.String()
	return g
}

// run pastes the examples up to a heading, or all, into psql, and checks what it shows.
func (g *sqlGuide) run(t *testing.T, until string) {
	t.Helper()
	leased := false
	for _, e := range g.Examples("sql") {
		if e.Heading == until {
			return
		}
		if slices.Contains(viewHeadings, e.Heading) {
			continue
		}
		user := g.shop
		if e.Heading == "Roles" {
			user = g.owner
		}
		if e.Heading == "Write under a lease" && !leased {
			leased = true
			g.lease(t)
		}
		shown := psql(t, user, e.Text)
		if refused := e.Answer != nil && strings.Contains(e.Answer.Text, "ERROR:"); strings.Contains(shown, "ERROR:") != refused {
			t.Errorf("%s:%d shows\n%s", g.Path, e.Line, shown)
		}
		if e.Answer == nil {
			continue
		}
		if err := e.Answer.Check(shown); err != nil {
			t.Errorf("%s:%d: %v, in\n%s", g.Path, e.Answer.Line, err, shown)
		}
	}
}

// lease takes the lease of which the guide speaks: the first of the first job.
func (g *sqlGuide) lease(t *testing.T) {
	t.Helper()
	got, err := g.leases.AcquireLease(t.Context(), &pb.AcquireLeaseRequest{Queues: []string{"payments"}, LeaseOwner: "guide", LeaseDuration: durationpb.New(patience * 10)})
	if err != nil || len(got.GetLeases()) != 1 || got.GetLeases()[0].GetJob().GetJobId() != "1" || got.GetLeases()[0].GetLeaseNo() != 1 {
		t.Fatalf("the lease is not the guide's: %v, %v", got, err)
	}
}

// psql runs a script as the program does that is named so, from the folder of the server.
func psql(t *testing.T, databaseURL, script string) string {
	t.Helper()
	binaries, err := privatepg.Find()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(binaries.Dir, "psql"), "-X", "-d", databaseURL)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stdin = strings.NewReader(script)
	shown, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("psql: %v\n%s", err, shown)
	}
	return string(shown)
}

// TestSQLGuideIsTrue runs every example of the guide through psql, as the users that it names.
func TestSQLGuideIsTrue(t *testing.T) {
	t.Parallel()
	g := newSQLGuide(t)
	g.run(t, "")
	conn := connect(t, g.owner)
	states := sqlValue[string](t, conn, `SELECT string_agg(id || ' ' || queue || ' ' || coalesce(subject, '-') || ' ' || state, ', ' ORDER BY id) FROM leasehold.all_jobs`)
	want := "1 payments order/7 COMPLETED, 2 receipts order/7 PENDING, 3 payments order/8 PENDING, 4 payments order/9 PENDING"
	if states != want {
		t.Errorf("afterwards the jobs are %s, want %s", states, want)
	}
	g.compareOptions(t, conn)
	for _, row := range g.Table(t, "Errors") {
		code, reason := doctest.Words(row[0])[0], doctest.Words(row[1])[0]
		_, err := conn.Exec(t.Context(), `SELECT leasehold.refuse($1, 'text')`, reason)
		if got := sqlReason(err); got != code+" "+reason {
			t.Errorf("the guide says %s %s, the functions say %s", code, reason, got)
		}
	}
	for _, row := range g.Table(t, "Roles") {
		if role := doctest.Words(row[0])[0]; !sqlValue[bool](t, conn, `SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1 AND NOT rolcanlogin)`, role) {
			t.Errorf("there is no role %s, or it can log in", role)
		}
	}
}

// compareOptions holds the table of options against the function.
func (g *sqlGuide) compareOptions(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	rows, err := conn.Query(t.Context(), `
SELECT a.name || ' ' || format_type(a.type, NULL) FROM pg_proc p
CROSS JOIN unnest(p.proargnames[1:p.pronargs], p.proargtypes::oid[]) WITH ORDINALITY AS a(name, type, n)
WHERE p.oid = 'leasehold.enqueue'::regproc ORDER BY a.n`)
	if err != nil {
		t.Fatal(err)
	}
	options, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, row := range g.Table(t, "Enqueue") {
		told = append(told, doctest.Words(row[0])[0]+" "+row[1])
	}
	if !slices.Equal(options, told) {
		t.Errorf("the function has\n%s\nthe guide\n%s", strings.Join(options, "\n"), strings.Join(told, "\n"))
	}
}
