package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/internal/testca"
	"github.com/leasehold/leasehold/server/identity"
)

// secret is planted in everything that nobody may find in a log or an error.
const secret = "planted-hunter2"

// plantingTrigger makes the server repeat a payload in the text of its errors.
const plantingTrigger = `
CREATE FUNCTION leasehold.planted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF convert_from(NEW.payload, 'UTF8') LIKE '%explode%' THEN
        RAISE EXCEPTION 'no: %', convert_from(NEW.payload, 'UTF8') USING DETAIL = convert_from(NEW.payload, 'UTF8');
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER planted BEFORE INSERT ON leasehold.job_data FOR EACH ROW EXECUTE FUNCTION leasehold.planted()`

// securedService is serve over TLS with tokens, and its clients.
type securedService struct {
	*process
	url, address, accessFile, ca, dir string
	lines                             []string
}

// beginSecured starts it with a database whose password is the planted secret.
func beginSecured(t *testing.T, args ...string) *securedService {
	t.Helper()
	database := pgtest.Database(t, nil)
	return beginSecuredAt(t, database, withPassword(t, database), args...)
}

func beginSecuredPlainly(t *testing.T) *securedService {
	t.Helper()
	database := pgtest.Database(t, nil)
	return beginSecuredAt(t, database, database)
}

func beginSecuredAt(t *testing.T, database, used string, args ...string) *securedService {
	t.Helper()
	s := &securedService{url: database, dir: t.TempDir()}
	ca := testca.New(t, "authority")
	s.ca, s.accessFile = ca.File, filepath.Join(s.dir, "access.yaml")
	cert, key := ca.Cert(t, s.dir, testca.Spec{CN: "service"})
	s.token(t, "admin", "operator", "worker")
	urlFile := filepath.Join(s.dir, "url")
	if err := os.WriteFile(urlFile, []byte(used), 0o600); err != nil {
		t.Fatal(err)
	}
	s.process = beginService(t, append([]string{
		"serve", "--database-url-file", urlFile, "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", ca.File,
		"--access-file", s.accessFile, "--log-level", "debug",
	}, args...)...)
	s.address, _ = s.addresses(t)
	return s
}

// withPassword is the URL of a database with an account whose password is the planted secret.
func withPassword(t *testing.T, database string) string {
	t.Helper()
	db, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(context.WithoutCancel(t.Context()))
	if _, err := db.Exec(t.Context(), `CREATE ROLE planted LOGIN SUPERUSER PASSWORD '`+secret+`'`); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("planted", secret)
	return u.String()
}

// token adds a token for all queues to the access file, and returns a file that holds it.
func (s *securedService) token(t *testing.T, name string, roles ...string) (file string) {
	t.Helper()
	token, line, err := identity.NewToken{Name: name, Roles: roles, Queues: []string{"*"}}.Make()
	if err != nil {
		t.Fatal(err)
	}
	s.lines = append(s.lines, line)
	file = filepath.Join(s.dir, name)
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	s.writeAccess(t)
	return file
}

func (s *securedService) writeAccess(t *testing.T) {
	t.Helper()
	text := "tokens:\n" + strings.Join(s.lines, "\n")
	if err := os.WriteFile(s.accessFile, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// dial connects as commands do.
func (s *securedService) dial(t *testing.T, tokenFile string) *grpc.ClientConn {
	t.Helper()
	c := &dialConfig{Address: s.address, TLSCA: s.ca, TokenFile: tokenFile}
	conn, err := c.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// TestNoSecretGetsOut: tokens, lease tokens, payloads, results, checkpoints, headers, errors of
// workers, the database's password and what the database itself says of them are in no line of
// the log at level debug and in no error.
func TestNoSecretGetsOut(t *testing.T) {
	t.Parallel()
	s := beginSecured(t, "--auto-create-queues")
	db, err := pgx.Connect(t.Context(), s.url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(context.WithoutCancel(t.Context()))
	if _, err := db.Exec(t.Context(), plantingTrigger); err != nil {
		t.Fatal(err)
	}
	tokenText, err := os.ReadFile(filepath.Join(s.dir, "admin"))
	if err != nil {
		t.Fatal(err)
	}
	conn := s.dial(t, filepath.Join(s.dir, "admin"))
	said := &refusals{t: t}
	leaseToken := said.work(conn)
	said.strangers(s.dial(t, ""))
	said.trouble(conn, db)
	s.signal(t, syscall.SIGTERM)
	s.mustExit(t, exitDone)

	if said.n < 12 {
		t.Errorf("only %d errors were made", said.n)
	}
	log := s.err.String() + s.out.String()
	for what, planted := range map[string]string{"a planted secret": secret, "the token": string(tokenText), "the lease token": leaseToken} {
		if strings.Contains(log, planted) {
			t.Errorf("the log has %s", what)
		}
		if strings.Contains(said.text.String(), planted) {
			t.Errorf("an error has %s:\n%s", what, said.text.String())
		}
	}
	for _, driver := range []string{"SQLSTATE", "pgconn", "ERROR:", "relation"} {
		if strings.Contains(said.text.String(), driver) {
			t.Errorf("an error has words of the driver: %s\n%s", driver, said.text.String())
		}
	}
	if !strings.Contains(log, "SQLSTATE P0001") || !strings.Contains(log, "level=DEBUG") {
		t.Errorf("the log does not tell what went wrong:\n%s", log)
	}
}

// refusals collects errors with all their details.
type refusals struct {
	t    *testing.T
	n    int
	text strings.Builder
}

func (r *refusals) add(err error) {
	r.t.Helper()
	if err == nil {
		r.t.Error("an error was expected")
		return
	}
	r.n++
	fmt.Fprintf(&r.text, "%v\n%v\n", err, status.Convert(err).Proto())
}

func planted(s string) *pb.Payload {
	return &pb.Payload{Content: &pb.Payload_Json{Json: `{"x":"` + s + secret + `"}`}, ContentType: "application/json"}
}

// work is the life of a job, with what is refused on the way.
func (r *refusals) work(conn *grpc.ClientConn) (leaseToken string) {
	ctx := r.t.Context()
	jobs, leases, queues := pb.NewJobServiceClient(conn), pb.NewLeaseServiceClient(conn), pb.NewQueueServiceClient(conn)
	key := "key"
	enqueue := &pb.EnqueueRequest{Queue: "q", Payload: planted(""), Headers: map[string]string{"h": secret}, IdempotencyKey: &key}
	if _, err := jobs.Enqueue(ctx, enqueue); err != nil {
		r.t.Fatal(err)
	}
	enqueue.Payload = planted("other")
	_, err := jobs.Enqueue(ctx, enqueue)
	r.add(err)
	_, err = jobs.Enqueue(ctx, &pb.EnqueueRequest{Queue: "q", Payload: &pb.Payload{Content: &pb.Payload_Json{Json: "{" + secret}}})
	r.add(err)
	_, err = jobs.Enqueue(ctx, &pb.EnqueueRequest{Queue: "q", Headers: map[string]string{"h": secret + "\x00"}})
	r.add(err)
	got, err := leases.AcquireLease(ctx, &pb.AcquireLeaseRequest{Queues: []string{"q"}, LeaseOwner: "w", LeaseDuration: durationpb.New(3600e9)})
	if err != nil || len(got.GetLeases()) != 1 {
		r.t.Fatal(got, err)
	}
	leaseToken = got.GetLeases()[0].GetLeaseToken()
	if _, err := leases.Heartbeat(ctx, &pb.HeartbeatRequest{LeaseToken: leaseToken, Checkpoint: []byte(secret)}); err != nil {
		r.t.Error(err)
	}
	_, err = leases.Heartbeat(ctx, &pb.HeartbeatRequest{LeaseToken: leaseToken + secret})
	r.add(err)
	_, err = leases.Complete(ctx, &pb.CompleteRequest{LeaseToken: leaseToken, Result: &pb.Payload{Content: &pb.Payload_Json{Json: secret}}})
	r.add(err)
	if _, err := leases.Fail(ctx, &pb.FailRequest{LeaseToken: leaseToken, Error: &pb.JobError{Message: secret, Details: secret}, Permanent: true}); err != nil {
		r.t.Error(err)
	}
	_, err = leases.Complete(ctx, &pb.CompleteRequest{LeaseToken: leaseToken, Result: planted("")})
	r.add(err)
	_, err = queues.ResolveJob(ctx, &pb.ResolveJobRequest{
		JobId: got.GetLeases()[0].GetJob().GetJobId(), Actor: "a", Note: secret, Resolution: &pb.ResolveJobRequest_Completed{Completed: &pb.ResolvedCompleted{Result: planted("")}},
	})
	if err != nil {
		r.t.Error(err)
	}
	return leaseToken
}

// strangers show credentials that are not good.
func (r *refusals) strangers(conn *grpc.ClientConn) {
	get := func(credential string) {
		r.t.Helper()
		ctx := r.t.Context()
		if credential != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", credential)
		}
		_, err := pb.NewQueueServiceClient(conn).GetQueue(ctx, &pb.GetQueueRequest{Name: "q"})
		r.add(err)
	}
	get("")
	get("Bearer lh_" + secret)
	get("Bearer " + secret + "." + secret + "." + secret)
	get("Basic " + secret)
}

// trouble makes the database refuse, and go away in the middle.
func (r *refusals) trouble(conn *grpc.ClientConn, db *pgx.Conn) {
	ctx := r.t.Context()
	jobs := pb.NewJobServiceClient(conn)
	_, err := jobs.Enqueue(ctx, &pb.EnqueueRequest{Queue: "q", Payload: planted("explode")})
	r.add(err)
	resp, err := jobs.BatchEnqueue(ctx, &pb.BatchEnqueueRequest{Items: []*pb.EnqueueRequest{
		{Queue: "q", Payload: planted("explode")}, {Queue: "q", Payload: planted("")},
	}})
	if err != nil {
		r.add(err)
	} else {
		r.add(fmt.Errorf("%v", resp.GetResults()[0].GetError()))
	}
	if _, err := db.Exec(ctx, `ALTER TABLE leasehold.job_results RENAME TO planted`); err != nil {
		r.t.Fatal(err)
	}
	view := &pb.GetJobRequest{By: &pb.GetJobRequest_Key{Key: &pb.JobKey{Queue: "q", IdempotencyKey: "key"}}, View: pb.JobView_JOB_VIEW_FULL}
	_, err = jobs.GetJob(ctx, view)
	r.add(err)
	if _, err := db.Exec(ctx, `ALTER TABLE leasehold.planted RENAME TO job_results`); err != nil {
		r.t.Fatal(err)
	}
}
